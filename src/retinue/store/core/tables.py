"""The tables. Times are unix milliseconds, bodies are JSON text, ids are 32 hex digits.

Partial indexes keep the work of accept and claim the same for ten envelopes and for a million: they hold only
what is still open. Their conditions are written as literals here and in the statements that use them, because a
planner cannot prove them from a bound parameter.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import memoized_property

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def word(quoted: str) -> sa.ColumnClause[str]:
    """A constant that the planner can see, so that it may use a partial index."""
    return sa.literal_column(quoted, sa.String)


PENDING = word("'pending'")
DONE = word("'done'")
HELD = (word("'claimed'"), word("'parked'"))
OPEN_RUN = (word("'running'"), word("'parked'"))


_PARTIAL: list[tuple[sa.Index, sa.ColumnElement[bool]]] = []


def _partial(name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool], unique: bool = False) -> None:
    """An index over the rows that are still open."""
    _PARTIAL.append((sa.Index(name, *columns, unique=unique, sqlite_where=where), where))


def know_postgres() -> None:
    """Tell the partial indexes about PostgreSQL. Only a store that is there pays for importing its dialect."""
    for index, where in _PARTIAL:
        index.dialect_options["postgresql"]["where"] = where


def _id(name: str, **kw: object) -> sa.Column[str]:
    return sa.Column(name, sa.String(32), **kw)  # type: ignore[arg-type]


def _ms(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


house = sa.Table(
    "house",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("news_seq", sa.BigInteger, nullable=False),
    sa.Column("envelope_seq", sa.BigInteger, nullable=False),
    _ms("latest_ms"),
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("folded", sa.String(64), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    _ms("created_ms"),
    _ms("removed_ms", nullable=True),
    sa.UniqueConstraint("folded"),
)

people = sa.Table(
    "people",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("folded", sa.String(64), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    _ms("created_ms"),
    _ms("forgotten_ms", nullable=True),
    sa.UniqueConstraint("folded"),
)

# What proves who someone is: tokens, cookies of a browser, sign-in codes, invitations. Only hashes are kept.
tokens = sa.Table(
    "tokens",
    metadata,
    _id("id", primary_key=True),
    sa.Column("kind", sa.String(8), nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("body", sa.Text),
    _ms("created_ms"),
    _ms("used_ms", nullable=True),
    _ms("expires_ms", nullable=True),
    _ms("revoked_ms", nullable=True),
    sa.UniqueConstraint("hash"),
)
sa.Index("ix_tokens_principal", tokens.c.principal)

# What a house has answered to requests that carried a key: the same key gets the same answer.
answers = sa.Table(
    "answers",
    metadata,
    sa.Column("principal", sa.Text, primary_key=True),
    sa.Column("key", sa.String(256), primary_key=True),
    sa.Column("operation", sa.String(64), nullable=False),
    sa.Column("request_hash", sa.String(64), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_answers_at", answers.c.at_ms)

agent_versions = sa.Table(
    "agent_versions",
    metadata,
    sa.Column("agent", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    sa.Column("changed_by", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

sessions = sa.Table(
    "sessions",
    metadata,
    _id("id", primary_key=True),
    sa.Column("agent", sa.String(64), sa.ForeignKey("agents.name"), nullable=False),
    sa.Column("origin_kind", sa.String(16), nullable=False),
    sa.Column("origin_key", sa.Text, nullable=False),
    _id("parent"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("wakefulness", sa.String(8), nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("attributes", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("record_seq", sa.BigInteger, nullable=False),
    sa.Column("context_from", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("snippet", sa.Text, nullable=False),
    _ms("created_ms"),
    _ms("updated_ms"),
    _ms("pinned_ms", nullable=True),
    sa.Column("folded", sa.Text),
    _ms("deleted_ms", nullable=True),
    sa.Column("mind", sa.Text, nullable=False),
    sa.Column("compactions", sa.Integer, nullable=False),
    _ms("archived_ms", nullable=True),
    _ms("began_ms"),
    _ms("active_ms"),
    sa.Column("refresh", sa.Text),
    sa.Column("chat_type", sa.String(8)),
    sqlite_with_rowid=False,
)
_partial(
    "uq_sessions_origin",
    *(sessions.c[column] for column in ("agent", "origin_kind", "origin_key")),
    where=sessions.c.deleted_ms.is_(None),
    unique=True,
)
# By id, not by time: that changes with every commit of a run, and each would write here too.
_partial("ix_sessions_active", sessions.c.id, where=sessions.c.wakefulness == word("'active'"))
sa.Index("ix_sessions_parent", sessions.c.parent)
sa.Index("uq_sessions_name", sessions.c.agent, sessions.c.folded, unique=True)

# With whom a session is shared besides the one whose it is.
shares = sa.Table(
    "shares",
    metadata,
    _id("session", primary_key=True),
    sa.Column("person", sa.String(64), sa.ForeignKey("people.name"), primary_key=True),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_shares_person", shares.c.person)

envelopes = sa.Table(
    "envelopes",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    _id("id", nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("recipient", sa.Text, nullable=False),
    _id("session"),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("attachments", sa.Text),
    sa.Column("context", sa.Text),
    _id("reply_to"),
    sa.Column("trust", sa.String(16), nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("dedupe_key", sa.Text, nullable=False),
    sa.Column("rank", sa.SmallInteger, nullable=False),
    sa.Column("silent", sa.Boolean, nullable=False),
    _ms("deliver_ms", nullable=True),
    _ms("expires_ms", nullable=True),
    _ms("due_ms"),
    sa.Column("status", sa.String(8), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    _ms("accepted_ms"),
    _ms("claimed_ms", nullable=True),
    _ms("settled_ms", nullable=True),
    _id("run"),
    _id("steered_into"),
    _id("retry_of"),
    sa.UniqueConstraint("id"),
    sa.UniqueConstraint("source", "dedupe_key"),
    sa.CheckConstraint("status IN ('pending', 'claimed', 'parked', 'done')", name="status"),
)
_pending = envelopes.c.status == PENDING
_held = envelopes.c.status.in_(HELD)
for _name, _columns, _where in (
    ("ix_envelopes_lane", ("session", "rank", "due_ms", "seq"), _pending),
    ("ix_envelopes_outbox", ("recipient", "due_ms", "seq"), sa.and_(_pending, envelopes.c.session.is_(None))),
    ("ix_envelopes_due", ("due_ms",), _pending),
    ("ix_envelopes_expiring", ("expires_ms",), sa.and_(_pending, envelopes.c.expires_ms.is_not(None))),
    ("ix_envelopes_held", ("run",), _held),
):
    _partial(_name, *(envelopes.c[c] for c in _columns), where=_where)

outcomes = sa.Table(
    "outcomes",
    metadata,
    _id("envelope", primary_key=True),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id("answer"),
    sa.Column("silent", sa.Boolean, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)
_partial("ix_outcomes_dead", outcomes.c.at_ms, where=outcomes.c.outcome.in_((word("'dead'"), word("'interrupted'"))))

inbox = sa.Table(
    "inbox",
    metadata,
    _id("envelope", primary_key=True),
    sa.Column("person", sa.String(64), sa.ForeignKey("people.name"), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    _ms("read_ms", nullable=True),
    sqlite_with_rowid=False,
)
_partial("ix_inbox_unread", inbox.c.person, inbox.c.seq, where=inbox.c.read_ms.is_(None))

tally = sa.Table(
    "tally",
    metadata,
    sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("accepted", sa.BigInteger, nullable=False),
    sa.Column("purged", sa.BigInteger, nullable=False),
)

# What is left of an envelope that was purged, for a while: its key, so that it is not accepted twice, and no words.
purged = sa.Table(
    "purged",
    metadata,
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("dedupe_key", sa.Text, primary_key=True),
    _id("envelope", nullable=False),
    _id("session"),
    sa.Column("recipient", sa.Text, nullable=False),
    sa.Column("content_hash", sa.String(64), nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    _ms("accepted_ms"),
    _ms("purged_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_purged_envelope", purged.c.envelope)
sa.Index("ix_purged_at", purged.c.purged_ms)

records = sa.Table(
    "records",
    metadata,
    _id("session", primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    _id("run"),
    sa.Column("trust", sa.String(16), nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# Made of `records`, and never asked where it says otherwise: see `store/sessions/record_chunks`.
chapters = sa.Table(
    "chapters",
    metadata,
    _id("session", primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    _id("id", primary_key=True),
    _id("session", nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    sa.Column("lane", sa.String(16), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("envelopes", sa.Text, nullable=False),
    sa.Column("first_seq", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    _ms("started_ms"),
    _ms("wake_ms", nullable=True),
    _ms("ended_ms", nullable=True),
    sa.Column("final_text", sa.Text),
    sa.Column("context_length", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.Column("lineage", sa.Text),  # of a run that another one set going
    sa.ForeignKeyConstraint(["session"], ["sessions.id"]),
    sqlite_with_rowid=False,
)
_open_run = runs.c.status.in_(OPEN_RUN)
_partial("uq_runs_open", runs.c.session, where=_open_run, unique=True)
_partial("ix_runs_wake", runs.c.wake_ms, where=runs.c.status == word("'parked'"))
sa.Index("ix_runs_agent_started", runs.c.agent, runs.c.started_ms)
sa.Index("ix_runs_session_started", runs.c.session, runs.c.started_ms)

steps = sa.Table(
    "steps",
    metadata,
    _id("run", primary_key=True),
    sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("hash", sa.String(32), primary_key=True),
    sa.Column("kind", sa.String(8), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("call", sa.Text),
    sa.Column("record_seq", sa.BigInteger),
    _ms("opened_ms"),
    _ms("closed_ms", nullable=True),
    sa.ForeignKeyConstraint(["run"], ["runs.id"]),
    sqlite_with_rowid=False,
)

delegations = sa.Table(
    "delegations",
    metadata,
    _id("id", primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    _id("run", nullable=False),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    _id("session", nullable=False),
    sa.Column("target", sa.String(64), nullable=False),
    _id("child"),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("above", sa.Text, nullable=False),
    sa.Column("lineage", sa.Text, nullable=False),
    sa.Column("notify", sa.String(8), nullable=False),
    _ms("wait_ms", nullable=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("cleanup", sa.String(8), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id("result"),
    _id("worked_by"),
    _ms("created_ms"),
    _ms("started_ms", nullable=True),
    _ms("ended_ms", nullable=True),
    _ms("archive_ms", nullable=True),
    _ms("archived_ms", nullable=True),
    _ms("archive_after_ms", nullable=True),
    sqlite_with_rowid=False,
)
sa.Index("ix_delegations_session", delegations.c.session, delegations.c.created_ms)
sa.Index("ix_delegations_child", delegations.c.child)
sa.Index("ix_delegations_result", delegations.c.result)
sa.Index("ix_delegations_created", delegations.c.created_ms, delegations.c.id)
_partial("ix_delegations_waiting", delegations.c.run, where=delegations.c.wait_ms.is_not(None))
_partial("ix_delegations_open", delegations.c.session, delegations.c.id, where=delegations.c.state == word("'open'"))
_partial(
    "ix_delegations_spawned",
    delegations.c.created_ms,
    delegations.c.id,
    where=delegations.c.kind == word("'spawn'"),
)
_partial(
    "ix_delegations_archive",
    delegations.c.archive_ms,
    where=sa.and_(delegations.c.archive_ms.is_not(None), delegations.c.archived_ms.is_(None)),
)

approvals = sa.Table(
    "approvals",
    metadata,
    _id("id", primary_key=True),
    _id("session", nullable=False),
    _id("run", nullable=False),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("calls", sa.Text, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("released", sa.Boolean, nullable=False),
    sa.Column("decided_by", sa.Text, nullable=False),
    _ms("asked_ms"),
    _ms("expires_ms"),
    _ms("decided_ms", nullable=True),
    sa.Column("needs", sa.Text, nullable=False),  # permissions that the calls lack, as a list of tags
    sa.Column("scope", sa.String(16), nullable=False),  # of a yes: once, session, always
    sa.Column("asked_of", sa.Text, nullable=False),  # addresses of the people who were asked, as a list
    sa.Column("words", sa.Text, nullable=False),  # what was said with the decision
    sa.Column("agent", sa.String(64), nullable=False),  # who is to have what was asked for; empty: who asked
    _ms("escalate_ms", nullable=True),  # when the next one is asked
)

grants = sa.Table(
    "grants",
    metadata,
    _id("id", primary_key=True),
    sa.Column("agent", sa.String(64), nullable=False),
    _id("session", nullable=True),
    sa.Column("permission", sa.Text, nullable=False),
    sa.Column("granted_by", sa.Text, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id("approval", nullable=True),
    _ms("at_ms"),
    _ms("expires_ms", nullable=True),
    _ms("revoked_ms", nullable=True),
    sa.Column("revoked_by", sa.Text, nullable=False),
)
_partial("ix_grants_good", grants.c.agent, grants.c.session, where=grants.c.revoked_ms.is_(None))

# Every decision and effect, in the commit it tells of. `chain` is a session, or empty for the house; a row's hash
# covers the one before it in its chain.
audit = sa.Table(
    "audit",
    metadata,
    _id("chain", primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    _ms("at_ms"),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    _id("run", nullable=True),
    sa.Column("subject", sa.Text, nullable=False),  # a tool, an approval, a setting
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("content", sa.String(64), nullable=False),  # the hash of what it was about; the content is elsewhere
    sa.Column("hash", sa.String(64), nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("ix_audit_at", audit.c.at_ms)

# Where each chain stood at an hour: a chain that was cut short afterwards no longer reaches it.
audit_anchors = sa.Table(
    "audit_anchors",
    metadata,
    _ms("at_ms"),
    _id("chain", nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.PrimaryKeyConstraint("at_ms", "chain"),
    sqlite_with_rowid=False,
)

# How far files can be believed that an agent has written. What is not here is the house's own.
file_labels = sa.Table(
    "file_labels",
    metadata,
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("trust", sa.String(16), nullable=False),
    sa.Column("whole", sa.Boolean, nullable=False),  # a folder: whatever in it has changed since
    _id("run", nullable=True),
    _ms("at_ms"),
)

# Commands that were begun and left to run on.
processes = sa.Table(
    "processes",
    metadata,
    _id("id", primary_key=True),
    _id("session", nullable=False),
    _id("run", nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("boot", sa.Text, nullable=False),  # of the machine and the process: a pid is used again
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("exit_code", sa.Integer),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("trust", sa.String(16), nullable=False),
    _ms("started_ms"),
    _ms("ended_ms", nullable=True),
)
_partial("ix_processes_running", processes.c.session, where=processes.c.state == word("'running'"))

# What was looked at and found good: skills, tools of an MCP server. One that has changed since is asked about.
pins = sa.Table(
    "pins",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("content", sa.Text, nullable=False),  # what was found good, to show a difference by
    sa.Column("decided_by", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_approvals_run", approvals.c.run)
_partial("ix_approvals_past", approvals.c.asked_ms, approvals.c.id, where=approvals.c.state != word("'open'"))
_partial("ix_approvals_open", approvals.c.expires_ms, where=approvals.c.state == word("'open'"))

deliveries = sa.Table(
    "deliveries",
    metadata,
    _id("envelope", primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("receipt", sa.Text),
    sa.Column("error_kind", sa.Text),
    sa.Column("error", sa.Text),
    _ms("opened_ms"),
    _ms("closed_ms", nullable=True),
)
_partial("ix_deliveries_sending", deliveries.c.envelope, where=deliveries.c.state == word("'sending'"))

# Every call of a model: what was reserved for it, what it came to, and, where it failed, what was tried next.
money = sa.Table(
    "money",
    metadata,
    _id("run", primary_key=True),
    sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    _id("session", nullable=False),
    _id("root", nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("provider", sa.String(64), nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("credential", sa.String(128), nullable=False),
    sa.Column("day", sa.Integer, nullable=False),
    sa.Column("reserved_microusd", sa.BigInteger, nullable=False),
    sa.Column("settled_microusd", sa.BigInteger, nullable=False),
    sa.Column("released_microusd", sa.BigInteger, nullable=False),
    sa.Column("held_microusd", sa.BigInteger, nullable=False),
    sa.Column("unknown", sa.Boolean, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
    sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
    sa.Column("estimated", sa.Boolean, nullable=False),
    sa.Column("failure", sa.String(32)),
    sa.Column("next_move", sa.String(32)),
    sa.Column("error", sa.Text),
    _ms("at_ms"),
    _ms("ended_ms", nullable=True),
    sqlite_with_rowid=False,
)
# A run without a parent is the root of its own calls, and those are found by their run.
_partial("ix_money_root", money.c.root, where=money.c.root != money.c.run)
sa.Index("ix_money_day", money.c.day)

# The sums of money by day, raised in the commits that reserve and settle: what a cap is compared with.
spending = sa.Table(
    "spending",
    metadata,
    sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("agent", sa.String(64), primary_key=True),
    sa.Column("person", sa.String(64), primary_key=True),
    sa.Column("provider", sa.String(64), primary_key=True),
    sa.Column("model", sa.String(256), primary_key=True),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("settled_microusd", sa.BigInteger, nullable=False),
    sa.Column("held_microusd", sa.BigInteger, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
    sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Keys to providers: where each is kept, never the key itself. Those of the house have no agent.
credentials = sa.Table(
    "credentials",
    metadata,
    sa.Column("agent", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("provider", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("region", sa.Text),
    sa.Column("position", sa.Integer),
    _ms("created_ms"),
    _ms("used_ms", nullable=True),
    sqlite_with_rowid=False,
)

# Which credential is not to be asked for which model, and until when. An empty model means all of them.
cooldowns = sa.Table(
    "cooldowns",
    metadata,
    sa.Column("agent", sa.String(64), primary_key=True),
    sa.Column("credential", sa.String(128), primary_key=True),
    sa.Column("model", sa.String(256), primary_key=True),
    sa.Column("reason", sa.String(32), nullable=False),
    sa.Column("errors", sa.Integer, nullable=False),
    _ms("until_ms"),
    _ms("failed_ms"),
    sqlite_with_rowid=False,
)

news = sa.Table(
    "news",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(32), nullable=False),
    _id("session"),
    _id("envelope"),
    _id("run"),
    sa.Column("record_seq", sa.BigInteger),
    sa.Column("body", sa.Text),
    _ms("at_ms"),
    sa.Column("person", sa.String(64)),  # whom it is for, beside whoever sees its session
)

# The few that tell of a run what nothing else keeps: that it waited, was taken up again, or read more meanwhile.
run_went_on = news.c.kind.in_((word("'run.joined'"), word("'run.parked'"), word("'run.resumed'")))
_partial("ix_news_run", news.c.run, where=run_went_on)

# What someone is to notice when they look: short words, from an agent or a person.
notifications = sa.Table(
    "notifications",
    metadata,
    _id("id", primary_key=True),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    _id("session"),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("trust", sa.String(16), nullable=False),
    _ms("at_ms"),
    _ms("read_ms", nullable=True),
)
sa.Index("ix_notifications_person", notifications.c.person, notifications.c.at_ms, notifications.c.id)
_partial("ix_notifications_unread", notifications.c.person, where=notifications.c.read_ms.is_(None))

# Questions with fields that an agent put to a person. The answers come to it as an envelope of that person.
questionnaires = sa.Table(
    "questionnaires",
    metadata,
    _id("id", primary_key=True),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    _id("session", nullable=False),
    _id("run", nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("fields", sa.Text, nullable=False),
    sa.Column("trust", sa.String(16), nullable=False),  # of what the agent knew as it wrote them
    sa.Column("state", sa.String(16), nullable=False),
    _ms("asked_ms"),
    _ms("expires_ms"),
    _ms("ended_ms", nullable=True),
    sa.Column("ended_by", sa.Text, nullable=False),
    sa.Column("answers", sa.Text, nullable=False),
    _id("envelope"),
)
sa.Index("ix_questionnaires_person", questionnaires.c.person, questionnaires.c.asked_ms, questionnaires.c.id)
sa.Index("ix_questionnaires_session", questionnaires.c.session)

# What a person has set for themselves, on whatever device: a layout, a theme.
preferences = sa.Table(
    "preferences",
    metadata,
    sa.Column("person", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# What each session was last told before anything was said in it, and the files its conversation began with.
instructions = sa.Table(
    "instructions",
    metadata,
    _id("session", primary_key=True),
    sa.Column("began", sa.String(64), nullable=False),
    sa.Column("snapshot", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("parts", sa.Text, nullable=False),
    _ms("at_ms"),
)

# By what id an agent that runs elsewhere knows a session, where somebody chose one. It outlives the session's deletion.
external_keys = sa.Table(
    "external_keys",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    _id("session", nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("uq_external_keys_session", external_keys.c.session, unique=True)

# Who wants to be told elsewhere what came of a letter. The headers may be secret, and go once they were used.
webhooks = sa.Table(
    "webhooks",
    metadata,
    _id("letter", primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("headers", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# When envelopes are to be sent, as someone has set it. `body` is the whole definition; the columns beside it are what
# is looked for. `zone` is the one it goes by: its own, or the owner's as it was when last told.
schedules = sa.Table(
    "schedules",
    metadata,
    _id("id", primary_key=True),
    sa.Column("folded", sa.String(64)),  # its name, where it has one
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("recipient", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("zone", sa.String(64), nullable=False),
    sa.Column("filed", sa.Boolean, nullable=False),  # whether it has a file
    sa.Column("said", sa.String(64)),  # by a heartbeat, when it was last heard: the hash of its words
    _ms("said_ms", nullable=True),
    _ms("created_ms"),
    _ms("updated_ms"),
)
_partial("uq_schedules_folded", schedules.c.folded, where=schedules.c.folded.is_not(None), unique=True)
sa.Index("ix_schedules_owner", schedules.c.owner, schedules.c.kind)
sa.Index("ix_schedules_recipient", schedules.c.recipient, schedules.c.kind)

# Each time a schedule comes, or would have. `clock_ms` is when the clock has to do something about one that waits.
schedule_slots = sa.Table(
    "schedule_slots",
    metadata,
    _id("schedule", primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("made_by", sa.String(8), nullable=False),
    _ms("slot_ms"),
    _ms("clock_ms", nullable=True),
    _ms("until_ms", nullable=True),
    sa.Column("number", sa.Integer),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id("envelope"),
    _ms("begun_ms", nullable=True),
    _ms("ended_ms", nullable=True),
    _ms("last_run_ms", nullable=True),  # before this one
    sa.ForeignKeyConstraint(["schedule"], ["schedules.id"]),
    sqlite_with_rowid=False,
)
OPEN_SLOT = (word("'waiting'"), word("'working'"))
_open_slot = schedule_slots.c.state.in_(OPEN_SLOT)
_by_clock = schedule_slots.c.made_by == word("'clock'")
# One occurrence at a time, and none twice: what a mistake of ours would break is held by the store.
_partial("uq_schedule_slots_open", schedule_slots.c.schedule, where=sa.and_(_open_slot, _by_clock), unique=True)
_partial(
    "uq_schedule_slots_once",
    schedule_slots.c.schedule,
    schedule_slots.c.slot_ms,
    where=sa.and_(
        schedule_slots.c.state.in_((word("'working'"), word("'ran'"), word("'failed'"))),
        _by_clock,
    ),
    unique=True,
)
_partial("uq_schedule_slots_envelope", schedule_slots.c.envelope, where=_open_slot, unique=True)
_partial("ix_schedule_slots_clock", schedule_slots.c.clock_ms, where=schedule_slots.c.state == word("'waiting'"))

# --- the doors: who may talk from outside, and who answers there ---

# Which agent answers where. What is empty is not asked for: no account means every account of the connector.
bindings = sa.Table(
    "bindings",
    metadata,
    _id("id", primary_key=True),
    sa.Column("agent", sa.String(64), sa.ForeignKey("agents.name"), nullable=False),
    sa.Column("also", sa.Text, nullable=False),  # JSON: the agents that answer there too, each for itself
    sa.Column("connector", sa.String(64), nullable=False),
    sa.Column("account", sa.String(64), nullable=False),
    sa.Column("peer_kind", sa.String(8), nullable=False),
    sa.Column("peer", sa.Text, nullable=False),
    sa.Column("parent", sa.Text, nullable=False),
    sa.Column("guild", sa.Text, nullable=False),
    sa.Column("team", sa.Text, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    _ms("at_ms"),
    sa.UniqueConstraint("connector", "account", "peer_kind", "peer", "parent", "guild", "team"),
)
sa.Index("ix_bindings_agent", bindings.c.agent)

# Who a speaker is: by the id that stays theirs, never by a name, which anyone may take.
identities = sa.Table(
    "identities",
    metadata,
    sa.Column("service", sa.String(64), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("person", sa.String(64), sa.ForeignKey("people.name"), nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_identities_person", identities.c.person)

# Strangers who asked to be let in, by a code that the owner reads back.
pairings = sa.Table(
    "pairings",
    metadata,
    _id("id", primary_key=True),
    sa.Column("instance", sa.String(64), nullable=False),
    sa.Column("service", sa.String(64), nullable=False),
    sa.Column("speaker", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("code", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    _ms("asked_ms"),
    _ms("expires_ms"),
    sa.Column("decided_by", sa.Text, nullable=False),
    _ms("decided_ms", nullable=True),
    sa.CheckConstraint("state IN ('waiting', 'accepted', 'refused', 'expired')", name="state"),
)
_partial(
    "uq_pairings_waiting",
    pairings.c.instance,
    pairings.c.speaker,
    where=pairings.c.state == word("'waiting'"),
    unique=True,
)
sa.Index("ix_pairings_asked", pairings.c.asked_ms, pairings.c.id)

# Whom a pairing let in, beside those whom the settings name.
admitted = sa.Table(
    "admitted",
    metadata,
    sa.Column("instance", sa.String(64), primary_key=True),
    sa.Column("speaker", sa.Text, primary_key=True),
    sa.Column("by", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# What was heard and could not be taken in, however often: kept for someone to look at, so that the rest goes on.
set_aside = sa.Table(
    "set_aside",
    metadata,
    _id("id", primary_key=True),
    sa.Column("instance", sa.String(64), nullable=False),
    sa.Column("room", sa.Text, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    _ms("at_ms"),
    sa.UniqueConstraint("instance", "room", "message_id"),
    sa.CheckConstraint("state IN ('waiting', 'done', 'dropped')", name="state"),
)
sa.Index("ix_set_aside_at", set_aside.c.at_ms, set_aside.c.id)

# What was said in a room and not to us: told once, before the next letter from there.
overheard = sa.Table(
    "overheard",
    metadata,
    sa.Column("instance", sa.String(64), primary_key=True),
    sa.Column("room", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("speaker", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# A connector's own few words: how far it has heard, whom it has met.
connector_words = sa.Table(
    "connector_words",
    metadata,
    sa.Column("instance", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(256), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# Which message of a platform each part of an envelope became.
parts = sa.Table(
    "parts",
    metadata,
    _id("envelope", primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("receipt", sa.Text, nullable=False),
    sa.Column("cut_by", sa.Text),  # of the first that arrived: what the whole was cut by, so that the rest is cut alike
    _ms("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_parts_receipt", parts.c.channel, parts.c.receipt)

AGENT_RUNS_VIEW = """
CREATE VIEW agent_runs AS
WITH kept AS (SELECT * FROM runs)
SELECT id, agent AS agent_name, started_ms AS started_at, ended_ms AS completed_at, envelopes AS envelope_ids,
       final_text AS final_response, context_length,
       CASE WHEN status = 'parked' THEN 'running' ELSE status END AS status, error
FROM kept
"""
"""Hi-Boss's audit relation, for the queries people already have. Read-only: through a view over the bare table,
PostgreSQL would let anyone change or delete runs; not so through a WITH."""

FIRST_HOUSE = "INSERT INTO house (id, news_seq, envelope_seq, latest_ms) VALUES (1, 0, 0, 0)"

_stamp = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def create(conn: sa.Connection, revision: str) -> None:
    """Make everything in an empty store, and stamp it as if its migrations had."""
    statements = _statements(conn.dialect)
    if conn.dialect.name == "postgresql":  # all in one round trip; SQLite's way to take several would commit first
        statements = ("; ".join(statements),)
    for statement in statements:
        conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
    conn.execute(sa.text("INSERT INTO alembic_version (version_num) VALUES (:revision)"), {"revision": revision})


_COMPILED: dict[str, tuple[str, ...]] = {}


def _statements(dialect: sa.Dialect) -> tuple[str, ...]:
    """What makes all tables, by the name of the dialect: compiling it takes longer than running it."""
    if dialect.name not in _COMPILED:
        ddl: list[str] = []

        def add(element: Any, *_: object) -> None:
            ddl.append(str(element.compile(dialect=dialect)).strip())

        mock = sa.create_mock_engine(dialect.name + "://", add)
        metadata.create_all(mock, checkfirst=False)
        _stamp.create(mock, checkfirst=False)
        _COMPILED[dialect.name] = (*ddl, AGENT_RUNS_VIEW, FIRST_HOUSE)
        for table in metadata.tables.values():
            for column in table.columns:  # none has options; to learn so, SQLAlchemy made half a megabyte of empty ones
                memoized_property.reset(column, "dialect_options")
    return _COMPILED[dialect.name]
