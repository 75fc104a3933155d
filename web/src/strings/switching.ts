/** Going on with another agent, and coming back. */
export const switching = {
  title: "Go on with another agent",
  whom: "With whom",
  words: "What to take along",
  hint: "They have not read this conversation. What stands here is sent to them as yours; leave it empty to go there without a word.",
  go: (agent: string): string => `Go on with ${agent}`,
  goNobody: "Go on",
  backTitle: (agent: string): string => `Back to ${agent}`,
  backWords: "What came of it, in short",
  backHint: (agent: string): string => `It is sent as yours. Leave it empty, and what ${agent} said last goes along, as ${agent}'s words.`,
  back: "Go back",
  nobody: "Nobody else works here.",
};
