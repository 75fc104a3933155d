// Calls to the server's API: one function, typed by the operations that the server has.

import { routes, type Operations } from "./operations";

export type OperationName = keyof Operations;
export type Params<N extends OperationName> = Operations[N]["parameters"];
export type Result<N extends OperationName> = Operations[N]["result"];

/** An error response of the server: what is wrong, the reason, and the next step. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly sentence: string,
    readonly because: string,
    readonly nextStep: string,
    readonly retryAfterS: number | null = null,
    /** Errors of single fields, by field name, if a form was sent. */
    readonly fields: Readonly<Record<string, string>> = {},
  ) {
    super(sentence);
  }
}

/** The request failed without a response: the server is down or the network is. */
export class ServerUnreachable extends Error {}

let handleSignedOut: () => void = () => {};

/** Set what happens when the server rejects this browser's session. */
export function onSignedOut(handler: () => void): void {
  handleSignedOut = handler;
}

const HEADERS = { "content-type": "application/json", "x-retinue": "1" };

export async function post(path: string, body: unknown, extraHeaders: Record<string, string> = {}, signal?: AbortSignal): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(path, {
      method: "POST",
      credentials: "same-origin",
      headers: { ...HEADERS, ...extraHeaders },
      body: JSON.stringify(body),
      signal: signal ?? null,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerUnreachable("the server does not answer");
  }
  return parseResponse(response);
}

async function parseResponse(response: Response): Promise<unknown> {
  const body: unknown = await response.json().catch(() => null);
  if (response.ok && body !== null) return body;
  const error = (body as { error?: Record<string, unknown> } | null)?.error ?? {};
  if (response.status === 401) handleSignedOut();
  throw new ApiError(
    response.status,
    String(error["code"] ?? "unknown"),
    String(error["sentence"] ?? "the request failed"),
    String(error["because"] ?? `the server returned status ${response.status}`),
    String(error["try"] ?? "try again"),
    typeof error.retry_after_s === "number" ? error.retry_after_s : null,
    (error["fields"] ?? {}) as Record<string, string>,
  );
}

/** Call an operation. Calls with the same idempotency `key` take effect once and return the same result. */
export function callOperation<N extends OperationName>(
  name: N,
  ...[params, options]: Record<string, never> extends Params<N>
    ? [params?: Params<N>, options?: { key?: string; signal?: AbortSignal }]
    : [params: Params<N>, options?: { key?: string; signal?: AbortSignal }]
): Promise<Result<N>> {
  const extraHeaders: Record<string, string> = options?.key ? { "idempotency-key": options.key } : {};
  return post(routes[name], params ?? {}, extraHeaders, options?.signal) as Promise<Result<N>>;
}

/** Upload a file before the envelope that attaches it. Returns its hash. */
export async function uploadFile(file: Blob): Promise<string> {
  const headers = { "content-type": "application/octet-stream", "x-retinue": "1" };
  let response: Response;
  try {
    response = await fetch("/api/attachments", { method: "POST", credentials: "same-origin", headers, body: file });
  } catch {
    throw new ServerUnreachable("the server does not answer");
  }
  return ((await parseResponse(response)) as { hash: string }).hash;
}

/** A new idempotency key: use the same key for every retry of one action. */
export function createIdempotencyKey(): string {
  return crypto.randomUUID();
}

/** An error as one line of text. */
export function formatError(error: unknown): string {
  if (error instanceof ApiError) return `${formatSentence(error.sentence)}: ${error.because}. Try: ${error.nextStep}.`;
  return error instanceof Error ? formatSentence(error.message) + "." : "Something went wrong.";
}

function formatSentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1).replace(/\.$/, "");
}
