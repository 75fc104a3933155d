/** What can be asked of the house while writing: listed by the house, once for each agent. */

import { ask } from "./api";
import type { CommandShown } from "./operations";

export type { CommandShown };

const SHOWN_MAX = 8;
const known = new Map<string, Promise<CommandShown[]>>();

export function commandsOf(agent: string): Promise<CommandShown[]> {
  let listed = known.get(agent);
  if (!listed) {
    listed = ask("command.list", { agent }).then((answer) => answer.commands);
    known.set(agent, listed);
    listed.catch(() => known.delete(agent)); // asked again by the next slash
  }
  return listed;
}

/** Those that what is being written may become: nothing once its word is over. */
export function fitting(words: string, commands: CommandShown[]): CommandShown[] {
  const word = /^\/([a-z0-9_]*)$/i.exec(words)?.[1]?.toLowerCase();
  if (word === undefined) return [];
  return commands.filter((each) => each.name.startsWith(word)).slice(0, SHOWN_MAX);
}

/** What stands in the field when one was chosen. */
export function written(command: CommandShown): string {
  return command.form.includes(" ") ? `/${command.name} ` : `/${command.name}`;
}
