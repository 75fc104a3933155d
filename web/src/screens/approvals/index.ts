import type { Screen } from "../../frame/screens";
import { asked } from "../../lib/asked.svelte";
import { titles } from "../../strings/screens";

export default {
  name: "approvals",
  title: titles.approvals,
  icon: "hand",
  order: 20,
  keys: "g p",
  badge: () => asked.count,
  load: () => import("./Approvals.svelte"),
} satisfies Screen;
