// Coming in by an invitation: its address has it behind the #, where no server sees it.

import { post } from "./api";

class Joining {
  /** The invitation this page was opened with, until it is taken or left. */
  invitation: string = $state(taken());
  /** What it was exchanged for; kept for another try, should the way in break off half-way. */
  #token = "";

  leave(): void {
    this.invitation = "";
    this.#token = "";
  }

  /** Become the person it names. The code that signs this browser in as them. */
  async accept(): Promise<string> {
    this.#token ||= ((await post("/api/join", { invitation: this.invitation })) as { token: string }).token;
    return ((await this.#ask("token.code")) as { code: string }).code;
  }

  /** Nobody was shown the token that came with it, so nobody should have it. */
  async tidy(): Promise<void> {
    const { tokens } = (await this.#ask("token.list")) as { tokens: { id: string; kind: string; label: string }[] };
    const first = tokens.find((each) => each.kind === "token" && each.label === "first");
    if (first) await this.#ask("token.revoke", { id: first.id });
  }

  #ask(operation: string, asked: object = {}): Promise<unknown> {
    return post(`/api/${operation.replace(".", "/")}`, asked, { authorization: `Bearer ${this.#token}` });
  }
}

/** Out of the address at once, so that it stays in nobody's history. */
function taken(): string {
  const found = new URLSearchParams(location.hash.slice(1)).get("invitation");
  if (found) history.replaceState(null, "", location.pathname + location.search);
  return found ?? "";
}

export const joining = new Joining();
