import type { Screen } from "../../frame/screens";
import { liveWords } from "../../strings/live";

export default {
  name: "live",
  title: liveWords.short,
  icon: "flow",
  order: 30,
  keys: "g l",
  load: () => import("./Live.svelte"),
} satisfies Screen;
