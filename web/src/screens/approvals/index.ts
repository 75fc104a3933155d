import type { Screen } from "../../frame/screens";
import { asked } from "../../lib/asked.svelte";
import { approvals } from "../../strings/approvals";

export default {
  name: "approvals",
  title: approvals.title,
  icon: "hand",
  order: 20,
  keys: "g p",
  badge: () => asked.count,
  load: () => import("./Approvals.svelte"),
} satisfies Screen;
