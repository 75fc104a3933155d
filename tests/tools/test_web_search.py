"""`web_search`: against servers that answer as Brave and SearXNG do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from tools.fake_web_servers import CountingIds, Reply, Site, loopback_guard, make_tool_context, site

from retinue.config.secret import SecretReference
from retinue.config.web import WebSettings
from retinue.domain.permission import WEB_PERMISSION
from retinue.domain.trust import Trust
from retinue.models.providers import BRAVE_KEY_VARIABLE
from retinue.testing.fake_clock import FakeClock
from retinue.text.untrusted_wrapper import unwrap_untrusted
from retinue.tools.base import ToolFailed, ToolOutput
from retinue.tools.web.page_cache import CACHE_ENTRIES_MAX, CACHE_TTL_S
from retinue.tools.web.search_tool import SearchArguments, WebSearchTool
from retinue.tools.web.url_guard import WebFailed, WebRefused

KEY = "BSA-never-to-be-seen"
JSON = "application/json"
BRAVE = "/res/v1/web/search"


def brave_response(count: int = 20) -> str:
    """A response as from https://api.search.brave.com."""
    results = [
        {
            "title": f"Kettle {number} &amp; <strong>more</strong>",
            "url": f"https://kettles.example/{number}",
            "is_source_local": False,
            "description": f"About <strong>kettle</strong> {number}",
            "age": "3 days ago" if number == 1 else None,
            "profile": {"name": "Kettles", "long_name": "kettles.example"},
            "language": "en",
            "family_friendly": True,
            "type": "search_result",
        }
        for number in range(1, count + 1)
    ]
    return json.dumps(
        {
            "type": "search",
            "query": {"original": "kettle", "more_results_available": True},
            "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}]},
            "web": {"type": "search", "results": results, "family_friendly": True},
        }
    )


def searxng_response() -> str:
    """A response of a SearXNG server to `format=json`."""
    result = {
        "url": "https://pots.example/",
        "title": "Pots",
        "content": "All about pots",
        "publishedDate": "2026-01-02T00:00:00",
        "engine": "duckduckgo",
        "parsed_url": ["https", "pots.example", "/", "", "", ""],
        "engines": ["duckduckgo"],
        "positions": [1],
        "score": 1.0,
        "category": "general",
    }
    return json.dumps(
        {
            "query": "pots",
            "number_of_results": 0,
            "results": [result],
            "answers": [],
            "corrections": [],
            "infoboxes": [],
            "suggestions": [],
            "unresponsive_engines": [],
        }
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def brave() -> AsyncIterator[Site]:
    async with site({BRAVE: Reply(brave_response(), type=JSON)}) as server:
        yield server


def make_search_tool(server: Site, clock: FakeClock, environment: Mapping[str, str] | None = None) -> WebSearchTool:
    settings = WebSettings(ports=(server.port,))
    return WebSearchTool(
        lambda: settings,
        clock,
        CountingIds(),
        {BRAVE_KEY_VARIABLE: KEY} if environment is None else environment,
        guard=loopback_guard(),
        brave_url=server.url(BRAVE),
    )


async def search(tool: WebSearchTool, query: str = "kettle", **arguments: Any) -> ToolOutput:
    return await tool.perform(msgspec.convert({"query": query, **arguments}, SearchArguments), make_tool_context())


def query_parameters(server: Site, number: int = -1) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(server.asked[number].path).query).items()}


@pytest.mark.spec("C65", "C67")
async def test_brave_results_are_listed_wrapped_and_untrusted(brave: Site, clock: FakeClock) -> None:
    output = await search(make_search_tool(brave, clock))

    assert output.trust is Trust.UNTRUSTED
    lines = unwrap_untrusted(output.text).splitlines()
    assert lines[:3] == ["1. Kettle 1 & more (3 days ago)", "   https://kettles.example/1", "   About kettle 1"]
    assert lines[-3] == "5. Kettle 5 & more"
    assert query_parameters(brave) == {"q": "kettle", "count": "5"}
    assert brave.asked[0].headers["x-subscription-token"] == KEY
    assert KEY not in output.text


@pytest.mark.spec("C65")
async def test_web_search_passes_every_parameter_to_brave(brave: Site, clock: FakeClock) -> None:
    span = "2026-01-01to2026-02-01"
    output = await search(
        make_search_tool(brave, clock),
        "käse & brot",
        count=10,
        country="de",
        search_lang="de",
        ui_lang="de-DE",
        freshness=span,
    )

    assert query_parameters(brave) == {
        "q": "käse & brot",
        "count": "10",
        "country": "DE",
        "search_lang": "de",
        "ui_lang": "de-DE",
        "freshness": span,
    }
    assert "10. Kettle 10" in output.text


@pytest.mark.spec("C65")
@pytest.mark.parametrize(
    "arguments",
    [
        {"query": ""},
        {"query": "   "},
        {"query": "x" * 401},
        {"count": 0},
        {"count": 11},
        {"country": "Germany"},
        {"search_lang": "d&e"},
        {"ui_lang": "german!"},
        {"freshness": "yesterday"},
        {"freshness": "2026-02-01to2026-01-01"},
        {"freshness": "2026-13-01to2026-14-01"},
        {"unknown": 1},
    ],
)
async def test_web_search_refuses_an_invalid_parameter_without_a_request(
    arguments: dict[str, Any], brave: Site, clock: FakeClock
) -> None:
    with pytest.raises((msgspec.ValidationError, ToolFailed)):
        await search(make_search_tool(brave, clock), **{"query": "kettle", **arguments})
    assert brave.asked == []


@pytest.mark.parametrize("freshness", ["pd", "pw", "pm", "py"])
async def test_web_search_passes_a_freshness_period_to_brave(freshness: str, brave: Site, clock: FakeClock) -> None:
    await search(make_search_tool(brave, clock), freshness=freshness)

    assert query_parameters(brave)["freshness"] == freshness


@pytest.mark.spec("C65")
async def test_web_search_without_a_key_returns_setup_instructions(brave: Site, clock: FakeClock) -> None:
    output = await search(make_search_tool(brave, clock, {}))

    hint = json.loads(output.text)
    assert output.failed
    assert output.trust is Trust.PRIVATE
    assert hint["error"] == "missing_search_key"
    assert BRAVE_KEY_VARIABLE in " ".join(hint["how_to"]) and "searxng_url" in " ".join(hint["how_to"])
    assert brave.asked == []


async def test_web_search_can_read_the_brave_key_from_a_file(brave: Site, clock: FakeClock, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-the-file\n")
    (tmp_path / "key").chmod(0o600)
    settings = WebSettings(ports=(brave.port,), brave_key=SecretReference(file=tmp_path / "key"))
    tool = WebSearchTool(lambda: settings, clock, CountingIds(), {}, guard=loopback_guard(), brave_url=brave.url(BRAVE))

    await search(tool)

    assert brave.asked[0].headers["x-subscription-token"] == "from-the-file"
    (tmp_path / "key").unlink()
    with pytest.raises(ToolFailed, match="cannot use the secret file"):
        await search(tool, "something else")


@pytest.mark.spec("C65")
async def test_web_search_caches_results_for_15_minutes_by_all_its_parameters(brave: Site, clock: FakeClock) -> None:
    tool = make_search_tool(brave, clock)
    await search(tool)
    await search(tool)
    assert len(brave.asked) == 1
    await search(tool, count=3)
    await search(tool, country="de")
    assert len(brave.asked) == 3
    await clock.advance(CACHE_TTL_S)
    await search(tool)
    assert len(brave.asked) == 4


@pytest.mark.spec("C65")
async def test_the_search_cache_keeps_the_newest_entries_up_to_its_limit(brave: Site, clock: FakeClock) -> None:
    tool = make_search_tool(brave, clock)
    for number in range(CACHE_ENTRIES_MAX + 1):
        await search(tool, f"kettle {number}")
    asked = len(brave.asked)
    await search(tool, f"kettle {CACHE_ENTRIES_MAX}")
    assert len(brave.asked) == asked
    await search(tool, "kettle 0")
    assert len(brave.asked) == asked + 1


@pytest.mark.parametrize(
    ("reply", "because"),
    [
        (Reply('{"type":"ErrorResponse","error":{"code":"SUBSCRIPTION_TOKEN_INVALID"}}', 422, type=JSON), "key"),
        (Reply('{"type":"ErrorResponse","error":{"code":"RATE_LIMITED"}}', 429, type=JSON), "too many"),
        (Reply("oops", 500), "could not search"),
        (Reply("<html>", type="text/html"), "not valid JSON"),
        (Reply("[" * 100_000, type=JSON), "not valid JSON"),
        (Reply("[]", type=JSON), "not valid JSON"),
        (Reply(status=302, headers={"Location": "/steal"}), "redirects"),
    ],
)
async def test_web_search_reports_a_failed_search_without_the_key(
    reply: Reply, because: str, brave: Site, clock: FakeClock
) -> None:
    brave.replies[BRAVE] = reply

    with pytest.raises(WebFailed) as error:
        await search(make_search_tool(brave, clock))

    assert because in str(error.value)
    assert KEY not in str(error.value)
    assert len(brave.asked) == 1


async def test_malformed_search_results_are_handled_and_truncated(brave: Site, clock: FakeClock) -> None:
    strange = [{"title": 1, "url": None}, "text", {"title": "t" * 10_000, "url": "u", "description": "d" * 50_000}]
    brave.replies[BRAVE] = Reply(json.dumps({"web": {"results": strange}}), type=JSON)
    text = unwrap_untrusted((await search(make_search_tool(brave, clock))).text)
    assert len(text) < 2_000
    brave.replies[BRAVE] = Reply('{"web": null}', type=JSON)
    assert unwrap_untrusted((await search(make_search_tool(brave, clock))).text) == "No results."


@pytest.mark.spec("C65")
async def test_web_search_uses_a_configured_searxng_server_even_at_a_private_address(clock: FakeClock) -> None:
    async with site({"/sx/search": Reply(searxng_response(), type=JSON)}) as server:
        settings = WebSettings(searxng_url=server.url("/sx/"))
        tool = WebSearchTool(lambda: settings, clock, CountingIds(), {})  # with the default guard
        output = await search(tool, "pots", search_lang="en", freshness="pw")
        with pytest.raises(ToolFailed, match="two dates"):
            await search(tool, "pots", freshness="2026-01-01to2026-02-01")

        assert query_parameters(server) == {"q": "pots", "format": "json", "language": "en", "time_range": "week"}
        lines = unwrap_untrusted(output.text).splitlines()
        assert lines == ["1. Pots (2026-01-02T00:00:00)", "   https://pots.example/", "   All about pots"]
        assert output.trust is Trust.UNTRUSTED

        server.replies["/sx/search"] = Reply("Forbidden", 403)
        with pytest.raises(WebFailed, match="formats"):
            await search(tool, "others")
        server.replies["/sx/search"] = Reply(status=302, headers={"Location": server.url("/admin")})
        with pytest.raises(WebFailed, match="redirects"):
            await search(tool, "more")
        assert "/admin" not in server.paths


async def test_brave_search_at_a_private_address_is_refused(clock: FakeClock, brave: Site) -> None:
    settings = WebSettings(ports=(brave.port,))
    tool = WebSearchTool(lambda: settings, clock, CountingIds(), {BRAVE_KEY_VARIABLE: KEY}, brave_url=brave.url(BRAVE))

    with pytest.raises(WebRefused):
        await search(tool)
    assert brave.connections == 0


async def test_web_search_without_the_web_permission_sends_no_request(brave: Site, clock: FakeClock) -> None:
    tool = make_search_tool(brave, clock)
    arguments = SearchArguments(query="kettle")

    assert tool.required_permissions(arguments, make_tool_context(web=False)) == (WEB_PERMISSION,)
    with pytest.raises(ToolFailed):
        await tool.perform(arguments, make_tool_context(web=False))
    assert brave.asked == []
