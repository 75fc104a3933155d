"""Changes of the house itself are in its audit, with whom they concern, in the commit of the change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.domain.errors import Conflict, NotFound, RetinueError
from retinue.domain.ports import Clock
from retinue.operations import audited_store
from retinue.operations.base import EmptyRequest
from retinue.store.agents import audit
from retinue.testing.local_instance import LocalInstance

OWNER = person("owner")


@pytest.fixture(params=["sqlite", "postgres"])
def household(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    return LocalInstance(tmp_path, url=url)


async def lines(desk: DeskHouse) -> list[tuple[str, str, str]]:
    """Kind, operation and agent of each, oldest first."""
    found: dict[str, Any] = await desk.ask(OWNER, "audit.list")
    return [(each["kind"], each["subject"], each["agent"]) for each in reversed(found["audit"])]


async def test_a_line_names_the_agent_it_concerns_and_no_other(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        await desk.ask(OWNER, "agent.register", name="cleo")
        await desk.ask(OWNER, "agent.set", name="CLEO", description="keeps the books")
        made = await desk.ask(OWNER, "token.create", principal="agent:cleo")
        await desk.ask(OWNER, "token.revoke", id=made["id"], principal="agent:cleo")
        await desk.ask(OWNER, "token.create")
        await desk.ask(OWNER, "person.invite", name="lea")
        await desk.ask(OWNER, "agent.delete", name="cleo")
        assert await lines(desk) == [
            ("agent-changed", "agent.register", "cleo"),
            ("agent-changed", "agent.set", "cleo"),
            ("token-made", "token.create", "cleo"),
            ("token-revoked", "token.revoke", "cleo"),
            ("token-made", "token.create", ""),
            ("person-changed", "person.invite", ""),
            ("agent-changed", "agent.delete", "cleo"),
        ]
        assert (await desk.ask(OWNER, "audit.verify"))["holds"]


async def test_what_was_refused_only_looked_at_or_answered_before_has_no_line(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        with pytest.raises(NotFound):
            await desk.ask(OWNER, "token.revoke", id="abcdef01")
        with pytest.raises(Conflict):
            await desk.ask(OWNER, "agent.register", name="ada")
        await desk.ask(OWNER, "agent.set", name="ada", description="new", dry_run=True)
        assert await lines(desk) == []
        for _ in range(2):
            await desk.ask(OWNER, "agent.set", name="ada", description="new", once="k")
        assert await lines(desk) == [("agent-changed", "agent.set", "ada")], "the second time, nothing was done"


async def test_a_change_whose_line_cannot_be_written_is_not_made(
    household: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk_house(household) as desk:
        insert = audit.append

        def broken(*_: Any, **__: Any) -> None:
            raise RetinueError("no line today")

        monkeypatch.setattr(audit, "append", broken)
        with pytest.raises(RetinueError, match="no line today"):
            await desk.ask(OWNER, "token.create", label="lost")
        monkeypatch.setattr(audit, "append", insert)
        assert (await desk.ask(OWNER, "token.list"))["tokens"] == []
        await desk.ask(OWNER, "token.create", label="kept")
        assert [token["label"] for token in (await desk.ask(OWNER, "token.list"))["tokens"]] == ["kept"]


async def test_one_that_commits_nothing_has_its_line_after_it_and_one_with_two_commits_has_one(
    household: LocalInstance,
) -> None:
    async with desk_house(household) as desk:
        clock: Clock = household.clock
        entry = audited_store.build_audit_entry("config.reload", EmptyRequest(), by="person:owner")
        assert entry is not None
        await audited_store.AuditedStore(desk.house.store, entry, clock).ensure_entry_written()
        assert await lines(desk) == [("settings-changed", "config.reload", "")]
        twice = audited_store.AuditedStore(desk.house.store, entry, clock)
        for _ in range(2):
            await twice.write(lambda conn: conn.execute(sa.text("SELECT 1")).scalar(), point="test")
        await twice.ensure_entry_written()
        assert len(await lines(desk)) == 2
