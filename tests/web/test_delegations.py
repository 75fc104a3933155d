"""Work that agents hand to one another: as trees in the live house, in the conversations it was asked in and done in,
and a person who goes on with another agent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from api.tcp_server import Rim
from playwright.sync_api import Locator, Page, expect
from web.browser import Front, scrolls_sideways, violations
from web.chat_actions import choose, composer, lines, new_session, open_talk, own, replies, say, send, until_quiet
from web.test_activity import begin

HOSTILE = '<img src=x onerror="alert(1)"> [click](javascript:alert(1)) \u202eallow'
SLOW = "slow 300"


def call(tool: str, **arguments: Any) -> str:
    return f"call {tool} {json.dumps(arguments)}"


@pytest.fixture(scope="module", autouse=True)
def staff(rim: Rim) -> None:
    for name in ("bo", "cy"):
        rim.do("agent.register", name=name, model="guide", delegation_depth_max=3)
    rim.do("agent.set", name="guide", delegation_depth_max=3)


def handed(rim: Rim, session: str = "") -> list[dict[str, Any]]:
    return rim.do("delegation.list", session=session)["delegations"]


def tree(page: Page, name: str) -> Locator:
    return page.get_by_role("article").filter(has=page.get_by_role("link", name=name, exact=True))


@contextmanager
def outside() -> Iterator[str]:
    """A page that somebody else wrote."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain")
            self.end_headers()
            self.wfile.write(b"Words of a stranger.")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_tree_grows_is_stopped_at_its_root_and_stays_to_be_read(front: Front) -> None:
    page = front.window("/live/handed")
    # Two links of the chain, and one that sits at the end of it.
    inner = call("agents_message", agentId="cy", content=SLOW)
    session, _ = begin(front.rim, "guide", call("agents_message", agentId="bo", content=inner), "Take stock")
    shown = tree(page, "Take stock")
    top = shown.locator("[data-delegation]").filter(has_text="asked bo")
    under = shown.get_by_role("list", name="What bo handed on")
    expect(top).to_contain_text("waits for another")
    expect(under).to_contain_text("asked cy")
    expect(under).to_contain_text("at work")
    expect(page.get_by_role("link", name="Handed on")).to_contain_text("2")
    assert violations(page) == []
    phone = front.window("/live/handed", size="phone", theme="dark")
    expect(tree(phone, "Take stock")).to_contain_text("asked cy")
    assert not scrolls_sideways(phone)
    assert violations(phone) == []

    page.get_by_role("button", name="Stop bo: call agents_message").click()
    for window in (page, phone):
        badges = tree(window, "Take stock").get_by_text("stopped", exact=True)
        expect(badges).to_have_count(2)
        expect(window.get_by_role("button", name="Stop bo")).to_have_count(0)
    assert {each["stands"] for each in handed(front.rim, session)} == {"stopped"}
    page.get_by_role("checkbox", name="Only what is open").check()
    expect(page.get_by_text("Nothing is open")).to_be_visible()
    page.get_by_role("checkbox", name="Only what is open").uncheck()
    shown.get_by_role("link", name=f"Conversation of cy: {SLOW}").click()
    expect(lines(page).get_by_role("article").first).to_contain_text(SLOW)
    page.go_back()
    shown.get_by_role("link", name=f"Run of cy: {SLOW}").click()
    expect(page).to_have_url(re.compile("/runs/"))


def test_whoever_was_sent_out_is_seen_at_its_call_and_its_end_is_recognised(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    say(page, call("sessions_spawn", task=f"echo {HOSTILE}", label="chairs"))
    strip = lines(page).locator(".call [data-delegation]")
    expect(strip).to_contain_text("sent out guide chairs")
    expect(strip).to_contain_text("done")
    told = lines(page).get_by_role("article").filter(has_text="sent out “chairs”")
    expect(told).to_contain_text("is done")
    expect(told.get_by_text("findings:")).to_be_hidden()
    told.get_by_text("What guide reads of it").click()
    expect(told.get_by_text("findings:")).to_be_visible()
    expect(told).to_contain_text("onerror")
    expect(told.locator("img")).to_have_count(0)
    assert violations(page) == []
    until_quiet(front, session)
    [made] = handed(front.rim, session)
    strip.get_by_role("link", name="Conversation of guide: chairs").click()
    expect(page).to_have_url(re.compile(made["to"]))
    asked = lines(page).get_by_role("article").first
    expect(asked).to_contain_text("sent out “chairs”")
    asked.get_by_role("link", name="Conversation of guide").click()
    expect(page).to_have_url(re.compile(session))


def test_work_is_stopped_where_it_was_asked_and_the_card_says_so(front: Front) -> None:
    session = new_session(front)
    page = open_talk(front, session)
    say(page, call("agents_message", agentId="bo", content=SLOW))
    strip = lines(page).locator(".call [data-delegation]")
    expect(strip).to_contain_text("at work")
    expect(lines(page).get_by_text("guide waits for whom it has asked")).to_be_visible()
    strip.get_by_role("button", name=f"Stop bo: {SLOW}").click()
    expect(strip).to_contain_text("stopped")
    until_quiet(front, session)
    expect(replies(page).last).to_contain_text("asked to")


def test_mail_of_another_agent_is_told_apart_and_words_from_outside_are_marked(front: Front) -> None:
    session = new_session(front)
    front.rim.do("grant.add", agent="guide", permission="@web", because="it reads")
    with outside() as host:
        file = front.rim.process.home / "retinue.toml"
        file.write_text(f'{file.read_text()}\n[web]\nprivate_hosts = ["{host}"]\n')
        front.rim.do("config.reload")
        send(front, session, call("web_fetch", url=f"http://{host}/"))
        until_quiet(front, session)
    page = open_talk(front, session)
    say(page, call("agents_message", agentId="cy", content="echo good day", mode="async"))
    page.get_by_role("button", name="Allow once").click()  # words from outside get nothing done by themselves
    answer = lines(page).get_by_role("article").filter(has=page.get_by_text("answers", exact=True))
    expect(answer.locator("header")).to_contain_text("cy")
    expect(answer.get_by_role("link", name="Conversation of cy")).to_be_visible()
    until_quiet(front, session)
    [made] = handed(front.rim, session)
    page.goto(f"{front.rim.address}/chat/{made['to']}")
    asked = lines(page).get_by_role("article").filter(has_text="echo good day").first
    for words in ("guide", "asks", "From outside"):
        expect(asked.locator("header")).to_contain_text(words)
    expect(own(page, "echo good day")).to_have_count(0)


@pytest.mark.spec("A81")
def test_a_person_goes_on_with_another_agent_takes_the_topic_along_and_comes_back(front: Front) -> None:
    session = new_session(front, name="The offsite")
    page = open_talk(front, session)
    say(page, "echo the offsite is on Friday")
    expect(replies(page)).to_have_text(["the offsite is on Friday"])
    choose(page, "Go on with another agent…")
    dialog = page.get_by_role("dialog", name="Go on with another agent")
    topic = dialog.get_by_role("textbox", name="What to take along")
    expect(topic).to_have_value("echo the offsite is on Friday")
    expect(dialog.get_by_role("button", name="Go on", exact=True)).to_be_disabled()
    dialog.get_by_role("radio", name="bo").check()
    topic.fill("echo which room\nfor the offsite?")
    assert violations(page) == []
    dialog.get_by_role("button", name="Go on with bo").click()
    expect(page).not_to_have_url(re.compile(session))
    expect(composer(page)).to_have_attribute("placeholder", "Message bo")
    expect(replies(page).last).to_contain_text("for the offsite?")
    there = page.url.rpartition("/")[2]
    until_quiet(front, there)

    page.get_by_role("button", name="Back to guide…").click()
    back = page.get_by_role("dialog", name="Back to guide")
    back.get_by_role("button", name="Go back").click()
    expect(page).to_have_url(re.compile(session))
    note = lines(page).get_by_role("note").filter(has_text="For the agent, from bo")
    say(page, "echo thank you")
    expect(replies(page).last).to_have_text("thank you")
    expect(note).to_contain_text("which room")

    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("go on with cy")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("radio", name="cy")).to_be_checked()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_what_an_agent_is_told_is_read_by_section_and_what_changed_is_seen(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="dee", model="guide", instructions="You count chairs.")
    session, _ = begin(rim, "dee", "echo hello", "Chairs of dee")
    until_quiet(front, session)
    page = front.window("/agents/dee/instructions")
    shown = page.get_by_role("region", name="What it is told")
    shown.get_by_text("identity", exact=True).click()
    words = page.get_by_role("region", name="identity", exact=True)
    expect(words).to_contain_text("You count chairs.")
    expect(shown).to_contain_text(re.compile(r"[\d,]+ tokens in \d+ sections"))
    assert violations(page) == []
    page.get_by_role("combobox", name="How much").select_option("none")
    expect(shown).to_contain_text(re.compile(r"tokens in 1 section\b"))
    page.get_by_role("combobox", name="How much").select_option("")

    page.get_by_role("combobox", name="As told in").select_option(session)
    changed = page.get_by_role("region", name="What changed")
    expect(changed).to_contain_text("is told the same")
    rim.do("agent.set", name="dee", instructions=f"You count lamps. {HOSTILE}")
    expect(changed.get_by_role("group", name="What was told last, and what is told next")).to_contain_text("lamps")
    expect(words).to_contain_text("onerror")
    expect(page.locator("pre img")).to_have_count(0)

    page.get_by_text("Try a template").click()
    template = page.get_by_role("textbox", name="Template, in Jinja")
    template.fill("one\n{{ nobody }}")
    page.get_by_role("button", name="Try it").click()
    refused = page.get_by_role("alert")
    expect(refused).to_contain_text("nobody")
    expect(refused).to_contain_text("line 2")
    template.fill("I am {{ agent.name }}, größer.")
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_role("region", name="What it comes to")).to_have_text("I am dee, größer.")
    expect(refused).to_have_count(0)
    front.complaints.clear()  # of the refusal, which was meant

    folder = rim.process.home / "instructions"
    folder.mkdir()
    (folder / "instructions.md.j2").write_text("one\ntwo\n{{ nowhere }}")
    page.reload()
    expect(refused).to_contain_text("the last good one stays in use")
    expect(refused).to_contain_text("line 3")
    (folder / "instructions.md.j2").unlink()
    phone = front.window("/agents/dee/instructions", size="phone", theme="dark")
    expect(phone.get_by_role("region", name="What it is told")).to_contain_text("identity")
    assert not scrolls_sideways(phone)
    assert violations(phone) == []


def test_how_much_an_agent_is_told_is_set_in_the_page(front: Front, rim: Rim) -> None:
    rim.do("agent.register", name="eve", model="guide")
    page = front.window("/agents/eve")
    page.get_by_role("combobox", name="How much it is told").select_option("minimal")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version")).to_be_visible()
    assert rim.do("agent.show", name="eve")["instructions_mode"] == "minimal"
