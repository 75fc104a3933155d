// Words that a person decides about: every character that could not be seen, or that turns others around, as its number.
// The house does the same where it asks in words.

const UNSEEN = /[^\P{C}\n\t]|[^\P{Z} ]|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\ufe00-\ufe0e\u{e0100}-\u{e01ef}]/gu;

/** Lines and tabs stay as they are: what shows this keeps them. */
export function seen(text: string): string {
  return text.replace(UNSEEN, (char) => {
    const code = char.codePointAt(0) ?? 0;
    return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
  });
}
