"""Delegations in the Activity screen and in conversations, switching to another agent, and the system prompt."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from api.tcp_server import ApiClient
from playwright.sync_api import Locator, Page, expect
from web.browser import WebApp, find_violations, scrolls_sideways
from web.chat_actions import (
    choose_menu_item,
    composer,
    create_session,
    message_log,
    open_chat,
    own_messages,
    replies,
    send_by_api,
    type_message,
    wait_until_idle,
)
from web.test_activity import start_session

HOSTILE = '<img src=x onerror="alert(1)"> [click](javascript:alert(1)) \u202eallow'
SLOW = "slow 300"


def tool_call(tool: str, **arguments: Any) -> str:
    return f"call {tool} {json.dumps(arguments)}"


@pytest.fixture(scope="module", autouse=True)
def agents(server: ApiClient) -> None:
    for name in ("bo", "cy"):
        server.do("agent.register", name=name, model="guide", delegation_depth_max=3)
    server.do("agent.set", name="guide", delegation_depth_max=3)


def list_delegations(server: ApiClient, session: str = "") -> list[dict[str, Any]]:
    return server.do("delegation.list", session=session)["delegations"]


def tree(page: Page, name: str) -> Locator:
    return page.get_by_role("article").filter(has=page.get_by_role("link", name=name, exact=True))


@contextmanager
def serve_external_page() -> Iterator[str]:
    """Serve a page with untrusted content; its host and port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain")
            self.end_headers()
            self.wfile.write(b"Untrusted text.")

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


def test_stopping_a_delegation_on_the_activity_screen_stops_its_whole_tree(app: WebApp) -> None:
    page = app.open_window("/activity/delegated")
    # A chain of two delegations: guide to bo, bo to cy.
    inner = tool_call("agents_message", agentId="cy", content=SLOW)
    session, _ = start_session(
        app.server, "guide", tool_call("agents_message", agentId="bo", content=inner), "Take stock"
    )
    shown = tree(page, "Take stock")
    top = shown.locator("[data-delegation]").filter(has_text="asked bo")
    under = shown.get_by_role("list", name="Delegated by bo")
    expect(top).to_contain_text("waiting for an agent")
    expect(under).to_contain_text("asked cy")
    expect(under).to_contain_text("working")
    expect(page.get_by_role("link", name="Delegated")).to_contain_text("2")
    assert find_violations(page) == []
    phone = app.open_window("/activity/delegated", size="phone", theme="dark")
    expect(tree(phone, "Take stock")).to_contain_text("asked cy")
    assert not scrolls_sideways(phone)
    assert find_violations(phone) == []

    page.get_by_role("button", name="Stop bo: call agents_message").click()
    for window in (page, phone):
        badges = tree(window, "Take stock").get_by_text("stopped", exact=True)
        expect(badges).to_have_count(2)
        expect(window.get_by_role("button", name="Stop bo")).to_have_count(0)
    assert {each["status"] for each in list_delegations(app.server, session)} == {"stopped"}
    page.get_by_role("checkbox", name="Show only open delegations").check()
    expect(page.get_by_text("No open delegations")).to_be_visible()
    page.get_by_role("checkbox", name="Show only open delegations").uncheck()
    shown.get_by_role("link", name=f"Conversation of cy: {SLOW}").click()
    expect(message_log(page).get_by_role("article").first).to_contain_text(SLOW)
    page.go_back()
    shown.get_by_role("link", name=f"Run of cy: {SLOW}").click()
    expect(page).to_have_url(re.compile("/runs/"))


def test_the_chat_shows_a_subagent_at_its_delegation_call_and_marks_its_result(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    type_message(page, tool_call("sessions_spawn", task=f"echo {HOSTILE}", label="chairs"))
    row = message_log(page).locator(".call [data-delegation]")
    expect(row).to_contain_text("started subagent guide chairs")
    expect(row).to_contain_text("done")
    notification = message_log(page).get_by_role("article").filter(has_text="started subagent “chairs”")
    expect(notification).to_contain_text("done")
    expect(notification.get_by_text("findings:")).to_be_hidden()
    notification.get_by_text("Text for guide").click()
    expect(notification.get_by_text("findings:")).to_be_visible()
    expect(notification).to_contain_text("onerror")
    expect(notification.locator("img")).to_have_count(0)
    assert find_violations(page) == []
    wait_until_idle(app, session)
    [delegation] = list_delegations(app.server, session)
    row.get_by_role("link", name="Conversation of guide: chairs").click()
    expect(page).to_have_url(re.compile(delegation["target_session"]))
    request = message_log(page).get_by_role("article").first
    expect(request).to_contain_text("started subagent “chairs”")
    request.get_by_role("link", name="Conversation of guide").click()
    expect(page).to_have_url(re.compile(session))


def test_a_delegation_is_stopped_from_its_tool_call_on_the_chat_screen(app: WebApp) -> None:
    session = create_session(app)
    page = open_chat(app, session)
    type_message(page, tool_call("agents_message", agentId="bo", content=SLOW))
    row = message_log(page).locator(".call [data-delegation]")
    expect(row).to_contain_text("working")
    expect(message_log(page).get_by_text("Waiting for bo")).to_be_visible()
    row.get_by_role("button", name=f"Stop bo: {SLOW}").click()
    expect(row).to_contain_text("stopped")
    wait_until_idle(app, session)
    expect(replies(page).last).to_contain_text("asked to")


def test_agent_messages_are_marked_and_untrusted_content_is_labeled(app: WebApp) -> None:
    session = create_session(app)
    app.server.do("grant.add", agent="guide", permission="@web", because="it reads")
    with serve_external_page() as host:
        file = app.server.process.home / "retinue.toml"
        file.write_text(f'{file.read_text()}\n[web]\nprivate_hosts = ["{host}"]\n')
        app.server.do("config.reload")
        send_by_api(app, session, tool_call("web_fetch", url=f"http://{host}/"))
        wait_until_idle(app, session)
    page = open_chat(app, session)
    type_message(page, tool_call("agents_message", agentId="cy", content="echo good day", mode="async"))
    page.get_by_role("button", name="Allow once").click()  # untrusted content requires approval
    answer = message_log(page).get_by_role("article").filter(has=page.get_by_text("answer", exact=True))
    expect(answer.locator("header")).to_contain_text("cy")
    expect(answer.get_by_role("link", name="Conversation of cy")).to_be_visible()
    wait_until_idle(app, session)
    [delegation] = list_delegations(app.server, session)
    page.goto(f"{app.server.address}/chat/{delegation['target_session']}")
    request = message_log(page).get_by_role("article").filter(has_text="echo good day").first
    for section in ("guide", "request", "Untrusted"):
        expect(request.locator("header")).to_contain_text(section)
    expect(own_messages(page, "echo good day")).to_have_count(0)


@pytest.mark.spec("A81")
def test_a_person_switches_to_another_agent_in_a_chat_dialog_with_a_message_and_returns(app: WebApp) -> None:
    session = create_session(app, name="The offsite")
    page = open_chat(app, session)
    type_message(page, "echo the offsite is on Friday")
    expect(replies(page)).to_have_text(["the offsite is on Friday"])
    choose_menu_item(page, "Switch to another agent…")
    dialog = page.get_by_role("dialog", name="Switch to another agent")
    message = dialog.get_by_role("textbox", name="Message")
    expect(message).to_have_value("echo the offsite is on Friday")
    expect(dialog.get_by_role("button", name="Switch", exact=True)).to_be_disabled()
    dialog.get_by_role("radio", name="bo").check()
    message.fill("echo which room\nfor the offsite?")
    assert find_violations(page) == []
    dialog.get_by_role("button", name="Switch to bo").click()
    expect(page).not_to_have_url(re.compile(session))
    expect(composer(page)).to_have_attribute("placeholder", "Message bo")
    expect(replies(page).last).to_contain_text("for the offsite?")
    there = page.url.rpartition("/")[2]
    wait_until_idle(app, there)

    page.get_by_role("button", name="Return to guide…").click()
    back = page.get_by_role("dialog", name="Return to guide")
    back.get_by_role("button", name="Return").click()
    expect(page).to_have_url(re.compile(session))
    note = message_log(page).get_by_role("note").filter(has_text="System message from bo")
    type_message(page, "echo thank you")
    expect(replies(page).last).to_have_text("thank you")
    expect(note).to_contain_text("which room")

    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("switch to cy")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("radio", name="cy")).to_be_checked()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_the_agents_screen_shows_the_system_prompt_by_section_with_its_changes(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="dee", model="guide", instructions="You count chairs.")
    session, _ = start_session(server, "dee", "echo hello", "Chairs of dee")
    wait_until_idle(app, session)
    page = app.open_window("/agents/dee/instructions")
    shown = page.get_by_role("region", name="System prompt")
    shown.get_by_text("identity", exact=True).click()
    section = page.get_by_role("region", name="identity", exact=True)
    expect(section).to_contain_text("You count chairs.")
    expect(shown).to_contain_text(re.compile(r"[\d,]+ tokens in \d+ sections"))
    assert find_violations(page) == []
    page.get_by_role("combobox", name="Mode").select_option("none")
    expect(shown).to_contain_text(re.compile(r"tokens in 1 section\b"))
    page.get_by_role("combobox", name="Mode").select_option("")

    page.get_by_role("combobox", name="Conversation").select_option(session)
    changes = page.get_by_role("region", name="Changes")
    expect(changes).to_contain_text("uses the same system prompt")
    server.do("agent.set", name="dee", instructions=f"You count lamps. {HOSTILE}")
    expect(changes.get_by_role("group", name="Last and next system prompt")).to_contain_text("lamps")
    expect(section).to_contain_text("onerror")
    expect(page.locator("pre img")).to_have_count(0)

    page.get_by_text("Test a template").click()
    template = page.get_by_role("textbox", name="Template (Jinja)")
    template.fill("one\n{{ nobody }}")
    page.get_by_role("button", name="Test template").click()
    refused = page.get_by_role("alert")
    expect(refused).to_contain_text("nobody")
    expect(refused).to_contain_text("line 2")
    template.fill("I am {{ agent.name }}, größer.")
    page.get_by_role("button", name="Test template").click()
    expect(page.get_by_role("region", name="Rendered text")).to_have_text("I am dee, größer.")
    expect(refused).to_have_count(0)
    app.console_errors.clear()  # the refused request was expected

    folder = server.process.home / "instructions"
    folder.mkdir()
    (folder / "instructions.md.j2").write_text("one\ntwo\n{{ nowhere }}")
    page.reload()
    expect(refused).to_contain_text("The last valid template is still used")
    expect(refused).to_contain_text("line 3")
    (folder / "instructions.md.j2").unlink()
    phone = app.open_window("/agents/dee/instructions", size="phone", theme="dark")
    expect(phone.get_by_role("region", name="System prompt")).to_contain_text("identity")
    assert not scrolls_sideways(phone)
    assert find_violations(phone) == []


def test_the_system_prompt_mode_of_an_agent_can_be_edited_on_the_agents_screen(app: WebApp, server: ApiClient) -> None:
    server.do("agent.register", name="eve", model="guide")
    page = app.open_window("/agents/eve")
    page.get_by_role("combobox", name="System prompt").select_option("minimal")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version")).to_be_visible()
    assert server.do("agent.show", name="eve")["instructions_mode"] == "minimal"
