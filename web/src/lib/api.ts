// Asking the house: one function, typed by the operations it has.

import { routes, type Operations } from "./operations";

export type Name = keyof Operations;
export type Asked<N extends Name> = Operations[N]["asked"];
export type Answered<N extends Name> = Operations[N]["answered"];

/** What the house says when it refuses: what is so, because of what, and what to do. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly sentence: string,
    readonly because: string,
    readonly next: string,
    readonly retryAfterS: number | null = null,
    /** What is wrong with each field by its name, where a form was sent. */
    readonly fields: Readonly<Record<string, string>> = {},
  ) {
    super(sentence);
  }
}

/** Nobody answered: the house is closed, or the way to it is. */
export class Unreachable extends Error {}

let signedOut: () => void = () => {};

/** Whom to tell when the house no longer knows this browser. */
export function whenSignedOut(tell: () => void): void {
  signedOut = tell;
}

const HEADERS = { "content-type": "application/json", "x-retinue": "1" };

export async function post(path: string, body: unknown, more: Record<string, string> = {}, signal?: AbortSignal): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(path, {
      method: "POST",
      credentials: "same-origin",
      headers: { ...HEADERS, ...more },
      body: JSON.stringify(body),
      signal: signal ?? null,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable("the house does not answer");
  }
  return answer(response);
}

async function answer(response: Response): Promise<unknown> {
  const told: unknown = await response.json().catch(() => null);
  if (response.ok && told !== null) return told;
  const error = (told as { error?: Record<string, unknown> } | null)?.error ?? {};
  if (response.status === 401) signedOut();
  throw new Refused(
    response.status,
    String(error["code"] ?? "unknown"),
    String(error["sentence"] ?? "the house could not do this"),
    String(error["because"] ?? `it answered ${response.status}`),
    String(error["try"] ?? "try again"),
    typeof error["retry-after-s"] === "number" ? error["retry-after-s"] : null,
    (error["fields"] ?? {}) as Record<string, string>,
  );
}

/** Ask for an operation. With a `key`, asking again gives the same answer and does nothing twice. */
export function ask<N extends Name>(
  name: N,
  ...[asked, options]: Record<string, never> extends Asked<N>
    ? [asked?: Asked<N>, options?: { key?: string; signal?: AbortSignal }]
    : [asked: Asked<N>, options?: { key?: string; signal?: AbortSignal }]
): Promise<Answered<N>> {
  const more: Record<string, string> = options?.key ? { "idempotency-key": options.key } : {};
  return post(routes[name], asked ?? {}, more, options?.signal) as Promise<Answered<N>>;
}

/** Send a file ahead of the envelope that will name it. Its hash. */
export async function upload(file: Blob): Promise<string> {
  const headers = { "content-type": "application/octet-stream", "x-retinue": "1" };
  let response: Response;
  try {
    response = await fetch("/api/blob", { method: "POST", credentials: "same-origin", headers, body: file });
  } catch {
    throw new Unreachable("the house does not answer");
  }
  return ((await answer(response)) as { hash: string }).hash;
}

/** A key for one wish of a person: the same for every try of it. */
export function newKey(): string {
  return crypto.randomUUID();
}

/** An error in one line, for a person. */
export function inWords(error: unknown): string {
  if (error instanceof Refused) return `${sentence(error.sentence)}: ${error.because}. Try: ${error.next}.`;
  return error instanceof Error ? sentence(error.message) + "." : "Something went wrong.";
}

function sentence(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1).replace(/\.$/, "");
}
