"""Rename tables, columns and stored values to the words of the glossary.

Tables and columns are renamed in place, so no data is copied. SQLite cannot rename an index or a
constraint, and cannot change a CHECK. So this migration edits the text of SQLite's schema, as
https://www.sqlite.org/lang_altertable.html describes for changes that do not affect the stored
data. Only partial indexes whose conditions contain a renamed value are built again.
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_TABLES = {
    "house": "counters",
    "news": "events",
    "answers": "idempotency_keys",
    "tally": "accepted_counts",
    "purged": "purged_envelopes",
    "chapters": "record_chunks",
    "shares": "session_shares",
    "pins": "approved_hashes",
    "money": "model_calls",
    "parts": "delivery_parts",
    "admitted": "admitted_senders",
    "set_aside": "poison_messages",
    "overheard": "ambient_messages",
    "connector_words": "connector_state",
    "schedule_slots": "occurrences",
    "file_labels": "file_trust",
}
_COLUMNS = {  # by the new name of the table
    "counters": {"news_seq": "event_seq"},
    "agents": {"folded": "name_folded"},
    "people": {"folded": "name_folded", "forgotten_ms": "erased_ms"},
    "sessions": {
        "folded": "name_folded",
        "wakefulness": "activity",
        "mind": "model_choice",
        "refresh": "pending_reset",
        "began_ms": "context_started_ms",
    },
    "runs": {"wake_ms": "resume_ms"},
    "steps": {"idx": "call_index"},
    "delegations": {"above": "parent_lineage", "child": "target_session", "worked_by": "target_run"},
    "approvals": {"words": "comment", "needs": "permissions", "asked_of": "asked", "released": "run_continued"},
    "file_trust": {"whole": "is_directory"},
    "processes": {"folder": "directory", "boot": "process_identity"},
    "model_calls": {"idx": "call_index", "unknown": "cost_unknown", "next_move": "next_action", "root": "root_run"},
    "instructions": {"began": "context_key"},
    "webhooks": {"letter": "envelope"},
    "schedules": {
        "folded": "name_folded",
        "filed": "has_file",
        "said": "heartbeat_hash",
        "said_ms": "heartbeat_ms",
    },
    "occurrences": {"slot_ms": "occurs_ms", "number": "skipped_count", "begun_ms": "started_ms"},
    "bindings": {"also": "extra_agents"},
    "identities": {"service": "platform"},
    "pairings": {"instance": "connector", "service": "platform", "speaker": "sender"},
    "admitted_senders": {"instance": "connector", "speaker": "sender", "by": "admitted_by"},
    "poison_messages": {"instance": "connector", "room": "channel", "tries": "attempts"},
    "ambient_messages": {"instance": "connector", "room": "channel", "speaker": "sender"},
    "connector_state": {"instance": "connector"},
    "delivery_parts": {"cut_by": "split_by"},
}
_INDEXES = {  # besides those whose names contain the name of a renamed table
    "ix_delegations_child": "ix_delegations_target",
    "uq_schedules_folded": "uq_schedules_name",
    "ix_grants_good": "ix_grants_active",
}
_CONSTRAINTS = {  # besides those whose names contain the name of a renamed table
    "uq_agents_folded": "uq_agents_name_folded",
    "uq_people_folded": "uq_people_name_folded",
    "uq_set_aside_instance_room_message_id": "uq_poison_messages_connector_channel_message_id",
}
_CHECK = ("'pending', 'claimed', 'parked', 'done'", "'pending', 'claimed', 'suspended', 'done'")
_REBUILT_INDEXES = (  # old name, new name, table, columns, unique, condition
    ("ix_envelopes_held", "ix_envelopes_held", "envelopes", ["run"], False, "status IN ('claimed', 'suspended')"),
    ("uq_runs_open", "uq_runs_open", "runs", ["session"], True, "status IN ('running', 'suspended')"),
    ("ix_runs_wake", "ix_runs_resume", "runs", ["resume_ms"], False, "status = 'suspended'"),
    (
        "ix_news_run",
        "ix_events_run",
        "events",
        ["run"],
        False,
        "kind IN ('run.joined', 'run.suspended', 'run.resumed')",
    ),
)
_VALUES = (  # table, column, old value, new value
    ("envelopes", "status", "parked", "suspended"),
    ("runs", "status", "parked", "suspended"),
    ("events", "kind", "run.parked", "run.suspended"),
    ("events", "kind", "approval.asked", "approval.created"),
    ("model_calls", "next_action", "again", "retry"),
    ("model_calls", "next_action", "next-credential", "next_credential"),
    ("model_calls", "next_action", "next-model", "next_model"),
    ("model_calls", "next_action", "give-up", "give_up"),
    ("processes", "state", "told", "reported"),
    ("deliveries", "error_kind", "invalid-address", "invalid_address"),
    ("deliveries", "error_kind", "invalid-sender", "invalid_sender"),
    ("deliveries", "error_kind", "no-binding", "no_binding"),
    ("deliveries", "error_kind", "adapter-not-loaded", "adapter_not_loaded"),
    ("deliveries", "error_kind", "too-large", "too_large"),
    ("deliveries", "error_kind", "send-failed", "send_failed"),
    ("schedules", "kind", "gone", "deleted"),
    ("occurrences", "made_by", "hand", "manual"),
    # Remembered approvals of tools that are operations.
    ("grants", "permission", "tool:agent_permanent", "tool:agent_create_permanent"),
    ("grants", "permission", "tool:command_list", "tool:slash_command_list"),
    ("grants", "permission", "tool:connector_kinds", "tool:connector_platforms"),
    ("grants", "permission", "tool:house_backup", "tool:server_backup"),
    ("grants", "permission", "tool:house_doctor", "tool:server_doctor"),
    ("grants", "permission", "tool:house_lanes", "tool:server_lanes"),
    ("grants", "permission", "tool:house_ledger", "tool:server_ledger"),
    ("grants", "permission", "tool:house_logs", "tool:server_logs"),
    ("grants", "permission", "tool:house_purge", "tool:server_purge"),
    ("grants", "permission", "tool:house_state", "tool:server_initial_state"),
    ("grants", "permission", "tool:house_status", "tool:server_status"),
    ("grants", "permission", "tool:house_why", "tool:server_why"),
    ("grants", "permission", "tool:pairing_dismiss", "tool:pairing_revoke"),
    ("grants", "permission", "tool:server_state", "tool:server_initial_state"),
    ("grants", "permission", "tool:session_queue", "tool:session_set_queue"),
    ("grants", "permission", "tool:session_read", "tool:session_mark_read"),
    ("grants", "permission", "tool:session_refresh", "tool:session_reset_after_run"),
    ("grants", "permission", "tool:session_sending", "tool:session_set_sending"),
    ("grants", "permission", "tool:session_waiting", "tool:session_queued"),
    ("grants", "permission", "tool:set_aside_drop", "tool:poison_message_drop"),
    ("grants", "permission", "tool:set_aside_list", "tool:poison_message_list"),
    ("grants", "permission", "tool:set_aside_retry", "tool:poison_message_retry"),
)
_SERVER_COLUMNS = (  # where `house` was the server
    ("envelopes", "source"),
    ("envelopes", "sender"),
    ("envelopes", "recipient"),
    ("accepted_counts", "source"),
    ("purged_envelopes", "source"),
    ("purged_envelopes", "recipient"),
    ("runs", "sender"),
    ("agent_versions", "changed_by"),
    ("approvals", "decided_by"),
    ("approved_hashes", "decided_by"),
    ("grants", "granted_by"),
    ("grants", "revoked_by"),
    ("pairings", "decided_by"),
    ("admitted_senders", "admitted_by"),
    ("bindings", "made_by"),
    ("identities", "made_by"),
    ("questionnaires", "ended_by"),
    ("notifications", "sender"),
    ("idempotency_keys", "principal"),
)
_VIEW = """
CREATE VIEW agent_runs AS
WITH kept AS (SELECT * FROM runs)
SELECT id, agent AS agent_name, started_ms AS started_at, ended_ms AS completed_at, envelopes AS envelope_ids,
       final_text AS final_response, context_length,
       CASE WHEN status = 'suspended' THEN 'running' ELSE status END AS status, error
FROM kept
"""


def upgrade() -> None:
    op.execute("DROP VIEW agent_runs")
    for old, _, _, _, _, _ in _REBUILT_INDEXES:
        op.drop_index(old)
    for old, new in _TABLES.items():
        op.execute(f"ALTER TABLE {old} RENAME TO {new}")
    for table, columns in _COLUMNS.items():
        for old, new in columns.items():
            op.execute(f'ALTER TABLE {table} RENAME COLUMN "{old}" TO {new}')
    (_edit_sqlite_schema if op.get_bind().dialect.name == "sqlite" else _change_postgresql)()
    for table, changes in _group_values().items():
        op.execute(f"UPDATE {table} SET {changes}")
    _rename_state_keys()
    if op.get_bind().dialect.name != "sqlite":  # not before the values are changed, because it is checked at once
        op.create_check_constraint(op.f("ck_envelopes_status"), "envelopes", f"status IN ({_CHECK[1]})")
    for _, name, table, columns, unique, condition in _REBUILT_INDEXES:
        where = sa.text(condition)
        op.create_index(name, table, columns, unique=unique, sqlite_where=where, postgresql_where=where)
    op.execute(_VIEW)


def _group_values() -> dict[str, str]:
    """Return one UPDATE for each table, as assignments and a condition, so that each table is read only once."""
    changes: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for table, column, old, new in (
        *_VALUES,
        *((table, column, "house", "server") for table, column in _SERVER_COLUMNS),
    ):
        changes.setdefault(table, {}).setdefault(column, []).append((old, new))
    found: dict[str, str] = {}
    for table, columns in changes.items():
        assignments: list[str] = []
        conditions: list[str] = []
        for column, values in columns.items():
            cases = " ".join(f"WHEN '{old}' THEN '{new}'" for old, new in values)
            assignments.append(f"{column} = CASE {column} {cases} ELSE {column} END")
            before = ", ".join(f"'{old}'" for old, _ in values)
            conditions.append(f"{column} IN ({before})")
        found[table] = f"{', '.join(assignments)} WHERE {' OR '.join(conditions)}"
    return found


def _rename_state_keys() -> None:
    """Rename the keys of the server in connector state, and the instance's name in approved hashes."""
    op.execute("UPDATE connector_state SET key = 'server/' || substr(key, 7) WHERE substr(key, 1, 6) = 'house/'")
    # An agent may be called `instance`. Its row wins; the shared template is stored again when it is next used.
    op.execute(
        "UPDATE approved_hashes SET name = 'instance' WHERE kind = 'instructions' AND name = 'house' AND NOT EXISTS"
        " (SELECT 1 FROM approved_hashes a WHERE a.kind = 'instructions' AND a.name = 'instance')"
    )
    op.execute(
        "UPDATE approved_hashes SET name = 'instance/' || substr(name, 7)"
        " WHERE kind IN ('skill', 'hook') AND substr(name, 1, 6) = 'house/'"
    )


def _rename(name: str) -> str:
    """Return the new name of an index or constraint."""
    if new := _INDEXES.get(name) or _CONSTRAINTS.get(name):
        return new
    kind, _, rest = name.partition("_")
    for old, new in _TABLES.items():
        if kind in ("ix", "uq", "ck", "fk", "pk") and (rest == old or rest.startswith(f"{old}_")):
            return f"{kind}_{new}{rest.removeprefix(old)}"
    return name


# --- SQLite ---

_CONSTRAINT_NAME = re.compile(r"\b(?:ix|uq|ck|fk|pk)_\w+")


def _edit_sqlite_schema() -> None:
    """Change the names of indexes and constraints, a CHECK, and the length of a status column in SQLite's schema."""
    conn = op.get_bind()
    names = {*_TABLES.values(), *(new for columns in _COLUMNS.values() for new in columns.values())}
    quoted = re.compile(f'"({"|".join(sorted(names))})"')
    rows = conn.execute(
        sa.text("SELECT rowid, type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    ).all()
    conn.execute(sa.text("PRAGMA writable_schema = ON"))
    for rowid, type_, name, table, sql in rows:
        text = _CONSTRAINT_NAME.sub(lambda found: _rename(found[0]), quoted.sub(r"\1", sql))
        if type_ == "table" and table == "envelopes":
            text = text.replace(*_CHECK).replace("status VARCHAR(8)", "status VARCHAR(16)")
        if text != sql:
            conn.execute(
                sa.text("UPDATE sqlite_master SET name = :name, sql = :sql WHERE rowid = :rowid"),
                {"name": _rename(name) if type_ == "index" else name, "sql": text, "rowid": rowid},
            )
    conn.execute(sa.text("PRAGMA writable_schema = RESET"))  # reads the schema again: a mistake fails here


# --- PostgreSQL ---

_INDEXES_QUERY = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace
  AND NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u'))
"""
_CONSTRAINTS_QUERY = """
SELECT r.relname, k.conname, k.contype, a.attname FROM pg_constraint k JOIN pg_class r ON r.oid = k.conrelid
LEFT JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
WHERE k.connamespace = current_schema()::regnamespace
"""


def _change_postgresql() -> None:
    conn = op.get_bind()
    for (name,) in conn.execute(sa.text(_INDEXES_QUERY)).all():
        if (new := _rename(name)) != name:
            op.execute(f"ALTER INDEX {name} RENAME TO {new}")
    renamed = {*_TABLES.values(), *_COLUMNS}
    for table, name, kind, column in conn.execute(sa.text(_CONSTRAINTS_QUERY)).all():
        if str(kind) in ("n", "b'n'"):  # from PostgreSQL 18 on, NOT NULL is a constraint and has a name
            new = f"{table}_{column}_not_null" if table in renamed else name
        else:
            new = _rename(name)
        if new != name:
            op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT {name} TO {new}")
    op.drop_constraint(op.f("ck_envelopes_status"), "envelopes", type_="check")
    op.alter_column("envelopes", "status", type_=sa.String(length=16), existing_type=sa.String(length=8))
