import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "runs",
  title: titles.runs,
  icon: "runs",
  order: 40,
  keys: "g r",
  load: () => import("./Runs.svelte"),
} satisfies Screen;
