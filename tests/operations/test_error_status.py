"""Status and code of each kind of error over HTTP, and the platform's error of a failed delivery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api.tcp_server import ApiClient, open_api_client
from operations.operations_instance import open_operations_server, person

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
def test_each_kind_of_error_has_an_http_status_and_a_stable_code(tmp_path: Path) -> None:
    """Covers: parse, request, parameters, id, route, method, unauthorized, forbidden, not found, exists, too large."""
    with open_api_client(tmp_path) as api_client:
        api_client.do("agent.register", name="ada")
        guest = api_client.member("gus")
        api_client.do("person.role", name="gus", role="guest")

        def status_and_code(
            path: str, body: Any, token: str | None = api_client.token, method: str = "POST"
        ) -> tuple[int, str]:
            answer = api_client.ask(method, path, body, token=token)
            return answer.status, answer.code

        assert status_and_code("/api/envelope/show", "{not json") == (400, "request.invalid")
        assert status_and_code("/api/envelope/show", {}) == (400, "request.invalid")
        assert status_and_code("/api/envelope/show", {"id": 7}) == (400, "request.invalid")
        assert status_and_code("/api/envelope/show", {"id": "zz"}) == (400, "id.invalid")
        assert status_and_code("/api/no/such", {}) == (404, "route.not_found")
        assert status_and_code("/api/envelope/show", None, method="GET") == (405, "route.method_not_allowed")
        assert status_and_code("/api/server/status", {}, token="x" * 43) == (401, "auth.not_signed_in")
        assert status_and_code("/api/person/invite", {"name": "zoe"}, token=guest) == (403, "permission.denied")
        assert status_and_code("/api/envelope/show", {"id": "abcdefab"}) == (404, "envelope.not_found")
        assert status_and_code("/api/agent/register", {"name": "ADA"}) == (409, "agent.exists")
        assert status_and_code("/api/envelope/send", {"to": "agent:ada", "text": "x" * 2_000_000}) == (
            413,
            "text.too_large",
        )


@pytest.mark.spec("H77")
async def test_envelope_show_returns_attempt_error_kind_and_reason_of_a_failed_delivery(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    connector = FakeConnector(instance.clock)
    instance.connectors["quiet"] = connector
    connector.will_fail(kind=FailureKind.INVALID_ADDRESS, permanent=True, sentence="there is no such room")
    async with open_operations_server(instance) as server:
        sent = await server.ask(OWNER, "envelope.send", to="channel:quiet:lobby", text="hello")
        await server.server.wait_for_outcome(sent["envelope"])
        shown = await server.ask(OWNER, "envelope.show", id=sent["envelope"])
        assert shown["outcome"] == "dead"
        [attempt] = shown["deliveries"]
        assert (attempt["attempt"], attempt["state"], attempt["error_kind"]) == (1, "failed", "invalid_address")
        assert "there is no such room" in attempt["error"]
        arrived = await server.ask(OWNER, "envelope.send", to="channel:quiet:hall", text="hello")
        await server.server.wait_for_outcome(arrived["envelope"])
        [delivered] = (await server.ask(OWNER, "envelope.show", id=arrived["envelope"]))["deliveries"]
        assert (delivered["state"], bool(delivered["receipt"]), delivered["error"]) == ("sent", True, None)


@pytest.mark.spec("A22")
async def test_the_toolbox_refuses_a_call_over_the_rate_limit_of_an_agent_and_says_when_to_try_again(
    tmp_path: Path,
) -> None:
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
    assert not (await read("bo")).failed  # each agent has its own limit
    await clock.advance(20)
    assert not (await read()).failed
    assert (await read()).failed


@pytest.mark.spec("A22")
def test_a_person_over_the_envelope_rate_limit_gets_http_status_429_with_retry_after(tmp_path: Path) -> None:
    with open_api_client(tmp_path, "[server.limits]\nenvelopes_per_minute = 2\n") as api_client:
        zoe = api_client.member("zoe")
        envelope = {"to": "agent:guide", "text": "echo hello"}
        assert [api_client.ask("POST", "/api/envelope/send", envelope, token=zoe).status for _ in range(2)] == [
            200,
            200,
        ]
        refused = api_client.ask("POST", "/api/envelope/send", envelope, token=zoe)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json["error"]["try"].startswith("try again in ")
        assert api_client.ask("POST", "/api/session/list", {}, token=zoe).status == 200  # only sending is limited


@pytest.mark.spec("D63")
def test_config_reload_applies_settings_during_a_run_or_reports_waiting_for_a_restart(tmp_path: Path) -> None:
    with open_api_client(tmp_path) as api_client:
        home = api_client.process.home
        zoe = api_client.member("zoe")
        assert api_client.ask("POST", "/api/session/list", {}, token=zoe).status == 200
        working = api_client.do(
            "envelope.send", to="agent:guide", text="count to 30"
        )  # the reload neither waits for this run nor disturbs it
        (home / "retinue.toml").write_text(
            '[server]\nzone = "Europe/Berlin"\nstore = "postgresql://nowhere/else"\n'
            '[server.permission_policy]\n"session.list" = "boss"\n'
        )
        response = api_client.do("config.reload")
        assert response["pending_restart"] == ["server.store", "server.zone"]
        assert api_client.ask("POST", "/api/session/list", {}, token=zoe).status == 403
        assert api_client.do("server.status")["now"].endswith("+00:00")
        (home / "retinue.toml").write_text("[server]\ndrane_s = 1\n")
        refused = api_client.ask("POST", "/api/config/reload", {}, token=api_client.token)
        assert (refused.status, refused.code) == (400, "config.invalid")
        assert api_client.ask("POST", "/api/session/list", {}, token=zoe).status == 403  # unchanged
        (home / "retinue.toml").write_text("")
        api_client.do("config.reload")
        assert api_client.ask("POST", "/api/session/list", {}, token=zoe).status == 200
        state = api_client.do("session.state", session=working["session"])
        assert state["run"] is not None or "30 Done" in str(state["records"])


@pytest.mark.spec("C3.hash", "C3.restart_notice")
def test_a_setting_that_took_effect_at_a_restart_is_announced_once_in_the_last_session(tmp_path: Path) -> None:
    with open_api_client(tmp_path, "# mine\n[server]\ndrain_s = 1.0\n") as api_client:
        home = api_client.process.home
        session = api_client.do("envelope.send", to="agent:guide", text="echo hello")["session"]
        seen = api_client.do("config.show")["hash"]
        stale = {"changes": {"server": {"drain_s": 2.0}}, "expected_hash": "0" * 64}
        assert api_client.ask("POST", "/api/config/patch", stale, token=api_client.token).status == 409
        changed = api_client.do("config.patch", changes={"server": {"zone": "Europe/Berlin"}}, expected_hash=seen)
        assert changed["pending_restart"] == ["server.zone"]
        assert (home / "retinue.toml").read_text().startswith("# mine\n")
        for _ in range(2):  # announced once, however often the server is started
            api_client.process.kill()
            api_client.process.open()
        api_client = ApiClient(api_client.process)

        def told() -> int:
            records = api_client.do("session.history", session=session, limit=50)["records"]
            return sum("Now in effect: server.zone" in str(record) for record in records)

        wait_until_sync(told, "the change is announced")
        assert told() == 1
        assert api_client.do("server.status")["now"].endswith(("+01:00", "+02:00"))
