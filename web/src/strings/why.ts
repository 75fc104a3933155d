export const whyWords = {
  title: "Why",
  ask: "Why?",
  of: (what: string): string => `Why? ${what}`,
  key: "Why something became what it is",
  id: "Of what",
  hint: "The id of an envelope, a run, a conversation or an approval: its first 8 digits are enough.",
  go: "Tell me",
  back: "Back",
  nothing: "Give an id, and read how it came about, from what was written down as it happened.",
  told: "What happened",
};
