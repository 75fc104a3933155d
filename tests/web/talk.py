"""A conversation as a person holds it: what is pressed, what stands there, and what the house has of it."""

from __future__ import annotations

import json
import time
from typing import Any

from playwright.sync_api import Locator, Page, expect
from web.browser import Front

ANSWERED_WITHIN_S = 60.0


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
    deadline = time.monotonic() + ANSWERED_WITHIN_S
    while True:
        state = front.rim.do("session.waiting", session=session)
        if state["run"] is None and not state["envelopes"]:
            return
        assert time.monotonic() < deadline, "someone is still at work"
        time.sleep(0.02)


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
