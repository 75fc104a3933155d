import { plural } from "../lib/words";

/** Work that agents hand to one another. */
export const handed = {
  title: "Handed on",
  trees: "Work that was handed on",
  none: "Nothing was handed on yet",
  noneWords: "When an agent asks another for something, or sends somebody out, it stands here as a tree: who asked whom, where, how it stands and what it cost.",
  hint: "Who asked whom, and what came of it. To stop one also stops what was handed on for it; whoever asked is told.",
  onlyOpen: "Only what is open",
  noneOpen: "Nothing is open: everything that was handed on has come to its end.",
  stands: { waiting: "waits its turn", working: "at work", parked: "waits for another", asking: "asks a person", ok: "done", error: "failed", timeout: "took too long", stopped: "stopped" },
  kinds: { message: "asked", send: "wrote to", spawn: "sent out", background: "in the background", external: "elsewhere" },
  in: "in",
  unnamed: "a conversation",
  conversation: "Conversation",
  conversationOf: (name: string, what: string): string => `Conversation of ${name}: ${what}`,
  run: "Run",
  runOf: (name: string, what: string): string => `Run of ${name}: ${what}`,
  stop: "Stop",
  stopOf: (name: string, what: string): string => `Stop ${name}: ${what}`,
  stopped: (count: number): string => (count ? `Stopped: ${plural(count, "piece of work", "pieces of work")}.` : "It was over already."),
  under: (name: string): string => `What ${name} handed on`,
  more: "Show more",
};
