// What people are asked: forms that agents put before them, and what has just been decided about their questions. What
// waits for a yes or no is in `house.approvals`.

import { ask, type Answered } from "./api";
import { house, type Approval } from "./house.svelte";
import type { News } from "./live.svelte";

export type Questionnaire = Answered<"questionnaire.list">["questionnaires"][number];
export type Said = Questionnaire["answers"][string];

/** How long a decision stays where the question was. */
const DECIDED_SHOWN_MS = 12_000;
const LOOK_AGAIN_MS = 120;
const AT_ONCE = 50;
const PAGES_MAX = 4;
const REMEMBERED_MAX = 200;

class Asked {
  /** Forms that can still be answered, the oldest first. */
  forms: Questionnaire[] = $state.raw([]);
  /** Decided a moment ago, in whichever window. */
  decided: Approval[] = $state.raw([]);
  /** What was filled in and not sent, for each form: it is there in the conversation and in the list of questions. */
  readonly drafts: Record<string, Record<string, Said>> = $state({});
  /** What waited when it was looked at last: the news of a decision may come after the look that no longer has it. */
  #waited = new Map<string, Approval>();
  #timer = 0;

  constructor() {
    house.live.listen({
      news: (news) => this.#news(news),
      reset: (session) => session === null && this.#soon(),
    });
    $effect.root(() => {
      $effect(() => {
        if (house.phase === "in") void this.#read();
      });
      $effect(() => {
        const now = house.approvals;
        for (const each of now) this.#waited.set(each.id, each);
        const last = [...this.#waited.keys()].slice(0, -REMEMBERED_MAX);
        for (const id of last) this.#waited.delete(id);
      });
    });
  }

  /** Questions of a session, or all, the most urgent first: those that wait, and those just decided, where they stood. */
  questions(session: string | null = null): Approval[] {
    const decided = new Map(this.decided.map((each) => [each.id, each]));
    const waiting = house.approvals.filter((each) => !decided.has(each.id));
    return [...waiting, ...decided.values()]
      .filter((each) => session === null || each.session === session)
      .sort((a, b) => order(a["expires-at"], b["expires-at"]) || order(a["asked-at"], b["asked-at"]) || (a.id < b.id ? -1 : 1));
  }

  formsOf(session: string): Questionnaire[] {
    return this.forms.filter((each) => each.session === session);
  }

  /** A form that was just sent, or left: gone at once, before the news of it. */
  ended(form: string): void {
    this.forms = this.forms.filter((each) => each.id !== form);
    delete this.drafts[form];
  }

  /** How much waits for the person who looks at this page. */
  get count(): number {
    const decided = new Set(this.decided.map((each) => each.id));
    return house.approvals.filter((each) => !decided.has(each.id)).length + this.forms.filter((each) => each.to === house.you).length;
  }

  #news(news: News): void {
    if (news.news === "questionnaire.changed") this.#soon();
    if (news.news !== "approval.decided") return;
    const known = this.#waited.get(String(news["approval"]));
    if (known) this.decide(known, news["state"] as Approval["state"], String(news["by"] ?? ""));
  }

  /** Keep a decision in sight, with as much of it as is known by now. */
  decide(approval: Approval, state: Approval["state"], by: string): void {
    if (this.decided.some((each) => each.id === approval.id)) return;
    this.decided = [...this.decided, { ...approval, state, "decided-by": by, scopes: [] }];
    void this.#tell(approval.id);
    window.setTimeout(() => (this.decided = this.decided.filter((each) => each.id !== approval.id)), DECIDED_SHOWN_MS);
  }

  /** News says that it was decided; for how long and with which words, the house says. */
  async #tell(id: string): Promise<void> {
    const { approvals } = await ask("approval.list", { past: true, limit: AT_ONCE }).catch(() => ({ approvals: [] as Approval[] }));
    const whole = approvals.find((each) => each.id === id);
    if (whole) this.decided = this.decided.map((each) => (each.id === id ? whole : each));
  }

  #soon(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#read(), LOOK_AGAIN_MS);
  }

  async #read(): Promise<void> {
    const found: Questionnaire[] = [];
    let before = "";
    try {
      for (let page = 0; page < PAGES_MAX; page++) {
        const read = await ask("questionnaire.list", { open: true, limit: AT_ONCE, before });
        found.push(...read.questionnaires);
        if (!read.next) break;
        before = read.next;
      }
    } catch {
      return; // what was known stays; the line says when nobody answers
    }
    this.forms = found.reverse();
    for (const id of Object.keys(this.drafts)) if (!found.some((each) => each.id === id)) delete this.drafts[id];
  }
}

function order(a: string, b: string): number {
  return Date.parse(a) - Date.parse(b);
}

export const asked = new Asked();
