import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "chat",
  title: titles.chat,
  icon: "chat",
  order: 10,
  keys: "g c",
  load: () => import("./Chat.svelte"),
} satisfies Screen;
