"""Windows: what they say of themselves is bounded, and a command is done when its window says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.domain.errors import Conflict, Invalid, NotFound, TooLarge
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import SequentialIds
from retinue.tools.base import ToolFailed
from retinue.tools.panels import _check_link  # pyright: ignore[reportPrivateUsage]
from retinue.tools.ui_windows import (
    COMMAND_TIMEOUT_S,
    PANELS_MAX,
    PENDING_COMMANDS_MAX,
    WINDOWS_MAX,
    Panel,
    Window,
    WindowFailed,
    WindowInventory,
    WindowRegistry,
)


class House:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.windows = WindowRegistry(self.clock, SequentialIds())
        self.said: list[dict[str, Any]] = []

    def show(self, id_: str, *panels: str, person: str = "maria", window: Window | None = None, **kw: Any) -> Window:
        inventory = WindowInventory(panels=tuple(Panel(id=each, type="note") for each in panels), **kw)
        return self.windows.update_window(person, id_, inventory, send=self.said.append, window=window)

    async def begin(self, window: Window, do: str = "focus") -> asyncio.Task[str]:
        task = asyncio.create_task(self.windows.send_command(window, do, panel="p1"))
        await asyncio.sleep(0)
        return task


@pytest.mark.spec("A58")
async def test_a_command_ends_when_its_window_says_so_and_fails_with_a_reason_where_it_says_no() -> None:
    house = House()
    window = house.show("w1", "p1")
    first, second = await house.begin(window, "open"), await house.begin(window, "close")
    opened, closed = house.said
    assert {**opened, "command": ""} == {"command": "", "window": "w1", "do": "open", "panel": "p1"}
    await asyncio.sleep(0)
    assert not first.done() and not second.done()
    house.windows.finish_command(window, closed["command"], ok=False, error="it is\npinned" + "!" * 300)
    house.windows.finish_command(window, opened["command"], ok=True, panel="p9")
    assert await first == "p9"
    with pytest.raises(WindowFailed) as failed:
        await second
    assert failed.value.because.startswith("it is pinned!") and len(failed.value.because) == 200
    assert window.pending == {}


@pytest.mark.spec("A58")
async def test_a_window_that_does_not_answer_in_time_or_goes_away_fails_the_command() -> None:
    house = House()
    window = house.show("w1", "p1")
    slow = await house.begin(window)
    await house.clock.advance(COMMAND_TIMEOUT_S - 0.5)
    assert not slow.done()
    await house.clock.advance(1.0)
    with pytest.raises(WindowFailed, match="did not answer"):
        await slow
    house.windows.finish_command(window, house.said[-1]["command"], ok=True)  # too late, and let pass
    cut = await house.begin(window)
    house.windows.remove_window(window)
    with pytest.raises(WindowFailed, match="closed before"):
        await cut
    with pytest.raises(NotFound, match="no window is open"):
        house.windows.find_window("maria")


async def test_nobody_answers_for_another_window() -> None:
    house = House()
    mine, hers = house.show("w1", "p1"), house.show("w1", "p1", person="noor")
    asked = await house.begin(mine)
    house.windows.finish_command(hers, house.said[-1]["command"], ok=True)
    await asyncio.sleep(0)
    assert not asked.done()
    house.windows.finish_command(mine, house.said[-1]["command"], ok=True)
    assert await asked == ""


@pytest.mark.spec("A57")
async def test_each_person_has_their_own_windows_and_the_one_last_used_comes_first() -> None:
    house = House()
    first = house.show("w1", "p1")
    second = house.show("w2", "p2")
    house.show("w3", person="noor")
    assert [each.id for each in house.windows.list_windows("maria")] == ["w2", "w1"]
    house.show("w1", "p1", "p3", window=first)
    assert house.windows.find_window("maria") is first
    assert house.windows.find_window("maria", panel="p2") is second
    assert house.windows.find_window("maria", window="w2") is second
    for wrong in ({"window": "w3"}, {"panel": "p9"}, {"window": "w1", "panel": "p2"}):
        with pytest.raises(NotFound):
            house.windows.find_window("maria", **wrong)


async def test_a_window_that_comes_back_takes_the_place_of_its_old_connection() -> None:
    house = House()
    old = house.show("w1", "p1")
    new = house.show("w1", "p2")
    assert [each.inventory.panels[0].id for each in house.windows.list_windows("maria")] == ["p2"]
    house.windows.remove_window(old)  # only now does the old connection notice
    assert house.windows.list_windows("maria") == [new]
    with pytest.raises(Invalid):
        house.show("w2", window=new)


async def test_what_a_window_says_is_bounded_and_what_it_said_before_counts_on() -> None:
    house = House()
    window = house.show("w1", "p1")
    wrong: list[dict[str, Any]] = [
        {"panels": tuple(Panel(id=f"p{number}", type="x") for number in range(PANELS_MAX + 1))},
        {"panels": (Panel(id="p", type="x"), Panel(id="p", type="y"))},
        {"panels": (Panel(id="", type="x"),)},
        {"panels": (Panel(id="a b", type="x"),)},
        {"panels": (Panel(id="p", type="x" * 65),)},
        {"panels": (Panel(id="p", type="x", title="t" * 201),)},
        {"panels": (Panel(id="p", type="x", context={"text": "c" * 4_096}),)},
        {"panels": (Panel(id="p", type="x", binding="<b>"),)},
        {"selected": "x" * 65},
        {"layout": ["x" * 16_384]},
    ]
    for each in wrong:
        with pytest.raises(Invalid):
            house.windows.update_window("maria", "w1", WindowInventory(**each), send=house.said.append, window=window)
    assert [panel.id for panel in window.inventory.panels] == ["p1"]
    for number in range(2, WINDOWS_MAX + 1):
        house.show(f"w{number}")
    with pytest.raises(TooLarge):
        house.show("one-more")
    house.show("one-more", person="noor")


async def test_a_window_is_not_asked_for_more_than_it_can_do() -> None:
    house = House()
    window = house.show("w1", "p1")
    waiting = [await house.begin(window) for _ in range(PENDING_COMMANDS_MAX)]
    with pytest.raises(Conflict):
        await house.windows.send_command(window, "focus", panel="p1")
    house.windows.remove_window(window)
    assert all(isinstance(each, WindowFailed) for each in await asyncio.gather(*waiting, return_exceptions=True))


@pytest.mark.spec("A76")
@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "ftp://example.org/",
        "//example.org/",
        "example.org",
        "http:///path",
        "https://owner:secret@example.org/",
        "https://good.example@evil.example/",
        "https://example.org:port/",
        "https://example.org/a b",
        "https://example.org/\n",
        "https://good.example\\@evil.example/",
        " https://example.org/",
    ],
)
def test_a_link_that_is_not_plainly_http_is_not_opened(url: str) -> None:
    with pytest.raises(ToolFailed):
        _check_link(url)


def test_a_plain_link_is_left_as_it_is() -> None:
    for url in ("https://example.org/?q=a%20b#c", "http://127.0.0.1:8080/", "https://[::1]/", "https://ü.example/"):
        assert _check_link(url) == url
