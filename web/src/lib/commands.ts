/** Slash commands: listed by the server once for each agent, and matched while a person types. */

import { callOperation } from "./api";
import type { SlashCommandRow } from "./operations";

export type { SlashCommandRow };

const MATCHES_MAX = 8;
const cache = new Map<string, Promise<SlashCommandRow[]>>();

export function listCommands(agent: string): Promise<SlashCommandRow[]> {
  let commands = cache.get(agent);
  if (!commands) {
    commands = callOperation("slash_command.list", { agent }).then((result) => result.commands);
    cache.set(agent, commands);
    commands.catch(() => cache.delete(agent)); // the next slash tries again
  }
  return commands;
}

/** Commands that begin with what is typed. None once the command name is complete and text follows. */
export function matchCommands(text: string, commands: SlashCommandRow[]): SlashCommandRow[] {
  const prefix = /^\/([a-z0-9_]*)$/i.exec(text)?.[1]?.toLowerCase();
  if (prefix === undefined) return [];
  return commands.filter((each) => each.name.startsWith(prefix)).slice(0, MATCHES_MAX);
}

/** The text to put into the input field for a chosen command. */
export function formatCommand(command: SlashCommandRow): string {
  return command.syntax.includes(" ") ? `/${command.name} ` : `/${command.name}`;
}
