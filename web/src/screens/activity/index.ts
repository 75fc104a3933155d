import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "activity",
  title: titles.activity,
  icon: "flow",
  order: 30,
  keys: "g l",
  load: () => import("./Activity.svelte"),
} satisfies Screen;
