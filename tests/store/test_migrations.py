"""The schema: migrations produce exactly the declared tables, and an upgrade happens completely or not at all."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from retinue.domain.errors import StoreError
from retinue.store.core import sqlite
from retinue.store.core import tables as t
from retinue.store.ledger import ledger
from retinue.store.migrations import HEAD
from retinue.store.open_store import (
    KNOWN_REVISIONS,
    SCHEMA,
    StoreSchema,
    open_store,
    prepare_postgres,
    prepare_sqlite,
    stored_revision,
)
from retinue.testing.local_instance import LocalInstance
from retinue.testing.postgres import PostgresServer

NEXT_MIGRATION = '''
"""A synthetic next revision: a table rebuilt, a column with data made from data, a new table."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "0015"


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("mood", sa.Text(), nullable=False, server_default="calm"))
        runs.create_check_constraint("mood", "mood <> ''")
    with op.batch_alter_table("sessions") as sessions:
        sessions.alter_column("snippet", new_column_name="last_words", existing_type=sa.Text(), existing_nullable=False)
    op.create_table("pets", sa.Column("name", sa.Text(), primary_key=True))
    op.execute("INSERT INTO pets (name) SELECT DISTINCT agent FROM runs")
'''
MIGRATION_RAISING_AT_THE_END = NEXT_MIGRATION + "    raise RuntimeError('the author slipped')\n"
MIGRATION_BREAKING_A_REFERENCE = NEXT_MIGRATION + "    op.execute(\"UPDATE runs SET session = 'nowhere'\")\n"
MIGRATION_BREAKING_A_CONSTRAINT = NEXT_MIGRATION + '    op.execute("INSERT INTO pets (name) SELECT name FROM pets")\n'


MIGRATED_SCHEMA = StoreSchema()


def schema_with_next_migration(directory: Path, source: str = NEXT_MIGRATION) -> StoreSchema:
    """Return a schema with a migration of a future version."""
    scripts = directory / "migrations"
    shutil.copytree(SCHEMA.scripts_dir, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "9999_next.py").write_text(source)
    return StoreSchema(head="9999", known_revisions=KNOWN_REVISIONS | {"9999"}, scripts_dir=scripts)


def dump_database(path: Path) -> list[str]:
    """Return a database as SQL, with its schema."""
    with closing(sqlite3.connect(path)) as raw:
        return list(raw.iterdump())


async def make_history(url: str | Path, root: Path) -> None:
    """Make a store with some sessions and runs."""
    instance = LocalInstance(root, url=url)
    async with instance.run() as server:
        instance.model.will_reply("one", "two")
        await server.wait_for_answer((await server.send("Grüße, 'quoted' \u202e")).envelope)
        await server.wait_for_answer((await server.send("second")).envelope)
        await server.send("next year", deliver_at=instance.clock.now().replace(year=2027))
        await server.wait_until_idle()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "retinue.db"


# The tables and the migrations are the same


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(SCHEMA.scripts_dir))
    return ScriptDirectory.from_config(config)


def test_head_and_known_revisions_match_the_migration_scripts() -> None:
    assert scripts().get_heads() == [HEAD]
    assert {script.revision for script in scripts().walk_revisions()} == KNOWN_REVISIONS


@contextmanager
def open_migrated_store(kind: str, request: pytest.FixtureRequest, path: Path) -> Iterator[sa.Connection]:
    """Connect to an empty store that the migrations have created."""
    if kind == "sqlite":
        prepare_sqlite(path, schema=MIGRATED_SCHEMA)
        with closing(sqlite.connect(path, writable=False)) as conn:
            yield conn
        return
    url = sa.make_url(request.getfixturevalue("empty_postgres_url"))
    prepare_postgres(url, MIGRATED_SCHEMA)
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        yield conn
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_alembic_autogenerate_finds_no_difference_after_the_migrations(
    kind: str, request: pytest.FixtureRequest, path: Path
) -> None:
    with open_migrated_store(kind, request, path) as conn:
        context = MigrationContext.configure(
            conn, opts={"compare_type": True, "compare_server_default": True, "render_as_batch": True}
        )
        assert compare_metadata(context, t.metadata) == []


def test_on_sqlite_migrated_schema_objects_equal_the_declared_tables_exactly(path: Path) -> None:
    """Autogenerate ignores the conditions of partial indexes, checks, and WITHOUT ROWID."""
    prepare_sqlite(path, schema=MIGRATED_SCHEMA)
    with closing(sqlite3.connect(path)) as raw:
        migrated = _schema_objects(raw)
    with closing(sqlite3.connect(":memory:")) as raw:
        engine = sa.create_engine("sqlite://", creator=lambda: raw)
        t.metadata.create_all(engine)
        raw.execute(t.AGENT_RUNS_VIEW)
        declared = _schema_objects(raw)
    migrated.pop("alembic_version")
    assert migrated == declared
    assert "status = 'pending' AND session IS NULL" in declared["ix_envelopes_outbox"]


def test_a_new_sqlite_store_equals_a_migrated_one_including_its_revision(tmp_path: Path) -> None:
    made: list[tuple[dict[str, list[str] | str], list[tuple[str]], list[tuple[int, ...]]]] = []
    for name, schema in (("tables", SCHEMA), ("scripts", MIGRATED_SCHEMA)):
        prepare_sqlite(tmp_path / name, schema=schema)
        with closing(sqlite3.connect(tmp_path / name)) as raw:
            stamp = raw.execute("SELECT version_num FROM alembic_version").fetchall()
            made.append((_schema_objects(raw), stamp, raw.execute("SELECT * FROM counters").fetchall()))
    assert made[0] == made[1]


def _schema_objects(raw: sqlite3.Connection) -> dict[str, list[str] | str]:
    rows = raw.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: _clauses(sql) if type_ == "table" else " ".join(sql.split()) for type_, name, sql in rows}


def _clauses(sql: str) -> list[str]:
    """Return a table's columns and constraints, without their order and quotes, which change if a table is rebuilt."""
    head, _, body = " ".join(sql.replace('"', "").split()).partition("(")
    inside, _, tail = body.rpartition(")")
    return [head.strip(), tail.strip(), *sorted(clause.strip() for clause in re.split(r",\s*(?![^()]*\))", inside))]


def test_a_new_postgresql_store_equals_a_migrated_one_including_its_revision(
    postgres_server: PostgresServer,
) -> None:
    asks = (
        "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default "
        "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, ordinal_position",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace "
        "ORDER BY 1",
        "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
        "SELECT * FROM counters",
        "SELECT * FROM alembic_version",
    )
    said: list[list[list[tuple[Any, ...]]]] = []
    for schema in (SCHEMA, MIGRATED_SCHEMA):
        with postgres_server.create_database() as url:
            prepare_postgres(sa.make_url(url), schema)
            engine = sa.create_engine(url)
            with engine.connect() as conn:
                said.append([[tuple(row) for row in conn.execute(sa.text(ask))] for ask in asks])
            engine.dispose()
    assert said[0] == said[1]
    assert any("session IS NULL" in row[1] for row in said[0][1])


# Upgrade


@pytest.mark.parametrize("lived", [False, True])
async def test_a_migration_keeps_all_rows_of_a_sqlite_store(path: Path, tmp_path: Path, lived: bool) -> None:
    if lived:
        await make_history(path, tmp_path)
    else:
        prepare_sqlite(path)
    before = _table_rows(path)
    schema = schema_with_next_migration(tmp_path)

    prepare_sqlite(path, schema=schema)

    after = _table_rows(path)
    assert after.pop("alembic_version") == [("9999",)]
    assert after.pop("pets") == ([("ada",)] if lived else [])
    assert [row[:-1] for row in after["runs"]] == before["runs"]
    assert {row[-1] for row in after["runs"]} <= {"calm"}
    for table in set(after) - {"runs"}:
        assert after[table] == before[table], table
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        assert raw.execute("SELECT count(*) FROM agent_runs").fetchone() == (2 if lived else 0,)
        indexes = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert {"uq_runs_open", "ix_runs_resume", "ix_sessions_active"} <= indexes
        (runs,) = raw.execute("SELECT sql FROM sqlite_master WHERE name = 'uq_runs_open'").fetchone()
        assert "WHERE status IN ('running', 'suspended')" in runs
        (steps,) = raw.execute("SELECT sql FROM sqlite_master WHERE name = 'steps'").fetchone()
        assert "REFERENCES runs (id)" in steps
    assert _leftover_files(path) == []

    prepare_sqlite(path, schema=schema)  # a second start has nothing to do
    with pytest.raises(StoreError, match="newer"):  # and the previous version refuses
        prepare_sqlite(path)


def _table_rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path)) as raw:
        tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: sorted(raw.execute(f"SELECT * FROM {table}").fetchall(), key=repr) for table in tables}


def _leftover_files(path: Path) -> list[str]:
    return [file.name for file in path.parent.glob("retinue.db?*")]


@pytest.mark.parametrize(
    ("source", "because"),
    [
        (MIGRATION_RAISING_AT_THE_END, "the author slipped"),
        (MIGRATION_BREAKING_A_REFERENCE, "a row references another that does not exist"),
        (MIGRATION_BREAKING_A_CONSTRAINT, "UNIQUE constraint failed"),
        ("this is no python", "SyntaxError"),
    ],
)
async def test_a_failed_migration_leaves_the_sqlite_file_unchanged(
    path: Path, tmp_path: Path, source: str, because: str
) -> None:
    await make_history(path, tmp_path)
    before, modified = dump_database(path), path.read_bytes()
    schema = schema_with_next_migration(tmp_path, source)

    with pytest.raises(StoreError) as failed:
        prepare_sqlite(path, schema=schema)

    assert failed.value.code == "store.upgrade_failed"
    assert because in failed.value.because
    assert "previous version" in failed.value.try_this
    assert dump_database(path) == before
    assert path.read_bytes() == modified
    assert _leftover_files(path) == []
    store = await open_store(path)  # the previous version still works
    await store.close()


async def test_a_migration_runs_on_a_copy_before_the_store(path: Path, tmp_path: Path) -> None:
    await make_history(path, tmp_path)
    witness = tmp_path / "witness"
    schema = schema_with_next_migration(
        tmp_path,
        NEXT_MIGRATION
        + f"""
    files = [row[2] for row in op.get_bind().exec_driver_sql("PRAGMA database_list")]
    with open({str(witness)!r}, "a") as out:
        import os
        print(files[0], oct(os.stat(files[0]).st_mode & 0o777), file=out)
""",
    )
    prepare_sqlite(path, schema=schema)
    assert witness.read_text().split() == [f"{path}.upgrade", "0o600", str(path), "0o600"]
    assert _leftover_files(path) == []


async def test_copies_left_by_a_killed_migration_are_removed_at_the_next_start(path: Path) -> None:
    prepare_sqlite(path)
    for ending in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}.upgrade{ending}").write_bytes(b"private text")
    prepare_sqlite(path)
    assert _leftover_files(path) == []


async def test_a_damaged_store_is_not_migrated(path: Path, tmp_path: Path) -> None:
    await make_history(path, tmp_path)
    with closing(sqlite3.connect(path)) as raw:
        (root,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records'").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    whole = path.read_bytes()

    with pytest.raises(StoreError) as refused:
        prepare_sqlite(path, schema=schema_with_next_migration(tmp_path))

    assert refused.value.code == "store.damaged"
    assert path.read_bytes() == whole
    assert _leftover_files(path) == []


# Upgrade on PostgreSQL


async def test_a_migration_keeps_all_rows_of_a_postgresql_store(empty_postgres_url: str, tmp_path: Path) -> None:
    await make_history(empty_postgres_url, tmp_path)
    url = sa.make_url(empty_postgres_url)
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        before = conn.execute(sa.text("SELECT id, text FROM envelopes ORDER BY seq")).all()

    prepare_postgres(url, schema_with_next_migration(tmp_path))

    with engine.connect() as conn:
        assert stored_revision(conn) == "9999"
        assert conn.execute(sa.text("SELECT id, text FROM envelopes ORDER BY seq")).all() == before
        assert conn.execute(sa.text("SELECT mood FROM runs")).scalars().all() == ["calm", "calm"]
        assert conn.execute(sa.text("SELECT count(*) FROM agent_runs")).scalar() == 2
    engine.dispose()
    with pytest.raises(StoreError) as refused:
        await open_store(empty_postgres_url)
    assert refused.value.code == "store.newer_schema"


@pytest.mark.parametrize(
    "source", [MIGRATION_RAISING_AT_THE_END, MIGRATION_BREAKING_A_REFERENCE, MIGRATION_BREAKING_A_CONSTRAINT]
)
async def test_a_failed_migration_is_rolled_back_on_postgresql(
    empty_postgres_url: str, tmp_path: Path, source: str
) -> None:
    await make_history(empty_postgres_url, tmp_path)
    with pytest.raises(StoreError) as failed:
        prepare_postgres(sa.make_url(empty_postgres_url), schema_with_next_migration(tmp_path, source))
    assert failed.value.code == "store.upgrade_failed"
    assert failed.value.because and "previous version" in failed.value.try_this

    engine = sa.create_engine(empty_postgres_url)
    with engine.connect() as conn:
        assert stored_revision(conn) == HEAD
        assert not sa.inspect(conn).has_table("pets")
        assert "mood" not in {column["name"] for column in sa.inspect(conn).get_columns("runs")}
    engine.dispose()
    store = await open_store(empty_postgres_url)
    await store.close()


# What each migration does with existing rows


def schema_at_revision(head: str, directory: Path) -> StoreSchema:
    """Return the schema that an earlier version had."""
    known = frozenset(revision for revision in KNOWN_REVISIONS if revision <= head)
    scripts = directory / head
    later = [f"{revision}*" for revision in KNOWN_REVISIONS - known]
    shutil.copytree(SCHEMA.scripts_dir, scripts, ignore=shutil.ignore_patterns("__pycache__", *later))
    return StoreSchema(head=head, known_revisions=known, scripts_dir=scripts)


def test_migrating_from_0001_keeps_tokens_agents_and_sessions(path: Path, tmp_path: Path) -> None:
    prepare_sqlite(path, schema=schema_at_revision("0001", tmp_path))
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("INSERT INTO people VALUES ('owner', 'owner', 'owner', ?, 5)", ("ab" * 32,))
        raw.execute("INSERT INTO people VALUES ('Maria', 'maria', 'member', NULL, 6)")
        raw.execute("INSERT INTO agents VALUES ('ada', 'ada', 3, '{\"name\":\"ada\"}', 'setup', 7, NULL)")
        raw.execute(
            "INSERT INTO sessions VALUES (?, 'ada', 'terminal', 'person:owner', NULL, '', 'sleeping', '{}', '{}',"
            " 1, 1, 1, 0, 'hi', 8, 9, NULL)",
            ("c" * 32,),
        )
        raw.execute("INSERT INTO inbox VALUES (?, 'Maria', 1, NULL)", ("d" * 32,))
        raw.commit()

    prepare_sqlite(path)

    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT kind, principal, hash, revoked_ms FROM tokens").fetchall() == [
            ("token", "person:owner", "ab" * 32, None)
        ]
        assert raw.execute("SELECT name, role, erased_ms FROM people ORDER BY name").fetchall() == [
            ("Maria", "member", None),
            ("owner", "owner", None),
        ]
        assert raw.execute("SELECT agent, version FROM agent_versions").fetchall() == [("ada", 3)]
        assert raw.execute("SELECT snippet, updated_ms, name_folded, deleted_ms FROM sessions").fetchall() == [
            ("hi", 9, None, None)
        ]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@contextmanager
def store_at_revision(
    kind: str, head: str, request: pytest.FixtureRequest, path: Path, tmp_path: Path
) -> Iterator[tuple[sa.Engine, Callable[[], None]]]:
    """Create a store of an earlier version. Yields its engine, and a function that upgrades it."""
    if kind == "sqlite":
        prepare_sqlite(path, schema=schema_at_revision(head, tmp_path))
        engine, move = sa.create_engine(f"sqlite:///{path}"), partial(prepare_sqlite, path)
    else:
        url = sa.make_url(request.getfixturevalue("empty_postgres_url"))
        prepare_postgres(url, schema_at_revision(head, tmp_path))
        engine, move = sa.create_engine(url), partial(prepare_postgres, url)
    yield engine, move
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_migrating_from_0002_keeps_money_and_sessions_and_sums_the_spending(
    kind: str, request: pytest.FixtureRequest, path: Path, tmp_path: Path
) -> None:
    day_ms = 86_400_000
    reserved = "(run, turn, attempt, reserved_microusd, settled_microusd, released_microusd, held_microusd, unknown, "
    run, session, gone = "a" * 32, "c" * 32, "b" * 32
    with store_at_revision(kind, "0002", request, path, tmp_path) as (engine, move):
        with engine.begin() as conn:
            for statement in (
                "INSERT INTO agents (name, folded, version, body, source, created_ms) VALUES"
                " ('ada', 'ada', 1, '{}', 'test', 1)",
                "INSERT INTO sessions (id, agent, origin_kind, origin_key, name, wakefulness, queue, attributes, epoch,"
                " record_seq, context_from, revision, snippet, created_ms, updated_ms) VALUES"
                f" ('{session}', 'ada', 'web', 'person:maria', 'garden', 'active', '{{}}', '{{}}', 3, 9, 4, 2, 'hi', 8,"
                " 9)",
                "INSERT INTO runs (id, session, agent, lane, epoch, status, sender, envelopes, first_seq, attempt,"
                f" started_ms) VALUES ('{run}', '{session}', 'ada', 'main', 3, 'running', 'person:maria', '[]', 5, 1,"
                " 7)",
                "INSERT INTO steps (run, turn, idx, hash, kind, state, attempt, opened_ms) VALUES"
                f" ('{run}', 1, 0, 'scripted', 'model', 'open', 1, 7)",
                f"INSERT INTO money {reserved}at_ms) VALUES ('{run}', 0, 1, 1000, 300, 700, 0, false, {2 * day_ms})",
                f"INSERT INTO money {reserved}at_ms) VALUES ('{run}', 1, 1, 1000, 0, 0, 1000, false, {2 * day_ms + 5})",
                f"INSERT INTO money {reserved}at_ms) VALUES ('{gone}', 0, 1, 1000, 1000, 0, 0, true, {3 * day_ms})",
            ):
                conn.execute(sa.text(statement))

        move()

        with engine.connect() as conn:
            assert stored_revision(conn) == HEAD
            kept = conn.execute(
                sa.text(
                    "SELECT run, turn, call_index, attempt, session, root_run, agent, reserved_microusd,"
                    " settled_microusd,"
                    " released_microusd, held_microusd, cost_unknown, day FROM model_calls ORDER BY run, turn"
                )
            ).all()
            assert [tuple(row) for row in kept] == [
                (run, 0, 0, 1, session, run, "ada", 1000, 300, 700, 0, False, 2),
                (run, 1, 0, 1, session, run, "ada", 1000, 0, 0, 1000, False, 2),
                (gone, 0, 0, 1, "", gone, "", 1000, 1000, 0, 0, True, 3),
            ]
            sums = "SELECT day, agent, calls, settled_microusd, held_microusd FROM spending ORDER BY day"
            assert [tuple(row) for row in conn.execute(sa.text(sums))] == [
                (2, "ada", 2, 300, 1000),
                (3, "", 1, 1000, 0),
            ]
            [row] = conn.execute(
                sa.text("SELECT name, epoch, context_from, model_choice, compactions FROM sessions")
            ).all()
            assert tuple(row) == ("garden", 3, 4, "{}", 0)
            assert "charged" not in ledger.check_ledger(conn, now_ms=4 * day_ms).broken_equations


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_migrating_from_0011_sets_the_context_times_of_sessions(
    kind: str, request: pytest.FixtureRequest, path: Path, tmp_path: Path
) -> None:
    session, empty = "a" * 32, "b" * 32
    with store_at_revision(kind, "0011", request, path, tmp_path) as (engine, move):
        with engine.begin() as conn:
            for statement in (
                "INSERT INTO agents (name, folded, version, body, source, created_ms) VALUES"
                " ('ada', 'ada', 1, '{}', 'test', 1)",
                *(
                    "INSERT INTO sessions (id, agent, origin_kind, origin_key, name, wakefulness, queue, attributes,"
                    " epoch, record_seq, context_from, revision, snippet, created_ms, updated_ms, mind, compactions)"
                    f" VALUES ('{id_}', 'ada', 'web', '{id_}', '', 'sleeping', '{{}}', '{{}}', 3, 4, 3, 1, '', 5, 90,"
                    " '{}', 0)"
                    for id_ in (session, empty)
                ),
                *(
                    "INSERT INTO records (session, seq, kind, body, trust, at_ms) VALUES"
                    f" ('{session}', {seq}, '{of}', '{{}}', 'private', {at_ms})"
                    for seq, of, at_ms in ((1, "start", 5), (2, "user", 20), (3, "reset", 30), (4, "user", 80))
                ),
            ):
                conn.execute(sa.text(statement))

        move()

        with engine.connect() as conn:
            found = conn.execute(
                sa.text("SELECT id, context_started_ms, active_ms, pending_reset, chat_type FROM sessions ORDER BY id")
            )
            assert [tuple(row) for row in found] == [(session, 30, 90, None, None), (empty, 5, 90, None, None)]
