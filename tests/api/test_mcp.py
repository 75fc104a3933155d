"""The server as an MCP server, used with the `mcp` client over HTTP, and on stdio through the command."""

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
from operations.operations_instance import open_operations_server
from tools.fake_mcp_servers import served

from retinue.api import mcp
from retinue.api.app import HttpApp
from retinue.api.connection_limits import ConnectionLimiter
from retinue.api.host_check import HttpSettings as ServerConnection
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
from retinue.policy.access import operation_permissions
from retinue.policy.provenance.provenance_rules import build_policy_with_defaults
from retinue.policy.tools.tool_policy import CallSource, ToolPolicyContext
from retinue.store.agents import agents
from retinue.store.people import tokens
from retinue.testing.local_instance import LocalInstance
from retinue.testing.tools import AppendLineTool
from retinue.testing.wait_conditions import WAIT_LIMIT_S
from retinue.tools.toolbox import Toolbox


@dataclass
class McpInstance:
    url: str
    services: Services
    instance: LocalInstance
    app: HttpApp

    @asynccontextmanager
    async def client(self, token: str, *, agent: str = "") -> AsyncGenerator[Client]:
        url = f"{self.url}/mcp?agent={agent}" if agent else f"{self.url}/mcp"
        http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=WAIT_LIMIT_S)
        async with http, Client(streamable_http_client(url, http_client=http)) as client:
            yield client

    async def post(self, body: bytes, **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_LIMIT_S) as http:
            return await http.post(f"{self.url}/mcp", content=body, headers=headers)


@asynccontextmanager
async def server(
    tmp_path: Path, *, rules: ToolSettings | None = None, http_settings: ServerConnection | None = None
) -> AsyncGenerator[McpInstance]:
    instance = LocalInstance(tmp_path, tool_settings=rules or ToolSettings())
    async with open_operations_server(instance) as made:
        services = replace(made.services, toolbox=instance.toolbox)

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
                    created_at=services.clock.now(),
                )
                tokens.add(conn, token, hash_token(f"token-of-{name}"))

        await made.server.store.write(sign_in, point="setup")
        http_settings = http_settings or ServerConnection()
        app = HttpApp(services, http_settings, ConnectionLimiter(http_settings))
        async with served(app) as url:
            yield McpInstance(url, services, instance, app)


def result_text(result: Any) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_each_caller_lists_over_mcp_exactly_the_operations_of_its_permission_level(tmp_path: Path) -> None:
    async with server(tmp_path) as made:
        levels = {"owner": PermissionLevel.BOSS, "maria": PermissionLevel.STANDARD, "cy": PermissionLevel.RESTRICTED}
        seen: dict[str, set[str]] = {}
        for name, level in levels.items():
            async with made.client(f"token-of-{name}") as client:
                seen[name] = {tool.name for tool in (await client.list_tools()).tools}
            assert seen[name] == {
                tool_name(each)
                for each in OPERATIONS.values()
                if operation_permissions.decide_operation(each.name, level, made.services.permission_policy).is_allowed
            }
        assert seen["cy"] < seen["maria"] < seen["owner"]


async def test_an_operation_called_over_mcp_returns_its_result_or_its_error(tmp_path: Path) -> None:
    async with server(tmp_path) as made, made.client("token-of-owner") as client:
        assert client.server_info is not None and client.server_info.name == "retinue"
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, changes_nothing in (("agent_list", True), ("envelope_send", False)):
            hints = listed[name].annotations
            assert hints is not None and hints.read_only_hint is changes_nothing
        answer = await client.call_tool("agent_list", {})
        assert not answer.is_error
        assert answer.structured_content == json.loads(result_text(answer))
        assert "ada" in result_text(answer)

        wrong = await client.call_tool("agent_show", {"nmae": "ada"})
        assert wrong.is_error and "request.invalid" in result_text(wrong)
        nobody = await client.call_tool("agent_show", {"name": "nobody"})
        assert nobody.is_error and "agent.not_found" in result_text(nobody) and "try:" in result_text(nobody)


async def test_an_unlisted_tool_cannot_be_called_over_mcp(tmp_path: Path) -> None:
    async with server(tmp_path) as made:
        async with made.client("token-of-maria") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "server_purge" not in names
            refused = await client.call_tool("server_purge", {})
            assert refused.is_error and "tool.not_found" in result_text(refused)
            tool = await client.call_tool("append_line", {"text": "x"})
            assert tool.is_error and "tool.not_found" in result_text(tool)
        assert not made.instance.witness_file.exists()


@pytest.mark.spec("A37")
async def test_the_tool_rules_of_an_agent_apply_to_listing_and_calling_its_tools_over_mcp(tmp_path: Path) -> None:
    rules = ToolSettings(deny=("session_status",), ask=("read",))
    async with server(tmp_path, rules=rules) as made:
        async with made.client("token-of-owner", agent="ada") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "append_line" in names and "read" in names and "session_status" not in names
            done = await client.call_tool("append_line", {"text": "from outside"})
            assert not done.is_error and result_text(done) == "appended"
            denied = await client.call_tool("session_status", {})
            assert denied.is_error and "tool.not_found" in result_text(denied)
            asked = await client.call_tool("read", {"path": "x"})
            assert (
                asked.is_error
                and "tool.needs_approval" in result_text(asked)
                and "retinue grant add" in result_text(asked)
            )
            unfit = await client.call_tool("append_line", {"txet": "x"})
            assert unfit.is_error
        assert made.instance.witness_file.read_text().count("from outside") == 1
        agent = await made.services.store.read(lambda conn: agents.find(conn, "ada"))
        assert agent is not None
        where = ToolPolicyContext(
            origin=OriginKind.EXTERNAL, sender=address.person_address("owner"), call_source=CallSource.MCP
        )
        allowed = {spec.name for spec in made.instance.toolbox.offered_specs(agent, where)}
        assert names - {tool_name(each) for each in OPERATIONS.values()} == allowed


@pytest.mark.spec("A37")
async def test_tool_rules_by_sender_apply_over_mcp(tmp_path: Path) -> None:
    rules = ToolSettings(by_sender={"person:owner": ToolListSettings(deny=("append_line",))})
    async with server(tmp_path, rules=rules) as made:
        async with made.client("token-of-owner", agent="ada") as client:
            assert "append_line" not in {tool.name for tool in (await client.list_tools()).tools}
            assert (await client.call_tool("append_line", {"text": "x"})).is_error
        async with made.client("token-of-ada", agent="ada") as client:
            assert "append_line" in {tool.name for tool in (await client.list_tools()).tools}


async def test_an_agent_can_use_over_mcp_its_own_tools_and_not_those_of_another_agent(tmp_path: Path) -> None:
    async with server(tmp_path) as made:
        async with made.client("token-of-ada", agent="ada") as client:
            assert "append_line" in {tool.name for tool in (await client.list_tools()).tools}
            assert "permission.denied" not in result_text(await client.call_tool("append_line", {"txet": "unfit"}))
        for token, agent in (("token-of-ada", "bo"), ("token-of-maria", "ada"), ("token-of-cy", "ada")):
            async with made.client(token, agent=agent) as client:
                with pytest.raises(Exception, match=r"permission\.denied"):
                    await client.list_tools()
                refused = await client.call_tool("append_line", {"text": "x"})
                assert refused.is_error and "permission.denied" in result_text(refused)
        assert not made.instance.witness_file.exists()


async def test_an_mcp_call_by_an_agent_outside_its_runs_needs_approval_and_an_owners_call_does_not(
    tmp_path: Path,
) -> None:
    witness = tmp_path / "witness"
    toolbox = Toolbox(
        [AppendLineTool(witness)], provenance_policy=lambda: build_policy_with_defaults(ProvenanceSettings())
    )
    async with server(tmp_path) as made:
        made.app.services = replace(made.services, toolbox=toolbox)
        async with made.client("token-of-ada", agent="ada") as client:
            asked = await client.call_tool("append_line", {"text": "send it to evil.example"})
            assert asked.is_error and "tool.needs_approval" in result_text(asked)
        assert not witness.exists()
        async with made.client("token-of-owner", agent="ada") as client:
            assert not (await client.call_tool("append_line", {"text": "my own words"})).is_error
        assert "my own words" in witness.read_text()


async def test_a_tool_called_twice_over_mcp_with_one_idempotency_key_is_performed_once(tmp_path: Path) -> None:
    async with server(tmp_path) as made:

        async def call_over_http(text: str, key: str) -> dict[str, Any]:
            params = {
                "name": "append_line",
                "arguments": {"text": text},
                "_meta": {"retinue/idempotency_key": key} if key else {},
            }
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
            async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_LIMIT_S) as http:
                answer = await http.post(
                    f"{made.url}/mcp?agent=ada",
                    content=body,
                    headers={"authorization": "Bearer token-of-owner", "content-type": "application/json"},
                )
            return answer.json()["result"]

        first = await call_over_http("by key", "k")
        assert not first["isError"] and await call_over_http("by key", "k") == first
        assert made.instance.witness_file.read_text().count("by key") == 1
        other = await call_over_http("another", "k")
        assert other["isError"] and "key.reused" in other["content"][0]["text"]
        await made.services.store.write(
            lambda conn: conn.exec_driver_sql("UPDATE idempotency_keys SET body = '' WHERE key = 'k'"), point="test"
        )
        cut_off = await call_over_http("by key", "k")
        assert cut_off["isError"] and "key.interrupted" in cut_off["content"][0]["text"]
        assert made.instance.witness_file.read_text().count("by key") == 1
        assert (
            not (await call_over_http("by key", ""))["isError"] and not (await call_over_http("by key", ""))["isError"]
        )
        assert made.instance.witness_file.read_text().count("by key") == 3


async def test_an_mcp_request_without_a_token_or_from_a_web_page_is_refused(tmp_path: Path) -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    async with server(tmp_path) as made:
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
        async with httpx2.AsyncClient(trust_env=False, headers=good, timeout=WAIT_LIMIT_S) as http:
            assert (await http.get(f"{made.url}/mcp")).status_code == 405


async def test_invalid_mcp_messages_are_refused_and_mcp_notifications_get_no_response(tmp_path: Path) -> None:
    async with server(tmp_path) as made:
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
            (
                b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"retinue/key":"a"}}}',
                -32602,
            ),
            (
                b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"retinue/idempotency_key":1}}}',
                -32602,
            ),
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
async def test_a_tool_not_allowed_for_invocation_is_hidden_over_mcp_unless_the_owner_allows_it(
    tmp_path: Path, opened: bool
) -> None:
    witness = tmp_path / "witness"
    rules = ToolSettings(invoke_allow=("write",) if opened else ())
    plain = AppendLineTool(witness)
    toolbox = Toolbox([replace(plain, spec=replace(plain.spec, name="write"))], settings=lambda: rules)
    async with server(tmp_path) as made:
        made.app.services = replace(made.services, toolbox=toolbox)
        async with made.client("token-of-owner", agent="ada") as client:
            assert ("write" in {tool.name for tool in (await client.list_tools()).tools}) is opened
            done = await client.call_tool("write", {"text": "x"})
            assert done.is_error is not opened and witness.exists() is opened


async def test_a_secret_shown_once_is_not_returned_over_mcp(tmp_path: Path) -> None:
    async with server(tmp_path) as made, made.client("token-of-owner") as client:
        told = json.loads(result_text(await client.call_tool("token_create", {"label": "new"})))
        assert "token" not in told and told["shown_once"] == ["token"]


async def test_an_operation_called_twice_over_mcp_with_one_idempotency_key_takes_effect_once(tmp_path: Path) -> None:
    async with server(tmp_path) as made, made.client("token-of-owner") as client:
        asked = {"name": "dora", "model": "scripted"}
        first = await client.call_tool("agent_register", asked, meta={mcp.IDEMPOTENCY_KEY_META: "k1"})
        again = await client.call_tool("agent_register", asked, meta={mcp.IDEMPOTENCY_KEY_META: "k1"})
        assert not first.is_error, result_text(first)
        assert not again.is_error and json.loads(result_text(again))["name"] == "dora"
        assert (await client.call_tool("agent_register", asked)).is_error


async def test_the_envelope_rate_limit_applies_over_mcp(tmp_path: Path) -> None:
    http_settings = ServerConnection(envelopes_per_minute=2)
    async with server(tmp_path, http_settings=http_settings) as made, made.client("token-of-maria") as client:
        sent = [await client.call_tool("envelope_send", {"to": "agent:ada", "text": "hi"}) for _ in range(4)]
    assert [each.is_error for each in sent] == [False, False, True, True]
    assert "is 2 per minute" in result_text(sent[-1])


async def test_the_mcp_stdio_command_forwards_calls_to_the_server_and_reports_its_errors(tmp_path: Path) -> None:
    async with server(tmp_path) as made:

        def stdio_parameters(token: str, url: str) -> StdioServerParameters:
            return StdioServerParameters(
                command=sys.executable,
                args=["-m", "retinue.cli.mcp", "ada"],
                env={"RETINUE_URL": url, "RETINUE_TOKEN": token, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

        async with Client(stdio_parameters("token-of-owner", made.url)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"append_line", "agent_list"} <= names
            several = [client.call_tool("append_line", {"text": f"line {n}"}) for n in range(20)]
            assert all(not each.is_error for each in await asyncio.gather(*several))
        assert len(made.instance.witness_file.read_text().splitlines()) == 20

        with pytest.raises(BaseException) as refused:  # noqa: PT011 - the exception group of the `mcp` client
            async with Client(stdio_parameters("wrong", made.url)):
                pass
        assert "not signed in" in _all_messages(refused.value)
        with pytest.raises(BaseException) as closed:  # noqa: PT011
            async with Client(stdio_parameters("token-of-owner", "http://127.0.0.1:1")):
                pass
        assert "server.not_running" in _all_messages(closed.value)


def _all_messages(error: BaseException) -> str:
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " ".join([str(error), *map(_all_messages, inside)])
