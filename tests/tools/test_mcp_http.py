"""MCP servers over HTTP: a real one, and some that answer with more than the protocol allows."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ServerEvent
from tools.fake_mcp_servers import HttpMcpServer, json_rpc_message, open_mcp_servers, served, until

from retinue.config.mcp import McpServerSettings
from retinue.config.secret import SecretReference
from retinue.text.untrusted_wrapper import unwrap_untrusted
from retinue.tools.base import ToolFailed
from retinue.tools.mcp.server_status import McpConnectionState


class CountingBus(InMemorySubscriptionBus):
    """Counts the subscriptions: a change before the first one reaches no client."""

    subscription_count = 0

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self.subscription_count += 1
        return super().subscribe(listener)


async def test_a_real_mcp_server_over_http_is_used_and_its_tool_changes_are_noticed(tmp_path: Path) -> None:
    bus = CountingBus()
    server = MCPServer("far", subscriptions=bus)

    @server.tool()
    def double(n: int) -> int:
        return 2 * n

    @server.tool()
    async def grow(ctx: Context) -> str:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        def more() -> str:
            return "more"

        server.add_tool(more)
        await ctx.notify_tools_changed()
        return "grown"

    app = server.streamable_http_app()
    async with served(app) as url, open_mcp_servers(tmp_path, {"far": McpServerSettings(url=f"{url}/mcp")}) as made:
        await made.approve("far")
        assert "6" in unwrap_untrusted((await made.call("mcp_far_double", n=3)).text)
        await until(lambda: bus.subscription_count)
        assert "grown" in (await made.call("mcp_far_grow")).text
        await made.until("far", McpConnectionState.WAITING)
        assert made.names() == []
        await made.approve("far")
        assert "mcp_far_more" in made.names()


async def test_secret_headers_are_sent_to_the_mcp_server_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    site = HttpMcpServer()
    async with served(site) as url:
        settings = McpServerSettings(url=url, headers={"Authorization": SecretReference(env="FAR_KEY")})
        async with open_mcp_servers(tmp_path, {"far": settings}, environment={"FAR_KEY": "Bearer open-sesame"}) as made:
            await made.approve("far")
            assert "done" in (await made.call("mcp_far_act")).text
            assert all(headers["authorization"] == "Bearer open-sesame" for headers, _ in site.requests)
            assert all(headers["accept-encoding"] == "identity" for headers, _ in site.requests)
            assert "open-sesame" not in repr(made.servers.list_statuses())
    assert "open-sesame" not in caplog.text


async def test_a_redirect_of_an_mcp_server_is_not_followed(tmp_path: Path) -> None:
    elsewhere = HttpMcpServer()
    site = HttpMcpServer()
    async with served(elsewhere) as other, served(site) as url:
        for method in ("server/discover", "initialize"):
            site.answers[method] = lambda id: (307, {"location": f"{other}/mcp"}, b"")
        settings = McpServerSettings(url=url, headers={"X-Key": SecretReference(env="FAR_KEY")})
        async with open_mcp_servers(tmp_path, {"far": settings}, environment={"FAR_KEY": "open-sesame"}) as made:
            await made.until("far", McpConnectionState.FAILED)
    assert site.requests and not elsewhere.requests


async def test_mcp_responses_that_are_too_large_or_compressed_are_refused(tmp_path: Path) -> None:
    site = HttpMcpServer()
    huge = {"content": [{"type": "text", "text": "x" * (50 * 1024 * 1024)}]}
    async with served(site) as url, open_mcp_servers(tmp_path, {"far": McpServerSettings(url=url)}) as made:
        await made.approve("far")
        site.answers["tools/call"] = lambda id: (200, {}, json_rpc_message(id, result=huge))
        output = await made.call("mcp_far_act")
        assert output.failed and "8,388,608 bytes" in output.text

        packed = gzip.compress(json_rpc_message(3, result=huge))
        site.answers["tools/call"] = lambda id: (200, {"content-encoding": "gzip"}, packed)
        with pytest.raises(ToolFailed, match="stopped during the call"):
            await made.call("mcp_far_act")
        with pytest.raises(ToolFailed, match="you cannot use"):  # at once, not only after the change was noticed
            await made.call("mcp_far_act")
        del site.answers["tools/call"]
        await made.until("far", McpConnectionState.FAILED)
        await made.until("far", McpConnectionState.READY)
        assert "done" in (await made.call("mcp_far_act")).text


async def test_an_mcp_server_that_refuses_the_key_is_reported_by_status_without_its_text(tmp_path: Path) -> None:
    site = HttpMcpServer()
    site.answers["server/discover"] = site.answers["initialize"] = lambda id: (401, {}, b"your key open-sesame is bad")
    async with served(site) as url, open_mcp_servers(tmp_path, {"far": McpServerSettings(url=url)}) as made:
        connection_status = await made.until("far", McpConnectionState.FAILED)
    assert connection_status.because == "it answered with status 401"


async def test_an_mcp_server_that_went_away_fails_and_is_ready_again_at_its_new_url(tmp_path: Path) -> None:
    site = HttpMcpServer()
    settings: dict[str, McpServerSettings] = {}
    async with open_mcp_servers(tmp_path, settings) as made:
        async with served(site) as url:
            made.settings["far"] = McpServerSettings(url=url)
            await made.servers.sync()
            await made.approve("far")
        with pytest.raises(ToolFailed, match="stopped during the call"):
            await made.call("mcp_far_act")
        connection_status = await made.until("far", McpConnectionState.FAILED)
        assert made.names() == ["mcp_far_act"]
        with pytest.raises(ToolFailed, match="you cannot use"):
            await made.call("mcp_far_act")
        await until(lambda: made.connection_status("far").retry_at not in (None, connection_status.retry_at))
        assert made.connection_status("far").because.startswith("it cannot be reached")
        async with served(site) as url:  # the settings now have another URL
            made.settings["far"] = McpServerSettings(url=url)
            await made.servers.sync()
            await made.until("far", McpConnectionState.READY)
            assert "done" in (await made.call("mcp_far_act")).text


async def test_an_mcp_server_that_hangs_at_the_end_of_its_session_is_left(tmp_path: Path) -> None:
    site = HttpMcpServer()
    site.hangs_on_delete = True
    initialize_result = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    }
    site.answers["initialize"] = lambda id: (
        200,
        {"mcp-session-id": "s1"},
        json_rpc_message(id, result=initialize_result),
    )
    async with served(site) as url:
        async with open_mcp_servers(tmp_path, {"far": McpServerSettings(url=url)}) as made:
            await made.until("far", McpConnectionState.WAITING)
        await until(lambda: site.delete_requests == ["DELETE"])
