// Data series of the charts: one value per day, and a distinct color.

import { COLORS, getAgentColor, type Color } from "../../lib/agentAppearance";
import type { Result } from "../../lib/api";
import { server } from "../../lib/server.svelte";
import { usage } from "../../strings/usage";

type Days = Result<"usage.days">;

export interface Series {
  name: string;
  color: Color;
  values: number[];
  total: number;
}

// Neighbors differ clearly in hue.
const PALETTE: Color[] = ["indigo", "teal", "orange", "pink", "green", "amber", "cyan", "violet", "red", "lime", "blue"];

export function buildSeries(data: Days, getValues: (each: Days["series"][number]) => number[]): Series[] {
  const used = new Set<Color>();
  return data.series.map((each) => {
    const color = each.is_rest ? "slate" : pickColor(data.by === "agent" ? server.agent(each.key) : undefined, used);
    used.add(color);
    const values = getValues(each);
    return { name: getName(each), color, values, total: values.reduce((sum, value) => sum + value, 0) };
  });
}

function getName(each: Days["series"][number]): string {
  return each.is_rest ? usage.others : each.key || usage.unassigned;
}

/** The color of the agent if it is unused, or else the next unused color. */
function pickColor(agent: Parameters<typeof getAgentColor>[0] | undefined, used: ReadonlySet<Color>): Color {
  const agentColor = agent && getAgentColor(agent);
  if (agentColor && !used.has(agentColor)) return agentColor;
  return PALETTE.find((each) => !used.has(each)) ?? COLORS[used.size % COLORS.length] ?? "slate";
}
