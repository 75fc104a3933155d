// What the screens are called: all of them, before any is loaded. The rest of their words comes with them.

export const titles = {
  chat: "Chat",
  agents: "Agents",
  approvals: "Approvals",
  live: "Live",
  runs: "Runs",
  schedules: "Schedules",
  money: "Money",
  doors: "Doors",
  house: "House",
};
