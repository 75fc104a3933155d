export const explanationStrings = {
  title: "Explain",
  explain: "Explain",
  explainSubject: (subject: string): string => `Explain: ${subject}`,
  shortcut: "Explain a message, run, conversation or approval",
  id: "ID",
  idHint: "ID of a message, run, conversation or approval. The first 8 digits are enough.",
  back: "Back",
  empty: "Enter an ID to see what happened, step by step.",
  events: "Events",
};
