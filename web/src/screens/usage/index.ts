import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "usage",
  title: titles.usage,
  icon: "coins",
  order: 100,
  keys: "g m",
  load: () => import("./Usage.svelte"),
} satisfies Screen;
