"""What doors say of failures: a status and a code for each kind, and for a delivery what the platform said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api.tcp_server import Rim, open_rim
from operations.operations_instance import desk_house, person

from retinue.connectors.base import FailureKind
from retinue.domain.agent import Agent
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights
from retinue.domain.tool import Call, ToolResult
from retinue.testing.fake_clock import FakeClock
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance
from retinue.testing.wait_conditions import wait_until_sync
from retinue.tools.base import ToolContext
from retinue.tools.files import ReadTool
from retinue.tools.toolbox import Toolbox

OWNER = person("owner")


@pytest.mark.spec("H77")
def test_each_kind_of_error_has_its_status_and_a_stable_code(tmp_path: Path) -> None:
    """Parse, request, method, parameters, unauthorized, forbidden, not found, already there, too large."""
    with open_rim(tmp_path) as rim:
        rim.do("agent.register", name="ada")
        guest = rim.member("gus")
        rim.do("person.role", name="gus", role="guest")

        def said(path: str, body: Any, token: str | None = rim.token, method: str = "POST") -> tuple[int, str]:
            answer = rim.ask(method, path, body, token=token)
            return answer.status, answer.code

        assert said("/api/envelope/show", "{not json") == (400, "request.invalid")
        assert said("/api/envelope/show", {}) == (400, "request.invalid")
        assert said("/api/envelope/show", {"id": 7}) == (400, "request.invalid")
        assert said("/api/envelope/show", {"id": "zz"}) == (400, "id.invalid")
        assert said("/api/no/such", {}) == (404, "route.not_found")
        assert said("/api/envelope/show", None, method="GET") == (405, "route.method_not_allowed")
        assert said("/api/house/status", {}, token="x" * 43) == (401, "auth.not_signed_in")
        assert said("/api/person/invite", {"name": "zoe"}, token=guest) == (403, "permission.denied")
        assert said("/api/envelope/show", {"id": "abcdefab"}) == (404, "envelope.not_found")
        assert said("/api/agent/register", {"name": "ADA"}) == (409, "agent.exists")
        assert said("/api/envelope/send", {"to": "agent:ada", "text": "x" * 2_000_000}) == (413, "text.too_large")


@pytest.mark.spec("H77")
async def test_a_delivery_that_failed_says_which_attempt_met_with_what(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    connector = FakeConnector(household.clock)
    household.connectors["quiet"] = connector
    connector.will_fail(kind=FailureKind.INVALID_ADDRESS, permanent=True, sentence="there is no such room")
    async with desk_house(household) as house:
        sent = await house.ask(OWNER, "envelope.send", to="channel:quiet:lobby", text="hello")
        await house.house.wait_for_outcome(sent["envelope"])
        shown = await house.ask(OWNER, "envelope.show", id=sent["envelope"])
        assert shown["outcome"] == "dead"
        [attempt] = shown["deliveries"]
        assert (attempt["attempt"], attempt["state"], attempt["error-kind"]) == (1, "failed", "invalid-address")
        assert "there is no such room" in attempt["error"]
        arrived = await house.ask(OWNER, "envelope.send", to="channel:quiet:hall", text="hello")
        await house.house.wait_for_outcome(arrived["envelope"])
        [delivered] = (await house.ask(OWNER, "envelope.show", id=arrived["envelope"]))["deliveries"]
        assert (delivered["state"], bool(delivered["receipt"]), delivered["error"]) == ("sent", True, None)


@pytest.mark.spec("A22")
async def test_an_agent_that_calls_too_often_reads_when_to_try_again(tmp_path: Path) -> None:
    clock = FakeClock()
    box = Toolbox([ReadTool()], clock=clock, calls_per_minute=3)
    (tmp_path / "note.txt").write_text("hello")

    async def read(agent: str = "ada") -> ToolResult:
        scene = ToolContext(
            agent=Agent(name=agent),
            session=SessionId("5" * 32),
            run=RunId("6" * 32),
            call="c",
            agent_directory=tmp_path,
            rights=AgentRights(workspace=tmp_path),
        )
        return await box.perform(Call(id="c", tool="read", arguments={"path": "note.txt"}), scene)

    assert [(await read()).failed for _ in range(3)] == [False] * 3
    refused = await read()
    assert refused.failed and "ada can make 3 calls per minute. Try again in 20 s." in refused.output
    assert not (await read("bo")).failed  # each has its own
    await clock.advance(20)
    assert not (await read()).failed
    assert (await read()).failed


@pytest.mark.spec("A22")
def test_who_sends_too_often_is_told_when_to_send_again(tmp_path: Path) -> None:
    with open_rim(tmp_path, "[house.limits]\nenvelopes_per_minute = 2\n") as rim:
        zoe = rim.member("zoe")
        letter = {"to": "agent:guide", "text": "echo hello"}
        assert [rim.ask("POST", "/api/envelope/send", letter, token=zoe).status for _ in range(2)] == [200, 200]
        refused = rim.ask("POST", "/api/envelope/send", letter, token=zoe)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json["error"]["try"].startswith("wait ")
        assert rim.ask("POST", "/api/session/list", {}, token=zoe).status == 200  # looking is something else


@pytest.mark.spec("D63")
def test_settings_change_while_the_house_works_and_what_cannot_waits_for_a_restart(tmp_path: Path) -> None:
    with open_rim(tmp_path) as rim:
        home = rim.process.home
        zoe = rim.member("zoe")
        assert rim.ask("POST", "/api/session/list", {}, token=zoe).status == 200
        working = rim.do("envelope.send", to="agent:guide", text="count to 30")  # reload does not wait, nor disturb
        (home / "retinue.toml").write_text(
            '[house]\nzone = "Europe/Berlin"\nstore = "postgresql://nowhere/else"\n'
            '[house.permission_policy]\n"session.list" = "boss"\n'
        )
        told = rim.do("config.reload")
        assert told["waiting-for-a-restart"] == ["house.store", "house.zone"]
        assert rim.ask("POST", "/api/session/list", {}, token=zoe).status == 403
        assert rim.do("house.status")["now"].endswith("+00:00")
        (home / "retinue.toml").write_text("[house]\ndrane_s = 1\n")
        refused = rim.ask("POST", "/api/config/reload", {}, token=rim.token)
        assert (refused.status, refused.code) == (400, "config.invalid")
        assert rim.ask("POST", "/api/session/list", {}, token=zoe).status == 403  # as it was before
        (home / "retinue.toml").write_text("")
        rim.do("config.reload")
        assert rim.ask("POST", "/api/session/list", {}, token=zoe).status == 200
        state = rim.do("session.state", session=working["session"])
        assert state["run"] is not None or "30 Done" in str(state["records"])


@pytest.mark.spec("C3.hash", "C3.restart_notice")
def test_a_change_that_waits_for_a_restart_is_told_in_the_last_session_when_it_has_come(tmp_path: Path) -> None:
    with open_rim(tmp_path, "# mine\n[house]\ndrain_s = 1.0\n") as rim:
        home = rim.process.home
        session = rim.do("envelope.send", to="agent:guide", text="echo hello")["session"]
        seen = rim.do("config.show")["hash"]
        stale = {"changes": {"house": {"drain_s": 2.0}}, "expected_hash": "0" * 64}
        assert rim.ask("POST", "/api/config/patch", stale, token=rim.token).status == 409
        changed = rim.do("config.patch", changes={"house": {"zone": "Europe/Berlin"}}, expected_hash=seen)
        assert changed["waiting-for-a-restart"] == ["house.zone"]
        assert (home / "retinue.toml").read_text().startswith("# mine\n")
        for _ in range(2):  # told once, however often it is opened
            rim.process.kill()
            rim.process.open()
        rim = Rim(rim.process)

        def told() -> int:
            records = rim.do("session.history", session=session, limit=50)["records"]
            return sum("Now in effect: house.zone" in str(record) for record in records)

        wait_until_sync(told, "it is told")
        assert told() == 1
        assert rim.do("house.status")["now"].endswith(("+01:00", "+02:00"))
