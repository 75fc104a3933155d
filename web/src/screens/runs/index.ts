import type { Screen } from "../../frame/screens";
import { runsWords } from "../../strings/runs";

export default {
  name: "runs",
  title: runsWords.title,
  icon: "runs",
  order: 40,
  keys: "g r",
  load: () => import("./Runs.svelte"),
} satisfies Screen;
