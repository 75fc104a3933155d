import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "settings",
  title: titles.settings,
  icon: "settings",
  order: 110,
  keys: "g h",
  privileged: true,
  load: () => import("./Settings.svelte"),
} satisfies Screen;
