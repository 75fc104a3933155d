import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "house",
  title: titles.house,
  icon: "house",
  order: 110,
  keys: "g h",
  privileged: true,
  load: () => import("./House.svelte"),
} satisfies Screen;
