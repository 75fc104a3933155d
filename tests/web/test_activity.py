"""The house live: who writes to whom, what waits and why, and letters that died."""

from __future__ import annotations

from typing import Any

from api.tcp_server import Rim
from playwright.sync_api import Locator, Page, expect
from web.browser import Front, scrolls_sideways, violations
from web.chat_actions import hold_first, wait_in_page

HOSTILE = '<img src=x onerror="alert(1)"> [click](javascript:alert(1)) \u202eallow'


def begin(rim: Rim, agent: str, text: str, name: str | None = None) -> tuple[str, str]:
    """A conversation of its own, in which this was said: its id, and the envelope's."""
    session = rim.do("session.create", agent=agent, name=name)["sessionId"]
    return session, rim.do("envelope.send", to=f"agent:{agent}", session=session, text=text)["envelope"]


def settled(rim: Rim, envelope: str) -> dict[str, Any]:
    with rim.live(follow=[{"session": "*"}]) as live:
        while "outcome" not in (shown := rim.do("envelope.show", id=envelope)):
            live.hear()
    return shown


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def lane(page: Page, name: str) -> Locator:
    return region(page, "At work and waiting").locator(".lane").filter(has_text=name)


def test_an_envelope_is_seen_to_travel_and_what_became_of_it(front: Front) -> None:
    page = front.window("/live")
    picture = page.get_by_role("img", name="Who writes to whom")
    for node in ("person:owner", "agent:guide", "agent:clerk"):
        expect(picture.locator(f"[data-node='{node}']")).to_be_visible()
    stood = picture.locator("[data-node='agent:guide'] circle").first.get_attribute("cx")
    page.evaluate(
        """() => {
            const seen = (node) => node.nodeName === 'circle' && node.classList.contains('dot');
            let dots = 0;
            new MutationObserver((all) => {
                dots += all.flatMap((each) => [...each.addedNodes]).filter(seen).length;
                document.body.dataset.dots = dots > 1 ? 'several' : 'few';
            }).observe(document.querySelector('svg[role=img]'), { childList: true, subtree: true });
        }"""
    )
    _, envelope = begin(front.rim, "guide", "echo good day")
    newest = region(page, "Newest envelopes")
    expect(newest.get_by_text("echo good day")).to_be_visible()
    expect(picture.locator("[data-edge='person:owner agent:guide']")).to_have_count(1)
    expect(picture.locator("[data-edge='agent:guide person:owner']")).to_have_count(1)
    row = newest.get_by_role("listitem").filter(has_text="echo good day")
    expect(row.get_by_text("answered")).to_be_visible()
    assert settled(front.rim, envelope)["outcome"] == "answered"
    expect(page.locator("body")).to_have_attribute("data-dots", "several")
    expect(picture.locator(".dot")).to_have_count(0)
    assert picture.locator("[data-node='agent:guide'] circle").first.get_attribute("cx") == stood


def test_who_wants_no_motion_sees_the_way_light_up(front: Front) -> None:
    page = front.window("/live", calm=True)
    picture = page.get_by_role("img", name="Who writes to whom")
    expect(picture).to_be_visible()
    begin(front.rim, "main", "echo calm")
    expect(picture.locator("[data-edge='person:owner agent:main']")).to_have_count(1)
    expect(picture.locator(".lit").first).to_be_attached()
    expect(picture.locator(".dot")).to_have_count(0)


def test_what_was_before_is_there_when_one_opens_it(front: Front) -> None:
    _, envelope = begin(front.rim, "main", "echo before you came")
    settled(front.rim, envelope)
    page = front.window("/live")
    row = region(page, "Newest envelopes").get_by_role("listitem").filter(has_text="echo before you came").first
    expect(row.get_by_text("answered")).to_be_visible()
    expect(page.locator("[data-edge='person:owner agent:main']")).to_have_count(1)


def test_a_list_that_is_paused_stays_as_it_is_and_goes_on_from_there(front: Front) -> None:
    page = front.window("/live")
    expect(page.get_by_role("img", name="Who writes to whom")).to_be_visible()
    page.keyboard.press("p")
    begin(front.rim, "guide", "echo while it rests")
    held = page.get_by_role("button", name="since you paused")
    expect(held).to_be_visible()
    expect(page.get_by_text("echo while it rests")).to_have_count(0)
    held.click()
    expect(page.get_by_text("echo while it rests").first).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_what_waits_says_why_and_can_be_taken_back_in_every_window(front: Front) -> None:
    session, _ = begin(front.rim, "guide", "slow 300", "The slow one")
    second = front.rim.do(
        "envelope.send", to="agent:guide", session=session, text=f"echo {HOSTILE}", when_busy="collect"
    )["envelope"]
    third = front.rim.do("envelope.send", to="agent:guide", session=session, text="echo third", when_busy="collect")[
        "envelope"
    ]
    page, other = front.window("/live"), front.window("/live", size="phone", theme="dark")
    for window in (page, other):
        slow = lane(window, "The slow one")
        expect(slow.get_by_text("thinks, turn 1")).to_be_visible()
        expect(slow.get_by_text("behind the run that is at work")).to_have_count(2)
        expect(slow.get_by_text("<img src=x")).to_be_visible()
        expect(window.get_by_role("img", name="At work: guide")).to_be_visible()
    expect(page.locator("main img[src=x]")).to_have_count(0)
    expect(page.locator("main a[href^=javascript]")).to_have_count(0)
    assert violations(page) == [] and violations(other) == []
    assert not scrolls_sideways(other)

    lane(page, "The slow one").get_by_role("button", name="Take back “echo third”").click()
    expect(lane(page, "The slow one").get_by_text("echo third")).to_have_count(0)
    expect(lane(other, "The slow one").get_by_text("echo third")).to_have_count(0)
    assert front.rim.do("envelope.show", id=third)["outcome"] == "cancelled"

    lane(page, "The slow one").get_by_role("button", name="Stop the run of guide").click()
    expect(lane(page, "The slow one")).to_have_count(0)
    assert settled(front.rim, second)["outcome"] == "answered"
    expect(lane(other, "The slow one")).to_have_count(0)


def test_a_run_that_waits_for_a_person_is_amber_and_says_because_of_what(front: Front) -> None:
    session, _ = begin(front.rim, "clerk", "ask read SOUL.md", "A question")
    page = front.window("/live")
    waits = lane(page, "A question")
    expect(waits.get_by_text("waits for a person")).to_be_visible()
    expect(waits.get_by_text("asks before 'read'")).to_be_visible()
    expect(page.locator("[data-node='agent:clerk'].parked .ring")).to_be_visible()
    waits.get_by_role("link", name="Answer it").click()
    expect(page).to_have_url(f"{front.rim.address}/approvals")
    front.rim.do("session.stop", session=session)


def test_why_is_told_of_any_row_and_leads_on_to_what_it_names(front: Front) -> None:
    session, envelope = begin(front.rim, "main", "echo tell me")
    settled(front.rim, envelope)
    page = front.window("/live")
    row = region(page, "Newest envelopes").get_by_role("listitem").filter(has_text="echo tell me").first
    row.get_by_role("button", name="Why? envelope from owner to main").click()
    dialog = page.get_by_role("dialog", name="Why")
    expect(dialog.get_by_text("ended answered").first).to_be_visible()
    told = front.rim.do("house.why", id=envelope)["lines"]
    expect(dialog.get_by_role("list", name="What happened").get_by_role("listitem")).to_have_count(len(told) - 1)
    run = front.rim.do("run.list", session=session, limit=1)["runs"][0]["id"][:8]
    dialog.get_by_role("button", name=run).first.click()
    expect(dialog.get_by_text(f"run {run} of main in session")).to_be_visible()
    dialog.get_by_role("button", name="Back").click()
    expect(dialog.get_by_label("Of what")).to_have_value(envelope[:8])
    assert violations(page) == []


def test_why_is_asked_by_the_keyboard_from_anywhere(front: Front) -> None:
    _, envelope = begin(front.rim, "main", "echo from anywhere")
    settled(front.rim, envelope)
    page = front.window("/runs")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.keyboard.press("w")
    dialog = page.get_by_role("dialog", name="Why")
    dialog.get_by_label("Of what").fill("00000000")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Try:")
    front.complaints.clear()  # of the refusal, which was meant
    dialog.get_by_label("Of what").fill(envelope[:8])
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("ended answered").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_dead_letter_says_why_it_died_and_is_sent_again(front: Front) -> None:
    _, envelope = begin(front.rim, "main", "fail now")
    assert settled(front.rim, envelope)["outcome"] == "dead"
    page, other = front.window("/live"), front.window("/live/dead", size="phone")
    page.get_by_role("link", name="Dead letters").click()
    expect(page.get_by_text("the guide broke off, as it was asked to").first).to_be_visible()
    page.get_by_role("button", name="Send again: fail now").click()
    for window in (page, other):
        expect(window.get_by_text("was sent again")).to_be_visible()
        # Only of the retry, which failed too.
        expect(window.get_by_role("button", name="Send again: fail now")).to_have_count(1)
    [retried, letter] = [each for each in front.rim.do("envelope.dead")["letters"] if each["text"] == "fail now"]
    assert (letter["id"], letter["retry"]) == (envelope, retried["id"])
    assert violations(page) == [] and not scrolls_sideways(other)


def test_an_older_answer_does_not_hide_a_dead_letter(front: Front) -> None:
    page = front.window("/live")
    older = hold_first(page, "**/api/envelope/dead")
    with page.expect_request("**/api/envelope/dead"):
        page.get_by_role("link", name="Dead letters").click()
    wait_in_page(page, lambda: bool(older.held))
    before = len(older.json()["letters"])
    _, envelope = begin(front.rim, "main", "fail")
    settled(front.rim, envelope)
    letters = page.get_by_role("region", name="Dead letters").get_by_role("listitem")
    expect(letters).to_have_count(before + 1)
    older.release()
    assert letters.count() == before + 1


def test_thirty_can_be_told_apart_on_a_laptop_and_a_phone(front: Front) -> None:
    for number in range(27):
        front.rim.do("agent.register", name=f"agent-number-{number}", model="guide")
    for size in ("laptop", "phone"):
        page = front.window("/live", size=size)  # pyright: ignore[reportArgumentType]
        expect(page.locator("[data-node]")).to_have_count(31)
        centres = page.eval_on_selector_all(
            "[data-node] > circle:first-of-type, [data-node] > rect",
            """all => all.map(each => {
                const box = each.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2, box.width];
            })""",
        )
        nearest = min(
            ((ax - bx) ** 2 + (ay - by) ** 2) ** 0.5
            for i, (ax, ay, _) in enumerate(centres)
            for bx, by, _ in centres[i + 1 :]
        )
        assert nearest >= centres[0][2], "nobody stands on another"
        assert not scrolls_sideways(page)
