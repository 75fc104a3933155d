"""The same on PostgreSQL: every statement that agents and sessions brought with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from operations.operations_instance import desk_house, person

from retinue.domain.errors import Conflict, NotFound
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, NOOR = (person(name) for name in ("owner", "maria", "noor"))


async def test_agents_and_sessions_are_kept_the_same_way(tmp_path: Path, postgres_url: str) -> None:
    async with desk_house(LocalInstance(tmp_path, url=postgres_url)) as house:
        await house.ask(OWNER, "agent.register", name="Clara", model="scripted")
        await house.ask(OWNER, "agent.set", name="clara", description="new")
        assert len((await house.ask(OWNER, "agent.versions", name="clara"))["versions"]) == 2
        assert (await house.ask(OWNER, "agent.restore", name="clara", version=1))["version"] == 3

        _, first = await house.converse(MARIA, "hello", to="agent:CLARA", conversation="Work")
        made = await house.ask(MARIA, "session.create", agent="clara", name="Garden", attributes={"a": {"b": 1}})
        second = made["sessionId"]
        await house.ask(MARIA, "session.attributes", session=second, patch={"a": {"c": 2}})
        await house.ask(MARIA, "session.pin", session=first)
        with pytest.raises(Conflict):
            await house.ask(MARIA, "session.rename", session=first, name="GARDEN")
        await house.ask(MARIA, "session.share", session=second, person="noor")
        assert [s["sessionId"] for s in (await house.ask(NOOR, "session.list"))["sessions"]] == [second]
        page = await house.ask(MARIA, "session.list", limit=1, agent="clara")
        rest = await house.ask(MARIA, "session.list", limit=1, agent="clara", cursor=page["next"])
        assert [s["sessionId"] for s in page["sessions"] + rest["sessions"]] == [first, second]

        files = (await house.ask(MARIA, "session.export", session=first))["files"]
        copy = (await house.ask(MARIA, "session.import", agent="clara", files=files))["sessionId"]
        assert (await house.ask(MARIA, "session.export", session=copy))["files"] == files

        await house.house.instance.clock.advance(1.0)
        await house.ask(MARIA, "session.delete", session=first)
        _, again = await house.converse(MARIA, "hello", to="agent:clara", conversation="work")
        assert again != first
        assert (await house.converse(MARIA, "hello", to="agent:clara", session="latest"))[1] == again
        await house.ask(OWNER, "agent.delete", name="clara")
        with pytest.raises(NotFound):
            await house.ask(MARIA, "envelope.send", to="agent:clara", text="x")
