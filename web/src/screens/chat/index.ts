import type { Screen } from "../../frame/screens";
import { chat } from "../../strings/chat";

export default {
  name: "chat",
  title: chat.title,
  icon: "chat",
  order: 10,
  keys: "g c",
  load: () => import("./Chat.svelte"),
} satisfies Screen;
