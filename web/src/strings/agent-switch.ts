/** Switch to another agent, and back. */
export const agentSwitchStrings = {
  title: "Switch to another agent",
  agent: "Agent",
  message: "Message",
  messageHint: "The agent has not read this conversation, so explain the topic. The text is sent as your message. Default: no message.",
  switchTo: (agent: string): string => `Switch to ${agent}`,
  switch: "Switch",
  returnTitle: (agent: string): string => `Return to ${agent}`,
  summary: "Summary",
  summaryHint: (agent: string): string => `The summary is sent as your message. Default: the last reply of ${agent}.`,
  return: "Return",
  noOtherAgents: "There are no other agents. Create one on the Agents screen.",
};
