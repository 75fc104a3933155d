// The color and icon of an agent: its own, or defaults computed from its name.

export const COLORS = [
  "red", "orange", "amber", "lime", "green", "teal", "cyan", "blue", "indigo", "violet", "pink", "slate",
] as const; // prettier-ignore
export type Color = (typeof COLORS)[number];

export interface Appearance {
  name: string;
  color?: string | null | undefined;
  icon?: string | null | undefined;
}

/** The display name with the name in parentheses, or the name alone. */
export function formatAgentName(agent: { name: string; display_name?: string }): string {
  return agent.display_name ? `${agent.display_name} (${agent.name})` : agent.name;
}

export function getAgentColor(agent: Appearance): Color {
  const own = COLORS.find((each) => each === agent.color);
  if (own) return own;
  let sum = 0;
  for (const letter of agent.name) sum = (sum * 31 + (letter.codePointAt(0) ?? 0)) >>> 0;
  return COLORS[sum % COLORS.length] ?? "slate";
}

export function getAgentIcon(agent: Appearance): string {
  return agent.icon || [...agent.name.replace(/[^\p{L}\p{N}]/gu, "")].slice(0, 2).join("") || "?";
}
