"""The tables. Times are Unix milliseconds, bodies are JSON text, ids are 32 hex digits.

Partial indexes contain only open rows, so accepting and claiming cost the same for ten envelopes
and for a million. Their conditions are literals, here and in the statements that use them: a query
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
    """Return an SQL literal. The planner sees its value, so it can use a partial index."""
    return sa.literal_column(quoted, sa.String)


PENDING = word("'pending'")
DONE = word("'done'")
HELD = (word("'claimed'"), word("'parked'"))
OPEN_RUN = (word("'running'"), word("'parked'"))


_PARTIAL: list[tuple[sa.Index, sa.ColumnElement[bool]]] = []


def _partial(name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool], unique: bool = False) -> None:
    """Add an index over the open rows only."""
    _PARTIAL.append((sa.Index(name, *columns, unique=unique, sqlite_where=where), where))


def know_postgres() -> None:
    """Add the conditions of the partial indexes for PostgreSQL.

    Only a PostgreSQL store pays for importing its dialect.
    """
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

# Tokens, browser cookies, sign-in codes and invitations. Only hashes are stored.
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

# Responses to requests with an idempotency key: the same key gets the same response.
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
# By id, not by time: the time changes with every commit of a run, and each would update the index.
_partial("ix_sessions_active", sessions.c.id, where=sessions.c.wakefulness == word("'active'"))
sa.Index("ix_sessions_parent", sessions.c.parent)
sa.Index("uq_sessions_name", sessions.c.agent, sessions.c.folded, unique=True)

# The people a session is shared with, besides its owner.
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

# What remains of a purged envelope for a while: its idempotency key, so that it is not accepted twice, without its
# text.
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

# A cache derived from `records`. It is ignored where it disagrees: see `store/sessions/record_chunks`.
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
    sa.Column("lineage", sa.Text),  # set if another run started this one
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
    sa.Column("scope", sa.String(16), nullable=False),  # of an approval: once, session, always
    sa.Column("asked_of", sa.Text, nullable=False),  # addresses of the people who were asked, as a list
    sa.Column("words", sa.Text, nullable=False),  # the text that came with the decision
    sa.Column("agent", sa.String(64), nullable=False),  # the agent that gets the permission; empty: the one that asked
    _ms("escalate_ms", nullable=True),  # when the next person is asked
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

# Every decision and effect, written in the commit it describes. `chain` is a session id, or empty for the server. The
# hash of a row covers the previous row of its chain.
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
    sa.Column("content", sa.String(64), nullable=False),  # the hash of the content, which is in another table
    sa.Column("hash", sa.String(64), nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("ix_audit_at", audit.c.at_ms)

# The end of each chain at a certain hour: a chain that was truncated later no longer reaches it.
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

# The trust of files that an agent has written. A file without a row is the server's own.
file_labels = sa.Table(
    "file_labels",
    metadata,
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("trust", sa.String(16), nullable=False),
    sa.Column("whole", sa.Boolean, nullable=False),  # a directory: everything in it that has changed since
    _id("run", nullable=True),
    _ms("at_ms"),
)

# Commands that were started and left running in the background.
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
    sa.Column("boot", sa.Text, nullable=False),  # identifies the boot and the process, because a pid is reused
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("exit_code", sa.Integer),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("trust", sa.String(16), nullable=False),
    _ms("started_ms"),
    _ms("ended_ms", nullable=True),
)
_partial("ix_processes_running", processes.c.session, where=processes.c.state == word("'running'"))

# Approved hashes of skills and of tools of MCP servers. A changed one needs a new approval.
pins = sa.Table(
    "pins",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("content", sa.Text, nullable=False),  # the approved content, to show a diff
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

# Every model call: the money reserved for it, what it cost and, if it failed, what was tried next.
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
# For a run without a parent, `root` is the run itself, and its calls are found by `run`.
_partial("ix_money_root", money.c.root, where=money.c.root != money.c.run)
sa.Index("ix_money_day", money.c.day)

# Spending by day, updated in the commits that reserve and settle. Budgets are compared with it.
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

# Provider credentials: where each is stored, never the credential itself. Instance-wide ones have no agent.
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

# Which credential must not be used for which model, and until when. An empty model means all models.
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
    sa.Column("person", sa.String(64)),  # its recipient, besides those who can see its session
)

# The only record of a run that was suspended, resumed, or read further messages.
run_went_on = news.c.kind.in_((word("'run.joined'"), word("'run.parked'"), word("'run.resumed'")))
_partial("ix_news_run", news.c.run, where=run_went_on)

# Notifications: short messages for a person, from an agent or another person.
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

# Questions with fields that an agent put to a person. The answers reach it as an envelope from that person.
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
    sa.Column("trust", sa.String(16), nullable=False),  # of what the agent knew when it wrote them
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

# Preferences of a person on all devices: a layout, a theme.
preferences = sa.Table(
    "preferences",
    metadata,
    sa.Column("person", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# The latest system prompt of each session, and the files its conversation started with.
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

# The id by which an external agent knows a session, if one was chosen. It survives the deletion of the session.
external_keys = sa.Table(
    "external_keys",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    _id("session", nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("uq_external_keys_session", external_keys.c.session, unique=True)

# URLs to notify when an envelope is done. The headers may be secret and are cleared after use.
webhooks = sa.Table(
    "webhooks",
    metadata,
    _id("letter", primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("headers", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# Schedules. `body` is the complete definition; the other columns are there to be searched. `zone` is the time zone in
# use: the schedule's own, or the owner's when it was last known.
schedules = sa.Table(
    "schedules",
    metadata,
    _id("id", primary_key=True),
    sa.Column("folded", sa.String(64)),  # the case-folded name, if it has one
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("recipient", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("zone", sa.String(64), nullable=False),
    sa.Column("filed", sa.Boolean, nullable=False),  # whether it has a file
    sa.Column("said", sa.String(64)),  # hash of the last text that a heartbeat reported
    _ms("said_ms", nullable=True),
    _ms("created_ms"),
    _ms("updated_ms"),
)
_partial("uq_schedules_folded", schedules.c.folded, where=schedules.c.folded.is_not(None), unique=True)
sa.Index("ix_schedules_owner", schedules.c.owner, schedules.c.kind)
sa.Index("ix_schedules_recipient", schedules.c.recipient, schedules.c.kind)

# Each occurrence of a schedule, past or planned. `clock_ms` is when the scheduler must act on a waiting one.
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
    _ms("last_run_ms", nullable=True),  # before this occurrence
    sa.ForeignKeyConstraint(["schedule"], ["schedules.id"]),
    sqlite_with_rowid=False,
)
OPEN_SLOT = (word("'waiting'"), word("'working'"))
_open_slot = schedule_slots.c.state.in_(OPEN_SLOT)
_by_clock = schedule_slots.c.made_by == word("'clock'")
# One open occurrence at a time, and none twice: the store enforces what a bug in our code could break.
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

# --- channels: who may write from outside, and which agent answers ---

# Which agent answers where. An empty column matches everything: no account means every account of the connector.
bindings = sa.Table(
    "bindings",
    metadata,
    _id("id", primary_key=True),
    sa.Column("agent", sa.String(64), sa.ForeignKey("agents.name"), nullable=False),
    sa.Column("also", sa.Text, nullable=False),  # JSON: further agents that answer there, each independently
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

# Platform ids linked to people: by the permanent id, never by a display name, which anyone can choose.
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

# Access requests of unknown senders, each with a code that the owner enters.
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

# Senders admitted by a pairing, besides those named in the settings.
admitted = sa.Table(
    "admitted",
    metadata,
    sa.Column("instance", sa.String(64), primary_key=True),
    sa.Column("speaker", sa.Text, primary_key=True),
    sa.Column("by", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# Poison messages: inbound messages that failed again and again, stored for a person so that the others can continue.
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

# Ambient messages: written in a channel, but not to the agent. Shown once, with the next message from there.
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

# Small state of a connector: its read position, the senders it knows.
connector_words = sa.Table(
    "connector_words",
    metadata,
    sa.Column("instance", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(256), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    _ms("at_ms"),
    sqlite_with_rowid=False,
)

# Which platform message each part of an envelope became.
parts = sa.Table(
    "parts",
    metadata,
    _id("envelope", primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("receipt", sa.Text, nullable=False),
    sa.Column("cut_by", sa.Text),  # in the first delivered part: how the text was split, to split the rest alike
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
    """Create the complete schema in an empty store, and stamp it as if the migrations had run."""
    statements = _statements(conn.dialect)
    if conn.dialect.name == "postgresql":  # one round trip; SQLite's way to run several would commit first
        statements = ("; ".join(statements),)
    for statement in statements:
        conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
    conn.execute(sa.text("INSERT INTO alembic_version (version_num) VALUES (:revision)"), {"revision": revision})


_COMPILED: dict[str, tuple[str, ...]] = {}


def _statements(dialect: sa.Dialect) -> tuple[str, ...]:
    """Return the DDL of all tables, cached by dialect: compiling it takes longer than running it."""
    if dialect.name not in _COMPILED:
        ddl: list[str] = []

        def add(element: Any, *_: object) -> None:
            ddl.append(str(element.compile(dialect=dialect)).strip())

        mock = sa.create_mock_engine(dialect.name + "://", add)
        metadata.create_all(mock, checkfirst=False)
        _stamp.create(mock, checkfirst=False)
        _COMPILED[dialect.name] = (*ddl, AGENT_RUNS_VIEW, FIRST_HOUSE)
        for table in metadata.tables.values():
            for column in table.columns:  # none has options, but SQLAlchemy created half a megabyte of empty ones
                memoized_property.reset(column, "dialect_options")
    return _COMPILED[dialect.name]
