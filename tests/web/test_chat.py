"""Talking: what one writes, what comes back, and everything that can be done with it."""

from __future__ import annotations

import base64
import json
import re

from playwright.sync_api import Route, expect
from web.browser import Front, violations
from web.chat_actions import (
    choose,
    composer,
    held_work,
    hold_first,
    import_session,
    leave_composer,
    lines,
    new_session,
    open_talk,
    own,
    replies,
    said,
    say,
    send,
    until_quiet,
)

DURATION = re.compile(r"^\d+(\.\d)? m?s$")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_what_one_writes_is_there_at_once_and_exactly_once(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    other = open_talk(front, session)

    def send_once_shown(route: Route) -> None:
        expect(own(page, "echo good day")).to_have_count(1)
        route.continue_()

    page.route("**/api/envelope/send", send_once_shown)
    say(page, "echo good day")
    expect(replies(page)).to_have_text(["good day"])
    for window in (page, other):
        expect(own(window, "echo good day")).to_have_count(1)
        expect(replies(window)).to_have_text(["good day"])
        window.reload()
        expect(own(window, "echo good day")).to_have_count(1)
        expect(replies(window)).to_have_text(["good day"])
    until_quiet(front, session)
    assert said(front, session) == ["good day"]
    assert len(front.rim.process.envelopes_with("echo good day")) == 1


def test_enter_sends_and_shift_enter_breaks_the_line(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    composer(page).press_sequentially("echo one")
    composer(page).press("Shift+Enter")
    composer(page).press_sequentially("two")
    assert lines(page).locator("article").count() == 0
    composer(page).press("Enter")
    expect(composer(page)).to_have_value("")
    expect(lines(page).locator("article.own p")).to_have_text("echo one\ntwo")
    expect(replies(page)).to_contain_text("two")  # it stands there before it has been sent
    [sent] = [x for x in front.rim.do("session.transcript", session=session)["lines"] if x["kind"] == "user"]
    assert sent["mail"][0]["text"] == "echo one\ntwo"


def test_words_stay_when_the_house_is_away_and_arrive_once_when_it_is_back(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    front.rim.process.kill()
    say(page, "echo are you there")
    expect(page.get_by_text("Not sent.")).to_be_visible()
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("Not sent.")).to_be_visible()
    front.rim.process.open(again_at=front.rim.address)
    expect(page.get_by_text("Not sent.")).to_have_count(0)
    expect(replies(page)).to_have_text(["are you there"])
    expect(own(page, "echo are you there")).to_have_count(1)
    assert len(front.rim.process.envelopes_with("echo are you there")) == 1


def test_words_that_arrived_without_an_answer_are_not_sent_twice(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)

    def take_and_say_nothing(route: Route) -> None:
        route.fetch()
        route.abort()
        page.unroute("**/api/envelope/send")

    page.route("**/api/envelope/send", take_and_say_nothing)
    say(page, "echo only once")
    expect(page.get_by_text("Not sent.")).to_be_visible()
    page.reload()  # what was not sent is kept, with its key
    expect(page.get_by_text("Not sent.")).to_have_count(0)
    expect(own(page, "echo only once")).to_have_count(1)
    assert len(front.rim.process.envelopes_with("echo only once")) == 1
    front.complaints.clear()  # of the request that was meant to fail


def test_drafts_are_kept_for_each_conversation(front: Front) -> None:
    one, two = new_session(front, name="Draft one"), new_session(front, name="Draft two")
    page = open_talk(front, one)
    composer(page).fill("not yet")
    page.get_by_role("link", name="Draft two").click()
    expect(composer(page)).to_have_value("")
    composer(page).fill("nor this")
    page.reload()
    expect(composer(page)).to_have_value("nor this")
    page.goto(f"{front.rim.address}/chat/{one}")
    expect(composer(page)).to_have_value("not yet")
    assert said(front, two) == []


def test_thoughts_are_folded(front: Front) -> None:
    page = open_talk(front, new_session(front))
    say(page, "think about tea")
    expect(replies(page)).to_contain_text(["I thought about tea."])
    thought = lines(page).get_by_text("these thoughts were written before you asked")
    expect(thought).to_be_hidden()
    lines(page).get_by_text("Thoughts", exact=True).click()
    expect(thought).to_be_visible()


def test_a_call_shows_its_arguments_its_duration_its_result_and_why_it_was_allowed(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    say(page, 'call read {"path": "SOUL.md"}')
    card = lines(page).locator("details.card")
    expect(card.locator("summary")).to_contain_text("read")
    expect(card.locator(".state")).to_have_text(DURATION)
    until_quiet(front, session)
    page.reload()
    expect(card.locator(".state")).to_have_text(DURATION)
    card.locator("summary").click()
    expect(card.locator("pre").first).to_contain_text('"path": "SOUL.md"')
    expect(card.get_by_text("Why it was allowed")).to_be_visible()
    say(page, "status")
    card = lines(page).locator("details.card").nth(1)
    expect(card.locator(".state")).to_have_text(DURATION)
    until_quiet(front, session)  # nothing moves under the pointer any more
    card.locator("summary").click()
    expect(card.locator("pre").last).to_contain_text("agent: guide")
    assert violations(page) == []


def test_files_are_chosen_dropped_and_pasted_and_come_back_as_they_were(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files([{"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL}])
    give = """(target, [kind, name, words]) => {
        const data = new DataTransfer();
        data.items.add(new File([words], name, {type: "text/plain"}));
        const event = kind === "paste"
            ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true})
            : new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
        target.dispatchEvent(event);
    }"""
    lines(page).evaluate(give, ["drop", "dropped.txt", "from the desk"])
    composer(page).evaluate(give, ["paste", "<b>pasted.txt", "from the clipboard"])
    attached = page.get_by_role("list", name="Attached")
    expect(attached.get_by_role("listitem")).to_have_count(3)
    page.get_by_role("button", name="Remove dropped.txt").click()
    expect(attached.get_by_role("listitem")).to_have_count(2)
    say(page, "echo look")
    expect(lines(page).get_by_role("img", name="dot.png")).to_be_visible()
    assert (
        lines(page)
        .get_by_role("img", name="dot.png")
        .evaluate("async each => (await each.decode(), each.naturalWidth)")
        == 1
    )
    with page.expect_download() as download:
        lines(page).get_by_role("link", name="pasted").click()
    assert download.value.path().read_bytes() == b"from the clipboard"
    expect(replies(page)).to_have_text(["look"])
    [mail] = [x["mail"][0] for x in front.rim.do("session.transcript", session=session)["lines"] if x["kind"] == "user"]
    assert [each["media-type"] for each in mail["attachments"]] == ["image/png", "text/plain"]


def test_what_runs_is_stopped(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    say(page, "slow 300")
    expect(page.get_by_text("guide is at work").first).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(lines(page).get_by_role("note")).to_contain_text(["asked to stop"])
    until_quiet(front, session)
    say(page, "slow 300")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    until_quiet(front, session)


def test_what_is_written_meanwhile_waits_and_can_be_taken_back(front: Front) -> None:
    session = new_session(front)
    page, other = open_talk(front, session), open_talk(front, session)
    busy = held_work(front.rim)
    say(page, busy.text)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    say(page, "echo first")
    say(page, "echo second")
    for window in (page, other):
        expect(own(window, "echo first")).to_contain_text("Waits for its turn")
        expect(own(window, "echo second")).to_contain_text("Waits, as number 2")
    page.get_by_role("button", name="Take back: echo first").click()
    for window in (page, other):
        expect(own(window, "echo first")).to_have_count(0)
        expect(own(window, "echo second")).to_contain_text("Waits for its turn")
    busy.release()
    for window in (page, other):
        expect(replies(window)).to_contain_text(["second"])
        expect(own(window, "echo second")).to_have_count(1)
    until_quiet(front, session)
    assert not any("first" in each for each in said(front, session))


def test_what_waits_is_not_forgotten_for_an_older_answer(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    older = hold_first(page, "**/api/session/waiting")
    page.reload()
    expect(composer(page)).to_be_visible()
    busy = held_work(front.rim)
    say(page, busy.text)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    say(page, "echo later")
    expect(own(page, "echo later")).to_contain_text("Waits for its turn")
    assert older.json()["envelopes"] == []
    older.release()
    expect(own(page, "echo later")).to_contain_text("Waits for its turn")
    busy.release()
    expect(replies(page)).to_contain_text(["later"])
    until_quiet(front, session)


def test_a_run_is_steered_by_what_is_handed_over_at_once(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    busy = held_work(front.rim)
    say(page, busy.text)
    page.get_by_role("radio", name="Hand over now").check()
    with page.expect_request("**/api/envelope/send") as asked:
        say(page, "echo by the way")
    assert json.loads(asked.value.post_data or "")["when_busy"] == "steer"
    expect(own(page, "echo by the way")).to_have_count(1)
    busy.release()
    until_quiet(front, session)
    expect(own(page, "echo by the way")).to_have_count(1)


def test_something_said_is_edited_in_a_conversation_of_its_own(front: Front) -> None:
    session = new_session(front, name="Before the edit")
    for words in ("echo one", "echo two"):
        send(front, session, words)
        until_quiet(front, session)
    page = open_talk(front, session)
    own(page, "echo two").hover()
    own(page, "echo two").get_by_role("button", name="What to do with You").click()
    page.get_by_role("menuitem", name="Edit, in a conversation of its own").click()
    expect(composer(page)).to_have_value("echo two")
    page.keyboard.press("Escape")
    expect(composer(page)).to_have_value("")
    own(page, "echo two").get_by_role("button", name="What to do with You").click()
    page.get_by_role("menuitem", name="Edit, in a conversation of its own").click()
    say(page, "echo three")
    expect(replies(page)).to_have_text(["one", "three"])
    assert not page.url.endswith(session)
    edited = page.url.rpartition("/")[2]
    until_quiet(front, edited)  # words are shown before they are stored
    assert said(front, session) == ["one", "two"]
    assert said(front, edited) == ["one", "three"]


def test_an_exchange_is_taken_out_in_every_window(front: Front) -> None:
    session = new_session(front)
    for words in ("echo one", "echo two", "echo three"):
        send(front, session, words)
        until_quiet(front, session)
    page, other = open_talk(front, session), open_talk(front, session)
    own(page, "echo two").hover()
    own(page, "echo two").get_by_role("button", name="What to do with You").click()
    page.get_by_role("menuitem", name="Take out this exchange").click()
    for window in (page, other):
        expect(replies(window)).to_have_text(["one", "three"])
    own(page, "echo one").hover()
    own(page, "echo one").get_by_role("button", name="What to do with You").click()
    page.get_by_role("menuitem", name="Take out all that came after").click()
    for window in (page, other):
        expect(own(window, "echo three")).to_have_count(0)


def test_what_the_house_says_does_not_look_like_what_people_and_agents_say(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    notes = lines(page).get_by_role("note")
    say(page, "be silent")
    expect(notes).to_have_text(["guide read this and chose not to answer."])
    say(page, "fail")
    expect(notes.nth(1)).to_contain_text("This run failed")
    say(page, "/status")
    expect(lines(page).get_by_text("House, to you alone")).to_be_visible()
    expect(lines(page).locator(".aside .asked")).to_have_text("/status")
    expect(own(page, "/status")).to_have_count(0)
    choose(page, "Make it shorter")
    expect(lines(page).get_by_text("What was before, in short")).to_be_visible()
    expect(notes.filter(has_text="For the agent, from You")).to_contain_text("Compact this conversation.")
    until_quiet(front, session)
    choose(page, "Begin afresh")
    expect(lines(page).get_by_text("A fresh context begins here")).to_be_visible()
    expect(lines(page).get_by_text("What is above is no longer read by the agent.")).to_be_visible()
    page.get_by_role("button", name="Show what was before").click()
    expect(own(page, "be silent")).to_have_count(1)
    assert violations(page) == []


def test_a_word_is_found_wherever_it_was_said(front: Front) -> None:
    words = ["the needle in the hay" if i == 20 else f"line {i}" for i in range(1_000)]
    session = import_session(front, [{"type": "user_message", "text": each} for each in words])
    page = open_talk(front, session)
    expect(lines(page).get_by_text("line 999", exact=True)).to_be_visible()
    page.keyboard.press("Control+f")
    search = page.get_by_role("searchbox", name="Find in this conversation")
    expect(search).to_be_focused()
    search.press_sequentially("needle")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    expect(lines(page).get_by_text("the needle in the hay")).to_be_in_viewport()
    assert page.evaluate("[...CSS.highlights.get('found')].map(String)") == ["needle"]
    search.fill("line 99")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("11 of 11")
    search.press("Enter")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("10 of 11")
    search.fill("not said by anyone")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("nothing")
    search.press("Escape")
    expect(search).to_have_count(0)
    expect(composer(page)).to_be_focused()


def test_a_phone_shows_all_of_it(front: Front) -> None:
    said_before = [{"type": "user_message", "text": "echo"}, {"type": "assistant_message", "text": "long " * 400}]
    session = import_session(front, said_before)
    page = open_talk(front, session, size="phone")
    bar = page.get_by_role("navigation", name="Screens").bounding_box()
    box = composer(page).bounding_box()
    assert bar and box and box["y"] + box["height"] <= bar["y"]
    expect(lines(page).locator("article").last).to_be_in_viewport()
    # A keyboard takes half of the screen: what one types in, and what was said last, stay in sight.
    page.set_viewport_size({"width": 360, "height": 380})
    expect(composer(page)).to_be_in_viewport()
    expect(lines(page).locator("article footer").last).to_be_in_viewport()
    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.get_by_role("searchbox", name="Find a conversation")).not_to_be_in_viewport()
    page.get_by_role("button", name="Show conversations").click()
    expect(page.get_by_role("searchbox", name="Find a conversation")).to_be_in_viewport()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox", name="Find a conversation")).not_to_be_in_viewport()


def test_the_keyboard_help_opens_in_a_conversation(front: Front) -> None:
    """Two shortcuts have the same key there, and the list of them could not be made."""
    page = open_talk(front, new_session(front))
    leave_composer(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog").get_by_text("Close").first).to_be_visible()
    expect(page.get_by_role("dialog").get_by_text("Show or hide the panels")).to_be_visible()
