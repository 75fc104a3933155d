import { panels } from "../../../strings/panels";
import type { PanelType } from "../../panelTypes";

export default {
  type: "run",
  title: panels.types.run.title,
  icon: "flow",
  description: panels.types.run.description,
  order: 10,
  several: true,
  binding: "follows",
  load: () => import("./RunPanel.svelte"),
} satisfies PanelType;
