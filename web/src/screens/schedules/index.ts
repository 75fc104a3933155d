import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "schedules",
  title: titles.schedules,
  icon: "clock",
  order: 45,
  keys: "g s",
  load: () => import("./Schedules.svelte"),
} satisfies Screen;
