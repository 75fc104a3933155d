"""MCP servers at an address: a real one, and some that answer with more than they should."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest
from mcp.server.mcpserver import Context, MCPServer
from tools.fake_mcp_servers import Site, kitchen, said, served, until

from retinue.config.mcp import McpServerSettings
from retinue.config.secret import SecretReference
from retinue.text.untrusted_wrapper import unwrap_untrusted
from retinue.tools.base import ToolFailed
from retinue.tools.mcp.server_status import McpConnectionState


async def test_a_real_server_at_an_address_is_used_and_its_changes_are_heard(tmp_path: Path) -> None:
    server = MCPServer("far")

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
    async with served(app) as url, kitchen(tmp_path, {"far": McpServerSettings(url=f"{url}/mcp")}) as made:
        await made.approve("far")
        assert "6" in unwrap_untrusted((await made.call("mcp_far_double", n=3)).text)
        assert "grown" in (await made.call("mcp_far_grow")).text
        await made.until("far", McpConnectionState.WAITING)
        assert made.names() == []
        await made.approve("far")
        assert "mcp_far_more" in made.names()


async def test_headers_are_read_when_they_are_needed_and_told_to_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    site = Site()
    async with served(site) as url:
        settings = McpServerSettings(url=url, headers={"Authorization": SecretReference(env="FAR_KEY")})
        async with kitchen(tmp_path, {"far": settings}, environment={"FAR_KEY": "Bearer open-sesame"}) as made:
            await made.approve("far")
            assert "done" in (await made.call("mcp_far_act")).text
            assert all(headers["authorization"] == "Bearer open-sesame" for headers, _ in site.heard)
            assert all(headers["accept-encoding"] == "identity" for headers, _ in site.heard)
            assert "open-sesame" not in repr(made.servers.list_statuses())
    assert "open-sesame" not in caplog.text


async def test_an_address_that_redirects_elsewhere_is_not_followed(tmp_path: Path) -> None:
    elsewhere = Site()
    site = Site()
    async with served(elsewhere) as other, served(site) as url:
        for method in ("server/discover", "initialize"):
            site.answers[method] = lambda id: (307, {"location": f"{other}/mcp"}, b"")
        settings = McpServerSettings(url=url, headers={"X-Key": SecretReference(env="FAR_KEY")})
        async with kitchen(tmp_path, {"far": settings}, environment={"FAR_KEY": "open-sesame"}) as made:
            await made.until("far", McpConnectionState.FAILED)
    assert site.heard and not elsewhere.heard


async def test_answers_that_are_too_large_or_packed_are_not_taken_in(tmp_path: Path) -> None:
    site = Site()
    huge = {"content": [{"type": "text", "text": "x" * (50 * 1024 * 1024)}]}
    async with served(site) as url, kitchen(tmp_path, {"far": McpServerSettings(url=url)}) as made:
        await made.approve("far")
        site.answers["tools/call"] = lambda id: (200, {}, said(id, result=huge))
        output = await made.call("mcp_far_act")
        assert output.failed and "8,388,608 bytes" in output.text

        packed = gzip.compress(said(3, result=huge))
        site.answers["tools/call"] = lambda id: (200, {"content-encoding": "gzip"}, packed)
        with pytest.raises(ToolFailed, match="stopped during the call"):
            await made.call("mcp_far_act")
        with pytest.raises(ToolFailed, match="you cannot use"):  # at once, not only when somebody has noticed
            await made.call("mcp_far_act")
        del site.answers["tools/call"]
        await made.until("far", McpConnectionState.FAILED)
        await made.until("far", McpConnectionState.READY)
        assert "done" in (await made.call("mcp_far_act")).text


async def test_one_that_refuses_us_is_reported_with_its_status_and_not_with_its_words(tmp_path: Path) -> None:
    site = Site()
    site.answers["server/discover"] = site.answers["initialize"] = lambda id: (401, {}, b"your key open-sesame is bad")
    async with served(site) as url, kitchen(tmp_path, {"far": McpServerSettings(url=url)}) as made:
        standing = await made.until("far", McpConnectionState.FAILED)
    assert standing.because == "it answered with status 401"


async def test_one_that_is_gone_is_missed_and_found_again(tmp_path: Path) -> None:
    site = Site()
    settings: dict[str, McpServerSettings] = {}
    async with kitchen(tmp_path, settings) as made:
        async with served(site) as url:
            made.settings["far"] = McpServerSettings(url=url)
            await made.servers.sync()
            await made.approve("far")
        with pytest.raises(ToolFailed, match="stopped during the call"):
            await made.call("mcp_far_act")
        standing = await made.until("far", McpConnectionState.FAILED)
        assert made.names() == ["mcp_far_act"]
        with pytest.raises(ToolFailed, match="you cannot use"):
            await made.call("mcp_far_act")
        await until(lambda: made.standing("far").retry_at not in (None, standing.retry_at))
        assert made.standing("far").because.startswith("it cannot be reached")
        async with served(site) as url:  # at another address: the settings say so
            made.settings["far"] = McpServerSettings(url=url)
            await made.servers.sync()
            await made.until("far", McpConnectionState.READY)
            assert "done" in (await made.call("mcp_far_act")).text


async def test_one_that_will_not_let_us_go_is_left_all_the_same(tmp_path: Path) -> None:
    site = Site()
    site.hangs = True
    began = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    }
    site.answers["initialize"] = lambda id: (200, {"mcp-session-id": "s1"}, said(id, result=began))
    async with served(site) as url:
        async with kitchen(tmp_path, {"far": McpServerSettings(url=url)}) as made:
            await made.until("far", McpConnectionState.WAITING)
        assert site.left == ["DELETE"]
