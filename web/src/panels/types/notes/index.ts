import { panels } from "../../../strings/panels";
import type { PanelType } from "../../panelTypes";

export default {
  type: "notes",
  title: panels.types.notes.title,
  icon: "note",
  description: panels.types.notes.description,
  order: 30,
  several: false,
  binding: "none",
  load: () => import("./NotesPanel.svelte"),
} satisfies PanelType;
