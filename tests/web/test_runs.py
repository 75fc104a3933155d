"""The Runs screen: the list with its filters, and the steps of one run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from api.tcp_server import ApiClient
from playwright.sync_api import Page, Request, Route, expect
from web.browser import WebApp, find_violations, scrolls_sideways
from web.chat_actions import wait_in_page
from web.test_activity import start_session, wait_for_outcome

HOSTILE = '<script>window.bad = 1</script><svg onload="window.bad = 1"> \u202eevil **Allow once**'


def complete_run(server: ApiClient, agent: str, text: str, name: str | None = None) -> dict[str, Any]:
    """Send a message in a new session and wait for its outcome; the run."""
    session, envelope = start_session(server, agent, text, name)
    wait_for_outcome(server, envelope)
    return server.do("run.list", session=session, limit=1)["runs"][0]


def rows(page: Page) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("cell"))


def test_runs_are_filtered_and_the_url_keeps_the_filters(app: WebApp) -> None:
    complete_run(app.server, "guide", "echo good day")
    failed = complete_run(app.server, "main", "fail")
    page = app.open_window("/runs")
    expect(rows(page).filter(has_text="guide").first).to_be_visible()
    page.get_by_label("Agent").select_option("main")
    page.get_by_label("Status").select_option("failed")
    expect(page).to_have_url(f"{app.server.address}/runs?agent=main&status=failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("the guide failed")
    page.reload()
    expect(page.get_by_label("Status")).to_have_value("failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Person").select_option("owner")
    page.get_by_label("Since").select_option("1 hour ago")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Status").select_option("suspended")
    expect(page.get_by_role("heading", name="No matching runs")).to_be_visible()
    page.get_by_role("button", name="Clear filters").click()
    expect(page).to_have_url(f"{app.server.address}/runs")
    page.get_by_role("link", name="run of main").first.click()
    expect(page).to_have_url(f"{app.server.address}/runs/{failed['id']}")
    expect(page.get_by_role("heading", name="Run of main")).to_be_visible()
    expect(page.get_by_role("note")).to_contain_text("model.requested_failure")


def test_the_run_list_is_updated_live_and_paginated(own_app: WebApp) -> None:
    app = own_app
    page, phone = app.open_window("/runs"), app.open_window("/runs", size="phone", theme="dark")
    complete_run(app.server, "clerk", "echo as it happens")
    for window in (page, phone):
        expect(window.get_by_role("link", name="run of clerk")).to_be_visible()
    expect(rows(page).filter(has_text="clerk")).to_contain_text("done")
    expect(phone.get_by_role("listitem").filter(has_text="run of clerk")).to_contain_text("done")
    expect(phone.get_by_role("table")).to_have_count(0)
    assert find_violations(page) == [] and find_violations(phone) == []
    assert not scrolls_sideways(phone)
    for envelope in [start_session(app.server, "guide", f"echo {number}")[1] for number in range(28)]:
        wait_for_outcome(app.server, envelope)
    page.reload()
    more = page.get_by_role("button", name="Show more")
    expect(more).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(25)
    more.click()
    expect(more).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(len(app.server.do("run.list", limit=100)["runs"]))


class HeldRunLists:
    """The requests of a page for the run list, which a test can hold back."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._underway: set[Request] = set()
        self._holds = False
        self._held: list[Route] = []
        page.route("**/api/run/list", self._take)
        page.on("requestfinished", lambda request: self._underway.discard(request))

    def _take(self, route: Route) -> None:
        if self._holds:
            self._held.append(route)
        else:
            self._underway.add(route.request)
            route.continue_()

    def hold(self) -> None:
        """Wait until no request is pending, then hold new ones back."""
        wait_in_page(self._page, lambda: not self._underway)
        self._holds = True

    def release(self) -> None:
        """Wait for a held request, then let all continue."""
        wait_in_page(self._page, lambda: bool(self._held))
        self._holds = False
        for route in self._held:
            self._underway.add(route.request)
            route.continue_()


def test_a_list_on_the_runs_screen_that_is_behind_by_more_than_a_page_omits_no_run(app: WebApp) -> None:
    page = app.open_window("/runs?agent=main")
    reads = HeldRunLists(page)
    for envelope in [start_session(app.server, "main", f"echo early {number}")[1] for number in range(3)]:
        wait_for_outcome(app.server, envelope)
    early = len(app.server.do("run.list", agent="main", limit=100)["runs"])
    expect(page.locator("tbody tr")).to_have_count(early)
    reads.hold()
    for envelope in [start_session(app.server, "main", f"echo late {number}")[1] for number in range(28)]:
        wait_for_outcome(app.server, envelope)
    reads.release()
    more = page.get_by_role("button", name="Show more")
    expect(more).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(25)
    more.click()
    expect(more).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(early + 28)


def test_the_runs_screen_shows_each_step_of_a_run_with_arguments_result_and_reason(app: WebApp) -> None:
    call = f"call read {json.dumps({'path': 'SOUL.md'})}; session_status"
    run = complete_run(app.server, "guide", call, "A trace")
    trace = app.server.do("run.trace", id=run["id"])
    page = app.open_window(f"/runs/{run['id']}")
    steps = page.get_by_role("region", name="Steps").get_by_role("listitem")
    expect(steps).to_have_count(len(trace["entries"]))
    expect(page.get_by_role("img", name=f"{len(trace['entries'])} steps in")).to_be_visible()
    steps.get_by_text("Used read").click()
    expect(steps.get_by_role("group", name="Arguments")).to_contain_text('"path": "SOUL.md"')
    steps.get_by_text("Used read").click()
    step = steps.filter(has_text="Used session_status")
    step.get_by_text("Used session_status").click()
    expect(step.get_by_text("Allowed ·")).to_be_visible()
    [status] = [act for act in trace["entries"] if act.get("tool") == "session_status"]
    expect(step.get_by_text(status["because"])).to_be_visible()
    expect(step.get_by_role("group", name="Result")).to_have_text(status["output"])
    expect(page.locator(".bar.marked")).to_have_count(1)
    page.get_by_role("button", name="Collapse all").click()
    expect(page.locator("details[open]")).to_have_count(0)
    page.get_by_role("button", name="Expand all").click()
    expect(steps.first.get_by_role("button", name="Explain: message")).to_be_visible()
    assert find_violations(page) == []
    page.get_by_role("link", name="A trace").click()
    expect(page).to_have_url(f"{app.server.address}/chat/{run['session']}")


def test_hostile_text_in_a_run_is_shown_as_plain_text_on_the_runs_screen(app: WebApp) -> None:
    run = complete_run(app.server, "guide", f"call read {json.dumps({'path': HOSTILE})}", "Hostile")
    page = app.open_window(f"/runs/{run['id']}", size="phone")
    page.get_by_role("button", name="Expand all").click()
    expect(page.get_by_role("group", name="Arguments")).to_contain_text("window.bad = 1")
    assert page.evaluate("window.bad") is None
    assert page.locator("main script, main svg[onload], main strong").count() == 0
    expect(page.get_by_role("button", name="Allow once")).to_have_count(0)
    assert find_violations(page) == []
    assert not scrolls_sideways(page)


def test_a_run_is_watched_live_and_stopped_on_the_runs_screen(app: WebApp) -> None:
    session, _ = start_session(app.server, "guide", "slow 300", "To be stopped")
    page = app.open_window("/runs?status=running")
    page.get_by_role("link", name="run of guide").first.click()
    expect(page).to_have_url(re.compile("/runs/"))
    other = app.open_window(page.url.removeprefix(app.server.address))
    expect(page.get_by_text("so far")).to_be_visible()
    expect(page.locator(".bar.open")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    for window in (page, other):
        expect(window.get_by_text("stopped", exact=True)).to_be_visible()
        expect(window.get_by_role("button", name="Stop")).to_have_count(0)
    [run] = app.server.do("run.list", session=session)["runs"]
    assert run["run_status"] == "cancelled"


def test_an_approval_and_its_wait_are_on_the_timeline(app: WebApp) -> None:
    session, _ = start_session(app.server, "clerk", "ask read SOUL.md", "Asked")
    page = app.open_window("/runs?agent=clerk&status=suspended")
    page.get_by_role("link", name="run of clerk").first.click()
    steps = page.get_by_role("region", name="Steps")
    expect(steps.get_by_text("pending")).to_be_visible()
    for row in ("approval", "suspended"):
        expect(page.locator(f".bar.{row}")).to_have_count(1)
    [approval] = [each for each in app.server.do("approval.list")["approvals"] if each["session"] == session]
    app.server.do("approval.answer", id=approval["id"], allow=True)
    expect(steps.get_by_text("allowed", exact=True)).to_be_visible()
    expect(steps.get_by_text("Resumed")).to_be_visible()
    expect(page.get_by_text("done", exact=True).first).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_unknown_run_shows_an_error_on_the_runs_screen(app: WebApp, theme: str) -> None:
    page = app.open_window("/runs/00000000", theme=theme)  # pyright: ignore[reportArgumentType]
    expect(page.get_by_role("alert")).to_contain_text("Try:")
    assert find_violations(page) == []
    app.close_expecting_errors()  # the request is refused, and may be sent again
