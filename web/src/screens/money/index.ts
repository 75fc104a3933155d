import type { Screen } from "../../frame/screens";
import { moneyWords } from "../../strings/money";

export default {
  name: "money",
  title: moneyWords.title,
  icon: "coins",
  order: 50,
  keys: "g m",
  load: () => import("./Money.svelte"),
} satisfies Screen;
