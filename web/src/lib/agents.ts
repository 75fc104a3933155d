// How an agent looks: its own colour and icon, or those that its name gives it.

export const COLOURS = [
  "red", "orange", "amber", "lime", "green", "teal", "cyan", "blue", "indigo", "violet", "pink", "slate",
] as const; // prettier-ignore
export type Colour = (typeof COLOURS)[number];

export interface Looks {
  name: string;
  colour?: string | null | undefined;
  icon?: string | null | undefined;
}

/** What people call it; the name alone, where it has no other. */
export function calledOf(agent: { name: string; display_name?: string }): string {
  return agent.display_name ? `${agent.display_name} (${agent.name})` : agent.name;
}

export function colourOf(agent: Looks): Colour {
  const own = COLOURS.find((each) => each === agent.colour);
  if (own) return own;
  let sum = 0;
  for (const letter of agent.name) sum = (sum * 31 + (letter.codePointAt(0) ?? 0)) >>> 0;
  return COLOURS[sum % COLOURS.length] ?? "slate";
}

export function iconOf(agent: Looks): string {
  return agent.icon || [...agent.name.replace(/[^\p{L}\p{N}]/gu, "")].slice(0, 2).join("") || "?";
}
