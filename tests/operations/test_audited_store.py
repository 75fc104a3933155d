"""A change of the server is recorded in its audit in the same commit, with the agent that it concerns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.errors import Conflict, NotFound, RetinueError
from retinue.domain.ports import Clock
from retinue.operations import audited_store
from retinue.operations.base import EmptyRequest
from retinue.store.agents import audit
from retinue.testing.local_instance import LocalInstance

OWNER = person("owner")


@pytest.fixture(params=["sqlite", "postgres"])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    return LocalInstance(tmp_path, url=url)


async def list_audit_entries(services: OperationsServer) -> list[tuple[str, str, str]]:
    """Kind, operation and agent of each, oldest first."""
    found: dict[str, Any] = await services.ask(OWNER, "audit.list")
    return [(each["kind"], each["subject"], each["agent"]) for each in reversed(found["entries"])]


async def test_an_audit_entry_names_the_agent_that_it_concerns(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as services:
        await services.ask(OWNER, "agent.register", name="cleo")
        await services.ask(OWNER, "agent.set", name="CLEO", description="keeps the books")
        made = await services.ask(OWNER, "token.create", principal="agent:cleo")
        await services.ask(OWNER, "token.revoke", id=made["id"], principal="agent:cleo")
        await services.ask(OWNER, "token.create")
        await services.ask(OWNER, "person.invite", name="lea")
        await services.ask(OWNER, "agent.delete", name="cleo")
        assert await list_audit_entries(services) == [
            ("agent-changed", "agent.register", "cleo"),
            ("agent-changed", "agent.set", "cleo"),
            ("token-made", "token.create", "cleo"),
            ("token-revoked", "token.revoke", "cleo"),
            ("token-made", "token.create", ""),
            ("person-changed", "person.invite", ""),
            ("agent-changed", "agent.delete", "cleo"),
        ]
        assert (await services.ask(OWNER, "audit.verify"))["ok"]


async def test_requests_that_are_refused_repeated_or_dry_runs_have_no_audit_entry(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as services:
        with pytest.raises(NotFound):
            await services.ask(OWNER, "token.revoke", id="abcdef01")
        with pytest.raises(Conflict):
            await services.ask(OWNER, "agent.register", name="ada")
        await services.ask(OWNER, "agent.set", name="ada", description="new", dry_run=True)
        assert await list_audit_entries(services) == []
        for _ in range(2):
            await services.ask(OWNER, "agent.set", name="ada", description="new", once="k")
        assert await list_audit_entries(services) == [("agent-changed", "agent.set", "ada")], (
            "the second call has no effect"
        )


async def test_a_change_whose_audit_entry_cannot_be_written_is_rolled_back(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_operations_server(instance) as services:
        insert = audit.append

        def broken(*_: Any, **__: Any) -> None:
            raise RetinueError("no connection")

        monkeypatch.setattr(audit, "append", broken)
        with pytest.raises(RetinueError, match="no connection"):
            await services.ask(OWNER, "token.create", label="lost")
        monkeypatch.setattr(audit, "append", insert)
        assert (await services.ask(OWNER, "token.list"))["tokens"] == []
        await services.ask(OWNER, "token.create", label="kept")
        assert [token["label"] for token in (await services.ask(OWNER, "token.list"))["tokens"]] == ["kept"]


async def test_an_operation_has_one_audit_entry_whether_it_commits_nothing_or_twice(
    instance: LocalInstance,
) -> None:
    async with open_operations_server(instance) as services:
        clock: Clock = instance.clock
        entry = audited_store.build_audit_entry("config.reload", EmptyRequest(), by="person:owner")
        assert entry is not None
        await audited_store.AuditedStore(services.server.store, entry, clock).ensure_entry_written()
        assert await list_audit_entries(services) == [("settings-changed", "config.reload", "")]
        twice = audited_store.AuditedStore(services.server.store, entry, clock)
        for _ in range(2):
            await twice.write(lambda conn: conn.execute(sa.text("SELECT 1")).scalar(), point="test")
        await twice.ensure_entry_written()
        assert len(await list_audit_entries(services)) == 2
