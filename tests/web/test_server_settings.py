"""The house in the page: people, tokens, settings, doctor, audit and log, each thing done as its owner does it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from web.browser import Front, scrolls_sideways, settling, violations
from web.chat_actions import wait_for_copy

SETTINGS = """# mine
[house]
drain_s = 5.0 # quick

[house.limits]
envelopes_per_minute = 10000
requests_per_minute = 100000

[agents.porter]
model = "guide"
description = "Opens the door"

[people.zoe]
role = "guest"
"""
HOSTILE = "<img src=x onerror=alert(1)> **bold** \u202egnp.exe"
PARTS = ("", "/people", "/tokens", "/settings", "/settings/text", "/settings/staff", "/doctor", "/audit", "/logs")
MORE_PARTS = ("/models", "/skills", "/plugins", "/mcp")


def dialog(page: Page, name: str) -> Locator:
    return page.get_by_role("dialog", name=name)


def person_row(page: Page, name: str) -> Locator:
    return page.get_by_role("listitem").filter(has=page.get_by_text(name, exact=True))


def kept_nowhere(page: Page, secret: str) -> bool:
    """Neither shown, nor in the address, nor in anything the browser keeps."""
    typed = "[...document.querySelectorAll('input, textarea')].map(each => each.value)"
    seen = f"[document.documentElement.outerHTML, location.href, {{...localStorage}}, {{...sessionStorage}}, {typed}]"
    return secret not in page.evaluate(f"() => JSON.stringify({seen})")


@pytest.fixture
def settings_file(front: Front) -> Iterator[Path]:
    """The file as it was, for whoever comes next."""
    file = front.rim.process.home / "retinue.toml"
    yield file
    file.write_text(SETTINGS)
    front.rim.do("config.reload")


@pytest.mark.parametrize(("size", "theme"), [("laptop", "dark"), ("phone", "light")])
def test_every_part_of_the_house_can_be_used_by_anyone(front: Front, size: str, theme: str) -> None:
    page = front.window("/house", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    settle, found = settling(page), dict[str, list[str]]()
    for part in PARTS + MORE_PARTS:
        page.goto(f"{front.rim.address}/house{part}")
        expect(page.get_by_role("heading", level=1, name="House")).to_be_visible()
        settle()
        found[part] = violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert {part: what for part, what in found.items() if what} == {}


def test_the_overview_says_how_the_house_is_and_backs_it_up(front: Front) -> None:
    page = front.window("/runs")  # no field takes the focus there
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page).to_have_url(f"{front.rim.address}/house")
    expect(page.get_by_text("The ledger holds")).to_be_visible()
    expect(page.get_by_role("region", name="This house")).to_contain_text(front.rim.address)
    health = page.get_by_role("region", name="Health")
    expect(health).to_contain_text("there is no backup here")
    page.get_by_role("button", name="Back up now").click()
    backup = page.get_by_role("region", name="Backup")
    expect(backup).to_contain_text("It was read back and is sound.")
    folder = Path(backup.locator("code").inner_text())
    assert (folder / "manifest.json").exists() or any(folder.iterdir())
    expect(health).not_to_contain_text("there is no backup here")


def test_someone_is_invited_comes_in_by_the_address_and_is_forgotten(front: Front) -> None:
    page, other = front.window("/house/people"), front.window("/house/people")
    page.get_by_role("button", name="Invite someone").click()
    page.get_by_label("Name").fill("Not A Name!")
    page.get_by_role("button", name="Make the invitation").click()
    expect(dialog(page, "Invite someone").get_by_role("alert")).to_contain_text("name")
    front.complaints.clear()  # of the refusal, which was meant
    page.get_by_label("Name").fill("maria")
    page.get_by_label("Guest").check()
    page.get_by_role("button", name="Make the invitation").click()
    shown = dialog(page, "Invitation for maria")
    expect(shown).to_contain_text("shown this once")
    address = shown.locator("code").first.inner_text()
    secret = address.partition("#invitation=")[2]
    shown.get_by_role("button", name="Copy it: Address to open").click()
    wait_for_copy(page, lambda copied: copied == address)
    page.mouse.click(5, 5)  # a slip beside it does not lose it
    expect(shown).to_be_visible()
    shown.get_by_role("button", name="I have kept it").click()
    assert kept_nowhere(page, secret)

    theirs = front.window("/chat")  # whoever opens it is asked first, and only then becomes someone else
    theirs.goto("about:blank")
    theirs.goto(address)
    expect(theirs.get_by_role("heading", name="You are invited")).to_be_visible()
    assert secret not in theirs.url and violations(theirs) == []
    assert [each["name"] for each in front.rim.do("person.list")["people"]] == ["owner"]
    theirs.get_by_role("button", name="Come in").click()
    expect(theirs.get_by_role("button", name="You are maria")).to_be_visible()
    expect(theirs.get_by_role("link", name="House")).to_have_count(0)
    kinds = [each["kind"] for each in front.rim.do("token.list", principal="person:maria")["tokens"]]
    assert kinds == ["web"]  # the token that nobody was shown is gone

    for window in (page, other):
        window.bring_to_front()
        window.evaluate("dispatchEvent(new Event('focus'))")
        expect(person_row(window, "maria")).to_be_visible()
    page.get_by_label("Role of maria").select_option("Member")
    expect(page.get_by_text("maria is a member from now on.")).to_be_visible()
    assert {"name": "maria", "role": "member", "level": "standard"} in front.rim.do("person.list")["people"]

    page.get_by_role("button", name="What to do with maria").click()
    page.get_by_role("menuitem", name="Forget").click()
    sure = dialog(page, "Forget maria?")
    expect(sure).to_contain_text("cannot be undone")
    expect(sure.get_by_role("button", name="Forget", exact=True)).to_be_disabled()
    sure.get_by_label("Type maria to confirm").fill("maria")
    sure.get_by_role("button", name="Forget", exact=True).click()
    expect(person_row(page, "maria")).to_have_count(0)
    assert [each["name"] for each in front.rim.do("person.list")["people"]] == ["owner"]
    front.complaints.clear()  # of her window, which was signed out


def test_an_invitation_that_was_used_says_so_and_can_be_left(front: Front) -> None:
    page = front.window()
    page.goto("about:blank")
    page.goto(f"{front.rim.address}/#invitation=long-gone")
    page.get_by_role("button", name="Come in").click()
    expect(page.get_by_role("alert")).to_contain_text("ask for a new one")
    page.get_by_role("button", name="Not now").click()
    expect(page.get_by_role("button", name="You are owner")).to_be_visible()
    front.complaints.clear()  # of the refusal, which was meant


def test_a_token_is_shown_once_works_and_is_rotated_and_revoked(front: Front) -> None:
    page = front.window("/house/tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("What it is for").fill(HOSTILE)
    page.get_by_label("Good for").select_option("30 days")
    page.get_by_role("button", name="Make it").click()
    shown = dialog(page, "Your new token")
    secret = shown.locator("code").inner_text()
    expect(shown).to_contain_text("nobody can show it to you again")
    assert front.rim.do("person.whoami", as_=secret)["address"] == "person:owner"
    page.keyboard.press("Escape")
    expect(shown).to_have_count(0)
    assert kept_nowhere(page, secret)
    row = page.get_by_role("listitem").filter(has_text="onerror")
    expect(row).to_contain_text("<img src=x")
    expect(page.locator("main img")).to_have_count(0)

    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="New secret").click()
    dialog(page, "Put a new secret in its place?").get_by_role("button", name="New secret").click()
    renewed = dialog(page, "The new secret").locator("code").inner_text()
    page.get_by_role("button", name="I have kept it").click()
    assert front.rim.ask("POST", "/api/person/whoami", {}, token=secret).status == 401
    assert front.rim.do("person.whoami", as_=renewed)["level"] == "boss"

    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    expect(row).to_have_count(0)
    assert front.rim.ask("POST", "/api/person/whoami", {}, token=renewed).status == 401


def test_a_token_of_an_agent_has_its_rights_and_its_own_list(front: Front) -> None:
    page = front.window("/house/tokens")
    page.get_by_label("Whose").select_option("agent:clerk")
    expect(page).to_have_url(re.compile(r"of=agent%3Aclerk"))
    page.get_by_role("button", name="New token").click()
    page.get_by_label("What it is for").fill("a script of the clerk")
    expect(page.get_by_label("For whom")).to_have_value("agent:clerk")
    page.get_by_role("button", name="Make it").click()
    secret = dialog(page, "New token for clerk").locator("code").inner_text()
    assert front.rim.do("person.whoami", as_=secret)["address"] == "agent:clerk"
    page.get_by_role("button", name="I have kept it").click()
    expect(page.get_by_role("listitem").filter(has_text="a script of the clerk")).to_be_visible()


def test_an_address_signs_another_device_in_once(front: Front) -> None:
    page = front.window("/house/tokens")
    page.get_by_role("button", name="Make a sign-in address").click()
    shown = dialog(page, "Sign in another device")
    address = shown.locator("code").inner_text()
    assert address.startswith(f"{front.rim.address}/#code=")
    page.get_by_role("button", name="I have kept it").click()
    assert kept_nowhere(page, address.partition("=")[2])
    other = page.context.browser
    assert other is not None
    device = other.new_context()
    try:
        opened = device.new_page()
        opened.goto(address)
        expect(opened.get_by_role("button", name="You are owner")).to_be_visible()
    finally:
        device.close()


def test_a_setting_is_changed_by_the_form_with_its_diff_and_when_it_counts(front: Front, settings_file: Path) -> None:
    page, other = front.window("/house/settings"), front.window("/house/settings")
    drain = page.get_by_label("drain_s", exact=True)
    expect(drain).to_have_value("5")
    row = page.locator(".setting").filter(has=page.get_by_label("drain_s", exact=True))
    expect(row).to_contain_text("from file, line 3")
    drain.fill("99999")
    expect(row.get_by_role("alert")).to_contain_text("Must be from 0 to 3600")
    expect(page.get_by_role("button", name="Look at the changes")).to_be_disabled()
    drain.fill("7")
    expect(row.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Find a setting").fill("mirrored")
    page.get_by_label("enabled", exact=True).check()
    page.get_by_role("button", name="Look at the changes").click()
    review = dialog(page, "What changes")
    diff = review.get_by_label("The settings file, before and after")
    expect(diff).to_contain_text("drain_s = 5.0 # quick")
    expect(diff).to_contain_text("drain_s = 7 # quick")
    effects = review.get_by_role("listitem")
    expect(effects.filter(has_text="house.drain_s")).to_contain_text("at once")
    expect(effects.filter(has_text="house.mirror.enabled")).to_contain_text("at the next start")
    assert settings_file.read_text() == SETTINGS  # so far, nothing was done
    review.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The settings are saved.")).to_be_visible()
    assert "drain_s = 7 # quick" in settings_file.read_text() and settings_file.read_text().startswith("# mine")
    shown = front.rim.do("config.show")
    assert shown["settings"]["drain_s"] == 7 and shown["waiting-for-a-restart"] == ["house.mirror.enabled"]
    expect(page.get_by_text("waits for the next start")).to_be_visible()
    other.bring_to_front()
    other.evaluate("dispatchEvent(new Event('focus'))")
    expect(other.get_by_label("drain_s", exact=True)).to_have_value("7")


def test_a_file_that_someone_else_changed_meanwhile_is_not_overwritten(front: Front, settings_file: Path) -> None:
    page = front.window("/house/settings")
    page.get_by_label("drain_s", exact=True).fill("8")
    page.get_by_role("button", name="Look at the changes").click()
    review = dialog(page, "What changes")
    expect(review.get_by_role("button", name="Save")).to_be_enabled()
    settings_file.write_text(SETTINGS + "\n# by hand\n")
    review.get_by_role("button", name="Save").click()
    expect(review.get_by_role("alert")).to_contain_text("has changed since it was read")
    assert settings_file.read_text().endswith("# by hand\n") and "drain_s = 5.0" in settings_file.read_text()
    front.complaints.clear()  # of the refusal, which was meant
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Discard").click()


def test_the_file_is_changed_as_text_and_faults_are_told_by_line(front: Front, settings_file: Path) -> None:
    page = front.window("/house/settings/text")
    text = page.get_by_label("The settings file")
    expect(text).to_have_value(SETTINGS)
    text.fill(SETTINGS.replace("drain_s", "drane_s"))
    expect(page.get_by_role("alert")).to_contain_text("line 3")
    expect(page.get_by_role("alert")).to_contain_text("did you mean `drain_s`?")
    text.fill(SETTINGS.replace("5.0", "6.5"))
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Look at the changes").click()
    dialog(page, "What changes").get_by_role("button", name="Save").click()
    expect(page.get_by_text("The settings are saved.")).to_be_visible()
    assert settings_file.read_text() == SETTINGS.replace("5.0", "6.5")
    settings_file.write_text(SETTINGS)
    page.get_by_role("button", name="Read the file again").click()
    expect(page.get_by_text("The file was read again: 1 change.")).to_be_visible()
    expect(text).to_have_value(SETTINGS)


def test_the_staff_of_the_file_is_put_in_place_and_what_differs_is_asked_about(front: Front) -> None:
    page = front.window("/house/settings/staff")
    porter = page.get_by_role("listitem").filter(has_text="porter")
    expect(porter).to_contain_text("is added")
    page.get_by_role("button", name="Apply", exact=True).click()
    shown = dialog(page, "Tokens of those who were added")
    secret = shown.locator("code").inner_text()
    assert front.rim.do("person.whoami", as_=secret)["address"] == "person:zoe"
    page.get_by_role("button", name="I have kept it").click()
    assert kept_nowhere(page, secret)
    expect(porter).to_contain_text("is as it says")
    front.rim.do("agent.set", name="porter", description=HOSTILE)
    expect(porter).to_contain_text("differs")
    expect(page.get_by_label("porter, description")).to_contain_text("<img src=x")
    page.get_by_role("button", name="Apply, and overwrite what differs").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply, and overwrite what differs").click()
    expect(porter).to_contain_text("is as it says")
    assert front.rim.do("agent.show", name="porter")["description"] == "Opens the door"
    front.rim.do("person.forget", name="zoe", confirm="zoe")


def test_the_doctor_says_what_to_do_and_closes_what_is_open(front: Front) -> None:
    home = front.rim.process.home
    home.chmod(0o755)
    page = front.window("/house/doctor")
    closed = page.get_by_role("region", name="How well the house is closed")
    expect(closed).to_contain_text("others than you can reach")
    expect(closed).to_contain_text("chmod go=")
    page.get_by_role("button", name="Look at everything").click()
    expect(page.get_by_text("Everything was looked at.")).to_be_visible()
    page.get_by_role("button", name=re.compile(r"Close \d+ thing")).click()
    sure = dialog(page, "Take rights to files away from others?")
    assert home.stat().st_mode & 0o077
    sure.get_by_role("button", name=re.compile(r"Close \d+ thing")).click()
    expect(closed).not_to_contain_text("others than you can reach")
    assert not home.stat().st_mode & 0o077


def test_the_audit_is_filtered_verified_and_exported(front: Front, tmp_path: Path) -> None:
    for number in range(60):
        front.rim.do("token.create", label=f"many {number}", principal="agent:guide")
    front.rim.do("agent.set", name="clerk", description="Keeps the papers")
    page = front.window("/house/audit")
    lines = page.get_by_role("region", name="What was decided and done").locator("summary")
    expect(lines).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(lines).not_to_have_count(50)
    page.get_by_label("Kind").select_option("agent changed")
    page.get_by_label("Agent").select_option("clerk")
    page.get_by_label("Who").select_option("person:owner")
    page.get_by_label("Since").select_option("The last hour")
    expect(page).to_have_url(re.compile(r"kind=agent-changed&agent=clerk&who=person%3Aowner&since=-1h"))
    expect(lines).to_have_count(1)
    lines.click()
    expect(page.get_by_text(re.compile("^[0-9a-f]{64}$"))).to_be_visible()
    front.rim.do("agent.set", name="clerk", description="Keeps the papers in order")
    expect(lines).to_have_count(2)  # by itself
    page.get_by_label("Who").select_option("agent:guide")
    expect(page.get_by_role("heading", name="Nothing here")).to_be_visible()

    page.get_by_role("button", name="Verify").click()
    expect(dialog(page, "Whether the audit is as it was written")).to_contain_text("The audit holds")
    page.keyboard.press("Escape")
    with page.expect_download() as given:
        page.get_by_role("button", name="Export").click()
    target = tmp_path / given.value.suggested_filename
    given.value.save_as(target)
    exported = [json.loads(line) for line in target.read_text().splitlines()]
    assert "export" in exported[0] and sum(each.get("kind") == "token-made" for each in exported) >= 60


def test_the_log_follows_is_filtered_and_is_held_where_one_reads(front: Front) -> None:
    file = front.rim.process.home / "logs" / "retinue.log"

    def log(*lines: str) -> None:
        with file.open("a") as opened:
            opened.writelines(f"2026-11-15T09:00:00+0000 {line}\n" for line in lines)

    page = front.window("/house/logs", turns_clock=True)
    shown = page.get_by_role("region", name="Lines of the log")
    expect(shown).to_contain_text('"house open"')
    log(f'warning "something odd" text="{HOSTILE}"')
    page.clock.fast_forward("00:02")
    expect(shown).to_contain_text("<img src=x")  # by itself
    expect(page.locator("main img")).to_have_count(0)
    log(*(f'info "line" number={number}' for number in range(150)), 'error "the very last"')
    page.clock.fast_forward("00:02")
    expect(shown).to_contain_text("the very last")
    expect(page.get_by_text("New lines come by themselves.")).to_be_visible()
    shown.evaluate("node => { node.scrollTop = 0 }")
    expect(page.get_by_text("Held, because you scrolled up.")).to_be_visible()
    log('info "after that"')
    page.get_by_role("button", name="To the newest").click()
    page.clock.fast_forward("00:02")
    expect(shown).to_contain_text("after that")
    assert shown.inner_text().count("the very last") == 1
    page.get_by_label("From level").select_option("Warning")
    expect(shown).not_to_contain_text("number=149")
    expect(shown).to_contain_text("the very last")
    page.get_by_label("Find in the log").fill("ODD")
    expect(shown.locator(".line")).to_have_count(1)
    page.get_by_role("button", name="Copy what is shown").click()
    wait_for_copy(page, lambda copied: "something odd" in copied)


def test_a_skill_is_read_before_it_is_found_good(front: Front) -> None:
    folder = front.rim.process.home / "skills" / "weather"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        f"---\nname: weather\ndescription: How to look it up\n---\nAsk the sky. {HOSTILE}\n"
    )
    page = front.window("/house/skills")
    row = page.get_by_role("listitem").filter(has_text="weather")
    expect(row).to_contain_text("not looked at yet")
    row.get_by_role("button", name="Read weather").click()
    expect(page.get_by_role("region", name="All that it says")).to_contain_text("<img src=x")
    page.get_by_role("button", name="Find it good").click()
    expect(row).to_contain_text("found good")
    assert [each["state"] for each in front.rim.do("skill.list")["skills"] if each["name"] == "weather"] == ["ready"]
    row.get_by_role("button", name="Take that back").click()
    expect(row).to_contain_text("not looked at yet")


def test_a_key_is_added_by_where_it_is_and_removed(front: Front) -> None:
    page = front.window("/house/models")
    page.get_by_role("button", name="Add a key").click()
    page.get_by_label("Provider", exact=True).fill("anthropic")
    page.get_by_label("Name", exact=True).fill("work")
    page.get_by_label("Where the key is").select_option("I paste it: it is put away in the home")
    page.get_by_label("Key", exact=True).fill("sk-ant-never-shown-again")
    page.get_by_role("button", name="Add it").click()
    row = page.get_by_role("listitem").filter(has_text="work")
    expect(row).to_contain_text("ready")
    assert kept_nowhere(page, "sk-ant-never-shown-again")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    expect(row).to_have_count(0)
    assert all("work" not in each["id"] for each in front.rim.do("credential.list")["credentials"])
