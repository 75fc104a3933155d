import { panels } from "../../../strings/panels";
import type { PanelType } from "../../panelTypes";

export default {
  type: "files",
  title: panels.types.files.title,
  icon: "file",
  description: panels.types.files.description,
  order: 20,
  several: true,
  binding: "follows",
  load: () => import("./FilesPanel.svelte"),
} satisfies PanelType;
