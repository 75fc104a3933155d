import type { Screen } from "../../frame/screens";
import { pendingQuestions } from "../../lib/pendingQuestions.svelte";
import { titles } from "../../strings/screens";

export default {
  name: "approvals",
  title: titles.approvals,
  icon: "shield",
  order: 20,
  keys: "g p",
  badge: () => pendingQuestions.count,
  load: () => import("./Approvals.svelte"),
} satisfies Screen;
