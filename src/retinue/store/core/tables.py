"""The definitions of all database tables. Times are Unix milliseconds, bodies are JSON text, ids are 32 hex digits.

Partial indexes contain only open rows, such as pending envelopes. Accepting and claiming an envelope
therefore take the same time with ten stored envelopes as with a million. The conditions of these
indexes use literals, both here and in queries. With a bound parameter, the query planner could not
tell that the index applies.
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


def sql_literal(quoted: str) -> sa.ColumnClause[str]:
    """Return an SQL literal. Unlike a bound parameter, a literal lets the query planner use a partial index."""
    return sa.literal_column(quoted, sa.String)


PENDING = sql_literal("'pending'")
DONE = sql_literal("'done'")
HELD_STATUSES = (sql_literal("'claimed'"), sql_literal("'suspended'"))
OPEN_RUN_STATUSES = (sql_literal("'running'"), sql_literal("'suspended'"))


_PARTIAL_INDEXES: list[tuple[sa.Index, sa.ColumnElement[bool]]] = []


def _add_partial_index(
    name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool], unique: bool = False
) -> None:
    """Add an index that contains only the rows that match `where`."""
    _PARTIAL_INDEXES.append((sa.Index(name, *columns, unique=unique, sqlite_where=where), where))


def add_postgres_conditions() -> None:
    """Set the conditions of the partial indexes for PostgreSQL.

    This is a separate step so that the PostgreSQL dialect is imported only if it is used.
    """
    for index, where in _PARTIAL_INDEXES:
        index.dialect_options["postgresql"]["where"] = where


def _id_column(name: str, **kw: object) -> sa.Column[str]:
    return sa.Column(name, sa.String(32), **kw)  # type: ignore[arg-type]


def _ms_column(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


counters = sa.Table(
    "counters",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("event_seq", sa.BigInteger, nullable=False),
    sa.Column("envelope_seq", sa.BigInteger, nullable=False),
    _ms_column("latest_ms"),
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("name_folded", sa.String(64), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    _ms_column("created_ms"),
    _ms_column("removed_ms", nullable=True),
    sa.UniqueConstraint("name_folded"),
)

people = sa.Table(
    "people",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("name_folded", sa.String(64), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    _ms_column("created_ms"),
    _ms_column("erased_ms", nullable=True),
    sa.UniqueConstraint("name_folded"),
)

# Tokens, browser cookies, sign-in codes and invitations. Only hashes are stored.
tokens = sa.Table(
    "tokens",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("kind", sa.String(8), nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("body", sa.Text),
    _ms_column("created_ms"),
    _ms_column("used_ms", nullable=True),
    _ms_column("expires_ms", nullable=True),
    _ms_column("revoked_ms", nullable=True),
    sa.UniqueConstraint("hash"),
)
sa.Index("ix_tokens_principal", tokens.c.principal)

# Responses to requests with an idempotency key: the same key gets the same response.
idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("principal", sa.Text, primary_key=True),
    sa.Column("key", sa.String(256), primary_key=True),
    sa.Column("operation", sa.String(64), nullable=False),
    sa.Column("request_hash", sa.String(64), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_idempotency_keys_at", idempotency_keys.c.at_ms)

agent_versions = sa.Table(
    "agent_versions",
    metadata,
    sa.Column("agent", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    sa.Column("changed_by", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)

sessions = sa.Table(
    "sessions",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("agent", sa.String(64), sa.ForeignKey("agents.name"), nullable=False),
    sa.Column("origin_kind", sa.String(16), nullable=False),
    sa.Column("origin_key", sa.Text, nullable=False),
    _id_column("parent"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("activity", sa.String(8), nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("attributes", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("record_seq", sa.BigInteger, nullable=False),
    sa.Column("context_from", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("snippet", sa.Text, nullable=False),
    _ms_column("created_ms"),
    _ms_column("updated_ms"),
    _ms_column("pinned_ms", nullable=True),
    sa.Column("name_folded", sa.Text),
    _ms_column("deleted_ms", nullable=True),
    sa.Column("model_choice", sa.Text, nullable=False),
    sa.Column("compactions", sa.Integer, nullable=False),
    _ms_column("archived_ms", nullable=True),
    _ms_column("context_started_ms"),
    _ms_column("active_ms"),
    sa.Column("pending_reset", sa.Text),
    sa.Column("chat_type", sa.String(8)),
    sqlite_with_rowid=False,
)
_add_partial_index(
    "uq_sessions_origin",
    *(sessions.c[column] for column in ("agent", "origin_kind", "origin_key")),
    where=sessions.c.deleted_ms.is_(None),
    unique=True,
)
# By id, not by time: the time changes with every commit of a run, and each would update the index.
_add_partial_index("ix_sessions_active", sessions.c.id, where=sessions.c.activity == sql_literal("'active'"))
sa.Index("ix_sessions_parent", sessions.c.parent)
sa.Index("uq_sessions_name", sessions.c.agent, sessions.c.name_folded, unique=True)

# The people a session is shared with, besides its owner.
session_shares = sa.Table(
    "session_shares",
    metadata,
    _id_column("session", primary_key=True),
    sa.Column("person", sa.String(64), sa.ForeignKey("people.name"), primary_key=True),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_session_shares_person", session_shares.c.person)

envelopes = sa.Table(
    "envelopes",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    _id_column("id", nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("recipient", sa.Text, nullable=False),
    _id_column("session"),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("attachments", sa.Text),
    sa.Column("context", sa.Text),
    _id_column("reply_to"),
    sa.Column("trust", sa.String(16), nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("dedupe_key", sa.Text, nullable=False),
    sa.Column("rank", sa.SmallInteger, nullable=False),
    sa.Column("silent", sa.Boolean, nullable=False),
    _ms_column("deliver_ms", nullable=True),
    _ms_column("expires_ms", nullable=True),
    _ms_column("due_ms"),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    _ms_column("accepted_ms"),
    _ms_column("claimed_ms", nullable=True),
    _ms_column("settled_ms", nullable=True),
    _id_column("run"),
    _id_column("steered_into"),
    _id_column("retry_of"),
    sa.UniqueConstraint("id"),
    sa.UniqueConstraint("source", "dedupe_key"),
    sa.CheckConstraint("status IN ('pending', 'claimed', 'suspended', 'done')", name="status"),
)
_pending = envelopes.c.status == PENDING
_held = envelopes.c.status.in_(HELD_STATUSES)
for _name, _columns, _where in (
    ("ix_envelopes_lane", ("session", "rank", "due_ms", "seq"), _pending),
    ("ix_envelopes_outbox", ("recipient", "due_ms", "seq"), sa.and_(_pending, envelopes.c.session.is_(None))),
    ("ix_envelopes_due", ("due_ms",), _pending),
    ("ix_envelopes_expiring", ("expires_ms",), sa.and_(_pending, envelopes.c.expires_ms.is_not(None))),
    ("ix_envelopes_held", ("run",), _held),
):
    _add_partial_index(_name, *(envelopes.c[c] for c in _columns), where=_where)

outcomes = sa.Table(
    "outcomes",
    metadata,
    _id_column("envelope", primary_key=True),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id_column("answer"),
    sa.Column("silent", sa.Boolean, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)
_add_partial_index(
    "ix_outcomes_dead",
    outcomes.c.at_ms,
    where=outcomes.c.outcome.in_((sql_literal("'dead'"), sql_literal("'interrupted'"))),
)

inbox = sa.Table(
    "inbox",
    metadata,
    _id_column("envelope", primary_key=True),
    sa.Column("person", sa.String(64), sa.ForeignKey("people.name"), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    _ms_column("read_ms", nullable=True),
    sqlite_with_rowid=False,
)
_add_partial_index("ix_inbox_unread", inbox.c.person, inbox.c.seq, where=inbox.c.read_ms.is_(None))

accepted_counts = sa.Table(
    "accepted_counts",
    metadata,
    sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("accepted", sa.BigInteger, nullable=False),
    sa.Column("purged", sa.BigInteger, nullable=False),
)

# What remains of a purged envelope for a while: its idempotency key, so that it is not accepted twice, and its outcome,
# but not its text.
purged_envelopes = sa.Table(
    "purged_envelopes",
    metadata,
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("dedupe_key", sa.Text, primary_key=True),
    _id_column("envelope", nullable=False),
    _id_column("session"),
    sa.Column("recipient", sa.Text, nullable=False),
    sa.Column("content_hash", sa.String(64), nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    _ms_column("accepted_ms"),
    _ms_column("purged_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_purged_envelopes_envelope", purged_envelopes.c.envelope)
sa.Index("ix_purged_envelopes_at", purged_envelopes.c.purged_ms)

records = sa.Table(
    "records",
    metadata,
    _id_column("session", primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    _id_column("run"),
    sa.Column("trust", sa.String(16), nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)

# A cache of `records`: see `store/sessions/record_chunks`.
record_chunks = sa.Table(
    "record_chunks",
    metadata,
    _id_column("session", primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    _id_column("id", primary_key=True),
    _id_column("session", nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    sa.Column("lane", sa.String(16), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("envelopes", sa.Text, nullable=False),
    sa.Column("first_seq", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    _ms_column("started_ms"),
    _ms_column("resume_ms", nullable=True),
    _ms_column("ended_ms", nullable=True),
    sa.Column("final_text", sa.Text),
    sa.Column("context_length", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.Column("lineage", sa.Text),  # set if another run started this one
    sa.ForeignKeyConstraint(["session"], ["sessions.id"]),
    sqlite_with_rowid=False,
)
_is_open_run = runs.c.status.in_(OPEN_RUN_STATUSES)
_add_partial_index("uq_runs_open", runs.c.session, where=_is_open_run, unique=True)
_add_partial_index("ix_runs_resume", runs.c.resume_ms, where=runs.c.status == sql_literal("'suspended'"))
sa.Index("ix_runs_agent_started", runs.c.agent, runs.c.started_ms)
sa.Index("ix_runs_session_started", runs.c.session, runs.c.started_ms)

steps = sa.Table(
    "steps",
    metadata,
    _id_column("run", primary_key=True),
    sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("call_index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("hash", sa.String(32), primary_key=True),
    sa.Column("kind", sa.String(8), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("call", sa.Text),
    sa.Column("record_seq", sa.BigInteger),
    _ms_column("opened_ms"),
    _ms_column("closed_ms", nullable=True),
    sa.ForeignKeyConstraint(["run"], ["runs.id"]),
    sqlite_with_rowid=False,
)

delegations = sa.Table(
    "delegations",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    _id_column("run", nullable=False),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    _id_column("session", nullable=False),
    sa.Column("target", sa.String(64), nullable=False),
    _id_column("target_session"),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("parent_lineage", sa.Text, nullable=False),
    sa.Column("lineage", sa.Text, nullable=False),
    sa.Column("notify", sa.String(8), nullable=False),
    _ms_column("wait_ms", nullable=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("cleanup", sa.String(8), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id_column("result"),
    _id_column("target_run"),
    _ms_column("created_ms"),
    _ms_column("started_ms", nullable=True),
    _ms_column("ended_ms", nullable=True),
    _ms_column("archive_ms", nullable=True),
    _ms_column("archived_ms", nullable=True),
    _ms_column("archive_after_ms", nullable=True),
    sqlite_with_rowid=False,
)
sa.Index("ix_delegations_session", delegations.c.session, delegations.c.created_ms)
sa.Index("ix_delegations_target", delegations.c.target_session)
sa.Index("ix_delegations_result", delegations.c.result)
sa.Index("ix_delegations_created", delegations.c.created_ms, delegations.c.id)
_add_partial_index("ix_delegations_waiting", delegations.c.run, where=delegations.c.wait_ms.is_not(None))
_add_partial_index(
    "ix_delegations_open", delegations.c.session, delegations.c.id, where=delegations.c.state == sql_literal("'open'")
)
_add_partial_index(
    "ix_delegations_spawned",
    delegations.c.created_ms,
    delegations.c.id,
    where=delegations.c.kind == sql_literal("'spawn'"),
)
_add_partial_index(
    "ix_delegations_archive",
    delegations.c.archive_ms,
    where=sa.and_(delegations.c.archive_ms.is_not(None), delegations.c.archived_ms.is_(None)),
)

approvals = sa.Table(
    "approvals",
    metadata,
    _id_column("id", primary_key=True),
    _id_column("session", nullable=False),
    _id_column("run", nullable=False),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("calls", sa.Text, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("run_continued", sa.Boolean, nullable=False),
    sa.Column("decided_by", sa.Text, nullable=False),
    _ms_column("asked_ms"),
    _ms_column("expires_ms"),
    _ms_column("decided_ms", nullable=True),
    sa.Column("permissions", sa.Text, nullable=False),  # permissions that the calls lack, as a list of tags
    sa.Column("scope", sa.String(16), nullable=False),  # of an approval: once, session, always
    sa.Column("asked", sa.Text, nullable=False),  # addresses of the people who were asked, as a list
    sa.Column("comment", sa.Text, nullable=False),  # the text that came with the decision
    sa.Column("agent", sa.String(64), nullable=False),  # the agent that gets the grant; empty: the agent that asked
    _ms_column("escalate_ms", nullable=True),  # when the next person is asked
)

grants = sa.Table(
    "grants",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("agent", sa.String(64), nullable=False),
    _id_column("session", nullable=True),
    sa.Column("permission", sa.Text, nullable=False),
    sa.Column("granted_by", sa.Text, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id_column("approval", nullable=True),
    _ms_column("at_ms"),
    _ms_column("expires_ms", nullable=True),
    _ms_column("revoked_ms", nullable=True),
    sa.Column("revoked_by", sa.Text, nullable=False),
)
_add_partial_index("ix_grants_active", grants.c.agent, grants.c.session, where=grants.c.revoked_ms.is_(None))

# Every decision and effect, written in the same commit as what it describes. `chain` is a session id, or empty for the
# server. The hash of a row covers the previous row of its chain.
audit = sa.Table(
    "audit",
    metadata,
    _id_column("chain", primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    _ms_column("at_ms"),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    _id_column("run", nullable=True),
    sa.Column("subject", sa.Text, nullable=False),  # a tool, an approval, a setting
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("content", sa.String(64), nullable=False),  # the hash of the content, which is in another table
    sa.Column("hash", sa.String(64), nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("ix_audit_at", audit.c.at_ms)

# The end of each chain at one point in time. If a chain is truncated later, the entry at this position is missing.
audit_anchors = sa.Table(
    "audit_anchors",
    metadata,
    _ms_column("at_ms"),
    _id_column("chain", nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.PrimaryKeyConstraint("at_ms", "chain"),
    sqlite_with_rowid=False,
)

# The trust of files, as labels: see `store/agents/file_trust`.
file_trust = sa.Table(
    "file_trust",
    metadata,
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("trust", sa.String(16), nullable=False),
    sa.Column("is_directory", sa.Boolean, nullable=False),  # if true: everything in it that has changed since `at_ms`
    _id_column("run", nullable=True),
    _ms_column("at_ms"),
)

# Commands that tools started, including those that continue in the background.
processes = sa.Table(
    "processes",
    metadata,
    _id_column("id", primary_key=True),
    _id_column("session", nullable=False),
    _id_column("run", nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column(
        "process_identity", sa.Text, nullable=False
    ),  # identifies the boot and the process, because a pid is reused
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("exit_code", sa.Integer),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("trust", sa.String(16), nullable=False),
    _ms_column("started_ms"),
    _ms_column("ended_ms", nullable=True),
)
_add_partial_index("ix_processes_running", processes.c.session, where=processes.c.state == sql_literal("'running'"))

# Approved hashes of content, such as skills and the tools of MCP servers. Changed content needs a new approval.
approved_hashes = sa.Table(
    "approved_hashes",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("content", sa.Text, nullable=False),  # the approved content, to show a diff
    sa.Column("decided_by", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_approvals_run", approvals.c.run)
_add_partial_index(
    "ix_approvals_past", approvals.c.asked_ms, approvals.c.id, where=approvals.c.state != sql_literal("'open'")
)
_add_partial_index("ix_approvals_open", approvals.c.expires_ms, where=approvals.c.state == sql_literal("'open'"))

deliveries = sa.Table(
    "deliveries",
    metadata,
    _id_column("envelope", primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("receipt", sa.Text),
    sa.Column("error_kind", sa.Text),
    sa.Column("error", sa.Text),
    _ms_column("opened_ms"),
    _ms_column("closed_ms", nullable=True),
)
_add_partial_index("ix_deliveries_sending", deliveries.c.envelope, where=deliveries.c.state == sql_literal("'sending'"))

# Every model call: the money reserved for it, what it cost and, if it failed, what was tried next.
model_calls = sa.Table(
    "model_calls",
    metadata,
    _id_column("run", primary_key=True),
    sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("call_index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    _id_column("session", nullable=False),
    _id_column("root_run", nullable=False),
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
    sa.Column("cost_unknown", sa.Boolean, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
    sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
    sa.Column("estimated", sa.Boolean, nullable=False),
    sa.Column("failure", sa.String(32)),
    sa.Column("next_action", sa.String(32)),
    sa.Column("error", sa.Text),
    _ms_column("at_ms"),
    _ms_column("ended_ms", nullable=True),
    sqlite_with_rowid=False,
)
# For a run without a parent, `root` is the run itself, and its calls are found by `run`.
_add_partial_index("ix_model_calls_root", model_calls.c.root_run, where=model_calls.c.root_run != model_calls.c.run)
sa.Index("ix_model_calls_day", model_calls.c.day)

# Spending by day, updated in the commits that reserve and settle money. Budgets are checked against it.
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
    _ms_column("created_ms"),
    _ms_column("used_ms", nullable=True),
    sqlite_with_rowid=False,
)

# Until when a credential must not be used for a model. An empty model means all models.
cooldowns = sa.Table(
    "cooldowns",
    metadata,
    sa.Column("agent", sa.String(64), primary_key=True),
    sa.Column("credential", sa.String(128), primary_key=True),
    sa.Column("model", sa.String(256), primary_key=True),
    sa.Column("reason", sa.String(32), nullable=False),
    sa.Column("errors", sa.Integer, nullable=False),
    _ms_column("until_ms"),
    _ms_column("failed_ms"),
    sqlite_with_rowid=False,
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(32), nullable=False),
    _id_column("session"),
    _id_column("envelope"),
    _id_column("run"),
    sa.Column("record_seq", sa.BigInteger),
    sa.Column("body", sa.Text),
    _ms_column("at_ms"),
    sa.Column("person", sa.String(64)),  # its recipient, besides those who can see its session
)

# Suspensions and resumptions of a run, and messages that it read later, are stored only as these events.
is_run_progress = events.c.kind.in_(
    (sql_literal("'run.joined'"), sql_literal("'run.suspended'"), sql_literal("'run.resumed'"))
)
_add_partial_index("ix_events_run", events.c.run, where=is_run_progress)

# Notifications: short messages for a person, from an agent or another person.
notifications = sa.Table(
    "notifications",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    _id_column("session"),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("trust", sa.String(16), nullable=False),
    _ms_column("at_ms"),
    _ms_column("read_ms", nullable=True),
)
sa.Index("ix_notifications_person", notifications.c.person, notifications.c.at_ms, notifications.c.id)
_add_partial_index("ix_notifications_unread", notifications.c.person, where=notifications.c.read_ms.is_(None))

# Forms with fields that an agent sent to a person. The answers return as an envelope from that person.
questionnaires = sa.Table(
    "questionnaires",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("agent", sa.String(64), nullable=False),
    _id_column("session", nullable=False),
    _id_column("run", nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("fields", sa.Text, nullable=False),
    sa.Column("trust", sa.String(16), nullable=False),  # trust of the agent's context when it wrote the questions
    sa.Column("state", sa.String(16), nullable=False),
    _ms_column("asked_ms"),
    _ms_column("expires_ms"),
    _ms_column("ended_ms", nullable=True),
    sa.Column("ended_by", sa.Text, nullable=False),
    sa.Column("answers", sa.Text, nullable=False),
    _id_column("envelope"),
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
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)

# The latest system prompt of each session, and the files its conversation started with.
instructions = sa.Table(
    "instructions",
    metadata,
    _id_column("session", primary_key=True),
    sa.Column("context_key", sa.String(64), nullable=False),
    sa.Column("snapshot", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("parts", sa.Text, nullable=False),
    _ms_column("at_ms"),
)

# The id that an external agent uses for a session, if it chose one. It is kept when the session is deleted.
external_keys = sa.Table(
    "external_keys",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    _id_column("session", nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("uq_external_keys_session", external_keys.c.session, unique=True)

# URLs to notify when an envelope is done. The headers may be secret and are cleared after use.
webhooks = sa.Table(
    "webhooks",
    metadata,
    _id_column("envelope", primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("headers", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)

# Schedules. `body` is the complete definition; the other columns are for searching. `zone` is the time zone in use: the
# schedule's own, or the last known time zone of the owner.
schedules = sa.Table(
    "schedules",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("name_folded", sa.String(64)),  # the case-folded name, if it has one
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("recipient", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("zone", sa.String(64), nullable=False),
    sa.Column("has_file", sa.Boolean, nullable=False),  # whether the schedule has a file
    sa.Column("heartbeat_hash", sa.String(64)),  # hash of the last text that a heartbeat reported
    _ms_column("heartbeat_ms", nullable=True),
    _ms_column("created_ms"),
    _ms_column("updated_ms"),
)
_add_partial_index(
    "uq_schedules_name", schedules.c.name_folded, where=schedules.c.name_folded.is_not(None), unique=True
)
sa.Index("ix_schedules_owner", schedules.c.owner, schedules.c.kind)
sa.Index("ix_schedules_recipient", schedules.c.recipient, schedules.c.kind)

# Each occurrence of a schedule, past or planned. `clock_ms` is when the scheduler must act on a waiting one.
occurrences = sa.Table(
    "occurrences",
    metadata,
    _id_column("schedule", primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("made_by", sa.String(8), nullable=False),
    _ms_column("occurs_ms"),
    _ms_column("clock_ms", nullable=True),
    _ms_column("until_ms", nullable=True),
    sa.Column("skipped_count", sa.Integer),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    _id_column("envelope"),
    _ms_column("started_ms", nullable=True),
    _ms_column("ended_ms", nullable=True),
    _ms_column("last_run_ms", nullable=True),  # when the schedule last ran before this occurrence
    sa.ForeignKeyConstraint(["schedule"], ["schedules.id"]),
    sqlite_with_rowid=False,
)
OPEN_OCCURRENCE_STATES = (sql_literal("'waiting'"), sql_literal("'working'"))
_is_open_occurrence = occurrences.c.state.in_(OPEN_OCCURRENCE_STATES)
_is_by_clock = occurrences.c.made_by == sql_literal("'clock'")
# At most one open occurrence per schedule, and no duplicates: the database enforces this in case our code has a bug.
_add_partial_index(
    "uq_occurrences_open", occurrences.c.schedule, where=sa.and_(_is_open_occurrence, _is_by_clock), unique=True
)
_add_partial_index(
    "uq_occurrences_once",
    occurrences.c.schedule,
    occurrences.c.occurs_ms,
    where=sa.and_(
        occurrences.c.state.in_((sql_literal("'working'"), sql_literal("'ran'"), sql_literal("'failed'"))),
        _is_by_clock,
    ),
    unique=True,
)
_add_partial_index("uq_occurrences_envelope", occurrences.c.envelope, where=_is_open_occurrence, unique=True)
_add_partial_index(
    "ix_occurrences_clock", occurrences.c.clock_ms, where=occurrences.c.state == sql_literal("'waiting'")
)

# --- channels: who may write from outside, and which agent answers ---

# Which agent answers in which channels. An empty column matches everything: no account means every account.
bindings = sa.Table(
    "bindings",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("agent", sa.String(64), sa.ForeignKey("agents.name"), nullable=False),
    sa.Column("extra_agents", sa.Text, nullable=False),  # JSON: further agents that answer, each independently
    sa.Column("connector", sa.String(64), nullable=False),
    sa.Column("account", sa.String(64), nullable=False),
    sa.Column("peer_kind", sa.String(8), nullable=False),
    sa.Column("peer", sa.Text, nullable=False),
    sa.Column("parent", sa.Text, nullable=False),
    sa.Column("guild", sa.Text, nullable=False),
    sa.Column("team", sa.Text, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sa.UniqueConstraint("connector", "account", "peer_kind", "peer", "parent", "guild", "team"),
)
sa.Index("ix_bindings_agent", bindings.c.agent)

# Platform ids linked to people. The id never changes; a display name, which anyone can choose, is not used.
identities = sa.Table(
    "identities",
    metadata,
    sa.Column("platform", sa.String(64), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("person", sa.String(64), sa.ForeignKey("people.name"), nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_identities_person", identities.c.person)

# Access requests from unknown senders, each with a code that the owner enters.
pairings = sa.Table(
    "pairings",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("connector", sa.String(64), nullable=False),
    sa.Column("platform", sa.String(64), nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("code", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    _ms_column("asked_ms"),
    _ms_column("expires_ms"),
    sa.Column("decided_by", sa.Text, nullable=False),
    _ms_column("decided_ms", nullable=True),
    sa.CheckConstraint("state IN ('waiting', 'accepted', 'refused', 'expired')", name="state"),
)
_add_partial_index(
    "uq_pairings_waiting",
    pairings.c.connector,
    pairings.c.sender,
    where=pairings.c.state == sql_literal("'waiting'"),
    unique=True,
)
sa.Index("ix_pairings_asked", pairings.c.asked_ms, pairings.c.id)

# Senders admitted by a pairing, besides those named in the settings.
admitted_senders = sa.Table(
    "admitted_senders",
    metadata,
    sa.Column("connector", sa.String(64), primary_key=True),
    sa.Column("sender", sa.Text, primary_key=True),
    sa.Column("admitted_by", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)

# Poison messages: inbound messages that failed repeatedly, stored for a person so that other messages can continue.
poison_messages = sa.Table(
    "poison_messages",
    metadata,
    _id_column("id", primary_key=True),
    sa.Column("connector", sa.String(64), nullable=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    _ms_column("at_ms"),
    sa.UniqueConstraint("connector", "channel", "message_id"),
    sa.CheckConstraint("state IN ('waiting', 'done', 'dropped')", name="state"),
)
sa.Index("ix_poison_messages_at", poison_messages.c.at_ms, poison_messages.c.id)

# Ambient messages: written in a channel, but not to the agent. The agent reads them once, with the next message.
ambient_messages = sa.Table(
    "ambient_messages",
    metadata,
    sa.Column("connector", sa.String(64), primary_key=True),
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)

# Small key-value state of a connector, such as its read position.
connector_state = sa.Table(
    "connector_state",
    metadata,
    sa.Column("connector", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(256), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)

# Which platform message each part of an envelope became.
delivery_parts = sa.Table(
    "delivery_parts",
    metadata,
    _id_column("envelope", primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("receipt", sa.Text, nullable=False),
    sa.Column("split_by", sa.Text),  # set on the first delivered part: how the text was split, so that the rest matches
    _ms_column("at_ms"),
    sqlite_with_rowid=False,
)
sa.Index("ix_delivery_parts_receipt", delivery_parts.c.channel, delivery_parts.c.receipt)

AGENT_RUNS_VIEW = """
CREATE VIEW agent_runs AS
WITH kept AS (SELECT * FROM runs)
SELECT id, agent AS agent_name, started_ms AS started_at, ended_ms AS completed_at, envelopes AS envelope_ids,
       final_text AS final_response, context_length,
       CASE WHEN status = 'suspended' THEN 'running' ELSE status END AS status, error
FROM kept
"""
"""A view of the runs with the names and columns of Hi-Boss, so that queries written for it still work.

The WITH makes the view read-only: through a plain view, PostgreSQL would allow runs to be changed.
"""

INSERT_SERVER_ROW = "INSERT INTO counters (id, event_seq, envelope_seq, latest_ms) VALUES (1, 0, 0, 0)"

_alembic_version = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def create_schema(conn: sa.Connection, revision: str) -> None:
    """Create all tables in an empty database, and store the revision as if all migrations had run."""
    statements = _create_statements(conn.dialect)
    if conn.dialect.name == "postgresql":  # in one round trip; sqlite3 would have to commit first
        statements = ("; ".join(statements),)
    for statement in statements:
        conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
    conn.execute(sa.text("INSERT INTO alembic_version (version_num) VALUES (:revision)"), {"revision": revision})


_COMPILED: dict[str, tuple[str, ...]] = {}


def _create_statements(dialect: sa.Dialect) -> tuple[str, ...]:
    """Return the DDL of all tables. It is cached for each dialect, because compiling takes longer than running it."""
    if dialect.name not in _COMPILED:
        ddl: list[str] = []

        def add(element: Any, *_: object) -> None:
            ddl.append(str(element.compile(dialect=dialect)).strip())

        mock = sa.create_mock_engine(dialect.name + "://", add)
        metadata.create_all(mock, checkfirst=False)
        _alembic_version.create(mock, checkfirst=False)
        _COMPILED[dialect.name] = (*ddl, AGENT_RUNS_VIEW, INSERT_SERVER_ROW)
        for table in metadata.tables.values():
            for column in table.columns:  # frees half a megabyte of empty options that SQLAlchemy has created
                memoized_property.reset(column, "dialect_options")
    return _COMPILED[dialect.name]
