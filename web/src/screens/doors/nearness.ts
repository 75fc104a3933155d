// Which binding counts before which, as the house asks them: see `policy/access/bindings.py`. It decides; this sorts what is shown.

import type { Answered } from "../../lib/api";
import { doors } from "../../strings/doors";

export type Binding = Answered<"binding.list">["bindings"][number];
export type Connector = Answered<"connector.list">["connectors"][number];

const LEVELS = ["peer", "parent-peer", "guild", "team", "account", "channel"] as const;
export type Level = (typeof LEVELS)[number];

/** By what it fits the places it is for. */
export function levelOf(binding: Binding, connectors: Connector[]): Level {
  if (binding.peer) return "peer";
  if (binding.parent) return "parent-peer";
  if (binding.guild) return "guild";
  if (binding.team) return "team";
  const names = connectors.some((each) => each.name === binding.connector && each.kind !== binding.connector);
  return binding.account || names ? "account" : "channel";
}

/** The nearest first; of two that are as near, the one that asks for more. */
export function byNearness(bindings: Binding[], connectors: Connector[]): { binding: Binding; level: Level }[] {
  const asked = (each: Binding): number => [each["peer-kind"], each.peer, each.parent, each.guild, each.team].filter(Boolean).length;
  return bindings
    .map((binding) => ({ binding, level: levelOf(binding, connectors) }))
    .sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level) || asked(b.binding) - asked(a.binding) || Number(!a.binding.account) - Number(!b.binding.account) || (a.binding.id < b.binding.id ? -1 : 1));
}

/** The place in words, from the outside in: "telegram, account family, room -1002". */
export function placeOf(binding: Binding): string {
  const s = doors.bindings;
  const parts = (["account", "guild", "team", "parent", "peer"] as const).filter((each) => binding[each]).map((each) => `${s.parts[each]} ${binding[each]}`);
  const kind = binding["peer-kind"];
  return [binding.connector, ...parts, ...(kind ? [s.kinds[kind] ?? kind] : [])].join(", ");
}
