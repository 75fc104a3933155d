// What is drawn: each with its numbers, one a day, and a colour that none of its neighbours has.

import { COLOURS, colourOf, type Colour } from "../../lib/agents";
import type { Answered } from "../../lib/api";
import { house } from "../../lib/house.svelte";
import { moneyWords } from "../../strings/money";

type Days = Answered<"usage.days">;

export interface Series {
  name: string;
  colour: Colour;
  values: number[];
  total: number;
}

// Far apart in hue, one after the other.
const SPREAD: Colour[] = ["indigo", "teal", "orange", "pink", "green", "amber", "cyan", "violet", "red", "lime", "blue"];

export function seriesOf(shown: Days, of: (each: Days["series"][number]) => number[]): Series[] {
  const taken = new Set<Colour>();
  return shown.series.map((each) => {
    const colour = each.rest ? "slate" : free(shown.by === "agent" ? house.agent(each.key) : undefined, taken);
    taken.add(colour);
    const values = of(each);
    return { name: nameOf(each), colour, values, total: values.reduce((sum, value) => sum + value, 0) };
  });
}

function nameOf(each: Days["series"][number]): string {
  return each.rest ? moneyWords.rest : each.key || moneyWords.nobody;
}

/** An agent's own colour where it is free still; else the next that is. */
function free(agent: Parameters<typeof colourOf>[0] | undefined, taken: ReadonlySet<Colour>): Colour {
  const own = agent && colourOf(agent);
  if (own && !taken.has(own)) return own;
  return SPREAD.find((each) => !taken.has(each)) ?? COLOURS[taken.size % COLOURS.length] ?? "slate";
}
