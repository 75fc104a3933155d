"""Statements of agent and session operations on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from operations.operations_instance import open_operations_server, person

from retinue.domain.errors import Conflict, NotFound
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, NOOR = (person(name) for name in ("owner", "maria", "noor"))


async def test_agent_and_session_operations_work_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    async with open_operations_server(LocalInstance(tmp_path, url=postgres_url)) as server:
        await server.ask(OWNER, "agent.register", name="Clara", model="scripted")
        await server.ask(OWNER, "agent.set", name="clara", description="new")
        assert len((await server.ask(OWNER, "agent.versions", name="clara"))["versions"]) == 2
        assert (await server.ask(OWNER, "agent.restore", name="clara", version=1))["version"] == 3

        _, first = await server.converse(MARIA, "hello", to="agent:CLARA", conversation="Work")
        made = await server.ask(MARIA, "session.create", agent="clara", name="Garden", attributes={"a": {"b": 1}})
        second = made["sessionId"]
        await server.ask(MARIA, "session.attributes", session=second, patch={"a": {"c": 2}})
        await server.ask(MARIA, "session.pin", session=first)
        with pytest.raises(Conflict):
            await server.ask(MARIA, "session.rename", session=first, name="GARDEN")
        await server.ask(MARIA, "session.share", session=second, person="noor")
        assert [s["sessionId"] for s in (await server.ask(NOOR, "session.list"))["sessions"]] == [second]
        page = await server.ask(MARIA, "session.list", limit=1, agent="clara")
        rest = await server.ask(MARIA, "session.list", limit=1, agent="clara", cursor=page["next"])
        assert [s["sessionId"] for s in page["sessions"] + rest["sessions"]] == [first, second]

        files = (await server.ask(MARIA, "session.export", session=first))["files"]
        copy = (await server.ask(MARIA, "session.import", agent="clara", files=files))["sessionId"]
        assert (await server.ask(MARIA, "session.export", session=copy))["files"] == files

        await server.server.instance.clock.advance(1.0)
        await server.ask(MARIA, "session.delete", session=first)
        _, again = await server.converse(MARIA, "hello", to="agent:clara", conversation="work")
        assert again != first
        assert (await server.converse(MARIA, "hello", to="agent:clara", session="latest"))[1] == again
        await server.ask(OWNER, "agent.delete", name="clara")
        with pytest.raises(NotFound):
            await server.ask(MARIA, "envelope.send", to="agent:clara", text="x")
