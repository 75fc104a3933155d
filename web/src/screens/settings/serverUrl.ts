// The URL by which other devices reach this server: the configured one, or the one this browser uses.

import { callOperation } from "../../lib/api";

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/;

export async function getPublicUrl(): Promise<string> {
  const configured = await callOperation("config.show").then(
    (result) => result.settings["public_url"],
    () => null,
  );
  return typeof configured === "string" && configured ? configured.replace(/\/+$/, "") : location.origin;
}

/** Whether other devices cannot reach the URL of this server. */
export async function isLocal(): Promise<boolean> {
  return LOOPBACK.test(new URL(await getPublicUrl()).hostname);
}
