"""List queries use an index, whatever the number of rows."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store.test_sqlite import ALLOWED_SCANS, SCAN_OF_FEW, plan_of, statements

from retinue.store.open_store import prepare_sqlite
from retinue.store.runs import approvals, delegations, lanes, run_timeline, run_trace, runs
from retinue.store.sessions import unread

# What a list may scan besides: the agents, and what is open or dead.
SCAN_BY_LISTS = re.compile(r"SCAN (agents\b|\w+ USING (COVERING )?INDEX (uq|ix)_\w+_(open|dead))")


@pytest.mark.parametrize(
    "module",
    [approvals, delegations, lanes, unread, runs, run_timeline, run_trace],
    ids=lambda m: m.__name__,
)
def test_the_plan_of_a_list_query_scans_no_whole_table(module: object, tmp_path: Path) -> None:
    prepare_sqlite(tmp_path / "retinue.db")
    with closing(sqlite3.connect(tmp_path / "retinue.db")) as raw:
        found = statements(module)  # type: ignore[arg-type]
        plans = {name: plan_of(raw, statement) for name, statement in found.items()}
    assert plans
    scans = [
        f"{name}: {line}"
        for name, plan in plans.items()
        for line in plan.splitlines()
        if line.startswith("SCAN")
        and name.partition("[")[0] not in ALLOWED_SCANS
        and not SCAN_OF_FEW.match(line)
        and not SCAN_BY_LISTS.match(line)
    ]
    assert not scans, "\n".join(scans)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("runs._of_agent[all]", "ix_runs_agent_started (agent=? AND started_ms>? AND started_ms<?)"),
        ("runs._of_session[person]", "ix_runs_session_started (session=? AND started_ms>? AND started_ms<?)"),
        ("approvals._past_page[all]", "ix_approvals_past (asked_ms<?)"),
        ("delegations._visible[all]", "ix_delegations_created (created_ms<?)"),
        ("delegations._visible_of_session[person]", "ix_delegations_session (session=? AND created_ms<?)"),
        ("unread._unread", "ix_inbox_unread (person=?)"),
        ("lanes._next_lane", "ix_envelopes_lane (session>?)"),
        ("lanes._outbound", "ix_envelopes_lane (session=? AND rank=?)"),
    ],
)
def test_the_plan_of_a_list_query_uses_the_expected_index(name: str, index: str, tmp_path: Path) -> None:
    prepare_sqlite(tmp_path / "retinue.db")
    found = {
        key: value
        for module in (approvals, delegations, lanes, unread, runs)
        for key, value in statements(module).items()
    }
    with closing(sqlite3.connect(tmp_path / "retinue.db")) as raw:
        assert index in plan_of(raw, found[name])
