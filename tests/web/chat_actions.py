"""A conversation as a person holds it: what is pressed, what stands there, and what the house has of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

from api.tcp_server import Rim
from playwright.sync_api import APIResponse, Locator, Page, Route, expect
from web.browser import Front

from retinue.testing.waiting import wait_until_sync


def new_session(front: Front, agent: str = "guide", name: str | None = None) -> str:
    return front.rim.do("session.create", agent=agent, name=name)["sessionId"]


def open_talk(front: Front, session: str, **options: Any) -> Page:
    page = front.window(f"/chat/{session}", **options)
    expect(composer(page)).to_be_visible()
    return page


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def lines(page: Page) -> Locator:
    return page.get_by_role("log", name="Chat")


def own(page: Page, words: str) -> Locator:
    """What one wrote oneself, in the conversation: on its way, waiting, or read."""
    return lines(page).locator("article.own").filter(has=page.get_by_text(words, exact=True))


def replies(page: Page) -> Locator:
    return lines(page).locator("article:not(.own) > .markdown")


def say(page: Page, words: str) -> None:
    composer(page).fill(words)
    composer(page).press("Enter")


def send(front: Front, session: str, words: str, agent: str = "guide", **more: Any) -> dict[str, Any]:
    """By another door than the page."""
    return front.rim.do("envelope.send", to=f"agent:{agent}", session=session, text=words, **more)


def said(front: Front, session: str) -> list[str]:
    """The replies of a conversation as the house keeps them."""
    read = front.rim.do("session.transcript", session=session, limit=500)
    return [line["body"]["text"] for line in read["lines"] if line["kind"] == "assistant"]


def until_quiet(front: Front, session: str) -> None:
    """Until nobody is at work there, and nothing waits."""

    def is_quiet() -> bool:
        state = front.rim.do("session.waiting", session=session)
        return state["run"] is None and not state["envelopes"]

    wait_until_sync(is_quiet, "nobody is at work and nothing waits")


def leave_composer(page: Page) -> None:
    """Move the focus out of the field that the screen gives it to, so that keys are commands."""
    expect(page.locator("main textarea")).to_be_focused()
    page.locator("main").focus()


class HeldWork(NamedTuple):
    """A message that keeps the guide at work until the test calls `release`."""

    text: str
    release: Callable[[], None]


def held_work(rim: Rim) -> HeldWork:
    """Its command waits for a file that `release` writes to the agent's workspace."""
    file = rim.process.home / "agents" / "guide" / uuid4().hex
    command = {"command": f"until [ -e {file.name} ]; do sleep 0.02; done", "yield_ms": 120_000}
    return HeldWork(f"call exec {json.dumps(command)}", file.touch)


def wait_in_page(page: Page, holds: Callable[[], bool]) -> None:
    """As `wait_until_sync`, for something that Playwright does for us: it does so only while the page is asked."""

    def looks() -> bool:
        page.evaluate("() => new Promise(requestAnimationFrame)")
        return holds()

    wait_until_sync(looks, "the browser has handed it over", poll_s=0)


def wait_for_copy(page: Page, is_it: Callable[[str], bool]) -> None:
    """Until what was copied is in the clipboard."""
    wait_until_sync(lambda: is_it(page.evaluate("navigator.clipboard.readText()")), "it is copied")


class HeldAnswer:
    """The first answer of the house to a kind of request, kept from the page until the test calls `release`."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.held: list[tuple[Route, APIResponse]] = []

    def take(self, route: Route) -> None:
        if self.held:
            route.continue_()
        else:
            self.held.append((route, route.fetch()))

    def json(self) -> Any:
        return self.held[0][1].json()

    def release(self) -> None:
        """Until the page has taken it in."""
        route, answer = self.held[0]
        with self._page.expect_event("requestfinished", lambda request: request == route.request):
            route.fulfill(response=answer)
        self._page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def hold_first(page: Page, path: str) -> HeldAnswer:
    answer = HeldAnswer(page)
    page.route(path, answer.take)
    return answer


def choose(page: Page, item: str) -> None:
    """From the menu of the conversation one is in."""
    page.locator(".talk > header").get_by_role("button", name="What to do with").click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def import_session(front: Front, history: list[dict[str, Any]]) -> str:
    """A conversation made from files, each line of its history as Daycare has it."""
    began = {"createdAt": 1_700_000_000_000, "updatedAt": 1_700_000_000_000}
    made = [{"type": "start"}, *history]
    history_lines = [json.dumps({"at": began["createdAt"] + i, **each}) + "\n" for i, each in enumerate(made)]
    files = {
        "descriptor.json": json.dumps({"type": "user", "connector": "web", "userId": "owner", "channelId": "owner"}),
        "state.json": json.dumps(began),
        "history.jsonl": "".join(history_lines),
    }
    return front.rim.do("session.import", agent="guide", files=files)["sessionId"]
