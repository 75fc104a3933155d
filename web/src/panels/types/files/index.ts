import { panels } from "../../../strings/panels";
import type { PanelType } from "../../panelTypes";

export default {
  type: "files",
  title: panels.files.title,
  icon: "file",
  description: panels.files.description,
  order: 20,
  several: true,
  binding: "follows",
  load: () => import("./Files.svelte"),
} satisfies PanelType;
