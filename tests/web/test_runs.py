"""Runs in the page: which there were, and what each did, step by step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api.tcp_server import Rim
from playwright.sync_api import Page, Request, Route, expect
from web.browser import Front, scrolls_sideways, violations
from web.chat_actions import wait_in_page
from web.test_activity import begin, settled

HOSTILE = '<script>window.bad = 1</script><svg onload="window.bad = 1"> \u202eevil **Allow once**'


def run_of(rim: Rim, agent: str, text: str, name: str | None = None) -> dict[str, Any]:
    """What came of it, when it has ended."""
    session, envelope = begin(rim, agent, text, name)
    settled(rim, envelope)
    return rim.do("run.list", session=session, limit=1)["runs"][0]


def rows(page: Page) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("cell"))


def test_runs_are_found_by_who_and_how_and_the_address_keeps_it(front: Front) -> None:
    run_of(front.rim, "guide", "echo good day")
    failed = run_of(front.rim, "main", "fail")
    page = front.window("/runs")
    expect(rows(page).filter(has_text="guide").first).to_be_visible()
    page.get_by_label("Agent").select_option("main")
    page.get_by_label("Status").select_option("failed")
    expect(page).to_have_url(f"{front.rim.address}/runs?agent=main&status=failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("the guide broke off")
    page.reload()
    expect(page.get_by_label("Status")).to_have_value("failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Person").select_option("owner")
    page.get_by_label("Since").select_option("the last hour")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Status").select_option("parked")
    expect(page.get_by_role("heading", name="No run fits")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(page).to_have_url(f"{front.rim.address}/runs")
    page.get_by_role("link", name="run of main").first.click()
    expect(page).to_have_url(f"{front.rim.address}/runs/{failed['id']}")
    expect(page.get_by_role("heading", name="A run of main")).to_be_visible()
    expect(page.get_by_role("note")).to_contain_text("model.asked-to-fail")


def test_the_list_lives_and_a_page_leads_to_the_next(own_front: Front) -> None:
    front = own_front
    page, phone = front.window("/runs"), front.window("/runs", size="phone", theme="dark")
    run_of(front.rim, "clerk", "echo as it happens")
    for window in (page, phone):
        expect(window.get_by_role("link", name="run of clerk")).to_be_visible()
    expect(rows(page).filter(has_text="clerk")).to_contain_text("done")
    expect(phone.get_by_role("listitem").filter(has_text="run of clerk")).to_contain_text("done")
    expect(phone.get_by_role("table")).to_have_count(0)
    assert violations(page) == [] and violations(phone) == []
    assert not scrolls_sideways(phone)
    for envelope in [begin(front.rim, "guide", f"echo {number}")[1] for number in range(28)]:
        settled(front.rim, envelope)
    page.reload()
    more = page.get_by_role("button", name="Show more")
    expect(more).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(25)
    more.click()
    expect(more).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(len(front.rim.do("run.list", limit=100)["runs"]))


class HeldReads:
    """The reads of the list of runs that a page makes, which a test can hold up."""

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
        """Once no read is under way, let none begin."""
        wait_in_page(self._page, lambda: not self._underway)
        self._holds = True

    def release(self) -> None:
        """Once the page wants to read."""
        wait_in_page(self._page, lambda: bool(self._held))
        self._holds = False
        for route in self._held:
            self._underway.add(route.request)
            route.continue_()


def test_a_list_that_fell_behind_by_more_than_a_page_leaves_no_run_out(front: Front) -> None:
    page = front.window("/runs?agent=main")
    reads = HeldReads(page)
    for envelope in [begin(front.rim, "main", f"echo early {number}")[1] for number in range(3)]:
        settled(front.rim, envelope)
    early = len(front.rim.do("run.list", agent="main", limit=100)["runs"])
    expect(page.locator("tbody tr")).to_have_count(early)
    reads.hold()
    for envelope in [begin(front.rim, "main", f"echo late {number}")[1] for number in range(28)]:
        settled(front.rim, envelope)
    reads.release()
    more = page.get_by_role("button", name="Show more")
    expect(more).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(25)
    more.click()
    expect(more).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(early + 28)


def test_a_trace_tells_each_step_with_what_was_said_and_why(front: Front) -> None:
    call = f"call read {json.dumps({'path': 'SOUL.md'})}; session_status"
    run = run_of(front.rim, "guide", call, "A trace")
    trace = front.rim.do("run.trace", id=run["id"])
    page = front.window(f"/runs/{run['id']}")
    steps = page.get_by_role("region", name="Step by step").get_by_role("listitem")
    expect(steps).to_have_count(len(trace["acts"]))
    expect(page.get_by_role("img", name=f"{len(trace['acts'])} steps over")).to_be_visible()
    steps.get_by_text("Used read").click()
    expect(steps.get_by_role("group", name="Arguments")).to_contain_text('"path": "SOUL.md"')
    steps.get_by_text("Used read").click()
    step = steps.filter(has_text="Used session_status")
    step.get_by_text("Used session_status").click()
    expect(step.get_by_text("Allowed ·")).to_be_visible()
    [status] = [act for act in trace["acts"] if act.get("tool") == "session_status"]
    expect(step.get_by_text(status["because"])).to_be_visible()
    expect(step.get_by_role("group", name="Result")).to_have_text(status["output"])
    expect(page.locator(".bar.marked")).to_have_count(1)
    page.get_by_role("button", name="Close all").click()
    expect(page.locator("details[open]")).to_have_count(0)
    page.get_by_role("button", name="Open all").click()
    expect(steps.first.get_by_role("button", name="Why? envelope")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("link", name="A trace").click()
    expect(page).to_have_url(f"{front.rim.address}/chat/{run['session']}")


def test_words_from_outside_stay_words(front: Front) -> None:
    run = run_of(front.rim, "guide", f"call read {json.dumps({'path': HOSTILE})}", "Hostile")
    page = front.window(f"/runs/{run['id']}", size="phone")
    page.get_by_role("button", name="Open all").click()
    expect(page.get_by_role("group", name="Arguments")).to_contain_text("window.bad = 1")
    assert page.evaluate("window.bad") is None
    assert page.locator("main script, main svg[onload], main strong").count() == 0
    expect(page.get_by_role("button", name="Allow once")).to_have_count(0)
    assert violations(page) == []
    assert not scrolls_sideways(page)


def test_a_run_is_watched_as_it_goes_and_stopped(front: Front) -> None:
    session, _ = begin(front.rim, "guide", "slow 300", "To be stopped")
    page = front.window("/runs?status=running")
    page.get_by_role("link", name="run of guide").first.click()
    other = front.window(page.url.removeprefix(front.rim.address))
    expect(page.get_by_text("so far")).to_be_visible()
    expect(page.locator(".bar.open")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    for window in (page, other):
        expect(window.get_by_text("stopped", exact=True)).to_be_visible()
        expect(window.get_by_role("button", name="Stop")).to_have_count(0)
    [run] = front.rim.do("run.list", session=session)["runs"]
    assert run["run-status"] == "cancelled"


def test_a_question_and_the_rest_it_brought_are_on_the_line(front: Front) -> None:
    session, _ = begin(front.rim, "clerk", "ask read SOUL.md", "Asked")
    page = front.window("/runs?agent=clerk&status=parked")
    page.get_by_role("link", name="run of clerk").first.click()
    steps = page.get_by_role("region", name="Step by step")
    expect(steps.get_by_text("waits for an answer")).to_be_visible()
    for row in ("approval", "parked"):
        expect(page.locator(f".bar.{row}")).to_have_count(1)
    [asked] = [each for each in front.rim.do("approval.list")["approvals"] if each["session"] == session]
    front.rim.do("approval.answer", id=asked["id"], allow=True)
    expect(steps.get_by_text("allowed", exact=True)).to_be_visible()
    expect(steps.get_by_text("Taken up again")).to_be_visible()
    expect(page.get_by_text("done", exact=True).first).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_run_that_is_not_there_is_told_of(front: Front, theme: str) -> None:
    page = front.window("/runs/00000000", theme=theme)  # pyright: ignore[reportArgumentType]
    expect(page.get_by_role("alert")).to_contain_text("Try:")
    assert violations(page) == []
    front.complaints.clear()  # of the refusal, which was meant
