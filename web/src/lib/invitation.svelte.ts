// Sign in with an invitation. Its code is in the fragment of the address, which browsers do not send to a server.

import { post } from "./api";

class Invitation {
  /** The invitation code that this page was opened with, until it is accepted or declined. */
  code: string = $state(takeCodeFromLocation());
  /** The token that the code was exchanged for, kept so that a sign-in that fails halfway can be repeated. */
  #token = "";

  decline(): void {
    this.code = "";
    this.#token = "";
  }

  /** Accept the invitation. Returns the code that signs this browser in as the invited person. */
  async accept(): Promise<string> {
    this.#token ||= ((await post("/api/join", { invitation: this.code })) as { token: string }).token;
    return ((await this.#call("token.code")) as { code: string }).code;
  }

  /** Revoke the token that the invitation was exchanged for: it was not shown to anyone and is not needed anymore. */
  async revokeFirstToken(): Promise<void> {
    const { tokens } = (await this.#call("token.list")) as { tokens: { id: string; kind: string; label: string }[] };
    const first = tokens.find((each) => each.kind === "token" && each.label === "first");
    if (first) await this.#call("token.revoke", { id: first.id });
  }

  #call(operation: string, params: object = {}): Promise<unknown> {
    return post(`/api/${operation.replace(".", "/")}`, params, { authorization: `Bearer ${this.#token}` });
  }
}

/** Read the code and remove it from the address at once, so that it does not stay in the browser's history. */
function takeCodeFromLocation(): string {
  const code = new URLSearchParams(location.hash.slice(1)).get("invitation");
  if (code) history.replaceState(null, "", location.pathname + location.search);
  return code ?? "";
}

export const invitation = new Invitation();
