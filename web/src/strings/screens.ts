// Titles of all screens, needed before any screen is loaded. The other strings of a screen are loaded with it.

export const titles = {
  chat: "Chat",
  agents: "Agents",
  approvals: "Approvals",
  activity: "Activity",
  runs: "Runs",
  schedules: "Schedules",
  usage: "Usage",
  channels: "Channels",
  settings: "Settings",
};
