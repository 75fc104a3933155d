import type { Screen } from "../../frame/screens";
import { titles } from "../../strings/screens";

export default {
  name: "agents",
  title: titles.agents,
  icon: "people",
  order: 20,
  keys: "g a",
  load: () => import("./Agents.svelte"),
} satisfies Screen;
