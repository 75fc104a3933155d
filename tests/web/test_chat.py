"""The Chat screen: sending, attachments, tool calls, queueing, forks, removal from context and search."""

from __future__ import annotations

import base64
import json
import re

from playwright.sync_api import Route, expect
from web.browser import WebApp, find_violations
from web.chat_actions import (
    choose_menu_item,
    composer,
    create_session,
    hold_first_response,
    import_session,
    leave_composer,
    make_blocking_message,
    message_log,
    open_chat,
    own_messages,
    replies,
    send_by_api,
    stored_replies,
    type_message,
    wait_in_page,
    wait_until_idle,
)

DURATION = re.compile(r"^\d+(\.\d)? m?s$")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_a_message_sent_on_the_chat_screen_is_shown_at_once_and_exactly_once(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    other = open_chat(app, session)

    def send_once_shown(route: Route) -> None:
        expect(own_messages(page, "echo good day")).to_have_count(1)
        route.continue_()

    page.route("**/api/envelope/send", send_once_shown)
    type_message(page, "echo good day")
    expect(replies(page)).to_have_text(["good day"])
    for window in (page, other):
        expect(own_messages(window, "echo good day")).to_have_count(1)
        expect(replies(window)).to_have_text(["good day"])
        window.reload()
        expect(own_messages(window, "echo good day")).to_have_count(1)
        expect(replies(window)).to_have_text(["good day"])
    wait_until_idle(app, session)
    assert stored_replies(app, session) == ["good day"]
    assert len(app.server.process.list_envelopes_with_text("echo good day")) == 1


def test_enter_sends_and_shift_enter_breaks_the_line(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    composer(page).press_sequentially("echo one")
    composer(page).press("Shift+Enter")
    composer(page).press_sequentially("two")
    assert message_log(page).locator("article").count() == 0
    composer(page).press("Enter")
    expect(composer(page)).to_have_value("")
    expect(message_log(page).locator("article.own p")).to_have_text("echo one\ntwo")
    expect(replies(page)).to_contain_text("two")  # the message is shown before it is sent
    [sent] = [x for x in app.server.do("session.transcript", session=session)["records"] if x["kind"] == "user"]
    assert sent["envelopes"][0]["text"] == "echo one\ntwo"


def test_a_chat_message_written_while_the_server_is_down_is_sent_once_after_a_restart(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    app.server.process.kill()
    type_message(page, "echo are you there")
    expect(page.get_by_text("Not sent.")).to_be_visible()
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("Not sent.")).to_be_visible()
    app.server.process.open(again_at=app.server.address)
    expect(page.get_by_text("Not sent.")).to_have_count(0)
    expect(replies(page)).to_have_text(["are you there"])
    expect(own_messages(page, "echo are you there")).to_have_count(1)
    assert len(app.server.process.list_envelopes_with_text("echo are you there")) == 1


def test_a_chat_message_whose_response_was_lost_is_not_sent_twice(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)

    def drop_response(route: Route) -> None:
        route.fetch()
        route.abort()
        page.unroute("**/api/envelope/send")

    page.route("**/api/envelope/send", drop_response)
    type_message(page, "echo only once")
    expect(page.get_by_text("Not sent.")).to_be_visible()
    page.reload()  # an unsent message is kept with its idempotency key
    expect(page.get_by_text("Not sent.")).to_have_count(0)
    expect(own_messages(page, "echo only once")).to_have_count(1)
    assert len(app.server.process.list_envelopes_with_text("echo only once")) == 1
    app.console_errors.clear()  # the failed request was expected


def test_each_conversation_keeps_its_draft(app: WebApp) -> None:
    one, two = create_session(app, name="Draft one"), create_session(app, name="Draft two")
    page = open_chat(app, one)
    composer(page).fill("not yet")
    page.get_by_role("link", name="Draft two").click()
    expect(composer(page)).to_have_value("")
    composer(page).fill("nor this")
    page.reload()
    expect(composer(page)).to_have_value("nor this")
    page.goto(f"{app.server.address}/chat/{one}")
    expect(composer(page)).to_have_value("not yet")
    assert stored_replies(app, two) == []


def test_the_thinking_of_a_model_is_collapsed_on_the_chat_screen(app: WebApp) -> None:
    page = open_chat(app, create_session(app))
    type_message(page, "think about tea")
    expect(replies(page)).to_contain_text(["I thought about tea."])
    thought = message_log(page).get_by_text("these thoughts were written before you asked")
    expect(thought).to_be_hidden()
    message_log(page).get_by_text("Thinking", exact=True).click()
    expect(thought).to_be_visible()


def test_a_tool_call_on_the_chat_screen_shows_arguments_duration_result_and_reason(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    type_message(page, 'call read {"path": "SOUL.md"}')
    card = message_log(page).locator("details.card")
    expect(card.locator("summary")).to_contain_text("read")
    expect(card.locator(".state")).to_have_text(DURATION)
    wait_until_idle(app, session)
    page.reload()
    expect(card.locator(".state")).to_have_text(DURATION)
    card.locator("summary").click()
    expect(card.locator("pre").first).to_contain_text('"path": "SOUL.md"')
    expect(card.get_by_text("Reason:")).to_be_visible()
    type_message(page, "status")
    card = message_log(page).locator("details.card").nth(1)
    expect(card.locator(".state")).to_have_text(DURATION)
    wait_until_idle(app, session)  # the layout no longer moves under the pointer
    card.locator("summary").click()
    expect(card.locator("pre").last).to_contain_text("agent: guide")
    assert find_violations(page) == []


def test_files_are_attached_by_dialog_drop_and_paste(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files([{"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL}])
    attach = """(target, [kind, name, words]) => {
        const data = new DataTransfer();
        data.items.add(new File([words], name, {type: "text/plain"}));
        const event = kind === "paste"
            ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true})
            : new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
        target.dispatchEvent(event);
    }"""
    message_log(page).evaluate(attach, ["drop", "dropped.txt", "from the desktop"])
    composer(page).evaluate(attach, ["paste", "<b>pasted.txt", "from the clipboard"])
    attached = page.get_by_role("list", name="Attached files")
    expect(attached.get_by_role("listitem")).to_have_count(3)
    page.get_by_role("button", name="Remove dropped.txt").click()
    expect(attached.get_by_role("listitem")).to_have_count(2)
    type_message(page, "echo look")
    expect(message_log(page).get_by_role("img", name="dot.png")).to_be_visible()
    assert (
        message_log(page)
        .get_by_role("img", name="dot.png")
        .evaluate("async each => (await each.decode(), each.naturalWidth)")
        == 1
    )
    with page.expect_download() as download:
        message_log(page).get_by_role("link", name="pasted").click()
    assert download.value.path().read_bytes() == b"from the clipboard"
    expect(replies(page)).to_have_text(["look"])
    [mail] = [
        x["envelopes"][0]
        for x in app.server.do("session.transcript", session=session)["records"]
        if x["kind"] == "user"
    ]
    assert [each["media_type"] for each in mail["attachments"]] == ["image/png", "text/plain"]


def test_a_run_is_stopped_by_button_and_by_key_on_the_chat_screen(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    type_message(page, "slow 300")
    expect(page.get_by_text("guide is working").first).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(message_log(page).get_by_role("note")).to_contain_text(["asked to stop"])
    wait_until_idle(app, session)
    type_message(page, "slow 300")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    wait_until_idle(app, session)


def test_a_queued_message_can_be_cancelled_on_the_chat_screen(app: WebApp) -> None:
    session = create_session(app)
    page, other = open_chat(app, session), open_chat(app, session)
    busy = make_blocking_message(app.server)
    type_message(page, busy.text)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    type_message(page, "echo first")
    type_message(page, "echo second")
    for window in (page, other):
        expect(own_messages(window, "echo first").get_by_text("Queued", exact=True)).to_be_visible()
        expect(own_messages(window, "echo second")).to_contain_text("Queued, position 2")
    page.get_by_role("button", name="Cancel: echo first").click()
    for window in (page, other):
        expect(own_messages(window, "echo first")).to_have_count(0)
        expect(own_messages(window, "echo second").get_by_text("Queued", exact=True)).to_be_visible()
    busy.release()
    for window in (page, other):
        expect(replies(window)).to_contain_text(["second"])
        expect(own_messages(window, "echo second")).to_have_count(1)
    wait_until_idle(app, session)
    assert not any("first" in each for each in stored_replies(app, session))


def test_a_late_response_does_not_hide_a_queued_message_on_the_chat_screen(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    older = hold_first_response(page, "**/api/session/queued")
    page.reload()
    expect(composer(page)).to_be_visible()
    wait_in_page(page, lambda: bool(older.held))
    busy = make_blocking_message(app.server)
    type_message(page, busy.text)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    type_message(page, "echo later")
    expect(own_messages(page, "echo later").get_by_text("Queued", exact=True)).to_be_visible()
    assert older.json()["envelopes"] == []
    older.release()
    expect(own_messages(page, "echo later").get_by_text("Queued", exact=True)).to_be_visible()
    busy.release()
    expect(replies(page)).to_contain_text(["later"])
    wait_until_idle(app, session)


def test_a_chat_message_can_be_added_to_the_current_run_by_the_composer(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    busy = make_blocking_message(app.server)
    type_message(page, busy.text)
    page.get_by_role("radio", name="Add to this run").check()
    with page.expect_request("**/api/envelope/send") as asked:
        type_message(page, "echo by the way")
    assert json.loads(asked.value.post_data or "")["when_busy"] == "steer"
    expect(own_messages(page, "echo by the way")).to_have_count(1)
    busy.release()
    wait_until_idle(app, session)
    expect(own_messages(page, "echo by the way")).to_have_count(1)


def test_a_sent_message_is_edited_in_a_fork_on_the_chat_screen(app: WebApp) -> None:
    session = create_session(app, name="Before the edit")
    for text in ("echo one", "echo two"):
        send_by_api(app, session, text)
        wait_until_idle(app, session)
    page = open_chat(app, session)
    own_messages(page, "echo two").hover()
    own_messages(page, "echo two").get_by_role("button", name="Actions for You").click()
    page.get_by_role("menuitem", name="Edit in a fork").click()
    expect(composer(page)).to_have_value("echo two")
    page.keyboard.press("Escape")
    expect(composer(page)).to_have_value("")
    own_messages(page, "echo two").get_by_role("button", name="Actions for You").click()
    page.get_by_role("menuitem", name="Edit in a fork").click()
    type_message(page, "echo three")
    expect(replies(page)).to_have_text(["one", "three"])
    assert not page.url.endswith(session)
    edited = page.url.rpartition("/")[2]
    wait_until_idle(app, edited)  # replies are shown before they are stored
    assert stored_replies(app, session) == ["one", "two"]
    assert stored_replies(app, edited) == ["one", "three"]


def test_messages_removed_from_context_on_the_chat_screen_are_removed_in_every_window(app: WebApp) -> None:
    session = create_session(app)
    for text in ("echo one", "echo two", "echo three"):
        send_by_api(app, session, text)
        wait_until_idle(app, session)
    page, other = open_chat(app, session), open_chat(app, session)
    own_messages(page, "echo two").hover()
    own_messages(page, "echo two").get_by_role("button", name="Actions for You").click()
    page.get_by_role("menuitem", name="Remove from context").click()
    for window in (page, other):
        expect(replies(window)).to_have_text(["one", "three"])
    own_messages(page, "echo one").hover()
    own_messages(page, "echo one").get_by_role("button", name="Actions for You").click()
    page.get_by_role("menuitem", name="Remove everything after this from context").click()
    for window in (page, other):
        expect(own_messages(window, "echo three")).to_have_count(0)


def test_server_notes_on_the_chat_screen_look_different_from_messages(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    notes = message_log(page).get_by_role("note")
    type_message(page, "be silent")
    expect(notes).to_have_text(["guide read this and did not reply."])
    type_message(page, "fail")
    expect(notes.nth(1)).to_contain_text("This run failed")
    type_message(page, "/status")
    expect(message_log(page).get_by_text("Server, visible only to you")).to_be_visible()
    expect(message_log(page).locator(".command-reply .command")).to_have_text("/status")
    expect(own_messages(page, "/status")).to_have_count(0)
    choose_menu_item(page, "Compact")
    expect(message_log(page).get_by_text("Summary of earlier messages")).to_be_visible()
    expect(notes.filter(has_text="System message from You")).to_contain_text("Compact this conversation.")
    wait_until_idle(app, session)
    choose_menu_item(page, "Reset context")
    expect(message_log(page).get_by_text("Context reset")).to_be_visible()
    expect(message_log(page).get_by_text("The agent no longer reads the messages above.")).to_be_visible()
    page.get_by_role("button", name="Show earlier messages").click()
    expect(own_messages(page, "be silent")).to_have_count(1)
    assert find_violations(page) == []


def test_find_on_the_chat_screen_searches_the_whole_conversation(app: WebApp) -> None:
    text = ["the needle in the hay" if i == 20 else f"line {i}" for i in range(1_000)]
    session = import_session(app, [{"type": "user_message", "text": each} for each in text])
    page = open_chat(app, session)
    expect(message_log(page).get_by_text("line 999", exact=True)).to_be_visible()
    page.keyboard.press("Control+f")
    search = page.get_by_role("searchbox", name="Find in conversation")
    expect(search).to_be_focused()
    search.press_sequentially("needle")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    expect(message_log(page).get_by_text("the needle in the hay")).to_be_in_viewport()
    assert page.evaluate("[...CSS.highlights.get('found')].map(String)") == ["needle"]
    search.fill("line 99")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("11 of 11")
    search.press("Enter")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("10 of 11")
    search.fill("not said by anyone")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("no matches")
    search.press("Escape")
    expect(search).to_have_count(0)
    expect(composer(page)).to_be_focused()


def test_a_phone_shows_the_whole_conversation(app: WebApp) -> None:
    history = [{"type": "user_message", "text": "echo"}, {"type": "assistant_message", "text": "long " * 400}]
    session = import_session(app, history)
    page = open_chat(app, session, size="phone")
    bar = page.get_by_role("navigation", name="Screens").bounding_box()
    box = composer(page).bounding_box()
    assert bar and box and box["y"] + box["height"] <= bar["y"]
    expect(message_log(page).locator("article").last).to_be_in_viewport()
    # An on-screen keyboard takes half of the screen: the composer and the last message stay visible.
    page.set_viewport_size({"width": 360, "height": 380})
    expect(composer(page)).to_be_in_viewport()
    expect(message_log(page).locator("article footer").last).to_be_in_viewport()
    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.get_by_role("searchbox", name="Find a conversation")).not_to_be_in_viewport()
    page.get_by_role("button", name="Show conversations").click()
    expect(page.get_by_role("searchbox", name="Find a conversation")).to_be_in_viewport()
    assert find_violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox", name="Find a conversation")).not_to_be_in_viewport()


def test_the_shortcut_help_opens_in_a_conversation(app: WebApp) -> None:
    """Two shortcuts have the same key there, which once broke the list."""
    page = open_chat(app, create_session(app))
    leave_composer(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog").get_by_text("Close").first).to_be_visible()
    expect(page.get_by_role("dialog").get_by_text("Show or hide panels")).to_be_visible()
