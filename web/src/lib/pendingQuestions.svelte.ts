// Questions to people: open questionnaires, and approvals that were decided a moment ago. Pending approvals are in
// `server.approvals`.

import { callOperation, type Result } from "./api";
import { server, type Approval } from "./server.svelte";
import type { ServerEvent } from "./eventStream.svelte";

export type Questionnaire = Result<"questionnaire.list">["questionnaires"][number];
export type Answer = Questionnaire["answers"][string];

/** How long a decided approval stays in its place. */
const DECIDED_SHOWN_MS = 12_000;
const REFRESH_DELAY_MS = 120;
const PAGE_SIZE = 50;
const PAGES_MAX = 4;
const REMEMBERED_MAX = 200;

class PendingQuestions {
  /** Questionnaires that can still be answered, the oldest first. */
  questionnaires: Questionnaire[] = $state.raw([]);
  /** Approvals that were decided a moment ago, in any window. */
  decided: Approval[] = $state.raw([]);
  /** Unsent answers by questionnaire: the conversation and the list of questions share them. */
  readonly drafts: Record<string, Record<string, Answer>> = $state({});
  /** Approvals that were pending: the event of a decision may arrive after a state that no longer lists the approval. */
  #pending = new Map<string, Approval>();
  #timer = 0;

  constructor() {
    server.events.listen({
      event: (event) => this.#handleEvent(event),
      reset: (session) => session === null && this.#refreshSoon(),
    });
    $effect.root(() => {
      $effect(() => {
        if (server.phase === "signed-in") void this.#refresh();
      });
      $effect(() => {
        for (const each of server.approvals) this.#pending.set(each.id, each);
        const oldest = [...this.#pending.keys()].slice(0, -REMEMBERED_MAX);
        for (const id of oldest) this.#pending.delete(id);
      });
    });
  }

  /** Approvals of a session, or all, the most urgent first. One that was just decided keeps its place. */
  approvals(session: string | null = null): Approval[] {
    const decided = new Map(this.decided.map((each) => [each.id, each]));
    const pending = server.approvals.filter((each) => !decided.has(each.id));
    return [...pending, ...decided.values()]
      .filter((each) => session === null || each.session === session)
      .sort(
        (a, b) => compareTimes(a.expires_at, b.expires_at) || compareTimes(a.requested_at, b.requested_at) || (a.id < b.id ? -1 : 1),
      );
  }

  questionnairesIn(session: string): Questionnaire[] {
    return this.questionnaires.filter((each) => each.session === session);
  }

  /** Remove a questionnaire that was just sent or dismissed, before its event arrives. */
  removeQuestionnaire(id: string): void {
    this.questionnaires = this.questionnaires.filter((each) => each.id !== id);
    delete this.drafts[id];
  }

  /** How many questions wait for the signed-in person. */
  get count(): number {
    const decided = new Set(this.decided.map((each) => each.id));
    const approvals = server.approvals.filter((each) => !decided.has(each.id));
    return approvals.length + this.questionnaires.filter((each) => each.to === server.you).length;
  }

  #handleEvent(event: ServerEvent): void {
    if (event.event === "questionnaire.changed") this.#refreshSoon();
    if (event.event !== "approval.decided") return;
    const known = this.#pending.get(String(event["approval"]));
    if (known) this.showDecision(known, event["state"] as Approval["state"], String(event["by"] ?? ""));
  }

  /** Keep a decision visible for a while, with the details that are known so far. */
  showDecision(approval: Approval, state: Approval["state"], by: string): void {
    if (this.decided.some((each) => each.id === approval.id)) return;
    this.decided = [...this.decided, { ...approval, state, decided_by: by, scopes: [] }];
    void this.#loadDetails(approval.id);
    window.setTimeout(() => (this.decided = this.decided.filter((each) => each.id !== approval.id)), DECIDED_SHOWN_MS);
  }

  /** The event does not carry the scope and the comment of a decision: read them. */
  async #loadDetails(id: string): Promise<void> {
    const { approvals } = await callOperation("approval.list", { decided: true, limit: PAGE_SIZE }).catch(() => ({ approvals: [] as Approval[] }));
    const complete = approvals.find((each) => each.id === id);
    if (complete) this.decided = this.decided.map((each) => (each.id === id ? complete : each));
  }

  #refreshSoon(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#refresh(), REFRESH_DELAY_MS);
  }

  async #refresh(): Promise<void> {
    const found: Questionnaire[] = [];
    let before = "";
    try {
      for (let page = 0; page < PAGES_MAX; page++) {
        const read = await callOperation("questionnaire.list", { open: true, limit: PAGE_SIZE, before });
        found.push(...read.questionnaires);
        if (!read.next) break;
        before = read.next;
      }
    } catch {
      return; // keep what is known; the connection status shows that the server does not answer
    }
    this.questionnaires = found.reverse();
    for (const id of Object.keys(this.drafts)) if (!found.some((each) => each.id === id)) delete this.drafts[id];
  }
}

function compareTimes(a: string, b: string): number {
  return Date.parse(a) - Date.parse(b);
}

export const pendingQuestions = new PendingQuestions();
