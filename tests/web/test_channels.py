"""The doors in the page: lines to the outside and how they fare, who answers there, who waits to be let in, who is who,
and what the house stumbled over. The house is real, and so is what stands for Telegram."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api.tcp_server import Rim
from playwright.sync_api import Locator, Page, expect
from web.browser import Front, scrolls_sideways, settling, violations
from web.channels_instance import NOOR, Street, open_house, open_street, stumble
from web.test_server_settings import dialog, kept_nowhere

from retinue.testing.waiting import wait_until_sync

PARTS = ("", "/bindings", "/requests", "/people", "/aside")
HOSTILE = "<img src=x onerror=alert(1)> \u202eronn"


@pytest.fixture(scope="module")
def street() -> Iterator[Street]:
    with open_street() as opened:
        yield opened


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory, street: Street) -> Iterator[Rim]:
    with open_house(tmp_path_factory.mktemp("doors"), street) as opened:
        opened.do("agent.register", name="porter", model="guide", description="Opens the door")
        yield opened


@pytest.fixture(autouse=True)
def decided(rim: Rim) -> None:
    """Nothing waits that another test left: no request, no one who was let in, no message that was set aside."""
    known = rim.do("pairing.list")
    for each in known["pairings"]:
        if each["state"] == "waiting":
            rim.do("pairing.refuse", which=each["id"])
    for each in known["admitted"]:
        rim.do("pairing.dismiss", connector=each["connector"], speaker=each["speaker"])
    for each in rim.do("set-aside.list")["set-aside"]:
        rim.do("set-aside.drop", id=each["id"])


def row(page: Page, listed: str, words: str) -> Locator:
    return page.get_by_role("list", name=listed).get_by_role("listitem").filter(has_text=words)


def open_part(front: Front, part: str = "", **options: Any) -> Page:
    page = front.window(f"/doors{part}", **options)
    expect(page.get_by_role("heading", level=1, name="Doors")).to_be_visible()
    return page


def waits(front: Front, street: Street, id_: int, name: str) -> dict[str, Any]:
    """A stranger writes, and stands before the door."""
    somebody = street.meet(id_, name)
    street.says("Hello?", somebody)
    page = open_part(front, "/requests")
    expect(row(page, "Who wants to be let in", str(id_))).to_be_visible()
    page.context.close()
    return somebody


def test_a_line_says_how_it_fares_and_why(front: Front) -> None:
    page = front.window("/runs")  # no field takes the focus there
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page).to_have_url(f"{front.rim.address}/doors")
    family = row(page, "Connectors", "family")
    expect(family).to_contain_text("listening")
    expect(family).to_contain_text("whom you let in")
    street = row(page, "Connectors", "street")
    expect(street).to_contain_text("needs you")
    expect(street).to_contain_text("token")
    expect(street).to_contain_text("Tried again")
    expect(street).to_contain_text("Nothing was heard or delivered since the house was opened.")
    expect(row(page, "Connectors", "work")).to_contain_text("off")


def test_a_door_that_is_open_to_everyone_is_warned_of(front: Front) -> None:
    page = open_part(front)
    warning = page.get_by_role("region", name="A door stands open")
    expect(warning).to_contain_text("Everyone who finds street may write to it in person.")
    expect(warning).not_to_contain_text("family")
    warning.get_by_role("link", name="What the doctor says").click()
    expect(page).to_have_url(f"{front.rim.address}/house/doctor")


def test_a_connector_is_tested_at_its_place(front: Front) -> None:
    page = open_part(front)
    page.get_by_role("button", name="Test family").click()
    expect(row(page, "Connectors", "family").get_by_role("status")).to_contain_text("house_bot")
    page.get_by_role("button", name="Test street").click()
    expect(row(page, "Connectors", "street").get_by_role("status")).to_contain_text("Try:")


def test_a_stranger_is_seen_at_once_and_let_in_by_the_code_they_were_shown(front: Front, street: Street) -> None:
    page = open_part(front, "/requests")
    page.add_init_script("window.setInterval = () => 0")  # it does not look by itself: it is told
    page.reload()
    expect(page.get_by_text("Nobody waits")).to_be_visible()
    zoe = street.meet(5001, "Zoe")
    street.says("Is anybody there?", zoe)
    waiting = row(page, "Who wants to be let in", "5001")
    expect(waiting).to_contain_text("Zoe")
    expect(
        page.get_by_role("navigation", name="Parts of the doors").get_by_role("link", name="Let in")
    ).to_contain_text("1")
    code = waiting.locator("code").inner_text().replace(" ", "")
    assert any(code in text for text in street.texts(zoe))
    page.get_by_role("button", name="Let in Zoe").click()
    box = dialog(page, "Let in Zoe")
    expect(box).to_contain_text("may then write at family")
    box.get_by_role("button", name="Let in").click()
    expect(waiting).to_have_count(0)
    expect(row(page, "Who was let in", "5001")).to_contain_text("Zoe")
    expect(row(page, "Who was let in", "5001")).to_contain_text("by owner")
    street.says("And now?", zoe)
    street.until(lambda: len(street.texts(zoe)) > 1)
    page.get_by_role("link", name="Connectors").click()
    family = row(page, "Connectors", "family")
    expect(family).to_contain_text("Last delivered")
    expect(family).not_to_contain_text("not yet")
    page.get_by_role("link", name="Let in").click()
    page.get_by_role("button", name="Show out 5001").click()
    dialog(page, "Show out 5001?").get_by_role("button", name="Show out").click()
    expect(page.get_by_text("Nobody was let in by a code.")).to_be_visible()


def test_a_stranger_is_refused_with_the_keyboard_and_a_name_is_only_a_name(front: Front, street: Street) -> None:
    waits(front, street, 5002, HOSTILE)
    page = open_part(front, "/requests")
    waiting = row(page, "Who wants to be let in", "5002")
    expect(waiting).to_contain_text("<img src=x")
    expect(waiting).not_to_contain_text("\u202e")
    waiting.get_by_role("button", name="Refuse").focus()
    page.keyboard.press("Enter")
    expect(waiting).to_have_count(0)
    page.get_by_text("Decided before").click()
    expect(row(page, "Decided before", "5002")).to_contain_text("refused")


def test_one_who_is_let_in_as_a_person_of_the_house_is_that_person(front: Front, street: Street) -> None:
    waits(front, street, 5003, "Maria at work")
    page = open_part(front, "/requests")
    page.get_by_role("button", name="Let in Maria at work").click()
    box = dialog(page, "Let in Maria at work")
    box.get_by_label("Who they are in this house").select_option("owner")
    expect(box).to_contain_text("may do everything")
    box.get_by_role("button", name="Let in").click()
    expect(row(page, "Who wants to be let in", "5003")).to_have_count(0)
    page.get_by_role("link", name="Who is who").click()
    expect(row(page, "Who is who", "5003")).to_contain_text("owner")


def test_a_person_is_linked_by_the_id_that_stays_and_unlinked_again(front: Front) -> None:
    page = open_part(front, "/people")
    page.keyboard.press("n")
    box = dialog(page, "Link an id")
    expect(box.get_by_label("Person")).to_have_value("owner")
    box.get_by_label("Service").fill("telegram")
    box.get_by_label("Id there").fill("@noor")
    box.get_by_role("button", name="Link").click()
    expect(box.get_by_role("alert")).to_contain_text("is a username")
    front.complaints.clear()  # of the refusal, which was meant
    box.get_by_label("Id there").fill("6001")
    box.get_by_role("button", name="Link").click()
    expect(row(page, "Who is who", "6001")).to_contain_text("owner")
    page.get_by_role("button", name="Unlink 6001 from owner").click()
    dialog(page, "Unlink 6001?").get_by_role("button", name="Unlink").click()
    expect(row(page, "Who is who", "6001")).to_have_count(0)


def test_bindings_stand_in_the_order_in_which_they_count(front: Front) -> None:
    page = open_part(front, "/bindings")
    page.get_by_role("button", name="Bind an agent").click()
    box = dialog(page, "Who answers where")
    box.get_by_label("Agent", exact=True).select_option("guide")
    box.get_by_label("Connector").select_option("telegram")
    box.get_by_role("button", name="Bind").click()
    expect(row(page, "Who answers where", "telegram")).to_contain_text("every account")
    page.get_by_role("button", name="Bind an agent").click()
    box.get_by_label("Agent", exact=True).select_option("porter")
    box.get_by_label("Connector").select_option("family")
    box.get_by_label("Only in this room").fill("-100200")
    box.get_by_text("Narrower still").click()
    box.get_by_role("checkbox", name="guide").check()
    box.get_by_role("button", name="Bind").click()
    lines = page.get_by_role("list", name="Who answers where").get_by_role("listitem")
    expect(lines).to_have_count(3)
    expect(lines.nth(0)).to_contain_text("family, room -100200")
    expect(lines.nth(0)).to_contain_text("Matched by: room")
    expect(lines.nth(0)).to_contain_text("porter")
    expect(lines.nth(0)).to_contain_text("also")
    expect(lines.nth(1)).to_contain_text("guide")
    expect(lines.nth(2)).to_contain_text("the default agent")
    page.get_by_role("button", name="Remove: telegram", exact=True).click()
    dialog(page, "Nobody in particular at telegram?").get_by_role("button", name="Remove").click()
    expect(lines).to_have_count(2)


def test_what_was_set_aside_is_taken_in_after_all_or_let_go(front: Front) -> None:
    front.rim.do("identity.link", person="owner", service="telegram", id=str(NOOR["id"]))
    stumble(front.rim, "What about the picnic?", message_id="9001", because="a file of it could not be read")
    stumble(front.rim, "And this?", message_id="9002", because="the tables were turned")
    page = open_part(front, "/aside")
    expect(row(page, "Set aside", "9001")).to_contain_text("a file of it could not be read")
    expect(row(page, "Set aside", "9001")).to_contain_text("tried 3 times")
    page.get_by_role("button", name="Try again: message 9001").click()
    expect(row(page, "Set aside", "9001")).to_have_count(0)
    assert front.rim.process.envelopes_with("What about the picnic?")
    page.get_by_role("button", name="Let go of message 9002").click()
    dialog(page, "Let go of this message?").get_by_role("button", name="Let go").click()
    expect(page.get_by_text("Nothing was set aside")).to_be_visible()
    page.get_by_label("Also those that are done with").check()
    expect(row(page, "Set aside", "9001")).to_contain_text("taken in")
    expect(row(page, "Set aside", "9002")).to_contain_text("let go")


def test_a_connector_is_added_turned_off_and_removed_and_its_secret_is_kept_by_the_house_alone(front: Front) -> None:
    secret = "whsec_" + "c2VjcmV0IG9mIHR3byBzaWRlcyBvZiBvbmUgZG9vcg=="
    page = open_part(front)
    page.keyboard.press("n")
    box = dialog(page, "Connect an account")
    box.get_by_label("What it speaks").select_option("webhook")
    box.get_by_label("What to call it here").fill("builds")
    box.get_by_label("The secret that both sides share").fill(secret)
    box.get_by_role("button", name="Connect").click()
    done = dialog(page, "builds is connected")
    expect(done).to_contain_text("What to do next")
    assert kept_nowhere(page, secret)
    done.get_by_role("button", name="Done").click()
    builds = row(page, "Connectors", "builds")
    expect(builds).to_contain_text("listening")
    menu = builds.get_by_role("button", name="What to do with builds")
    menu.click()
    page.get_by_role("menuitem", name="Settings").click()
    shown = dialog(page, "Settings of builds")
    expect(shown).to_contain_text("secret_file")
    expect(shown).not_to_contain_text(secret)
    page.keyboard.press("Escape")
    menu.click()
    page.get_by_role("menuitem", name="Turn off").click()
    expect(builds).to_contain_text("off")
    menu.click()
    page.get_by_role("menuitem", name="Remove").click()
    dialog(page, "Remove builds?").get_by_role("button", name="Remove").click()
    expect(builds).to_have_count(0)


def test_a_place_that_does_not_let_us_in_is_told_of_before_anything_is_written(front: Front) -> None:
    page = open_part(front)
    page.get_by_role("button", name="Connect", exact=True).click()
    box = dialog(page, "Connect an account")
    box.get_by_label("What it speaks").select_option("irc")
    box.get_by_label("What to call it here").fill("nobody")
    box.get_by_label("Which server?").fill("127.0.0.1")
    box.get_by_label("On which port?").fill("1")
    box.get_by_role("button", name="Connect").click()
    expect(box.get_by_role("alert")).to_contain_text("was not added")
    front.complaints.clear()  # of the refusal, which was meant
    assert "nobody" not in [each["name"] for each in front.rim.do("connector.list")["connectors"]]


def until_it(rim: Rim, connector: str, is_: str) -> None:
    def states() -> dict[str, str]:
        return {each["name"]: each["state"] for each in rim.do("connector.list")["connectors"]}

    wait_until_sync(lambda: states()[connector] == is_, f"{connector} is {is_}", describe=states)


def test_a_line_that_breaks_says_when_it_is_tried_again_and_is_well_again_by_itself(
    front: Front, street: Street
) -> None:
    page = open_part(front, turns_clock=True)
    family = row(page, "Connectors", "family")
    street.call(street.telegram.stop)
    until_it(front.rim, "family", "waiting")
    page.clock.fast_forward("00:15")  # the page has no news of it, and looks by itself
    expect(family).to_contain_text("Tried again")
    expect(family).to_contain_text("in a row")
    street.call(street.telegram.start)
    street.says("Are you there again?", street.meet(5200, "Otto"))
    until_it(front.rim, "family", "listening")
    wait_until_sync(
        lambda: "5200" in [each["speaker"] for each in front.rim.do("pairing.list")["pairings"]], "it was heard"
    )
    page.clock.fast_forward("00:15")
    expect(family).to_contain_text("listening")
    expect(family).not_to_contain_text("Tried again")


@pytest.mark.parametrize(("size", "theme"), [("laptop", "light"), ("phone", "dark")])
def test_every_part_of_the_doors_can_be_used_by_anyone(front: Front, street: Street, size: str, theme: str) -> None:
    somebody = street.meet(5100, "Somebody with quite a long name who wants to be let in")
    street.says("Hello?", somebody)
    stumble(front.rim, "x", message_id="9100", because="a-word-without-any-room-to-break-" * 6)
    page = open_part(front, "/requests", size=size, theme=theme)
    expect(row(page, "Who wants to be let in", "5100")).to_be_visible()
    settle, found = settling(page), dict[str, list[str]]()
    for part in PARTS:
        page.goto(f"{front.rim.address}/doors{part}")
        expect(page.get_by_role("heading", level=1, name="Doors")).to_be_visible()
        settle()
        found[part] = violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    for part, opener in (("", "Connect"), ("/bindings", "Bind an agent"), ("/people", "Link an id")):
        page.goto(f"{front.rim.address}/doors{part}")
        page.get_by_role("button", name=opener, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        settle()
        found[f"{part} {opener}"] = violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert {part: what for part, what in found.items() if what} == {}
