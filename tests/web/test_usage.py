"""The Usage screen: cost and tokens as charts and tables, and budgets.

An input token costs a millionth of a dollar here, an output token ten.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from api.tcp_server import ApiClient, open_api_client
from flows.fake_provider import Provider, Rule, provider, says
from playwright.sync_api import Browser, expect
from web.browser import WebApp, find_violations, scrolls_sideways
from web.conftest import SETTINGS, open_app
from web.test_activity import start_session, wait_for_outcome

from retinue.testing.wait_conditions import WAIT_LIMIT_S

PRICED_MODELS = """
[providers.mock]
url = "{url}"
format = "openai-chat"
[models.entries."mock/m1"]
input_usd = 1
output_usd = 10
[models.entries."mock/m2"]
input_usd = 1
output_usd = 10
[budgets]
instance_day_usd = 1000
run_usd = 500
"""


@contextmanager
def serve_provider(rule: Rule | None = None) -> Iterator[str]:
    """Serve a fake provider in its own event loop, with one fixed reply or a rule; its URL."""
    loop, opened, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[Provider] = []

    async def serve() -> None:
        async with provider() as playing:
            playing.always(says("Hello.", input_tokens=1_000_000, output_tokens=50_000))
            playing.rule = rule or playing.rule
            found.append(playing)
            opened.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    opened.wait(WAIT_LIMIT_S)
    try:
        yield found[0].url
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(WAIT_LIMIT_S)
        loop.close()


@contextmanager
def open_priced_server(folder: Path) -> Iterator[ApiClient]:
    with serve_provider() as url, open_api_client(folder, SETTINGS + PRICED_MODELS.format(url=url)) as opened:
        for name, model in (("ada", "mock/m1"), ("bo", "mock/m2")):
            opened.do("agent.register", name=name, model=model)
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_priced_server(tmp_path_factory.mktemp("usage")) as opened:
        yield opened


def spend(server: ApiClient, agent: str) -> None:
    """Send a message that costs 1.50 dollars."""
    _, envelope = start_session(server, agent, "hello")
    assert wait_for_outcome(server, envelope)["outcome"] == "answered"


def test_the_usage_screen_without_usage_shows_the_empty_state(browser: Browser, tmp_path: Path) -> None:
    with open_priced_server(tmp_path) as unused, open_app(browser, unused) as app:
        page = app.open_window("/usage")
        expect(page.get_by_role("heading", name="No usage yet")).to_be_visible()
        expect(page.get_by_text("The offline guide is free")).to_be_visible()
        expect(page.get_by_role("heading", name="Budgets")).to_be_visible()
        assert find_violations(page) == []


def format_dollars(microusd: int) -> str:
    cost = microusd / 1_000_000
    return f"${cost:.2f}" if cost % 1 else f"${cost:.0f}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_usage_is_shown_as_a_chart_and_a_table(app: WebApp, theme: str) -> None:
    spend(app.server, "ada")
    spend(app.server, "bo")
    spend(app.server, "ada")
    page = app.open_window("/usage", theme=theme)  # pyright: ignore[reportArgumentType]
    shown = app.server.do("usage.days")
    today = sum(each["cost_microusd"][-1] for each in shown["series"])  # other tests may have spent something yesterday
    expect(page.locator("dl")).to_contain_text(format_dollars(shown["total"]["cost_microusd"]))
    expect(page.get_by_role("img", name="Cost per day")).to_have_count(1)
    expect(page.locator("canvas")).to_have_count(2)
    page.get_by_text("Data table").first.click()
    table = page.get_by_role("table", name="Cost per day")
    expect(table.get_by_role("row")).to_have_count(31)
    expect(table.get_by_role("row").last).to_contain_text(format_dollars(today))
    for name in ("ada", "bo"):
        expect(table.get_by_role("columnheader", name=name)).to_be_visible()
    assert find_violations(page) == []
    image_length = page.locator("canvas").first.evaluate("each => each.toDataURL().length")
    assert image_length > 1_000


def test_usage_is_grouped_and_the_url_keeps_the_choice(app: WebApp) -> None:
    spend(app.server, "ada")
    spend(app.server, "bo")
    page = app.open_window("/usage", size="phone")
    page.get_by_role("link", name="Model").click()
    page.get_by_role("link", name="90 days").click()
    page.get_by_role("link", name="Lines").click()
    expect(page).to_have_url(f"{app.server.address}/usage?days=90&by=model&as=lines")
    each = page.get_by_role("region", name="By model").first
    expect(each.get_by_role("link", name="mock/m1")).to_be_visible()
    assert not scrolls_sideways(page)
    page.get_by_role("link", name="Person").click()
    expect(page.get_by_role("region", name="By person").first.get_by_role("link", name="owner")).to_be_visible()
    assert find_violations(page) == []
    page.get_by_role("link", name="Agent", exact=True).click()
    page.get_by_role("region", name="By agent").first.get_by_role("link", name="bo").click()
    expect(page).to_have_url(f"{app.server.address}/runs?agent=bo")
    expect(page.get_by_text("$1.50").first).to_be_visible()


def test_a_usage_chart_is_redrawn_in_the_colors_of_another_theme(app: WebApp) -> None:
    spend(app.server, "ada")
    page = app.open_window("/usage")
    expect(page.locator("canvas")).to_have_count(2)
    first = page.locator("canvas").first
    before = first.evaluate("each => (each.classList.add('before'), each.toDataURL())")
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.locator("canvas.before")).to_have_count(0)
    expect(page.locator("canvas")).to_have_count(2)
    assert first.evaluate("each => each.toDataURL()") != before


def test_the_usage_screen_shows_the_amount_spent_of_each_budget_and_links_to_its_setting(app: WebApp) -> None:
    spend(app.server, "ada")
    page, other = app.open_window("/usage"), app.open_window("/usage", size="phone")
    [cap, run] = app.server.do("usage.budgets")["budgets"]
    for window in (page, other):
        meter = window.get_by_role("meter", name="Server, per day")
        expect(meter).to_have_attribute("aria-valuenow", str(cap["spent_microusd"]))
        expect(meter).to_have_attribute("aria-valuemax", str(cap["cap_microusd"]))
    expect(page.get_by_text("up to $500")).to_be_visible()
    assert run["name"] == "run"
    expect(page.get_by_text("the call is refused")).to_be_visible()
    spend(app.server, "bo")
    for window in (page, other):
        meter = window.get_by_role("meter", name="Server, per day")
        expect(meter).to_have_attribute("aria-valuenow", str(cap["spent_microusd"] + 1_500_000))
    page.get_by_role("link", name="budgets.instance_day_usd").click()
    expect(page).to_have_url(f"{app.server.address}/settings/configuration")
