import type { Screen } from "../../frame/screens";
import { houseTitle } from "../../strings/house";

export default {
  name: "house",
  title: houseTitle,
  icon: "house",
  order: 100,
  keys: "g h",
  privileged: true,
  load: () => import("./House.svelte"),
} satisfies Screen;
