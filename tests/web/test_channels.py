"""The Channels screen: connectors, routing, access requests, identities and unprocessed messages.

The server is real and connects to a fake Telegram."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api.tcp_server import ApiClient
from playwright.sync_api import Locator, Page, expect
from web.browser import WebApp, find_violations, scrolls_sideways, track_requests
from web.channels_instance import NOOR, FakeTelegramUsers, add_poison_message, open_channels_server, open_fake_telegram
from web.test_server_settings import dialog, is_secret_gone

from retinue.testing.wait_conditions import wait_until_sync

SECTIONS = ("", "/routing", "/requests", "/identities", "/unprocessed")
HOSTILE = "<img src=x onerror=alert(1)> \u202eronn"


@pytest.fixture(scope="module")
def telegram() -> Iterator[FakeTelegramUsers]:
    with open_fake_telegram() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, telegram: FakeTelegramUsers) -> Iterator[ApiClient]:
    with open_channels_server(tmp_path_factory.mktemp("channels"), telegram) as opened:
        opened.do("agent.register", name="porter", model="guide", description="Answers senders")
        yield opened


@pytest.fixture(autouse=True)
def no_pending_items(server: ApiClient) -> None:
    """Remove what another test left: access requests, accepted senders and poison messages."""
    known = server.do("pairing.list")
    for each in known["pairings"]:
        if each["state"] == "waiting":
            server.do("pairing.refuse", request=each["id"])
    for each in known["admitted"]:
        server.do("pairing.revoke", connector=each["connector"], sender_id=each["sender_id"])
    for each in server.do("poison_message.list")["poison_messages"]:
        server.do("poison_message.drop", id=each["id"])


def row(page: Page, list_name: str, text: str) -> Locator:
    return page.get_by_role("list", name=list_name).get_by_role("listitem").filter(has_text=text)


def open_section(app: WebApp, section: str = "", **options: Any) -> Page:
    page = app.open_window(f"/channels{section}", **options)
    expect(page.get_by_role("heading", level=1, name="Channels")).to_be_visible()
    return page


def add_access_request(app: WebApp, telegram: FakeTelegramUsers, id_: int, name: str) -> dict[str, Any]:
    """An unknown user writes and waits for access."""
    user = telegram.add_user(id_, name)
    telegram.send_message("Hello?", user)
    page = open_section(app, "/requests")
    expect(row(page, "Access requests", str(id_))).to_be_visible()
    page.context.close()
    return user


def test_the_channels_screen_shows_the_state_of_a_connector_and_the_reason(app: WebApp) -> None:
    page = app.open_window("/runs", patient=True)  # no field has the focus there
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page).to_have_url(f"{app.server.address}/channels")
    family = row(page, "Connectors", "family")
    expect(family).to_contain_text("connected")
    expect(family).to_contain_text("senders you accepted")
    public = row(page, "Connectors", "public")
    expect(public).to_contain_text("action required")
    expect(public).to_contain_text("token")
    expect(public).to_contain_text("Next attempt")
    expect(public).to_contain_text("No message has been received or sent since the server started.")
    expect(row(page, "Connectors", "work")).to_contain_text("disabled")


def test_open_access_to_a_connector_shows_a_warning_on_the_channels_screen(app: WebApp) -> None:
    page = open_section(app)
    warning = page.get_by_role("region", name="Open access")
    expect(warning).to_contain_text("Everyone can send direct messages to public.")
    expect(warning).not_to_contain_text("family")
    warning.get_by_role("link", name="Open doctor").click()
    expect(page).to_have_url(f"{app.server.address}/settings/doctor")


def test_a_connection_test_shows_its_result(app: WebApp) -> None:
    page = open_section(app)
    page.get_by_role("button", name="Test connection of family").click()
    expect(row(page, "Connectors", "family").get_by_role("status")).to_contain_text("retinue_bot")
    page.get_by_role("button", name="Test connection of public").click()
    expect(row(page, "Connectors", "public").get_by_role("status")).to_contain_text("Try:")


def test_the_access_requests_screen_shows_a_new_request_live_and_accepts_it_by_its_code(
    app: WebApp, telegram: FakeTelegramUsers
) -> None:
    page = open_section(app, "/requests")
    page.add_init_script("window.setInterval = () => 0")  # no polling: only events update it
    page.reload()
    expect(page.get_by_text("No access requests")).to_be_visible()
    zoe = telegram.add_user(5001, "Zoe")
    telegram.send_message("Is anybody there?", zoe)
    waiting = row(page, "Access requests", "5001")
    expect(waiting).to_contain_text("Zoe")
    expect(
        page.get_by_role("navigation", name="Sections of Channels").get_by_role("link", name="Access requests")
    ).to_contain_text("1")
    code = waiting.locator("code").inner_text().replace(" ", "")
    telegram.wait_until(lambda: any(code in text for text in telegram.bot_texts(zoe)))
    page.get_by_role("button", name="Accept Zoe").click()
    box = dialog(page, "Accept Zoe")
    expect(box).to_contain_text("can then write on family")
    box.get_by_role("button", name="Accept").click()
    expect(waiting).to_have_count(0)
    expect(row(page, "Accepted senders", "5001")).to_contain_text("Zoe")
    expect(row(page, "Accepted senders", "5001")).to_contain_text("by owner")
    telegram.send_message("And now?", zoe)
    telegram.wait_until(lambda: len(telegram.bot_texts(zoe)) > 1)
    page.get_by_role("link", name="Connectors").click()
    family = row(page, "Connectors", "family")
    expect(family).to_contain_text("Last sent")
    expect(family).not_to_contain_text("never")
    page.get_by_role("link", name="Access requests").click()
    page.get_by_role("button", name="Revoke access of 5001").click()
    dialog(page, "Revoke access of 5001?").get_by_role("button", name="Revoke access").click()
    expect(page.get_by_text("No sender has been accepted with a code yet.")).to_be_visible()


def test_the_access_requests_screen_refuses_a_request_by_keyboard_and_shows_its_name_as_plain_text(
    app: WebApp, telegram: FakeTelegramUsers
) -> None:
    add_access_request(app, telegram, 5002, HOSTILE)
    page = open_section(app, "/requests")
    waiting = row(page, "Access requests", "5002")
    expect(waiting).to_contain_text("<img src=x")
    expect(waiting).not_to_contain_text("\u202e")
    waiting.get_by_role("button", name="Refuse").focus()
    page.keyboard.press("Enter")
    expect(waiting).to_have_count(0)
    page.get_by_text("Past requests").click()
    expect(row(page, "Past requests", "5002")).to_contain_text("refused")


def test_a_sender_accepted_as_a_person_on_the_channels_screen_becomes_an_identity_of_that_person(
    app: WebApp, telegram: FakeTelegramUsers
) -> None:
    add_access_request(app, telegram, 5003, "Maria at work")
    page = open_section(app, "/requests")
    page.get_by_role("button", name="Accept Maria at work").click()
    box = dialog(page, "Accept Maria at work")
    box.get_by_label("Person").select_option("owner")
    expect(box).to_contain_text("can do everything")
    box.get_by_role("button", name="Accept").click()
    expect(row(page, "Access requests", "5003")).to_have_count(0)
    page.get_by_role("link", name="Identities").click()
    expect(row(page, "Identities", "5003")).to_contain_text("owner")


def test_the_identities_screen_links_an_identity_by_its_permanent_id_and_unlinks_it(app: WebApp) -> None:
    page = open_section(app, "/identities")
    page.keyboard.press("n")
    box = dialog(page, "Link identity")
    expect(box.get_by_label("Person")).to_have_value("owner")
    box.get_by_label("Platform", exact=True).fill("telegram")
    box.get_by_label("Platform id").fill("@noor")
    box.get_by_role("button", name="Link").click()
    expect(box.get_by_role("alert")).to_contain_text("is a username")
    app.console_errors.clear()  # the refused request was expected
    box.get_by_label("Platform id").fill("6001")
    box.get_by_role("button", name="Link").click()
    expect(row(page, "Identities", "6001")).to_contain_text("owner")
    page.get_by_role("button", name="Unlink 6001 from owner").click()
    dialog(page, "Unlink 6001?").get_by_role("button", name="Unlink").click()
    expect(row(page, "Identities", "6001")).to_have_count(0)


def test_the_routing_screen_lists_the_most_specific_bindings_first(app: WebApp) -> None:
    page = open_section(app, "/routing")
    page.get_by_role("button", name="Add binding").click()
    box = dialog(page, "Add binding")
    box.get_by_label("Agent", exact=True).select_option("guide")
    box.get_by_label("Connector").select_option("telegram")
    box.get_by_role("button", name="Save").click()
    expect(row(page, "Routing", "telegram")).to_contain_text("platform")
    page.get_by_role("button", name="Add binding").click()
    box.get_by_label("Agent", exact=True).select_option("porter")
    box.get_by_label("Connector").select_option("family")
    box.get_by_label("Channel or person id").fill("-100200")
    box.get_by_text("More conditions").click()
    box.get_by_role("checkbox", name="guide").check()
    box.get_by_role("button", name="Save").click()
    bindings = page.get_by_role("list", name="Routing").get_by_role("listitem")
    expect(bindings).to_have_count(3)
    expect(bindings.nth(0)).to_contain_text("family, channel -100200")
    expect(bindings.nth(0)).to_contain_text("Matched by: channel")
    expect(bindings.nth(0)).to_contain_text("porter")
    expect(bindings.nth(0).get_by_text("and", exact=True)).to_be_visible()
    expect(bindings.nth(1)).to_contain_text("guide")
    expect(bindings.nth(2)).to_contain_text("Default agent")
    page.get_by_role("button", name="Remove binding: telegram", exact=True).click()
    dialog(page, "Remove the binding for telegram?").get_by_role("button", name="Remove binding").click()
    expect(bindings).to_have_count(2)


def test_the_unprocessed_messages_screen_retries_or_deletes_a_message(app: WebApp) -> None:
    app.server.do("identity.link", person="owner", platform="telegram", id=str(NOOR["id"]))
    add_poison_message(
        app.server, "What about the picnic?", message_id="9001", because="a file of it could not be read"
    )
    add_poison_message(app.server, "And this?", message_id="9002", because="the database was locked")
    page = open_section(app, "/unprocessed")
    expect(row(page, "Unprocessed messages", "9001")).to_contain_text("a file of it could not be read")
    expect(row(page, "Unprocessed messages", "9001")).to_contain_text("3 attempts")
    page.get_by_role("button", name="Retry message 9001").click()
    expect(row(page, "Unprocessed messages", "9001")).to_have_count(0)
    assert app.server.process.list_envelopes_with_text("What about the picnic?")
    page.get_by_role("button", name="Delete message 9002").click()
    dialog(page, "Delete this message?").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No unprocessed messages")).to_be_visible()
    page.get_by_label("Show resolved messages").check()
    expect(row(page, "Unprocessed messages", "9001")).to_contain_text("processed")
    expect(row(page, "Unprocessed messages", "9002")).to_contain_text("deleted")


def test_the_channels_screen_adds_disables_and_removes_a_connector_and_keeps_no_secret_in_the_browser(
    app: WebApp,
) -> None:
    secret = "whsec_" + "c2VjcmV0IG9mIHR3byBzaWRlcyBvZiBvbmUgZG9vcg=="
    page = open_section(app)
    page.keyboard.press("n")
    box = dialog(page, "Add connector")
    box.get_by_label("Platform").select_option("webhook")
    box.get_by_label("Name", exact=True).fill("builds")
    box.get_by_label("Shared secret").fill(secret)
    box.get_by_role("button", name="Create").click()
    done = dialog(page, "builds is connected")
    expect(done).to_contain_text("Next steps")
    assert is_secret_gone(page, secret)
    done.get_by_role("button", name="Close").last.click()  # the first is the icon of the dialog
    builds = row(page, "Connectors", "builds")
    expect(builds).to_contain_text("connected")
    menu = builds.get_by_role("button", name="Actions for builds")
    menu.click()
    page.get_by_role("menuitem", name="Show settings").click()
    shown = dialog(page, "Settings of builds")
    expect(shown).to_contain_text("secret_file")
    expect(shown).not_to_contain_text(secret)
    page.keyboard.press("Escape")
    menu.click()
    page.get_by_role("menuitem", name="Disable").click()
    expect(builds).to_contain_text("disabled")
    menu.click()
    page.get_by_role("menuitem", name="Remove").click()
    dialog(page, "Remove builds?").get_by_role("button", name="Remove").click()
    expect(builds).to_have_count(0)


def test_the_add_connector_dialog_does_not_add_a_connector_that_cannot_connect(app: WebApp) -> None:
    page = open_section(app)
    page.get_by_role("button", name="Add connector", exact=True).click()
    box = dialog(page, "Add connector")
    box.get_by_label("Platform").select_option("irc")
    box.get_by_label("Name", exact=True).fill("unreachable")
    box.get_by_label("Server", exact=True).fill("127.0.0.1")
    box.get_by_label("Port").fill("1")
    box.get_by_role("button", name="Create").click()
    expect(box.get_by_role("alert")).to_contain_text("was not added")
    app.console_errors.clear()  # the refused request was expected
    assert "unreachable" not in [each["name"] for each in app.server.do("connector.list")["connectors"]]


def wait_for_state(server: ApiClient, connector: str, state: str) -> None:
    def states() -> dict[str, str]:
        return {each["name"]: each["state"] for each in server.do("connector.list")["connectors"]}

    wait_until_sync(lambda: states()[connector] == state, f"{connector} is {state}", describe=states)


def test_the_channels_screen_shows_the_next_attempt_of_a_failed_connection_and_its_recovery(
    app: WebApp, telegram: FakeTelegramUsers
) -> None:
    page = open_section(app, fake_clock=True)
    family = row(page, "Connectors", "family")
    telegram.run_on_loop(telegram.server.stop)
    wait_for_state(app.server, "family", "waiting")
    page.clock.fast_forward("00:15")  # there is no event for it, so the screen polls
    expect(family).to_contain_text("Next attempt")
    expect(family).to_contain_text("in a row")
    telegram.run_on_loop(telegram.server.start)
    telegram.send_message("Are you there again?", telegram.add_user(5200, "Otto"))
    wait_for_state(app.server, "family", "listening")
    wait_until_sync(
        lambda: "5200" in [each["sender_id"] for each in app.server.do("pairing.list")["pairings"]],
        "the message was received",
    )
    page.clock.fast_forward("00:15")
    expect(family).to_contain_text("connected")
    expect(family).not_to_contain_text("Next attempt")


@pytest.mark.parametrize(("size", "theme"), [("laptop", "light"), ("phone", "dark")])
def test_the_channels_screens_are_accessible(app: WebApp, telegram: FakeTelegramUsers, size: str, theme: str) -> None:
    user = telegram.add_user(5100, "Somebody with quite a long name who asks for access")
    telegram.send_message("Hello?", user)
    add_poison_message(app.server, "x", message_id="9100", because="a-word-without-any-room-to-break-" * 6)
    page = open_section(app, "/requests", size=size, theme=theme)
    expect(row(page, "Access requests", "5100")).to_be_visible()
    wait_until_settled, found = track_requests(page), dict[str, list[str]]()
    for section in SECTIONS:
        page.goto(f"{app.server.address}/channels{section}")
        expect(page.get_by_role("heading", level=1, name="Channels")).to_be_visible()
        wait_until_settled()
        found[section] = find_violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    for section, opener in (("", "Add connector"), ("/routing", "Add binding"), ("/identities", "Link identity")):
        page.goto(f"{app.server.address}/channels{section}")
        page.get_by_role("button", name=opener, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        wait_until_settled()
        found[f"{section} {opener}"] = find_violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert {section: what for section, what in found.items() if what} == {}
