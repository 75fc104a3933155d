import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "channels",
  title: titles.channels,
  icon: "plug",
  order: 105,
  keys: "g d",
  privileged: true,
  load: () => import("./Channels.svelte"),
} satisfies Screen;
