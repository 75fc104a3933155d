// Where other devices reach this house: the address that was set for it, or the one this browser uses.

import { ask } from "../../lib/api";

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/;

export async function origin(): Promise<string> {
  const set = await ask("config.show").then(
    (told) => told.settings["public_url"],
    () => null,
  );
  return typeof set === "string" && set ? set.replace(/\/+$/, "") : location.origin;
}

/** Whether an address of this house means nothing to another device. */
export async function isLocal(): Promise<boolean> {
  return LOOPBACK.test(new URL(await origin()).hostname);
}
