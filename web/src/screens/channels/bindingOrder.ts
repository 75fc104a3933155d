// Sorts bindings in the order of precedence of the server, `policy/access/bindings.py`. Only used for display.

import type { Result } from "../../lib/api";
import { channels } from "../../strings/channels";

export type Binding = Result<"binding.list">["bindings"][number];
export type Connector = Result<"connector.list">["connectors"][number];

const LEVELS = ["peer", "parent-peer", "guild", "team", "account", "channel"] as const;
export type Level = (typeof LEVELS)[number];

/** The condition that decides the precedence of a binding. */
export function findLevel(binding: Binding, connectors: Connector[]): Level {
  if (binding.peer) return "peer";
  if (binding.parent) return "parent-peer";
  if (binding.guild) return "guild";
  if (binding.team) return "team";
  const namesConnector = connectors.some((each) => each.name === binding.connector && each.platform !== binding.connector);
  return binding.account || namesConnector ? "account" : "channel";
}

/** The most specific binding first. On the same level, the one with more conditions first. */
export function sortBindings(bindings: Binding[], connectors: Connector[]): { binding: Binding; level: Level }[] {
  const countConditions = (each: Binding): number => [each.peer_kind, each.peer, each.parent, each.guild, each.team].filter(Boolean).length;
  return bindings
    .map((binding) => ({ binding, level: findLevel(binding, connectors) }))
    .sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level) || countConditions(b.binding) - countConditions(a.binding) || Number(!a.binding.account) - Number(!b.binding.account) || (a.binding.id < b.binding.id ? -1 : 1));
}

/** The conditions as text, the widest first: "telegram, account family, channel -1002". */
export function formatConditions(binding: Binding): string {
  const s = channels.bindings;
  const parts = (["account", "guild", "team", "parent", "peer"] as const).filter((each) => binding[each]).map((each) => `${s.parts[each]} ${binding[each]}`);
  const kind = binding.peer_kind;
  return [binding.connector, ...parts, ...(kind ? [s.kinds[kind] ?? kind] : [])].join(", ");
}
