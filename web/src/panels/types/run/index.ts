import { panels } from "../../../strings/panels";
import type { PanelType } from "../../panelTypes";

export default {
  type: "run",
  title: panels.run.title,
  icon: "flow",
  description: panels.run.description,
  order: 10,
  several: true,
  binding: "follows",
  load: () => import("./Run.svelte"),
} satisfies PanelType;
