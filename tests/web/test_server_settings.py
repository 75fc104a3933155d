"""The Settings screen: people, tokens, configuration, doctor, audit, logs, skills and provider keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from web.browser import WebApp, find_violations, scrolls_sideways, track_requests
from web.chat_actions import wait_for_clipboard

SETTINGS = """# mine
[server]
drain_s = 5.0 # quick

[server.limits]
envelopes_per_minute = 10000
requests_per_minute = 100000

[agents.porter]
model = "guide"
description = "Answers senders"

[people.zoe]
role = "guest"
"""
HOSTILE = "<img src=x onerror=alert(1)> **bold** \u202egnp.exe"
SECTIONS = (
    *("", "/people", "/tokens", "/configuration", "/configuration/text", "/configuration/apply"),
    *("/doctor", "/audit", "/logs"),
)
MORE_SECTIONS = ("/models", "/skills", "/plugins", "/mcp")


def dialog(page: Page, name: str) -> Locator:
    return page.get_by_role("dialog", name=name)


def person_row(page: Page, name: str) -> Locator:
    return page.get_by_role("listitem").filter(has=page.get_by_text(name, exact=True))


def is_secret_gone(page: Page, secret: str) -> bool:
    """Whether a secret is neither shown, nor in the URL, nor in the storage of the browser."""
    typed = "[...document.querySelectorAll('input, textarea')].map(each => each.value)"
    seen = f"[document.documentElement.outerHTML, location.href, {{...localStorage}}, {{...sessionStorage}}, {typed}]"
    return secret not in page.evaluate(f"() => JSON.stringify({seen})")


@pytest.fixture
def settings_file(app: WebApp) -> Iterator[Path]:
    """The settings file, restored after the test."""
    file = app.server.process.home / "retinue.toml"
    yield file
    file.write_text(SETTINGS)
    app.server.do("config.reload")


@pytest.mark.parametrize(("size", "theme"), [("laptop", "dark"), ("phone", "light")])
def test_the_settings_screens_are_accessible(app: WebApp, size: str, theme: str) -> None:
    page = app.open_window("/settings", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    wait_until_settled, found = track_requests(page), dict[str, list[str]]()
    for section in SECTIONS + MORE_SECTIONS:
        page.goto(f"{app.server.address}/settings{section}")
        expect(page.get_by_role("heading", level=1, name="Settings")).to_be_visible()
        wait_until_settled()
        found[section] = find_violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert {section: what for section, what in found.items() if what} == {}


def test_the_settings_overview_shows_the_server_status_and_creates_a_backup(app: WebApp) -> None:
    page = app.open_window("/runs", patient=True)  # no field has the focus there
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page).to_have_url(f"{app.server.address}/settings")
    expect(page.get_by_text("No message is missing")).to_be_visible()
    expect(page.get_by_role("region", name="Server")).to_contain_text(app.server.address)
    health = page.get_by_role("region", name="Health")
    expect(health).to_contain_text("no backup found")
    page.get_by_role("button", name="Create backup").click()
    backup = page.get_by_role("region", name="Backup")
    expect(backup).to_contain_text("The copy was verified.")
    folder = Path(backup.locator("code").inner_text())
    assert (folder / "manifest.json").exists() or any(folder.iterdir())
    expect(health).not_to_contain_text("no backup found")


def test_a_person_is_invited_on_the_settings_screen_accepts_and_is_deleted(app: WebApp) -> None:
    page, other = app.open_window("/settings/people"), app.open_window("/settings/people")
    page.get_by_role("button", name="Invite person").click()
    page.get_by_label("Name").fill("Not A Name!")
    page.get_by_role("button", name="Create invitation").click()
    expect(dialog(page, "Invite person").get_by_role("alert")).to_contain_text("name")
    app.console_errors.clear()  # the refused request was expected
    page.get_by_label("Name").fill("maria")
    page.get_by_label("Guest").check()
    page.get_by_role("button", name="Create invitation").click()
    shown = dialog(page, "Invitation for maria")
    expect(shown).to_contain_text("shown only once")
    address = shown.locator("code").first.inner_text()
    secret = address.partition("#invitation=")[2]
    shown.get_by_role("button", name="Copy: URL to open").click()
    wait_for_clipboard(page, lambda copied: copied == address)
    page.mouse.click(5, 5)  # a click outside does not close the dialog
    expect(shown).to_be_visible()
    shown.get_by_role("button", name="Done").click()
    assert is_secret_gone(page, secret)

    invited = app.open_window("/chat")  # the invitation must be accepted before the person changes
    invited.goto("about:blank")
    invited.goto(address)
    expect(invited.get_by_role("heading", name="Invitation")).to_be_visible()
    assert secret not in invited.url and find_violations(invited) == []
    assert [each["name"] for each in app.server.do("person.list")["people"]] == ["owner"]
    invited.get_by_role("button", name="Accept invitation").click()
    expect(invited.get_by_role("button", name="Signed in as maria")).to_be_visible()
    expect(invited.get_by_role("link", name="Settings")).to_have_count(0)
    kinds = [each["kind"] for each in app.server.do("token.list", principal="person:maria")["tokens"]]
    assert kinds == ["web"]  # the unused token is gone

    for window in (page, other):
        window.bring_to_front()
        window.evaluate("dispatchEvent(new Event('focus'))")
        expect(person_row(window, "maria")).to_be_visible()
    page.get_by_label("Role of maria").select_option("Member")
    expect(page.get_by_text("maria now has the role member.")).to_be_visible()
    assert {"name": "maria", "role": "member", "level": "standard"} in app.server.do("person.list")["people"]

    page.get_by_role("button", name="Actions for maria").click()
    page.get_by_role("menuitem", name="Delete person").click()
    confirmation = dialog(page, "Delete maria?")
    expect(confirmation).to_contain_text("cannot be undone")
    expect(confirmation.get_by_role("button", name="Delete person", exact=True)).to_be_disabled()
    confirmation.get_by_label("Type maria to confirm").fill("maria")
    confirmation.get_by_role("button", name="Delete person", exact=True).click()
    expect(person_row(page, "maria")).to_have_count(0)
    assert [each["name"] for each in app.server.do("person.list")["people"]] == ["owner"]
    app.close_expecting_errors()  # the window of maria is signed out


def test_a_used_invitation_shows_an_error_in_the_web_app_and_can_be_declined(app: WebApp) -> None:
    page = app.open_window()
    page.goto("about:blank")
    page.goto(f"{app.server.address}/#invitation=long-gone")
    page.get_by_role("button", name="Accept invitation").click()
    expect(page.get_by_role("alert")).to_contain_text("ask for a new one")
    page.get_by_role("button", name="Not now").click()
    expect(page.get_by_role("button", name="Signed in as owner")).to_be_visible()
    app.console_errors.clear()  # the refused request was expected


def test_a_token_is_shown_once_rotated_and_revoked_on_the_settings_screen(app: WebApp) -> None:
    page = app.open_window("/settings/tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Label").fill(HOSTILE)
    page.get_by_label("Expiry").select_option("30 days")
    page.get_by_role("button", name="Create", exact=True).click()
    shown = dialog(page, "Your new token")
    secret = shown.locator("code").inner_text()
    expect(shown).to_contain_text("cannot show it again")
    assert app.server.do("person.whoami", as_=secret)["address"] == "person:owner"
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)  # a closed dialog is removed a moment later
    assert is_secret_gone(page, secret)
    row = page.get_by_role("listitem").filter(has_text="onerror")
    expect(row).to_contain_text("<img src=x")
    expect(page.locator("main img")).to_have_count(0)

    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Rotate secret").click()
    dialog(page, "Rotate the secret of this token?").get_by_role("button", name="Rotate secret").click()
    renewed = dialog(page, "New secret").locator("code").inner_text()
    page.get_by_role("button", name="Done").click()
    assert app.server.ask("POST", "/api/person/whoami", {}, token=secret).status == 401
    assert app.server.do("person.whoami", as_=renewed)["level"] == "boss"

    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    expect(row).to_have_count(0)
    assert app.server.ask("POST", "/api/person/whoami", {}, token=renewed).status == 401


def test_a_token_created_for_an_agent_on_the_settings_screen_acts_as_that_agent(app: WebApp) -> None:
    page = app.open_window("/settings/tokens")
    page.get_by_label("Tokens of").select_option("agent:clerk")
    expect(page).to_have_url(re.compile(r"of=agent%3Aclerk"))
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Label").fill("a script of the clerk")
    expect(page.get_by_label("Principal")).to_have_value("agent:clerk")
    page.get_by_role("button", name="Create", exact=True).click()
    secret = dialog(page, "New token for clerk").locator("code").inner_text()
    assert app.server.do("person.whoami", as_=secret)["address"] == "agent:clerk"
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("listitem").filter(has_text="a script of the clerk")).to_be_visible()


def test_a_sign_in_url_from_the_settings_screen_signs_in_another_device(app: WebApp) -> None:
    page = app.open_window("/settings/tokens")
    page.get_by_role("button", name="Create sign-in URL").click()
    shown = dialog(page, "Sign in another device")
    address = shown.locator("code").inner_text()
    assert address.startswith(f"{app.server.address}/#code=")
    page.get_by_role("button", name="Done").click()
    assert is_secret_gone(page, address.partition("=")[2])
    other = page.context.browser
    assert other is not None
    device = other.new_context()
    try:
        opened = device.new_page()
        opened.goto(address)
        expect(opened.get_by_role("button", name="Signed in as owner")).to_be_visible()
    finally:
        device.close()


def test_a_setting_is_changed_in_the_settings_form_after_a_review(app: WebApp, settings_file: Path) -> None:
    page, other = app.open_window("/settings/configuration"), app.open_window("/settings/configuration")
    drain = page.get_by_label("drain_s", exact=True)
    expect(drain).to_have_value("5")
    row = page.locator(".setting").filter(has=page.get_by_label("drain_s", exact=True))
    expect(row).to_contain_text("from file, line 3")
    drain.fill("99999")
    expect(row.get_by_role("alert")).to_contain_text("Must be from 0 to 3600")
    expect(page.get_by_role("button", name="Review changes")).to_be_disabled()
    drain.fill("7")
    expect(row.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Find a setting").fill("written to files")
    page.get_by_label("enabled", exact=True).check()
    page.get_by_role("button", name="Review changes").click()
    review = dialog(page, "Changes")
    diff = review.get_by_label("Settings file, before and after")
    expect(diff).to_contain_text("drain_s = 5.0 # quick")
    expect(diff).to_contain_text("drain_s = 7 # quick")
    effects = review.get_by_role("listitem")
    expect(effects.filter(has_text="server.drain_s")).to_contain_text("at once")
    expect(effects.filter(has_text="server.mirror.enabled")).to_contain_text("after a restart")
    assert settings_file.read_text() == SETTINGS  # nothing is written before Save
    review.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The settings were saved.")).to_be_visible()
    assert "drain_s = 7 # quick" in settings_file.read_text() and settings_file.read_text().startswith("# mine")
    shown = app.server.do("config.show")
    assert shown["settings"]["drain_s"] == 7 and shown["pending_restart"] == ["server.mirror.enabled"]
    expect(page.get_by_text("restart required")).to_be_visible()
    other.bring_to_front()
    other.evaluate("dispatchEvent(new Event('focus'))")
    expect(other.get_by_label("drain_s", exact=True)).to_have_value("7")


def test_the_settings_form_does_not_overwrite_a_settings_file_changed_by_others(
    app: WebApp, settings_file: Path
) -> None:
    page = app.open_window("/settings/configuration")
    page.get_by_label("drain_s", exact=True).fill("8")
    page.get_by_role("button", name="Review changes").click()
    review = dialog(page, "Changes")
    expect(review.get_by_role("button", name="Save")).to_be_enabled()
    settings_file.write_text(SETTINGS + "\n# by hand\n")
    review.get_by_role("button", name="Save").click()
    expect(review.get_by_role("alert")).to_contain_text("has changed since you read it")
    assert settings_file.read_text().endswith("# by hand\n") and "drain_s = 5.0" in settings_file.read_text()
    app.console_errors.clear()  # the refused request was expected
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Discard changes").click()


def test_the_settings_file_is_edited_as_text_with_errors_by_line(app: WebApp, settings_file: Path) -> None:
    page = app.open_window("/settings/configuration/text")
    text = page.get_by_label("Settings file", exact=True)
    expect(text).to_have_value(SETTINGS)
    text.fill(SETTINGS.replace("drain_s", "drane_s"))
    expect(page.get_by_role("alert")).to_contain_text("line 3")
    expect(page.get_by_role("alert")).to_contain_text("did you mean `drain_s`?")
    text.fill(SETTINGS.replace("5.0", "6.5"))
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Review changes").click()
    dialog(page, "Changes").get_by_role("button", name="Save").click()
    expect(page.get_by_text("The settings were saved.")).to_be_visible()
    assert settings_file.read_text() == SETTINGS.replace("5.0", "6.5")
    settings_file.write_text(SETTINGS)
    page.get_by_role("button", name="Reload file").click()
    expect(page.get_by_text("The file was reloaded: 1 change.")).to_be_visible()
    expect(text).to_have_value(SETTINGS)


def test_the_settings_screen_applies_declared_agents_and_people_and_confirms_differences(app: WebApp) -> None:
    page = app.open_window("/settings/configuration/apply")
    porter = page.get_by_role("listitem").filter(has_text="porter")
    expect(porter.get_by_text("add", exact=True)).to_be_visible()
    page.get_by_role("button", name="Apply", exact=True).click()
    shown = dialog(page, "Tokens of the added agents and people")
    secret = shown.locator("code").inner_text()
    assert app.server.do("person.whoami", as_=secret)["address"] == "person:zoe"
    page.get_by_role("button", name="Done").click()
    assert is_secret_gone(page, secret)
    expect(porter).to_contain_text("unchanged")
    app.server.do("agent.set", name="porter", description=HOSTILE)
    expect(porter).to_contain_text("differs")
    expect(page.get_by_label("porter, description")).to_contain_text("<img src=x")
    page.get_by_role("button", name="Apply and overwrite").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply and overwrite").click()
    expect(porter).to_contain_text("unchanged")
    assert app.server.do("agent.show", name="porter")["description"] == "Answers senders"
    app.server.do("person.forget", name="zoe", confirm="zoe")


def test_the_doctor_on_the_settings_screen_shows_suggestions_and_fixes_file_permissions(app: WebApp) -> None:
    home = app.server.process.home
    home.chmod(0o755)
    page = app.open_window("/settings/doctor")
    security = page.get_by_role("region", name="Security")
    expect(security).to_contain_text("other users can access")
    expect(security).to_contain_text("chmod go=")
    page.get_by_role("button", name="Run all checks").click()
    expect(page.get_by_text("All checks were run.")).to_be_visible()
    page.get_by_role("button", name=re.compile(r"Fix \d+ issue")).click()
    confirmation = dialog(page, "Restrict file permissions?")
    assert home.stat().st_mode & 0o077
    confirmation.get_by_role("button", name=re.compile(r"Fix \d+ issue")).click()
    expect(security).not_to_contain_text("other users can access")
    assert not home.stat().st_mode & 0o077


def test_the_audit_log_is_filtered_verified_and_exported_on_the_settings_screen(app: WebApp, tmp_path: Path) -> None:
    for number in range(60):
        app.server.do("token.create", label=f"many {number}", principal="agent:guide")
    app.server.do("agent.set", name="clerk", description="Keeps the papers")
    page = app.open_window("/settings/audit")
    lines = page.get_by_role("region", name="Audit log").locator("summary")
    expect(lines).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(lines).not_to_have_count(50)
    page.get_by_label("Kind").select_option("agent changed")
    page.get_by_label("Agent").select_option("clerk")
    page.get_by_label("Principal").select_option("person:owner")
    page.get_by_label("Since").select_option("The last hour")
    expect(page).to_have_url(re.compile(r"kind=agent-changed&agent=clerk&who=person%3Aowner&since=-1h"))
    expect(lines).to_have_count(1)
    lines.click()
    expect(page.get_by_text(re.compile("^[0-9a-f]{64}$"))).to_be_visible()
    app.server.do("agent.set", name="clerk", description="Keeps the papers in order")
    expect(lines).to_have_count(2)  # without a reload
    page.get_by_label("Principal").select_option("agent:guide")
    expect(page.get_by_role("heading", name="No audit entries")).to_be_visible()

    page.get_by_role("button", name="Verify").click()
    expect(dialog(page, "Audit verification")).to_contain_text("The audit log is intact")
    page.keyboard.press("Escape")
    with page.expect_download() as given:
        page.get_by_role("button", name="Export").click()
    target = tmp_path / given.value.suggested_filename
    given.value.save_as(target)
    exported = [json.loads(line) for line in target.read_text().splitlines()]
    assert "export" in exported[0] and sum(each.get("kind") == "token-made" for each in exported) >= 60


def test_the_log_follows_new_lines_and_pauses_when_scrolled_up(app: WebApp) -> None:
    file = app.server.process.home / "logs" / "retinue.log"

    def log(*lines: str) -> None:
        with file.open("a") as opened:
            opened.writelines(f"2026-11-15T09:00:00+0000 {line}\n" for line in lines)

    page = app.open_window("/settings/logs", fake_clock=True)
    shown = page.get_by_role("region", name="Log lines")
    expect(shown).to_contain_text('"server started"')
    log(f'warning "something odd" text="{HOSTILE}"')
    page.clock.fast_forward("00:02")
    expect(shown).to_contain_text("<img src=x")  # without a reload
    expect(page.locator("main img")).to_have_count(0)
    log(*(f'info "line" number={number}' for number in range(150)), 'error "the very last"')
    page.clock.fast_forward("00:02")
    expect(shown).to_contain_text("the very last")
    expect(page.get_by_text("New lines appear automatically.")).to_be_visible()
    shown.evaluate("node => { node.scrollTop = 0 }")
    expect(page.get_by_text("Paused because you scrolled up.")).to_be_visible()
    log('info "after that"')
    page.get_by_role("button", name="Show newest lines").click()
    page.clock.fast_forward("00:02")
    expect(shown).to_contain_text("after that")
    assert shown.inner_text().count("the very last") == 1
    page.get_by_label("Minimum level").select_option("Warning")
    expect(shown).not_to_contain_text("number=149")
    expect(shown).to_contain_text("the very last")
    page.get_by_label("Find in the log").fill("ODD")
    expect(shown.locator(".line")).to_have_count(1)
    page.get_by_role("button", name="Copy shown lines").click()
    wait_for_clipboard(page, lambda copied: "something odd" in copied)


def test_the_settings_screen_shows_a_skill_before_it_is_approved(app: WebApp) -> None:
    folder = app.server.process.home / "skills" / "weather"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        f"---\nname: weather\ndescription: How to look it up\n---\nAsk the sky. {HOSTILE}\n"
    )
    page = app.open_window("/settings/skills")
    row = page.get_by_role("listitem").filter(has_text="weather")
    expect(row).to_contain_text("not approved")
    row.get_by_role("button", name="Show content of weather").click()
    expect(page.get_by_role("region", name="Content")).to_contain_text("<img src=x")
    page.get_by_role("button", name="Approve").click()
    expect(row.get_by_text("approved", exact=True)).to_be_visible()
    assert [each["state"] for each in app.server.do("skill.list")["skills"] if each["name"] == "weather"] == ["ready"]
    row.get_by_role("button", name="Revoke approval").click()
    expect(row).to_contain_text("not approved")


def test_a_provider_key_is_added_and_removed_on_the_settings_screen(app: WebApp) -> None:
    page = app.open_window("/settings/models")
    page.get_by_role("button", name="Add key").click()
    page.get_by_label("Provider", exact=True).fill("anthropic")
    page.get_by_label("Name", exact=True).fill("work")
    page.get_by_label("Key location").select_option("Stored by the server")
    page.get_by_label("Key", exact=True).fill("sk-ant-never-shown-again")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("listitem").filter(has_text="work")
    expect(row).to_contain_text("ready")
    assert is_secret_gone(page, "sk-ant-never-shown-again")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).click()
    expect(row).to_have_count(0)
    assert all("work" not in each["id"] for each in app.server.do("credential.list")["credentials"])
