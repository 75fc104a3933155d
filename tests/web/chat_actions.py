"""Actions and locators of the Chat screen, and the stored state of a conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

from api.tcp_server import ApiClient
from playwright.sync_api import APIResponse, Locator, Page, Route, expect
from web.browser import WebApp

from retinue.testing.wait_conditions import wait_until_sync


def create_session(app: WebApp, agent: str = "guide", name: str | None = None) -> str:
    return app.server.do("session.create", agent=agent, name=name)["sessionId"]


def open_chat(app: WebApp, session: str, **options: Any) -> Page:
    page = app.open_window(f"/chat/{session}", **options)
    expect(composer(page)).to_be_visible()
    return page


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def message_log(page: Page) -> Locator:
    return page.get_by_role("log", name="Chat")


def own_messages(page: Page, text: str) -> Locator:
    """Messages of the person with this text: unsent, queued or read."""
    return message_log(page).locator("article.own").filter(has=page.get_by_text(text, exact=True))


def replies(page: Page) -> Locator:
    return message_log(page).locator("article:not(.own) > .markdown")


def type_message(page: Page, text: str) -> None:
    composer(page).fill(text)
    composer(page).press("Enter")


def send_by_api(app: WebApp, session: str, text: str, agent: str = "guide", **options: Any) -> dict[str, Any]:
    """Send a message through the API instead of the web app."""
    return app.server.do("envelope.send", to=f"agent:{agent}", session=session, text=text, **options)


def stored_replies(app: WebApp, session: str) -> list[str]:
    """The replies of a conversation as the server stores them."""
    read = app.server.do("session.transcript", session=session, limit=500)
    return [line["body"]["text"] for line in read["records"] if line["kind"] == "assistant"]


def wait_until_idle(app: WebApp, session: str) -> None:
    """Wait until the session has no run and no queued message."""

    def is_idle() -> bool:
        state = app.server.do("session.queued", session=session)
        return state["run"] is None and not state["envelopes"]

    wait_until_sync(is_idle, "no run and no queued message")


def leave_composer(page: Page) -> None:
    """Move the focus out of the composer, so that keys are shortcuts."""
    expect(page.locator("main textarea")).to_be_focused()
    page.locator("main").focus()


class BlockingMessage(NamedTuple):
    """A message that keeps the guide working until the test calls `release`."""

    text: str
    release: Callable[[], None]


def make_blocking_message(server: ApiClient) -> BlockingMessage:
    """Build a message whose command waits for a file that `release` creates in the agent's workspace."""
    file = server.process.home / "agents" / "guide" / uuid4().hex
    command = {"command": f"until [ -e {file.name} ]; do sleep 0.02; done", "yield_ms": 120_000}
    return BlockingMessage(f"call exec {json.dumps(command)}", file.touch)


def wait_in_page(page: Page, holds: Callable[[], bool]) -> None:
    """`wait_until_sync` for a Playwright callback: Playwright runs callbacks only while the page is used."""

    def holds_now() -> bool:
        page.evaluate("() => new Promise(requestAnimationFrame)")
        return holds()

    wait_until_sync(holds_now, "the Playwright callback was called", poll_s=0)


def wait_for_clipboard(page: Page, matches: Callable[[str], bool]) -> None:
    """Wait until the clipboard has the copied text."""
    wait_until_sync(lambda: matches(page.evaluate("navigator.clipboard.readText()")), "the text is copied")


class HeldResponse:
    """The first response to a kind of request, held back until the test calls `release`."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._is_taken = False
        self.held: list[tuple[Route, APIResponse]] = []

    def take(self, route: Route) -> None:
        if self._is_taken:
            route.continue_()
            return
        self._is_taken = True  # before the fetch, during which the next request may come
        self.held.append((route, route.fetch()))

    def json(self) -> Any:
        return self.held[0][1].json()

    def release(self) -> None:
        """Deliver the response and wait until the page has processed it."""
        route, answer = self.held[0]
        with self._page.expect_event("requestfinished", lambda request: request == route.request):
            route.fulfill(response=answer)
        self._page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def hold_first_response(page: Page, path: str) -> HeldResponse:
    answer = HeldResponse(page)
    page.route(path, answer.take)
    return answer


def choose_menu_item(page: Page, item: str) -> None:
    """Choose an item from the menu of the open conversation."""
    page.locator(".conversation > header").get_by_role("button", name="Actions for").click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def import_session(app: WebApp, history: list[dict[str, Any]]) -> str:
    """Import a conversation from a history in the Daycare format."""
    times = {"createdAt": 1_700_000_000_000, "updatedAt": 1_700_000_000_000}
    entries = [{"type": "start"}, *history]
    history_lines = [json.dumps({"at": times["createdAt"] + i, **each}) + "\n" for i, each in enumerate(entries)]
    files = {
        "descriptor.json": json.dumps({"type": "user", "connector": "web", "userId": "owner", "channelId": "owner"}),
        "state.json": json.dumps(times),
        "history.jsonl": "".join(history_lines),
    }
    return app.server.do("session.import", agent="guide", files=files)["sessionId"]
