"""The invariants of a simulation, and the checker that verifies them after every commit.

The checker does not rely on anything that the server keeps in memory. Its own database triggers
record every row that a commit changes. The receipts of the clients and the recorded effects of
tools are plain lists outside the server.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retinue.config.agent_defaults import BUILT_IN_AGENT_DEFAULTS
from retinue.domain.agent import Agent, CrashPolicy
from retinue.domain.envelope import EnvelopeDraft, Outcome, Receipt
from retinue.domain.ids import SessionId, short_id
from retinue.domain.record import ContextStart, Note, Record, Reply, Summary, UserTurn
from retinue.domain.session import LaneKind, OriginKind, lane_kind_of
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.engine.lanes import SlotLimits
from retinue.models.base import ModelPrompt
from retinue.runners.model_context import context_from_records
from retinue.store.ledger import ledger
from retinue.store.sessions import records, sessions
from retinue.testing.schedule_invariants import SCHEDULE_CHANGES, ScheduleChecker, install_schedule_triggers
from retinue.testing.simulated_server import (
    WITNESSED_TOOLS,
    SimulatedDisk,
    SimulatedServer,
    is_summary_request,
    session_of_prompt,
)
from retinue.tools.base import ToolContext

ATTENTION_S_MAX = 2.0
RULES = {
    "receipt": "`accepted` is reported only for envelopes that are in the store",
    "lost": "an envelope that was acknowledged ends in exactly one outcome",
    "doubled": "nothing is answered, read or done twice",
    "order": "a session's envelopes are taken in the order (rank, due time, seq), and answered in the same order",
    "exclusive": "a session has one live run, and no more runs are live than there are slots",
    "fenced": "an epoch only grows, and only the worker that holds it writes for a run",
    "unrequested": "each call is allowed by a rule, a grant or an approval of that call",
    "intent": "effects and model calls are stored before they happen, and each one stored as done has happened",
    "at-most-once": "a run that must not be repeated is not continued after a crash",
    "status": "done stays done, an ended run stays ended, a decision stays decided",
    "records": "records are appended without a gap, and every call has its result next to it",
    "events": "events are numbered without a gap and report every outcome, and acceptance times never go backwards",
    "context": "a model reads exactly the stored context",
    "promptness": "due work is done within a time limit, and each sender is notified of the outcome",
    "occurrences": "every occurrence of a schedule runs once or is skipped with a reason, and there are no others",
    "armed": "a schedule that is enabled has exactly one open occurrence, after every commit",
    "gates": "nothing runs before its gate has opened",
    "delegations": "the result of a delegation is read once, by the agent that delegated it, and is unchanged",
    "ledger": "the ledger's equations hold",
    "unexpected": "no unexpected error: an unhandled error is a bug, even if the server survives it",
}


class InvariantViolation(AssertionError):
    """The simulation found that an invariant does not hold."""

    def __init__(self, rule: str, description: str) -> None:
        super().__init__(f"{rule}: {description}\n  but {RULES[rule]}")
        self.rule = rule
        self.description = description


@dataclass(frozen=True, slots=True)
class HeldReceipt:
    """A receipt that a client got. From then on, the server may not lose the envelope."""

    envelope: str
    draft: EnvelopeDraft


class WitnessedEffect(NamedTuple):
    """The effect of a tool call outside the server, as the simulation recorded it."""

    call: str
    run: str
    tool: str
    text: str


class RowChange(NamedTuple):
    """One row that a commit changed, as the triggers recorded it."""

    what: str
    id: str
    a: Any
    b: Any
    c: Any = None
    d: Any = None
    e: Any = None


class _WatchedChange(NamedTuple):
    """A kind of row change that the triggers record, and the values that they record of it."""

    what: str
    event: str
    id: str
    values: str  # up to five values, as SQL
    when: str = "1"


_WATCHED_CHANGES = (
    _WatchedChange("accepted", "INSERT ON envelopes", "new.id", "new.seq, new.accepted_ms, new.session, new.kind"),
    _WatchedChange(
        "envelope",
        "UPDATE OF status ON envelopes",
        "new.id",
        "old.status, new.status, new.session, new.run",
        "old.status <> new.status",
    ),
    _WatchedChange("record", "INSERT ON records", "new.session", "new.seq, new.run, new.kind"),
    _WatchedChange("run", "INSERT ON runs", "new.id", "new.session, new.epoch, new.agent"),
    _WatchedChange(
        "run.changed",
        "UPDATE ON runs",
        "new.id",
        "old.status, new.status, old.epoch, new.epoch, new.attempt - old.attempt",
    ),
    _WatchedChange("step", "INSERT ON steps", "new.run", "new.turn, new.call_index"),
    _WatchedChange("step.changed", "UPDATE ON steps", "new.run", "old.state, new.state, new.turn, new.call_index"),
    _WatchedChange(
        "compacted",
        "UPDATE OF compactions ON sessions",
        "new.id",
        "old.context_from, new.context_from",
        "new.compactions > old.compactions",
    ),
    _WatchedChange("epoch", "UPDATE OF epoch ON sessions", "new.id", "old.epoch, new.epoch", "old.epoch <> new.epoch"),
    _WatchedChange(
        "approval",
        "UPDATE OF state ON approvals",
        "new.id",
        "old.state, new.state",
        "old.state <> new.state",
    ),
    _WatchedChange("events", "INSERT ON events", "'events'", "new.seq, new.at_ms, new.kind"),
    *(
        _WatchedChange("gone", f"{verb} ON {table}", f"'{table}'", "NULL")
        for table in ("envelopes", "outcomes", "records", "runs", "steps", "events", "inbox")
        for verb in ("DELETE", "UPDATE")
        if verb == "DELETE" or table in ("outcomes", "records", "events")
    ),
)

_ALLOWED_CHANGES = {
    "envelope": {
        ("pending", "claimed"),
        ("claimed", "suspended"),
        ("suspended", "claimed"),
        ("pending", "done"),
        ("claimed", "done"),
        ("suspended", "done"),
    },
    "run.changed": {
        ("running", "running"),
        ("running", "suspended"),
        ("suspended", "running"),
        *((old, new) for old in ("running", "suspended") for new in ("completed", "failed", "cancelled")),
    },
    "step.changed": {("open", "open"), ("open", "closed"), ("open", "interrupted")},
    "approval": {("open", end) for end in ("allowed", "denied", "expired", "closed")},
}

_UNATTENDED = """
SELECT e.id, e.session, e.source, e.dedupe_key FROM envelopes e LEFT JOIN runs r
  ON r.session = e.session AND r.status IN ('running', 'suspended')
WHERE e.status = 'pending' AND e.session IS NOT NULL AND e.due_ms <= (SELECT latest_ms FROM counters)
  -- A running run takes what waits when it ends. A suspended one keeps its place before silent mail and
  -- other decisions.
  AND (r.id IS NULL OR (r.status = 'suspended' AND e.silent = 0 AND e.kind <> 'decision'))
  -- It also keeps its place while it waits for more than this one answer: for other work, or for a person.
  AND NOT (r.id IS NOT NULL AND EXISTS (
    SELECT 1 FROM delegations d WHERE d.result = e.id AND d.run = r.id AND d.wait_ms IS NOT NULL AND (
      EXISTS (SELECT 1 FROM delegations o WHERE o.run = r.id AND o.wait_ms IS NOT NULL AND o.state = 'open')
      OR EXISTS (SELECT 1 FROM approvals a WHERE a.run = r.id AND a.state = 'open' AND NOT a.run_continued))))
  -- And before all mail while its work is done elsewhere: that cannot be called back.
  AND NOT (r.id IS NOT NULL AND EXISTS (
    SELECT 1 FROM delegations d WHERE d.run = r.id AND d.kind = 'external' AND d.state = 'open'))
  AND (e.deliver_ms IS NULL OR NOT ?)
ORDER BY e.seq
"""

_STEER_SENDER = """
SELECT 1 FROM envelopes e WHERE e.id = ? AND (e.trust = 'owner' OR EXISTS (
  SELECT 1 FROM envelopes other WHERE other.run = e.run AND other.id <> e.id AND other.sender = e.sender
))
"""

_NOTICE = (
    "SELECT 1 FROM envelopes n JOIN envelopes about ON about.id = n.reply_to"
    " WHERE n.kind = 'notice' AND n.recipient LIKE ? AND (about.id = ? OR about.run = ?)"
)

_OPEN_MODEL_CALL = """
SELECT 1 FROM steps s JOIN runs r ON r.id = s.run WHERE r.session = ? AND r.status = 'running'
  AND s.kind = 'model' AND s.state = 'open' AND (? OR EXISTS (SELECT 1 FROM model_calls m
    WHERE m.run = s.run AND m.turn = s.turn AND m.call_index = s.call_index AND m.attempt = s.attempt
    AND m.held_microusd > 0))
"""

_DELEGATED_APPROVAL = """
SELECT d.kind, d.wait_ms IS NOT NULL FROM approvals a JOIN delegations d ON d.target_run = a.run WHERE a.id = ?
"""

_GRANT = """
SELECT 1 FROM grants g JOIN sessions s ON s.id = ? WHERE g.agent = s.agent AND g.permission = ? AND g.revoked_ms IS NULL
  AND (g.session = s.id OR (g.session IS NULL AND s.origin_kind IN ('chat', 'web', 'terminal')))
"""

_OUTBOX_COMMITS = frozenset({"deliver-claim", "deliver-done"})
"""Commits that return an outbound envelope to the queue, to be delivered again."""

_WORKER_COMMITS = frozenset({"step", "finish", "park", "fail"})
"""Commits that only the worker who holds the run may make; claims and cancels take the run over by
raising the epoch.
"""


def install_triggers(disk: SimulatedDisk) -> None:
    """Create database triggers that record every row change. Only the checker reads these records."""
    columns = "abcde"
    disk.raw_connection.execute(f"CREATE TEMP TABLE changes (n INTEGER PRIMARY KEY, what, id, {', '.join(columns)})")
    for number, watched in enumerate(_WATCHED_CHANGES):
        disk.raw_connection.execute(
            f"CREATE TEMP TRIGGER watch_{number} AFTER {watched.event} WHEN {watched.when} BEGIN"
            f" INSERT INTO changes (what, id, {', '.join(columns[: watched.values.count(',') + 1])})"
            f" VALUES ('{watched.what}', {watched.id}, {watched.values}); END"
        )
    install_schedule_triggers(disk)


@dataclass(slots=True)
class InvariantChecker:
    """Checks the invariants at every commit, model call and effect of a server, and keeps the first violation."""

    disk: SimulatedDisk
    agents: Sequence[Agent]
    slots: SlotLimits
    trace: Callable[..., None]
    has_free_models: bool = True  # whether model calls cost nothing
    rules: Collection[str] = tuple(RULES)  # the rules to check; a test of the checker may leave some out
    violation: InvariantViolation | None = None
    acknowledged: list[HeldReceipt] = field(default_factory=list[HeldReceipt])
    performed: list[WitnessedEffect] = field(default_factory=list[WitnessedEffect])
    runs_started: int = 0
    commits: int = 0
    changed_sessions: tuple[SessionId, ...] = ()  # by the last commit
    takeovers: int = 0
    compactions: int = 0
    schedules: ScheduleChecker = field(init=False)
    child_approvals: Counter[str] = field(default_factory=Counter[str])  # how approvals of delegated runs ended
    _ids_by_key: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    _refused_on_accept: set[str] = field(default_factory=set[str])
    _calls: set[str] = field(default_factory=set[str])
    _event_seq: int = 0
    _event_ms: int = 0
    _envelope_seq: int = 0
    _accepted_ms: int = 0
    _record_seq: dict[str, int] = field(default_factory=dict[str, int])
    _workers: dict[str, SimulatedServer] = field(default_factory=dict[str, SimulatedServer])
    _concurrency: dict[str, int] = field(init=False)
    _open_runs: set[str] = field(default_factory=set[str])  # runs that have not ended
    _running_agents: dict[str, str] = field(
        default_factory=dict[str, str]
    )  # run to agent, while its status is `running`
    _last_server_allowed: dict[str, int] = field(default_factory=dict[str, int])
    _last_commit: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    _active_workers: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    _excused: set[str] = field(default_factory=set[str])
    _excused_keys: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _idle_since: dict[str, float] = field(default_factory=dict[str, float])
    _checked_server: SimulatedServer | None = None
    _agents_and_lanes: dict[str, tuple[str, LaneKind]] = field(default_factory=dict[str, tuple[str, LaneKind]])

    def __post_init__(self) -> None:
        self._concurrency = {agent.name: BUILT_IN_AGENT_DEFAULTS.concurrency_of(agent) for agent in self.agents}
        self.schedules = ScheduleChecker(self.disk, self.report, self.trace)

    def report(self, rule: str, description: str) -> None:
        if self.violation is None and rule in self.rules:
            self.violation = InvariantViolation(rule, description)

    # --- what the outside saw ---

    def record_receipt(self, draft: EnvelopeDraft, receipt: Receipt) -> None:
        """Record a receipt that a client got. The envelope must be in the store at this moment."""
        row = self._fetch_one("SELECT source, dedupe_key FROM envelopes WHERE id = ?", receipt.envelope)
        if row is None:
            self.report("receipt", f"{short_id(receipt.envelope)} was acknowledged and is not in the store")
        elif row != (draft.source, draft.idempotency_key):
            self.report(
                "doubled",
                f"the receipt for {draft.idempotency_key} names {short_id(receipt.envelope)}, another envelope",
            )
        known = self._ids_by_key.setdefault((draft.source, draft.idempotency_key), receipt.envelope)
        if known != receipt.envelope:
            self.report(
                "doubled",
                f"{draft.idempotency_key} was acknowledged as {short_id(known)} and as {short_id(receipt.envelope)}",
            )
        self.acknowledged.append(HeldReceipt(receipt.envelope, draft))
        if receipt.outcome is Outcome.REFUSED:
            self._refused_on_accept.add(receipt.envelope)

    def check_allowed(self, context: ToolContext, tool: str, text: str) -> str:
        """Check that a tool call which is about to be performed is allowed. Return what allows it."""
        rules = context.agent.tools
        if tool in rules.deny:
            self.report("unrequested", f"{context.agent.name} is denied {tool} and uses it in {context.call}")
        if tool not in rules.ask:
            return "a rule"
        for (calls,) in self._fetch_all(
            "SELECT calls FROM approvals WHERE session = ? AND state = 'allowed'", context.session
        ):
            for call in json.loads(calls):
                if (call["id"], call["tool"], call["arguments"]) == (context.call, tool, {"text": text}):
                    return "an approval"
        if self._fetch_one(_GRANT, context.session, f"tool:{tool}") is None:
            self.report("unrequested", f"the call {context.call} ({tool} {text!r}) was not allowed")
        return "a grant"

    def record_effect(self, context: ToolContext, tool: str, text: str) -> None:
        """Record the effect of a tool call.

        The intent of the call must already be stored, and this must be its first effect.
        """
        if context.call in self._calls:
            self.report("doubled", f"the call {context.call} ({tool} {text!r}) was performed twice")
        self._calls.add(context.call)
        self.performed.append(WitnessedEffect(context.call, context.run, tool, text))
        found = self._fetch_all("SELECT call FROM steps WHERE run = ? AND kind = 'tool'", context.run)
        if not any(json.loads(call)["id"] == context.call for (call,) in found):
            self.report("intent", f"the call {context.call} was performed, and its intent is not in the store")

    def record_act_started(self, server: SimulatedServer, session: SessionId, what: str) -> None:
        """Record that a worker begins a model call or a tool call for a session.

        No other worker may do so in this session at the same time, and the slot limits must be
        kept.
        """
        if (server.number, session) in self._active_workers:
            self.report("exclusive", f"{server} {what} in {short_id(session)} while another worker acts there")
        self._active_workers[server.number, session] = what
        agent, lane = self._agent_and_lane(session)
        places = [self._agent_and_lane(s) for number, s in self._active_workers if number == server.number]
        by_lane, by_agent = Counter(lane for _, lane in places), Counter(agent for agent, _ in places)
        if by_lane[lane] > self.slots.limit_for(lane):
            self.report("exclusive", f"{server} has {by_lane[lane]} workers in {lane} lanes")
        if by_agent[agent] > self._concurrency[agent]:
            self.report("exclusive", f"{server} has {by_agent[agent]} workers for {agent}")
        found = self._fetch_one("SELECT id FROM runs WHERE session = ? AND status = 'running'", session)
        if found is not None and server.number > self._last_server_allowed.get(found[0], server.number):
            self.report("at-most-once", f"{server} {what} for run {short_id(found[0])}, which a crash had interrupted")

    def record_act_ended(self, server: SimulatedServer, session: SessionId) -> None:
        self._active_workers.pop((server.number, session), None)

    def check_model_context(self, server: SimulatedServer, prompt: ModelPrompt) -> None:
        """Check that a model gets the stored context, unless another server has written to the session since."""
        id_ = session_of_prompt(prompt)
        number, point = self._last_commit.get(id_, (0, ""))
        if number != server.number or point == "cancel":
            return
        if self._fetch_one(_OPEN_MODEL_CALL, id_, self.has_free_models) is None:
            self.report("intent", f"a model is called in {short_id(id_)}, and its step or its cost was not stored")
        if is_summary_request(prompt):
            return
        session = sessions.get(self.disk.connection, id_)
        assert session is not None
        stored, _ = records.read_range(
            self.disk.connection, id_, first=session.context_start_seq, last=session.record_seq
        )
        # Both normalized: in memory, results are in the order in which they arrived.
        read = context_from_records(prompt.records)
        expected, given = [_comparable(r) for r in context_from_records(stored)], [_comparable(r) for r in read]
        if len(expected) == len(given):  # a result that is too long for the rest of the window is truncated
            expected = [_truncate_like(e, r.body) for e, r in zip(expected, read, strict=True)]
        if expected != given:
            pairs = zip(expected, given, strict=False)
            differs = next((f"has {g} for {e}" for e, g in pairs if e != g), f"has {len(given)} for {len(expected)}")
            self.report("context", f"the context of {short_id(prompt.session)} {differs}")

    # --- processes ---

    def record_interruption(self, server: SimulatedServer) -> None:
        """Record that the runs of a server are interrupted: it was killed, or paused while another server starts."""
        once = {agent.name for agent in self.agents if agent.crash_policy is CrashPolicy.AT_MOST_ONCE}
        for run, agent in self._running_agents.items():
            if self._workers[run] is server and agent in once:
                self._last_server_allowed.setdefault(run, server.number)

    # --- after every commit ---

    def check_commit(self, server: SimulatedServer, point: str) -> None:
        self.commits += 1
        raw = self.disk.raw_connection
        changes = [RowChange(*row) for row in raw.execute("SELECT what, id, a, b, c, d, e FROM changes ORDER BY n")]
        raw.execute("DELETE FROM changes")
        (now_ms,) = self._fetch_one("SELECT latest_ms FROM counters") or (0,)
        for change in changes:
            if change.what.startswith(SCHEDULE_CHANGES):
                self.schedules.check_change(change.what, change.id, change.a, server, point, now_ms)
            else:
                self._check_change(change, server, point)
        self.schedules.check_commit(point, now_ms)
        self.changed_sessions = tuple({SessionId(c.id): None for c in changes if c.what in ("record", "epoch")})
        taken = [c for c in changes if c.what == "envelope" and (c.a, c.b) == ("pending", "claimed")]
        if taken:
            self._check_order(taken, point)

    def _check_change(self, change: RowChange, server: SimulatedServer, point: str) -> None:
        moves = _ALLOWED_CHANGES.get(change.what)
        again = (
            change.what == "envelope" and point in _OUTBOX_COMMITS and (change.a, change.b) == ("claimed", "pending")
        )
        if moves is not None and (change.a, change.b) not in moves and not again:
            self.report("status", f"{change.what} {short_id(change.id)} went from {change.a} to {change.b} in {point}")
        match change:
            case RowChange("accepted", id_, seq, accepted_ms):
                self.trace("+ {} to {}, {}", short_id(id_), short_id(change.c or "no one"), change.d)
                if server.is_replaced:
                    self._excused.add(id_)  # it wakes its own lanes, not those of the running server
                if seq != self._envelope_seq + 1:
                    self.report("events", f"envelope {short_id(id_)} has the number {seq} after {self._envelope_seq}")
                if accepted_ms < self._accepted_ms:
                    self.report("events", f"envelope {short_id(id_)} was accepted before its predecessor")
                self._envelope_seq, self._accepted_ms = seq, accepted_ms
            case RowChange("envelope", id_, old, new):
                self.trace("  {} {} -> {}", short_id(id_), old, new)
            case RowChange("record", session, seq, run):
                expected = self._record_seq.get(session, 0) + 1
                if seq != expected:
                    self.report("records", f"record {seq} of {short_id(session)} follows {expected - 1}")
                self._record_seq[session] = seq
                self._last_commit[session] = (server.number, point)
                self._check_worker(run, server, point)
            case RowChange("run", run, session, _, agent):
                self.runs_started += 1
                self._workers[run] = server
                self._open_runs.add(run)
                self._running_agents[run] = agent
                self.trace("  run {} starts in {} for {}", short_id(run), short_id(session), agent)
                removed = self._fetch_one("SELECT removed_ms FROM agents WHERE name = ?", agent)
                if removed is None or removed[0] is not None:
                    self.report("status", f"run {short_id(run)} starts for {agent}, which was removed")
            case RowChange("run.changed"):
                self._check_run_change(change, server, point)
            case RowChange("step" | "step.changed", run):
                self._check_worker(run, server, point)
            case RowChange("epoch", session, old, new):
                self._last_commit[session] = (server.number, point)
                if new < old:
                    self.report("fenced", f"the epoch of {short_id(session)} went from {old} back to {new} in {point}")
            case RowChange("compacted", session, old, new):
                self.compactions += 1
                self.trace("  session {} is compacted, {} -> {}", short_id(session), old, new)
                if new < old:
                    self.report(
                        "context", f"the context of {short_id(session)} went from {old} back to {new} in {point}"
                    )
            case RowChange("approval", id_, _, state):
                for kind, waited_for in self._fetch_all(_DELEGATED_APPROVAL, id_):
                    whose = f"{kind}, waited for" if waited_for else kind
                    self.child_approvals[f"approvals of children ({whose}) {state}"] += 1
            case RowChange("events", _, seq, at_ms):
                if seq != self._event_seq + 1 or at_ms < self._event_ms:
                    self.report("events", f"event {seq} at {at_ms} follows {self._event_seq} at {self._event_ms}")
                self._event_seq, self._event_ms = seq, at_ms
            case RowChange("gone", table):
                self.report("lost", f"a row of {table} was deleted or rewritten in {point}")
            case _:
                pass

    def _check_run_change(self, change: RowChange, server: SimulatedServer, point: str) -> None:
        _, run, old, new, old_epoch, new_epoch, attempts = change
        self._check_worker(run, server, point)
        if old_epoch != new_epoch:
            if old == "running" and self._workers[run] is not server:
                self.takeovers += 1
                # A server that was paused before its claim does not know of the crash that others saw.
                if attempts != 1 and not server.is_replaced:
                    self.report(
                        "status", f"run {short_id(run)} was interrupted and resumed, which is {attempts} attempts"
                    )
            self._workers[run] = server
            self.trace("  run {} is resumed by {}", short_id(run), server)
        if old == new:
            return
        self.trace("  run {} {} -> {}", short_id(run), old, new)
        self._running_agents.pop(run, None)
        self._last_server_allowed.pop(run, None)  # if it was suspended, then by its own worker: nothing was interrupted
        if new == "running":
            (self._running_agents[run],) = self._fetch_one("SELECT agent FROM runs WHERE id = ?", run) or ("",)
        elif new != "suspended":
            self._open_runs.discard(run)

    def _check_worker(self, run: str | None, server: SimulatedServer, point: str) -> None:
        """Check that only the latest worker that claimed a run writes for it, and only while the run is open."""
        if run is None:
            return
        worker = self._workers[run]
        if run not in self._open_runs:
            self.report("fenced", f"{server} wrote {point} for run {short_id(run)}, which has ended")
        if worker is not server and point in _WORKER_COMMITS:
            self.report("fenced", f"{server} wrote {point} for run {short_id(run)}, which {worker} has taken over")

    def _check_order(self, taken: Iterable[RowChange], point: str) -> None:
        """Check that no due envelope was left behind when a run took a later one.

        If messages are added to an active run (steer), they must be from the sender of the run, and
        in order.
        """
        (now_ms,) = self._fetch_one("SELECT latest_ms FROM counters") or (0,)
        for change in taken:
            row = self._fetch_one('SELECT "rank", due_ms, seq, sender FROM envelopes WHERE id = ?', change.id)
            assert row is not None
            rank, due_ms, seq, sender = row
            left = self._fetch_one(
                "SELECT id FROM envelopes WHERE session = ? AND status = 'pending' AND silent = 0 AND due_ms <= ?"
                " AND (\"rank\", due_ms, seq) < (?, ?, ?) AND (? OR (sender = ? AND kind = 'message')) LIMIT 1",
                *(change.c, now_ms, rank, due_ms, seq, point != "step", sender),
            )
            if left is not None:
                self.report("order", f"{short_id(change.id)} was taken in {point} before {short_id(left[0])}")
            if point == "step" and self._fetch_one(_STEER_SENDER, change.id) is None:
                self.report("order", f"{short_id(change.id)} steers another person's run")

    # --- regularly, and at the end ---

    def check_ledger(self, now_ms: int) -> None:
        found = ledger.check_ledger(self.disk.connection, now_ms=now_ms)
        if not found.is_ok:
            self.report("ledger", "; ".join(line for e in found.equations if not e.is_ok for line in e.lines()))

    def list_unfinished(self) -> list[str]:
        """Return everything that is unfinished: due envelopes, running or suspended runs, sessions that are awake."""
        (now_ms,) = self._fetch_one("SELECT latest_ms FROM counters") or (0,)
        found = [
            f"envelope {short_id(id_)} {status} in {short_id(session or 'nowhere')} since {now_ms - due_ms} ms"
            for id_, status, session, due_ms in self._fetch_all(
                "SELECT id, status, session, due_ms FROM envelopes WHERE status <> 'done' AND due_ms <= ?", now_ms
            )
        ]
        found += [
            f"run {short_id(id_)} {status} in {short_id(session)}"
            for id_, status, session in self._fetch_all(
                "SELECT id, status, session FROM runs WHERE status IN ('running', 'suspended')"
            )
        ]
        found += [
            f"session {short_id(id_)} is awake"
            for (id_,) in self._fetch_all("SELECT id FROM sessions WHERE activity = 'active'")
        ]
        return found + [
            f"a slot of {short_id(id_)} is {state}"
            for id_, state in self._fetch_all(
                "SELECT schedule, state FROM occurrences WHERE state IN ('waiting', 'working')"
            )
        ]

    def excuse_envelope(self, source: str, key: str) -> None:
        """Exempt an envelope from the promptness check.

        Its sender disconnected before the lane was woken, so only the timer of the server will find
        the envelope.
        """
        self._excused_keys.add((source, key))

    def check_promptness(self, server: SimulatedServer, now_s: float, *, jumped: bool) -> None:
        """Check that each due envelope is claimed at once, or that its lane waits for a slot.

        This detects a lost wake-up. `jumped` means that the wall clock jumped, so that deferred
        envelopes are due by now. The timer of the server finds such envelopes within a minute.
        """
        idle: dict[str, str] = {}
        for id_, session, source, key in self._fetch_all(_UNATTENDED, jumped):
            excused = id_ in self._excused or (source, key) in self._excused_keys
            if not excused and not server.engine.is_attending(session):
                idle.setdefault(session, id_)
        if not jumped:
            idle.update((id_, id_) for id_ in self.schedules.list_overdue(server))
        if server is not self._checked_server:
            self._checked_server, self._idle_since = server, {}
        self._idle_since = {session: self._idle_since.get(session, now_s) for session in idle}
        for session, since_s in self._idle_since.items():
            if now_s - since_s > ATTENTION_S_MAX:
                story = f"{short_id(idle[session])} in {short_id(session)} was due {now_s - since_s:g} s ago"
                self.report("promptness", f"{story}, and no worker handles it or waits for a slot")

    def reset_waiting_times(self) -> None:
        """Restart the waiting times of all envelopes, because something has delayed all of them."""
        self._idle_since = {}

    def check_final_state(self) -> None:
        """Check the whole store after the simulation, when the server has nothing left to do.

        Every envelope with a receipt must have an outcome, and the stored history must be
        consistent.
        """
        for ack in self.acknowledged:
            self._check_outcome(ack)
        self._check_events()
        self._check_decisions()
        self._check_witness()
        for (session,) in self._fetch_all("SELECT id FROM sessions ORDER BY id"):
            self._check_history(session)
        self._check_answers()
        self._check_delegations()
        (now_ms,) = self._fetch_one("SELECT latest_ms FROM counters") or (0,)
        self.schedules.check_final_state(now_ms)

    def _check_outcome(self, ack: HeldReceipt) -> None:
        row = self._fetch_one(
            "SELECT e.status, o.outcome, o.answer, o.silent, e.run, e.sender, e.silent FROM envelopes e"
            " LEFT JOIN outcomes o ON o.envelope = e.id WHERE e.id = ?",
            ack.envelope,
        )
        if row is None:
            return self.report("lost", f"{short_id(ack.envelope)} was acknowledged and is gone")
        status, outcome, answer, silently, run, sender, quiet = row
        if status != "done" or outcome is None:
            return self.report("lost", f"{short_id(ack.envelope)} is {status} with the outcome {outcome}")
        if outcome == "answered" and not silently:
            notice = self._fetch_one("SELECT 1 FROM envelopes WHERE id = ? AND kind = 'answer'", answer)
        elif outcome in ("answered", "noted", "delivered") or quiet or ack.envelope in self._refused_on_accept:
            return None
        elif sender.startswith("schedule:"):
            # A schedule has no recipient for notices. How its run ended is reported to a person;
            # what never ran is not.
            notice = run is None or self._fetch_one(_NOTICE, "%", ack.envelope, run)
        else:
            notice = self._fetch_one(_NOTICE, sender, ack.envelope, run)
        if notice is None:
            self.report("promptness", f"{sender} was not notified that {short_id(ack.envelope)} is {outcome}")
        return None

    def _check_events(self) -> None:
        """Check that a client which reads only the events learns how every envelope ended."""
        reported: set[str] = set()
        for kind, envelope, body in self._fetch_all("SELECT kind, envelope, body FROM events"):
            if kind == "envelope.settled":
                reported.add(envelope)
            elif kind == "run.ended":
                reported.update(json.loads(body)["envelopes"])
        for id_, outcome in self._fetch_all("SELECT envelope, outcome FROM outcomes WHERE outcome <> 'delivered'"):
            if id_ not in reported:
                self.report("events", f"no event reports that {short_id(id_)} is {outcome}")

    def _check_decisions(self) -> None:
        for (id_,) in self._fetch_all(
            "SELECT id FROM approvals WHERE state IN ('allowed', 'denied') AND decided_ms >= expires_ms"
        ):
            self.report("status", f"the approval {short_id(id_)} was decided after it had expired")

    def _check_witness(self) -> None:
        """Check that every call which is stored as done had its effect, with the stored arguments."""
        done = {performed.call: performed for performed in self.performed}
        closed = self._fetch_all(
            "SELECT s.call, r.body FROM steps s JOIN runs ON runs.id = s.run JOIN records r"
            " ON r.session = runs.session AND r.seq = s.record_seq WHERE s.kind = 'tool' AND s.state = 'closed'"
        )
        for text, body in closed:
            call = json.loads(text)
            if call["tool"] not in WITNESSED_TOOLS or "appended" not in body:
                continue
            seen = done.get(call["id"])
            if seen is None:
                self.report("intent", f"the call {call['id']} is closed as done, but never happened")
            elif seen.text != call["arguments"]["text"]:
                self.report("intent", f"the call {call['id']} was performed with other arguments than stored")

    def _check_history(self, session: str) -> None:
        """Check that the records of a session have no gap, and that each call has its results next to it."""
        found, damaged = records.read_range(self.disk.connection, session, first=0, last=2**60)
        if damaged or [r.seq for r in found] != list(range(1, len(found) + 1)):
            self.report("records", f"the records of {short_id(session)} have a gap or are damaged")
        waiting: set[str] = set()
        read: Counter[str] = Counter()
        for record in found:
            match record.body:
                case Reply(calls=calls):
                    self._check_calls_answered(session, waiting)
                    waiting = {call.id for call in calls}
                case ToolResult(call=call):
                    if call not in waiting:
                        self.report("records", f"a result of {call} in {short_id(session)} is not next to its call")
                    waiting.discard(call)
                case UserTurn(envelopes=envelopes):
                    self._check_calls_answered(session, waiting)
                    read.update(envelopes)
                case _:
                    self._check_calls_answered(session, waiting)
        self._check_calls_answered(session, waiting)
        self._check_read(session, read)
        self._check_context(session, found)

    def _check_context(self, session: str, found: Sequence[Record]) -> None:
        """Check that the context begins where its newest marker or summary says.

        The stored number of compactions must be the number of its summaries.
        """
        mark = max(record.seq for record in found if isinstance(record.body, ContextStart))
        summaries = [r.body for r in found if isinstance(r.body, Summary) and r.seq > mark]
        expected = (summaries[-1].kept_from if summaries else mark, len(summaries))
        stored = self._fetch_one("SELECT context_from, compactions FROM sessions WHERE id = ?", session)
        if stored != expected:
            self.report("context", f"the context of {short_id(session)} is {stored}, and its records say {expected}")

    def _check_calls_answered(self, session: str, waiting: set[str]) -> None:
        if waiting:
            self.report("records", f"the calls {sorted(waiting)} in {short_id(session)} have no result next to them")

    def _check_read(self, session: str, read: Counter[str]) -> None:
        for id_, outcome, steered in self._fetch_all(
            "SELECT e.id, o.outcome, e.steered_into IS NOT NULL FROM envelopes e JOIN outcomes o ON o.envelope = e.id"
            " WHERE e.session = ? AND e.recipient LIKE 'agent:%' AND e.text NOT LIKE '/%'",
            session,
        ):
            if read[id_] > 1 + steered:
                self.report("doubled", f"{short_id(id_)} was read {read[id_]} times")
            if outcome == "answered" and not read[id_]:
                self.report("lost", f"{short_id(id_)} is {outcome}, and no model has read it")

    def _check_answers(self) -> None:
        """Check that no question has two answers, and that the answers of a session are in the order of its runs."""
        answers = self._fetch_all(
            "SELECT a.sender, a.reply_to, q.run, n.seq FROM envelopes a JOIN envelopes q ON q.id = a.reply_to"
            " JOIN events n ON n.run = q.run AND n.kind = 'run.started' WHERE a.kind = 'answer' ORDER BY a.seq"
        )
        questions = Counter(question for _, question, _, _ in answers)
        for question, count in questions.items():
            if count > 1:
                self.report("doubled", f"{short_id(question)} was answered {count} times")
        began: dict[str, int] = {}
        for sender, question, _, seq in answers:
            if seq < began.get(sender, 0):
                self.report("order", f"the answer to {short_id(question)} left after that of a later run")
            began[sender] = seq

    def _check_delegations(self) -> None:
        """Check that each result of delegated work was read once: by the waiting call, or as an envelope."""
        times: Counter[str] = Counter()
        for delegation, session, call, because, result, text, status in self._fetch_all(
            "SELECT d.id, d.session, d.call, d.because, d.result, e.text, r.status"
            " FROM delegations d JOIN runs r ON r.id = d.run"
            # `SimulatedExternalAgent` checks those
            " LEFT JOIN envelopes e ON e.id = d.result WHERE d.kind <> 'external'"
        ):
            if result is None:
                continue
            if text is None:
                self.report("delegations", f"the result of {short_id(delegation)} is gone")
                continue
            found, _ = records.read_range(self.disk.connection, session, first=0, last=2**60)
            times[result] += sum(self._iter_delegation_results(found, delegation, text))
            times[result] += _count_error_results(found, call, because)
            times[result] += sum(result in r.body.envelopes for r in found if isinstance(r.body, UserTurn))
            (outcome, because) = self._fetch_one(
                "SELECT outcome, because FROM outcomes WHERE envelope = ?", result
            ) or (
                "",
                "",
            )
            # A run that was stopped while it held the answer has reported the stop to its requester.
            least = 0 if because.startswith("the run ") and status != "completed" else 1
            if not least <= times[result] <= 1 and outcome in ("noted", "answered"):
                story = (
                    f"the result of {short_id(delegation)} is {outcome} ({because}) and was read {times[result]} times"
                )
                self.report("delegations", story)

    def _iter_delegation_results(self, found: Sequence[Record], delegation: str, text: str) -> Iterable[int]:
        """Yield 1 for each tool result that contains the result of a delegation. The text of each result is checked."""
        for record in found:
            body = record.body
            if not isinstance(body, ToolResult | Note) or delegation not in _result_text(body):
                continue
            result = _parse_json_object(_result_text(body))
            response = result.get("response") or (result.get("message") if result.get("status") == "failed" else None)
            if response is None:
                continue
            if response != text and not result.get("truncated"):
                self.report(
                    "delegations",
                    f"the call that delegated {short_id(delegation)} got another result: {response[:80]!r}",
                )
            yield 1

    # --- lookups ---

    def _agent_and_lane(self, session: str) -> tuple[str, LaneKind]:
        """Return the agent of a session and the kind of its lane."""
        if session not in self._agents_and_lanes:
            row = self._fetch_one("SELECT agent, origin_kind FROM sessions WHERE id = ?", session)
            assert row is not None
            self._agents_and_lanes[session] = (row[0], lane_kind_of(OriginKind(row[1])))
        return self._agents_and_lanes[session]

    def _fetch_one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        return self.disk.raw_connection.execute(sql, values).fetchone()

    def _fetch_all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.disk.raw_connection.execute(sql, values).fetchall()


def _comparable(record: Record) -> tuple[Any, ...]:
    return record.seq, record.kind, record.body


def _truncate_like(stored: tuple[Any, ...], read: object) -> tuple[Any, ...]:
    """Return the stored value, prepared for the comparison with the value that the model read.

    If the tool result that the model read is truncated, the stored result is truncated in the same
    way.
    """
    body = stored[-1]
    if not (isinstance(body, ToolResult) and isinstance(read, ToolResult) and body != read):
        return stored
    kept, cut, _ = read.output.rpartition("\n\n[cut: this is the beginning of ")
    return (*stored[:-1], replace(body, output=read.output)) if cut and body.output.startswith(kept) else stored


def _count_error_results(found: Sequence[Record], call: str, because: str) -> int:
    """Return how many results of a call report why its subagent could not start.

    If such a call is repeated after a crash, its result reports this again.
    """
    results = (r.body for r in found if isinstance(r.body, ToolResult) and r.body.call == call)
    return sum(_parse_json_object(result.output).get("error") == because for result in results)


def _result_text(body: ToolResult | Note) -> str:
    return body.output if isinstance(body, ToolResult) else body.text


def _parse_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a result contains, ignoring any text before it."""
    try:
        return json.loads(text[text.index("{") :])
    except ValueError:
        return {}
