import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "money",
  title: titles.money,
  icon: "coins",
  order: 100,
  keys: "g m",
  load: () => import("./Money.svelte"),
} satisfies Screen;
