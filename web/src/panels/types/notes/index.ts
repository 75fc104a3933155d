import { panels } from "../../../strings/panels";
import type { PanelType } from "../../panelTypes";

export default {
  type: "notes",
  title: panels.notes.title,
  icon: "note",
  description: panels.notes.description,
  order: 30,
  several: false,
  binding: "none",
  load: () => import("./Notes.svelte"),
} satisfies PanelType;
