// Text that a person decides about: invisible characters and those that reorder others are shown as escape sequences.
// The server does the same in the questions that it sends as text.

const INVISIBLE = /[^\P{C}\n\t]|[^\P{Z} ]|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\ufe00-\ufe0e\u{e0100}-\u{e01ef}]/gu;

/** Newlines and tabs stay as they are: the elements that show the text preserve them. */
export function escapeInvisible(text: string): string {
  return text.replace(INVISIBLE, (char) => {
    const code = char.codePointAt(0) ?? 0;
    return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
  });
}
