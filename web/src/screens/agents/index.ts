import type { Screen } from "../../frame/screens";
import { agents } from "../../strings/agents";

export default {
  name: "agents",
  title: agents.title,
  icon: "people",
  order: 20,
  keys: "g a",
  load: () => import("./Agents.svelte"),
} satisfies Screen;
