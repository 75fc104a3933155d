import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "live",
  title: titles.live,
  icon: "flow",
  order: 30,
  keys: "g l",
  load: () => import("./Live.svelte"),
} satisfies Screen;
