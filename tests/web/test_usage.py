"""Money in the page: what was used, what it cost, and what may be spent.

A token that is read costs a millionth of a dollar here, one that is written ten of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from api.tcp_server import Rim, open_rim
from flows.fake_provider import Provider, Rule, provider, says
from playwright.sync_api import Browser, expect
from web.browser import Front, scrolls_sideways, violations
from web.conftest import SETTINGS, open_front
from web.test_activity import begin, settled

from retinue.testing.waiting import WAIT_LIMIT_S

PRICED = """
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
house_day_usd = 1000
run_usd = 500
"""


@contextmanager
def serving(plays: Rule | None = None) -> Iterator[str]:
    """A provider in a loop of its own, which always says the same, or what it is handed; where it is."""
    loop, opened, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[Provider] = []

    async def serve() -> None:
        async with provider() as playing:
            playing.always(says("Hello.", input_tokens=1_000_000, output_tokens=50_000))
            playing.rule = plays or playing.rule
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
def open_priced(folder: Path) -> Iterator[Rim]:
    with serving() as url, open_rim(folder, SETTINGS + PRICED.format(url=url)) as opened:
        for name, model in (("ada", "mock/m1"), ("bo", "mock/m2")):
            opened.do("agent.register", name=name, model=model)
        yield opened


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    with open_priced(tmp_path_factory.mktemp("money")) as opened:
        yield opened


def ask(rim: Rim, agent: str) -> None:
    """A question that costs a dollar and a half."""
    _, envelope = begin(rim, agent, "hello")
    assert settled(rim, envelope)["outcome"] == "answered"


def test_a_house_that_spent_nothing_is_told_what_would_be_here(browser: Browser, tmp_path: Path) -> None:
    with open_priced(tmp_path) as unused, open_front(browser, unused) as front:
        page = front.window("/money")
        expect(page.get_by_role("heading", name="Nothing was spent")).to_be_visible()
        expect(page.get_by_text("The guide is a script")).to_be_visible()
        expect(page.get_by_role("heading", name="Budgets")).to_be_visible()
        assert violations(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_was_spent_is_drawn_and_told_in_numbers(front: Front, theme: str) -> None:
    ask(front.rim, "ada")
    ask(front.rim, "bo")
    ask(front.rim, "ada")
    page = front.window("/money", theme=theme)  # pyright: ignore[reportArgumentType]
    shown = front.rim.do("usage.days")
    cost = shown["total"]["cost-microusd"] / 1_000_000
    written = f"${cost:.2f}" if cost % 1 else f"${cost:.0f}"
    expect(page.locator("dl")).to_contain_text(written)
    expect(page.get_by_role("img", name="Cost by day")).to_have_count(1)
    expect(page.locator("canvas")).to_have_count(2)
    page.get_by_text("The numbers").first.click()
    table = page.get_by_role("table", name="Cost by day")
    expect(table.get_by_role("row")).to_have_count(31)
    expect(table.get_by_role("row").last).to_contain_text(written)
    for name in ("ada", "bo"):
        expect(table.get_by_role("columnheader", name=name)).to_be_visible()
    assert violations(page) == []
    drawn = page.locator("canvas").first.evaluate("each => each.toDataURL().length")
    assert drawn > 1_000


def test_it_is_told_apart_as_one_likes_and_the_address_keeps_it(front: Front) -> None:
    ask(front.rim, "ada")
    ask(front.rim, "bo")
    page = front.window("/money", size="phone")
    page.get_by_role("link", name="Model").click()
    page.get_by_role("link", name="90 days").click()
    page.get_by_role("link", name="Lines").click()
    expect(page).to_have_url(f"{front.rim.address}/money?days=90&by=model&as=lines")
    each = page.get_by_role("region", name="By model").first
    expect(each.get_by_role("link", name="mock/m1")).to_be_visible()
    assert not scrolls_sideways(page)
    page.get_by_role("link", name="Person").click()
    expect(page.get_by_role("region", name="By person").first.get_by_role("link", name="owner")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("link", name="Agent", exact=True).click()
    page.get_by_role("region", name="By agent").first.get_by_role("link", name="bo").click()
    expect(page).to_have_url(f"{front.rim.address}/runs?agent=bo")
    expect(page.get_by_text("$1.50").first).to_be_visible()


def test_a_plot_is_drawn_anew_in_the_colours_of_another_theme(front: Front) -> None:
    ask(front.rim, "ada")
    page = front.window("/money")
    expect(page.locator("canvas")).to_have_count(2)
    first = page.locator("canvas").first
    before = first.evaluate("each => (each.classList.add('before'), each.toDataURL())")
    page.get_by_role("button", name="Theme: as the machine").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.locator("canvas.before")).to_have_count(0)
    expect(page.locator("canvas")).to_have_count(2)
    assert first.evaluate("each => each.toDataURL()") != before


def test_budgets_show_how_much_is_spent_and_where_they_are_set(front: Front) -> None:
    ask(front.rim, "ada")
    page, other = front.window("/money"), front.window("/money", size="phone")
    [cap, run] = front.rim.do("usage.budgets")["budgets"]
    for window in (page, other):
        meter = window.get_by_role("meter", name="The house, in a day")
        expect(meter).to_have_attribute("aria-valuenow", str(cap["spent-microusd"]))
        expect(meter).to_have_attribute("aria-valuemax", str(cap["cap-microusd"]))
    expect(page.get_by_text("up to $500")).to_be_visible()
    assert run["what"] == "run"
    expect(page.get_by_text("the call is refused")).to_be_visible()
    ask(front.rim, "bo")
    for window in (page, other):
        meter = window.get_by_role("meter", name="The house, in a day")
        expect(meter).to_have_attribute("aria-valuenow", str(cap["spent-microusd"] + 1_500_000))
    page.get_by_role("link", name="budgets.house_day_usd").click()
    expect(page).to_have_url(f"{front.rim.address}/house/settings")
