"""The house as an MCP server, driven by the `mcp` client for real: over HTTP, and on stdio by our own command."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent
from operations.operations_instance import desk_house
from tools.fake_mcp_servers import served

from retinue.api import mcp
from retinue.api.app import HttpApp
from retinue.api.connection_limits import ConnectionLimiter
from retinue.api.host_check import HttpSettings as HouseDoor
from retinue.config.provenance import ProvenanceSettings
from retinue.config.tools import ToolListSettings, ToolSettings
from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.ids import TokenId
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.domain.token import Token, TokenKind, hash_token
from retinue.operations.base import Services
from retinue.operations.catalog import OPERATIONS
from retinue.operations.operation_tools import tool_name
from retinue.policy.access import permissions
from retinue.policy.provenance.provenance_rules import build_policy_with_defaults
from retinue.policy.tools.tools import CallSource, ToolPolicyContext
from retinue.store.agents import agents
from retinue.store.people import tokens
from retinue.testing.local_instance import LocalInstance
from retinue.testing.tools import AppendLineTool
from retinue.tools.toolbox import Toolbox


@dataclass
class Served:
    url: str
    desk: Services
    household: LocalInstance
    app: HttpApp

    @asynccontextmanager
    async def client(self, token: str, *, agent: str = "") -> AsyncGenerator[Client]:
        url = f"{self.url}/mcp?agent={agent}" if agent else f"{self.url}/mcp"
        http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, trust_env=False)
        async with http, Client(streamable_http_client(url, http_client=http)) as client:
            yield client

    async def post(self, body: bytes, **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient(trust_env=False) as http:
            return await http.post(f"{self.url}/mcp", content=body, headers=headers)


@asynccontextmanager
async def house(
    tmp_path: Path, *, rules: ToolSettings | None = None, door: HouseDoor | None = None
) -> AsyncGenerator[Served]:
    household = LocalInstance(tmp_path, tool_settings=rules or ToolSettings())
    async with desk_house(household) as made:
        desk = replace(made.desk, toolbox=household.toolbox)

        def sign_in(conn: Any) -> None:
            agents.upsert(
                conn,
                Agent(name="cy", model="scripted", permission_level=PermissionLevel.RESTRICTED),
                source="test",
                at_ms=1,
            )
            whos: dict[str, Address] = {
                "owner": address.person_address("owner"),
                "maria": address.person_address("maria"),
                "ada": address.agent_address("ada"),
                "cy": address.agent_address("cy"),
            }
            for number, (name, who) in enumerate(whos.items()):
                token = Token(
                    id=TokenId(f"{number:032x}"),
                    kind=TokenKind.TOKEN,
                    principal=who,
                    label="test",
                    created_at=desk.clock.now(),
                )
                tokens.add(conn, token, hash_token(f"token-of-{name}"))

        await made.house.store.write(sign_in, point="setup")
        door = door or HouseDoor()
        app = HttpApp(desk, door, ConnectionLimiter(door))
        async with served(app) as url:
            yield Served(url, desk, household, app)


def words(result: Any) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_each_caller_is_shown_the_operations_that_its_level_reaches_and_no_other(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        levels = {"owner": PermissionLevel.BOSS, "maria": PermissionLevel.STANDARD, "cy": PermissionLevel.RESTRICTED}
        seen: dict[str, set[str]] = {}
        for name, level in levels.items():
            async with made.client(f"token-of-{name}") as client:
                seen[name] = {tool.name for tool in (await client.list_tools()).tools}
            assert seen[name] == {
                tool_name(each)
                for each in OPERATIONS.values()
                if permissions.decide_operation(each.name, level, made.desk.permission_policy).is_allowed
            }
        assert seen["cy"] < seen["maria"] < seen["owner"]


async def test_an_operation_is_asked_and_answered_as_over_http(tmp_path: Path) -> None:
    async with house(tmp_path) as made, made.client("token-of-owner") as client:
        assert client.server_info is not None and client.server_info.name == "retinue"
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, changes_nothing in (("agent_list", True), ("envelope_send", False)):
            hints = listed[name].annotations
            assert hints is not None and hints.read_only_hint is changes_nothing
        answer = await client.call_tool("agent_list", {})
        assert not answer.is_error
        assert answer.structured_content == json.loads(words(answer))
        assert "ada" in words(answer)

        wrong = await client.call_tool("agent_show", {"nmae": "ada"})
        assert wrong.is_error and "request.invalid" in words(wrong)
        nobody = await client.call_tool("agent_show", {"name": "nobody"})
        assert nobody.is_error and "agent.not_found" in words(nobody) and "try:" in words(nobody)


async def test_what_is_not_listed_cannot_be_called(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        async with made.client("token-of-maria") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "house_purge" not in names
            refused = await client.call_tool("house_purge", {})
            assert refused.is_error and "tool.not_found" in words(refused)
            tool = await client.call_tool("append_line", {"text": "x"})
            assert tool.is_error and "tool.not_found" in words(tool)
        assert not made.household.witness_file.exists()


@pytest.mark.spec("A37")
async def test_an_agents_tools_obey_its_rules_when_listed_and_when_called(tmp_path: Path) -> None:
    rules = ToolSettings(deny=("session_status",), ask=("read",))
    async with house(tmp_path, rules=rules) as made:
        async with made.client("token-of-owner", agent="ada") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "append_line" in names and "read" in names and "session_status" not in names
            done = await client.call_tool("append_line", {"text": "from outside"})
            assert not done.is_error and words(done) == "appended"
            denied = await client.call_tool("session_status", {})
            assert denied.is_error and "tool.not_found" in words(denied)
            asked = await client.call_tool("read", {"path": "x"})
            assert asked.is_error and "tool.needs_approval" in words(asked) and "retinue grant add" in words(asked)
            unfit = await client.call_tool("append_line", {"txet": "x"})
            assert unfit.is_error
        assert made.household.witness_file.read_text().count("from outside") == 1
        agent = await made.desk.store.read(lambda conn: agents.find(conn, "ada"))
        assert agent is not None
        where = ToolPolicyContext(
            origin=OriginKind.EXTERNAL, sender=address.person_address("owner"), call_source=CallSource.MCP
        )
        allowed = {spec.name for spec in made.household.toolbox.offered_specs(agent, where)}
        assert names - {tool_name(each) for each in OPERATIONS.values()} == allowed


@pytest.mark.spec("A37")
async def test_rules_for_who_asks_count_here_too(tmp_path: Path) -> None:
    rules = ToolSettings(by_sender={"person:owner": ToolListSettings(deny=("append_line",))})
    async with house(tmp_path, rules=rules) as made:
        async with made.client("token-of-owner", agent="ada") as client:
            assert "append_line" not in {tool.name for tool in (await client.list_tools()).tools}
            assert (await client.call_tool("append_line", {"text": "x"})).is_error
        async with made.client("token-of-ada", agent="ada") as client:
            assert "append_line" in {tool.name for tool in (await client.list_tools()).tools}


async def test_an_agent_has_its_own_tools_and_not_those_of_another(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        async with made.client("token-of-ada", agent="ada") as client:
            assert "append_line" in {tool.name for tool in (await client.list_tools()).tools}
            assert "permission.denied" not in words(await client.call_tool("append_line", {"txet": "unfit"}))
        for token, agent in (("token-of-ada", "bo"), ("token-of-maria", "ada"), ("token-of-cy", "ada")):
            async with made.client(token, agent=agent) as client:
                with pytest.raises(Exception, match=r"permission\.denied"):
                    await client.list_tools()
                refused = await client.call_tool("append_line", {"text": "x"})
                assert refused.is_error and "permission.denied" in words(refused)
        assert not made.household.witness_file.exists()


async def test_what_an_agent_asks_outside_of_its_runs_may_come_from_anything_it_has_read(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    toolbox = Toolbox(
        [AppendLineTool(witness)], provenance_policy=lambda: build_policy_with_defaults(ProvenanceSettings())
    )
    async with house(tmp_path) as made:
        made.app.services = replace(made.desk, toolbox=toolbox)
        async with made.client("token-of-ada", agent="ada") as client:
            asked = await client.call_tool("append_line", {"text": "send it to evil.example"})
            assert asked.is_error and "tool.needs_approval" in words(asked)
        assert not witness.exists()
        async with made.client("token-of-owner", agent="ada") as client:
            assert not (await client.call_tool("append_line", {"text": "my own words"})).is_error
        assert "my own words" in witness.read_text()


async def test_a_tool_that_is_called_again_with_its_key_is_not_called_twice(tmp_path: Path) -> None:
    async with house(tmp_path) as made:

        async def called(text: str, key: str) -> dict[str, Any]:
            params = {"name": "append_line", "arguments": {"text": text}, "_meta": {"retinue/key": key} if key else {}}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
            async with httpx2.AsyncClient(trust_env=False) as http:
                answer = await http.post(
                    f"{made.url}/mcp?agent=ada",
                    content=body,
                    headers={"authorization": "Bearer token-of-owner", "content-type": "application/json"},
                )
            return answer.json()["result"]

        first = await called("by key", "k")
        assert not first["isError"] and await called("by key", "k") == first
        assert made.household.witness_file.read_text().count("by key") == 1
        other = await called("another", "k")
        assert other["isError"] and "key.reused" in other["content"][0]["text"]
        await made.desk.store.write(
            lambda conn: conn.exec_driver_sql("UPDATE answers SET body = '' WHERE key = 'k'"), point="test"
        )
        cut_off = await called("by key", "k")
        assert cut_off["isError"] and "key.interrupted" in cut_off["content"][0]["text"]
        assert made.household.witness_file.read_text().count("by key") == 1
        assert not (await called("by key", ""))["isError"] and not (await called("by key", ""))["isError"]
        assert made.household.witness_file.read_text().count("by key") == 3


async def test_without_a_token_or_from_a_page_nothing_is_answered(tmp_path: Path) -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    async with house(tmp_path) as made:
        good = {"authorization": "Bearer token-of-owner"}
        assert (await made.post(ping, **good)).json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        refused: list[tuple[int, dict[str, str]]] = [
            (401, {}),
            (401, {"authorization": "Bearer wrong"}),
            (401, {"cookie": "retinue=token-of-owner", "x-retinue": "1"}),
            (403, {**good, "origin": "https://evil.example"}),
            (403, {**good, "sec-fetch-site": "cross-site"}),
            (421, {**good, "host": "evil.example"}),
        ]
        for status, headers in refused:
            assert (await made.post(ping, **headers)).status_code == status
        async with httpx2.AsyncClient(trust_env=False, headers=good) as http:
            assert (await http.get(f"{made.url}/mcp")).status_code == 405


async def test_messages_that_are_none_are_refused_and_notifications_are_not_answered(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        good = {"authorization": "Bearer token-of-owner"}
        for body, code in (
            (b"{", -32700),
            (b"\xff", -32700),
            (b"[]", -32600),
            (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
            (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
            (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
            (b"[" * 100_000, -32600),
            (b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}', -32601),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', -32602),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":[]}}', -32602),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"retinue/key":1}}}', -32602),
        ):
            answer = await made.post(body, **good)
            assert (answer.status_code, answer.json()["error"]["code"]) == (200, code), body[:80]
        for body in (
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
            b'{"jsonrpc":"2.0","id":1,"result":{}}',
        ):
            answer = await made.post(body, **good)
            assert (answer.status_code, answer.content) == (202, b"")
        assert (await made.post(b" " * (17 * 1024 * 1024), **good)).status_code == 413


@pytest.mark.parametrize("opened", [False, True])
async def test_what_is_not_called_from_outside_a_run_is_not_called_over_mcp_unless_the_owner_says_so(
    tmp_path: Path, opened: bool
) -> None:
    witness = tmp_path / "witness"
    rules = ToolSettings(invoke_allow=("write",) if opened else ())
    plain = AppendLineTool(witness)
    toolbox = Toolbox([replace(plain, spec=replace(plain.spec, name="write"))], settings=lambda: rules)
    async with house(tmp_path) as made:
        made.app.services = replace(made.desk, toolbox=toolbox)
        async with made.client("token-of-owner", agent="ada") as client:
            assert ("write" in {tool.name for tool in (await client.list_tools()).tools}) is opened
            done = await client.call_tool("write", {"text": "x"})
            assert done.is_error is not opened and witness.exists() is opened


async def test_a_secret_that_is_shown_once_is_not_shown_to_whoever_speaks_mcp(tmp_path: Path) -> None:
    async with house(tmp_path) as made, made.client("token-of-owner") as client:
        told = json.loads(words(await client.call_tool("token_create", {"label": "new"})))
        assert "token" not in told and told["shown-once"] == ["token"]


async def test_an_effect_with_a_key_happens_once(tmp_path: Path) -> None:
    async with house(tmp_path) as made, made.client("token-of-owner") as client:
        asked = {"name": "dora", "model": "scripted"}
        first = await client.call_tool("agent_register", asked, meta={mcp.IDEMPOTENCY_KEY_META: "k1"})
        again = await client.call_tool("agent_register", asked, meta={mcp.IDEMPOTENCY_KEY_META: "k1"})
        assert not first.is_error, words(first)
        assert not again.is_error and json.loads(words(again))["name"] == "dora"
        assert (await client.call_tool("agent_register", asked)).is_error


async def test_envelopes_are_counted_whichever_way_they_come(tmp_path: Path) -> None:
    door = HouseDoor(envelopes_per_minute=2)
    async with house(tmp_path, door=door) as made, made.client("token-of-maria") as client:
        sent = [await client.call_tool("envelope_send", {"to": "agent:ada", "text": "hi"}) for _ in range(4)]
    assert [each.is_error for each in sent] == [False, False, True, True]
    assert "is 2 per minute" in words(sent[-1])


async def test_on_stdio_our_command_hands_everything_on_to_the_house(tmp_path: Path) -> None:
    async with house(tmp_path) as made:

        def ours(token: str, url: str) -> StdioServerParameters:
            return StdioServerParameters(
                command=sys.executable,
                args=["-m", "retinue.cli.mcp", "ada"],
                env={"RETINUE_URL": url, "RETINUE_TOKEN": token, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

        async with Client(ours("token-of-owner", made.url)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"append_line", "agent_list"} <= names
            several = [client.call_tool("append_line", {"text": f"line {n}"}) for n in range(20)]
            assert all(not each.is_error for each in await asyncio.gather(*several))
        assert len(made.household.witness_file.read_text().splitlines()) == 20

        with pytest.raises(BaseException) as refused:  # noqa: PT011 - the client's own group of errors
            async with Client(ours("wrong", made.url)):
                pass
        assert "not signed in" in _all_words(refused.value)
        with pytest.raises(BaseException) as closed:  # noqa: PT011
            async with Client(ours("token-of-owner", "http://127.0.0.1:1")):
                pass
        assert "server.not_running" in _all_words(closed.value)


def _all_words(error: BaseException) -> str:
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " ".join([str(error), *map(_all_words, inside)])
