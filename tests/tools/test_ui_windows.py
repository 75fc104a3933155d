"""Windows of the web app: their reported state is limited, and a command is done when its window reports it."""

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


class WindowSetup:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.windows = WindowRegistry(self.clock, SequentialIds())
        self.sent_commands: list[dict[str, Any]] = []

    def update_window_of(
        self, id_: str, *panels: str, person: str = "maria", window: Window | None = None, **kw: Any
    ) -> Window:
        inventory = WindowInventory(panels=tuple(Panel(id=each, type="note") for each in panels), **kw)
        return self.windows.update_window(person, id_, inventory, send=self.sent_commands.append, window=window)

    async def start_command(self, window: Window, do: str = "focus") -> asyncio.Task[str]:
        task = asyncio.create_task(self.windows.send_command(window, do, panel="p1"))
        await asyncio.sleep(0)
        return task


@pytest.mark.spec("A58")
async def test_a_ui_window_command_ends_or_fails_with_the_answer_of_its_window() -> None:
    server = WindowSetup()
    window = server.update_window_of("w1", "p1")
    first, second = await server.start_command(window, "open"), await server.start_command(window, "close")
    opened, closed = server.sent_commands
    assert {**opened, "command": ""} == {"command": "", "window": "w1", "action": "open", "panel": "p1"}
    await asyncio.sleep(0)
    assert not first.done() and not second.done()
    server.windows.finish_command(window, closed["command"], ok=False, error="it is\npinned" + "!" * 300)
    server.windows.finish_command(window, opened["command"], ok=True, panel="p9")
    assert await first == "p9"
    with pytest.raises(WindowFailed) as failed:
        await second
    assert failed.value.because.startswith("it is pinned!") and len(failed.value.because) == 200
    assert window.pending == {}


@pytest.mark.spec("A58")
async def test_a_ui_window_command_fails_on_timeout_or_if_its_window_closes() -> None:
    server = WindowSetup()
    window = server.update_window_of("w1", "p1")
    slow = await server.start_command(window)
    await server.clock.advance(COMMAND_TIMEOUT_S - 0.5)
    assert not slow.done()
    await server.clock.advance(1.0)
    with pytest.raises(WindowFailed, match="did not answer"):
        await slow
    server.windows.finish_command(window, server.sent_commands[-1]["command"], ok=True)  # too late, and ignored
    cut = await server.start_command(window)
    server.windows.remove_window(window)
    with pytest.raises(WindowFailed, match="closed, or lost its connection"):
        await cut
    with pytest.raises(NotFound, match="does not have the web app open"):
        server.windows.find_window("maria")


async def test_a_ui_window_cannot_finish_a_command_of_another_window() -> None:
    server = WindowSetup()
    mine, hers = server.update_window_of("w1", "p1"), server.update_window_of("w1", "p1", person="noor")
    asked = await server.start_command(mine)
    server.windows.finish_command(hers, server.sent_commands[-1]["command"], ok=True)
    await asyncio.sleep(0)
    assert not asked.done()
    server.windows.finish_command(mine, server.sent_commands[-1]["command"], ok=True)
    assert await asked == ""


@pytest.mark.spec("A57")
async def test_each_person_has_their_own_ui_windows_and_the_last_used_comes_first() -> None:
    server = WindowSetup()
    first = server.update_window_of("w1", "p1")
    second = server.update_window_of("w2", "p2")
    server.update_window_of("w3", person="noor")
    assert [each.id for each in server.windows.list_windows("maria")] == ["w2", "w1"]
    server.update_window_of("w1", "p1", "p3", window=first)
    assert server.windows.find_window("maria") is first
    assert server.windows.find_window("maria", panel="p2") is second
    assert server.windows.find_window("maria", window="w2") is second
    for wrong in ({"window": "w3"}, {"panel": "p9"}, {"window": "w1", "panel": "p2"}):
        with pytest.raises(NotFound):
            server.windows.find_window("maria", **wrong)


async def test_a_reconnected_ui_window_replaces_its_old_connection() -> None:
    server = WindowSetup()
    old = server.update_window_of("w1", "p1")
    new = server.update_window_of("w1", "p2")
    assert [each.inventory.panels[0].id for each in server.windows.list_windows("maria")] == ["p2"]
    server.windows.remove_window(old)  # the old connection notices only now
    assert server.windows.list_windows("maria") == [new]
    with pytest.raises(Invalid):
        server.update_window_of("w2", window=new)


async def test_an_invalid_inventory_of_a_ui_window_is_refused_and_the_previous_one_is_kept() -> None:
    server = WindowSetup()
    window = server.update_window_of("w1", "p1")
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
            server.windows.update_window(
                "maria", "w1", WindowInventory(**each), send=server.sent_commands.append, window=window
            )
    assert [panel.id for panel in window.inventory.panels] == ["p1"]
    for number in range(2, WINDOWS_MAX + 1):
        server.update_window_of(f"w{number}")
    with pytest.raises(TooLarge):
        server.update_window_of("one-more")
    server.update_window_of("one-more", person="noor")


async def test_pending_commands_of_a_ui_window_are_limited() -> None:
    server = WindowSetup()
    window = server.update_window_of("w1", "p1")
    waiting = [await server.start_command(window) for _ in range(PENDING_COMMANDS_MAX)]
    with pytest.raises(Conflict):
        await server.windows.send_command(window, "focus", panel="p1")
    server.windows.remove_window(window)
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
def test_an_agent_cannot_open_a_link_in_a_window_unless_it_is_a_plain_http_url(url: str) -> None:
    with pytest.raises(ToolFailed):
        _check_link(url)


def test_a_plain_http_link_that_an_agent_opens_in_a_window_is_not_changed() -> None:
    for url in ("https://example.org/?q=a%20b#c", "http://127.0.0.1:8080/", "https://[::1]/", "https://ü.example/"):
        assert _check_link(url) == url
