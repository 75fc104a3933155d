import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "doors",
  title: titles.doors,
  icon: "door",
  order: 105,
  keys: "g d",
  privileged: true,
  load: () => import("./Doors.svelte"),
} satisfies Screen;
