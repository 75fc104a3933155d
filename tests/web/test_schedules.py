"""The Schedules screen: list, editor with preview, history, week view and heartbeats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from api.tcp_server import ApiClient
from playwright.sync_api import Locator, Page, expect
from web.browser import SIZES_AND_THEMES, WebApp, find_violations, scrolls_sideways
from web.chat_actions import make_blocking_message
from web.conftest import SETTINGS as BASE_SETTINGS

from retinue.testing.wait_conditions import wait_until_sync

SETTINGS = BASE_SETTINGS + '[sessions.reset]\ndaily_at = "04:00"\n'
HOSTILE = "<img src=x onerror=alert(1)> **bold** \u202etxt.exe <script>alert(2)</script>"


@pytest.fixture(autouse=True)
def delete_schedules(server: ApiClient) -> Iterator[None]:
    """Delete the schedules of each test. A heartbeat cannot be deleted: its tests have their own servers."""
    yield
    for each in server.do("schedule.list", limit=200)["schedules"]:
        server.do("schedule.delete", schedule=each["id"])


def add_schedule(server: ApiClient, **kw: Any) -> dict[str, Any]:
    if not {"at", "every", "cron"} & set(kw):
        kw["cron"] = "0 9 * * 1-5"
    return server.do("schedule.add", **{"to": "agent:guide", "text": "echo good morning", **kw})


def read_schedule(server: ApiClient, id_: str) -> dict[str, Any]:
    return server.do("schedule.show", schedule=id_)


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def choose_action(page: Page, name: str, what: str) -> None:
    page.get_by_role("button", name=f"Actions for {name}").click()
    page.get_by_role("menuitem", name=what, exact=True).click()


def history(page: Page) -> Locator:
    return page.get_by_role("region", name="History").get_by_role("listitem")


def preview(page: Page) -> Locator:
    return page.get_by_role("status", name="Preview")


# --- list ---


def test_the_schedules_screen_without_schedules_shows_the_empty_state(app: WebApp) -> None:
    page = app.open_window("/runs", patient=True)  # no field has the focus there
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page).to_have_url(f"{app.server.address}/schedules")
    expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
    assert find_violations(page) == []
    page.get_by_role("link", name="Week").click()
    expect(page.get_by_role("heading", name="No runs this week")).to_be_visible()
    page.get_by_role("link", name="Create schedule").click()
    expect(page).to_have_url(f"{app.server.address}/schedules/new")


def test_the_schedule_list_shows_the_next_run_and_is_updated_live(app: WebApp, server: ApiClient) -> None:
    add_schedule(server, name="morning", zone="Europe/Berlin")
    page, phone = app.open_window("/schedules"), app.open_window("/schedules", size="phone", theme="dark")
    expect(row(page, "morning")).to_contain_text("At 09:00 on Monday through Friday (Europe/Berlin)")
    expect(row(page, "morning")).to_contain_text("not yet")
    expect(row(page, "morning").locator("time")).to_have_attribute("datetime", read_schedule(server, "morning")["next"])
    server.do("schedule.run", schedule="morning")
    expect(row(page, "morning")).to_contain_text("done")
    server.do("schedule.disable", schedule="morning")
    for window in (page, phone):
        expect(window.get_by_role("main").get_by_text("none", exact=True)).to_be_visible()
    expect(phone.get_by_role("table")).to_have_count(0)
    add_schedule(server, to="person:owner", at="+5h", text=HOSTILE)
    expect(page.get_by_role("link", name="<img src=x")).to_be_visible()
    server.do("schedule.delete", schedule="morning")
    expect(row(page, "morning")).to_have_count(0)
    for window in (page, phone):
        assert find_violations(window) == [] and not scrolls_sideways(window)


def test_schedules_are_filtered_and_the_url_keeps_the_filters(app: WebApp, server: ApiClient) -> None:
    add_schedule(server, name="for-guide")
    add_schedule(server, name="for-clerk", to="agent:clerk")
    server.do("reminder.add", text="Call Noor.", at="+2h")
    page = app.open_window("/schedules")
    expect(row(page, "Call Noor.")).to_contain_text("reminder")
    page.get_by_label("Kind").select_option("Reminders")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Kind").select_option("Schedules")
    page.get_by_label("Agent", exact=True).select_option("clerk")
    expect(page).to_have_url(f"{server.address}/schedules?kind=schedule&agent=clerk")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.reload()
    expect(row(page, "for-clerk")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Kind").select_option("Wake-ups")
    expect(page.get_by_role("heading", name="No matching schedules")).to_be_visible()


def test_the_schedules_screen_names_unreadable_schedule_files(app: WebApp, server: ApiClient) -> None:
    folder = server.process.home / "schedules"
    folder.mkdir(exist_ok=True)
    page = app.open_window("/schedules")
    (folder / "broken.md").write_text("---\ncron: every full moon\nto: agent:guide\n---\nHowl.\n")
    expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
    wait_until_sync(lambda: server.do("schedule.list")["unreadable_files"], "the file was read")
    page.reload()
    expect(page.get_by_role("note")).to_contain_text("1 schedule file could not be read")
    expect(page.get_by_role("note")).to_contain_text("broken.md")
    (folder / "broken.md").unlink()
    wait_until_sync(lambda: not server.do("schedule.list")["unreadable_files"], "the file is no longer listed")


# --- create and edit ---


@pytest.mark.spec("H30")
def test_the_preview_in_the_schedule_editor_explains_the_time_while_typing(app: WebApp, server: ApiClient) -> None:
    page = app.open_window("/schedules/new")
    expect(preview(page)).to_contain_text("Enter a time")
    page.get_by_label("Cron expression").fill("0 9 * * 1-5")
    page.get_by_label("Time zone").fill("Asia/Tokyo")
    expect(preview(page)).to_contain_text("At 09:00 on Monday through Friday (Asia/Tokyo)")
    coming = server.do("schedule.explain", cron="0 9 * * 1-5", zone="Asia/Tokyo")["next"]
    times = preview(page).locator("li > time")
    expect(times).to_have_count(5)
    assert times.evaluate_all("all => all.map(each => each.dateTime)") == coming
    expect(times.first).to_contain_text("09:00")

    page.get_by_label("Cron expression").fill("0 9 * * 1-9")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Try:")
    expect(page.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
    expect(preview(page).locator("li")).to_have_count(0)
    page.get_by_role("button", name="Every hour").click()
    expect(alert).to_have_count(0)
    expect(preview(page)).to_contain_text("every hour")
    page.get_by_label("Time zone").fill("Europe/Nowhere")
    expect(alert).to_contain_text("no time zone named", ignore_case=True)
    expect(page.get_by_label("Time zone")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Time zone").fill("")

    page.get_by_label("Interval").and_(page.get_by_role("radio")).check()
    page.get_by_role("textbox", name="Interval").fill("1h30m")
    expect(preview(page)).to_contain_text("Every 1 hour 30 minutes")
    page.get_by_role("radio", name="Once").check()
    page.get_by_label("Date and time", exact=True).fill("2031-05-17T20:30")
    expect(preview(page)).to_contain_text("2031")
    expect(preview(page).locator("li")).to_have_count(1)
    assert server.do("schedule.list")["schedules"] == []
    assert find_violations(page) == []
    page.get_by_role("button", name="Discard changes").click()
    expect(page).to_have_url(f"{server.address}/schedules")
    app.console_errors.clear()  # the refused requests were expected


def test_the_schedule_editor_saves_all_fields_and_shows_errors_at_their_fields(app: WebApp, server: ApiClient) -> None:
    add_schedule(server, name="taken")
    page = app.open_window("/schedules/new?to=agent:clerk")
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    page.get_by_label("Cron expression").fill("30 21 * * *")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    expect(page.get_by_label("Recipient", exact=True)).to_have_value("agent:clerk")
    page.get_by_label("Conversation", exact=True).select_option("own")
    page.get_by_role("heading", name="Gate").click()
    page.get_by_label("Command").fill("test -s inbox.txt")
    page.get_by_label("Timeout (seconds)").fill("5")
    page.get_by_label("Permissions").fill("read:/srv/mail\nweb")
    page.get_by_label("Hosts").fill("api.example.org")
    page.get_by_label("Environment variables").fill("WHO=ada=lovelace")
    page.get_by_label("Name", exact=True).fill("Taken")
    page.get_by_label("Description").fill("So that nothing is forgotten")
    page.get_by_label("Missed runs").select_option("run")
    page.get_by_label("Answer recipient").fill("none")
    page.get_by_label("Conversation title").fill("Evenings")
    page.get_by_role("button", name="Save", exact=True).click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("A schedule named 'Taken' already exists", ignore_case=True)
    expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Name", exact=True).fill("evening")
    page.get_by_label("Text").fill("Write down what happened.\nIn five lines.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", name="evening", level=1)).to_be_visible()

    kept = read_schedule(server, "evening")
    assert page.url == f"{server.address}/schedules/{kept['id']}"
    assert (kept["to"], kept["cron"], kept["zone"]) == ("agent:clerk", "30 21 * * *", "Europe/Berlin")
    assert (kept["session"], kept["missed"], kept["deliver_to"], kept["title"]) == ("own", "run", "none", "Evenings")
    assert kept["text"] == "Write down what happened.\nIn five lines."
    assert kept["gate"] == {
        "command": "test -s inbox.txt",
        "timeout_ms": 5000,
        "env": {"WHO": "ada=lovelace"},
        "permissions": ["read:/srv/mail", "web"],
        "domains": ["api.example.org"],
    }
    facts = page.get_by_role("region", name="Message")
    expect(facts).to_contain_text("its own conversation, with history")
    expect(facts).to_contain_text("run once when the server starts")
    expect(facts).to_contain_text("none")
    assert find_violations(page) == []
    app.console_errors.clear()  # the refused request was expected


def test_the_schedule_editor_keeps_untouched_fields(app: WebApp, server: ApiClient) -> None:
    made = add_schedule(
        server, name="kept", every="2h", session="own", missed="run", gate={"command": "true", "cwd": "notes"}
    )
    page = app.open_window(f"/schedules/{made['id']}/change")
    expect(preview(page)).to_contain_text("Every 2 hours")
    times = preview(page).locator("li > time")
    expect(times.first).to_have_attribute("datetime", made["next"])
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    page.get_by_label("Text").fill("echo good evening")
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(f"{server.address}/schedules/{made['id']}")
    now = read_schedule(server, "kept")
    changed = {name for name in made if made[name] != now[name]}
    assert changed <= {"text", "updated_at", "envelope"} and now["text"] == "echo good evening"

    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Calendar").check()
    page.get_by_label("Cron expression").fill("0 7 * * *")
    page.get_by_role("heading", name="Gate").click()
    page.get_by_label("Command").fill("")
    page.keyboard.press("Control+s")
    expect(page.get_by_role("region", name="Next runs")).to_contain_text("At 07:00 every day")
    now = read_schedule(server, "kept")
    assert (now["every"], now["cron"], now["gate"], now["missed"]) == ("", "0 7 * * *", None, "run")


def test_changing_the_time_zone_in_the_schedule_editor_changes_the_time(app: WebApp, server: ApiClient) -> None:
    made = add_schedule(server, at="2031-05-17T20:30", zone="Europe/Berlin", text="echo party")
    page = app.open_window(f"/schedules/{made['id']}/change")
    expect(page.get_by_label("Date and time", exact=True)).to_have_value("2031-05-17T20:30")
    page.get_by_label("Time zone").fill("Asia/Tokyo")
    expect(preview(page)).to_contain_text("08:30")
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(f"{server.address}/schedules/{made['id']}")
    assert read_schedule(server, made["id"])["at"] == "2031-05-17T20:30:00+09:00"


def test_the_schedule_editor_can_choose_a_specific_conversation_or_address(app: WebApp, server: ApiClient) -> None:
    session = server.do("session.create", agent="clerk", name="taxes")["sessionId"]
    page = app.open_window("/schedules/new")
    page.get_by_role("button", name="Every morning").click()
    page.get_by_label("Recipient", exact=True).select_option("agent:clerk")
    page.get_by_label("Conversation", exact=True).select_option("session")
    page.get_by_label("Text").fill("echo hello")
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    page.get_by_label("Specific conversation", exact=True).select_option("taxes")
    page.get_by_role("button", name="Save as paused").click()
    expect(page.get_by_role("note")).to_contain_text("Paused")
    [kept] = server.do("schedule.list")["schedules"]
    assert (kept["to"], kept["enabled"]) == (f"agent:clerk/{session}", False)
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Specific conversation", exact=True)).to_have_value(session)
    page.get_by_label("Recipient", exact=True).select_option("Other address…")
    page.get_by_label("Address").fill("nobody")
    page.get_by_role("button", name="Save").press("Enter")  # a notification may cover the button
    expect(page.get_by_role("alert")).to_contain_text("Invalid address")
    page.get_by_label("Address").fill("person:owner")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_role("note")).to_contain_text("Paused")
    assert read_schedule(server, kept["id"])["to"] == "person:owner"
    app.console_errors.clear()  # the refused request was expected


def test_unsaved_edits_in_the_schedule_editor_survive_a_change_by_others(app: WebApp, server: ApiClient) -> None:
    made = add_schedule(server, name="both")
    page = app.open_window(f"/schedules/{made['id']}/change")
    page.get_by_label("Text").fill("mine")
    server.do("schedule.set", schedule="both", cron="0 11 * * *")
    expect(page.get_by_text("Someone else changed this schedule.")).to_be_visible()
    expect(page.get_by_label("Cron expression")).to_have_value("0 11 * * *")
    expect(page.get_by_label("Text")).to_have_value("mine")
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(f"{server.address}/schedules/{made['id']}")
    now = read_schedule(server, "both")
    assert (now["text"], now["cron"]) == ("mine", "0 11 * * *")


# --- run, pause, delete ---


def test_the_schedules_screen_runs_a_schedule_manually_or_forced_and_shows_the_reason_of_a_skip(
    app: WebApp, server: ApiClient
) -> None:
    busy = make_blocking_message(server)
    made = add_schedule(server, name="long", text=busy.text)
    page = app.open_window(f"/schedules/{made['id']}", patient=True)
    expect(page.get_by_role("region", name="History")).to_contain_text("No runs yet.")
    page.get_by_role("button", name="Run now").click()
    expect(history(page)).to_have_count(1)
    expect(history(page).first).to_contain_text("running")
    expect(history(page).first).to_contain_text("manual")
    page.get_by_role("button", name="Run now").click()
    skipped = history(page).filter(has_text="skipped")
    expect(skipped).to_contain_text("The previous run was not finished:")
    expect(skipped).to_contain_text("is still running")
    page.get_by_role("button", name="Force run").click()
    expect(history(page).filter(has_text="forced")).to_have_count(1)
    busy.release()
    expect(history(page).filter(has_text="done")).to_have_count(2)
    expect(history(page).filter(has_text="took")).to_have_count(2)
    assert [each["state"] for each in server.do("schedule.history", schedule="long")["occurrences"]].count("ran") == 2
    assert find_violations(page) == []
    history(page).filter(has_text="took").first.get_by_role("button", name=re.compile("Explain.*occurrence of")).click()
    expect(page.get_by_role("dialog")).to_contain_text("schedule")


def test_the_schedules_screen_shows_a_declining_gate_and_a_forced_run_ignores_it(
    app: WebApp, server: ApiClient
) -> None:
    made = add_schedule(server, name="gated", gate={"command": "exit 3"})
    page = app.open_window("/schedules")
    choose_action(page, "gated", "Run now")
    expect(row(page, "gated")).to_contain_text("skipped")
    page.get_by_role("link", name="gated").click()
    expect(history(page).first).to_contain_text("The gate was closed:")
    expect(history(page).first).to_contain_text("exit 3")
    choose_action(page, "gated", "Force run")
    expect(history(page).filter(has_text="done")).to_have_count(1)
    assert read_schedule(server, made["id"])["last_status"] == "ran"


def test_the_schedules_screen_pauses_resumes_and_deletes_a_schedule_after_confirmation(
    app: WebApp, server: ApiClient
) -> None:
    made = add_schedule(server, name="daily")
    page, other = app.open_window(f"/schedules/{made['id']}"), app.open_window("/schedules", size="phone")
    expect(page.get_by_role("region", name="Next runs").locator("li")).to_have_count(5)
    choose_action(page, "daily", "Pause")
    expect(page.get_by_role("note")).to_contain_text("Paused: disabled by person:owner.")
    expect(page.get_by_role("region", name="Next runs").locator("li")).to_have_count(0)
    expect(other.get_by_text("none", exact=True)).to_be_visible()
    page.get_by_role("note").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("note")).to_have_count(0)
    assert read_schedule(server, "daily")["enabled"]
    choose_action(other, "daily", "Delete")
    dialog = other.get_by_role("dialog", name="Delete daily?")
    dialog.get_by_role("button", name="Cancel").click()
    assert read_schedule(server, "daily")["enabled"]
    choose_action(other, "daily", "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(other.get_by_role("heading", name="No schedules yet")).to_be_visible()
    expect(page.get_by_role("heading", name="Schedule not found")).to_be_visible()
    assert server.do("schedule.list")["schedules"] == []
    app.close_expecting_errors()  # each part of the screen requests the deleted schedule


def test_a_member_sees_only_their_own_schedules_and_no_gate_on_the_schedules_screen(
    app: WebApp, server: ApiClient
) -> None:
    token = server.member("maria")
    add_schedule(server, name="of-the-owner")
    server.do("schedule.add", as_=token, to="agent:guide", cron="0 8 * * *", text="echo hi", name="hers")
    page = app.open_window("/schedules")
    expect(row(page, "of-the-owner")).to_be_visible()
    expect(row(page, "hers")).to_be_visible()
    hers = app.open_window("/schedules")
    hers.get_by_role("button", name="Signed in as owner").click()
    hers.get_by_role("menuitem", name="Sign out").click()
    hers.get_by_label("Sign-in code").fill(server.do("token.code", as_=token)["code"])
    hers.get_by_role("button", name="Sign in").click()
    expect(row(hers, "hers")).to_be_visible()
    expect(row(hers, "of-the-owner")).to_have_count(0)
    hers.get_by_role("button", name="Create schedule").click()
    expect(hers.get_by_label("Cron expression")).to_be_visible()
    expect(hers.get_by_role("heading", name="Gate")).to_have_count(0)


# --- week ---


@pytest.mark.parametrize(("size", "theme"), SIZES_AND_THEMES)
def test_the_week_view_lists_the_runs_of_each_day(app: WebApp, server: ApiClient, size: str, theme: str) -> None:
    add_schedule(server, name="daily", cron="30 23 * * *")
    add_schedule(server, name="often", every="10m")
    add_schedule(server, cron="45 23 * * *", text=HOSTILE)
    page = app.open_window("/schedules/week", size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    week = page.get_by_role("region", name="Next 7 days")
    coming = {each["name"]: each for each in server.do("schedule.calendar")["schedules"]}
    expect(week.get_by_role("link", name=re.compile("daily"))).to_have_count(len(coming["daily"]["times"]))
    often = page.get_by_role("region", name="Frequent schedules")
    expect(often).to_contain_text("Every 10 minutes")
    expect(week.get_by_text("often")).to_have_count(0)
    times = week.get_by_role("link", name=re.compile("daily")).locator("time")
    shown = times.evaluate_all("all => all.map(each => each.dateTime)")
    assert len(shown) >= 6
    assert shown == coming["daily"]["times"]
    assert find_violations(page) == [] and not scrolls_sideways(page)
    server.do("schedule.disable", schedule="daily")
    expect(week.get_by_role("link", name=re.compile("daily"))).to_have_count(0)
    often.get_by_role("link", name="often").click()
    expect(page.get_by_role("heading", name="often", level=1)).to_be_visible()


def test_a_full_day_in_the_week_view_of_schedules_is_expanded_and_collapsed(app: WebApp, server: ApiClient) -> None:
    for number in range(15):
        add_schedule(server, name=f"n{number:02}", cron=f"{number} 12 * * *")
    page = app.open_window("/schedules/week")
    tomorrow = page.get_by_role("region", name="Next 7 days").locator(".day").nth(1)
    expect(tomorrow.get_by_role("link")).to_have_count(12)
    tomorrow.get_by_role("button", name="Show 3 more").click()
    expect(tomorrow.get_by_role("link")).to_have_count(15)
    expect(tomorrow.get_by_role("button", name="Show fewer")).to_be_focused()


# --- heartbeats ---


def heartbeat(page: Page, agent: str) -> Locator:
    return page.get_by_role("region", name=f"Heartbeat of {agent}")


def test_a_heartbeat_task_is_added_run_edited_and_deleted_on_the_heartbeats_screen(own_app: WebApp) -> None:
    app, server = own_app, own_app.server
    page = app.open_window("/schedules/heartbeat", polling=False)
    expect(page.get_by_role("heading", name="No heartbeats yet")).to_be_visible()
    assert find_violations(page) == []
    server.do("agent.set", name="guide", heartbeat_every_s=86_400)
    expect(heartbeat(page, "guide")).to_contain_text("Every day")
    expect(heartbeat(page, "guide")).to_contain_text("No tasks yet.")
    page.get_by_role("button", name="Add task").click()
    dialog = page.get_by_role("dialog", name="Add task")
    dialog.get_by_label("Agent").select_option("guide")
    dialog.get_by_label("Title").fill("Plants")
    expect(dialog.get_by_role("button", name="Create")).to_be_disabled()
    dialog.get_by_label("Instructions").fill("echo they are thirsty")
    dialog.get_by_label("Id", exact=True).fill("../plants")
    assert find_violations(page) == []
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Invalid id for a heartbeat task")
    dialog.get_by_label("Id", exact=True).fill("")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_have_count(0)
    task = heartbeat(page, "guide").get_by_role("list", name="Tasks").get_by_role("listitem").filter(has_text="Plants")
    expect(task).to_contain_text("plants")
    shown = server.do("heartbeat.show", agent="guide", id="plants")
    assert (shown["title"], shown["text"], shown["gate"]) == ("Plants", "echo they are thirsty", None)

    task.get_by_role("checkbox", name="Select Plants").check()
    heartbeat(page, "guide").get_by_role("button", name="Run 1 task now").click()
    expect(heartbeat(page, "guide")).to_contain_text("done")
    expect(task.get_by_role("checkbox")).not_to_be_checked()
    heartbeat(page, "guide").get_by_role("link", name="Show history").click()
    expect(page.get_by_role("heading", name="Heartbeat of guide", level=1)).to_be_visible()
    expect(history(page).first).to_contain_text("manual")
    expect(history(page).filter(has_text="done")).to_have_count(1)
    page.get_by_role("button", name="Open checklist").click()

    task.get_by_role("button", name="Actions for Plants").click()
    page.get_by_role("menuitem", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit Plants")
    expect(dialog.get_by_label("Instructions")).to_have_value("echo they are thirsty")
    dialog.get_by_label("Gate").fill("exit 1")
    dialog.get_by_role("button", name="Save").click()
    expect(task).to_contain_text("gate")
    assert server.do("heartbeat.show", agent="guide", id="plants")["gate"]["command"] == "exit 1"
    assert find_violations(page) == []

    task.get_by_role("button", name="Actions for Plants").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("dialog", name="Delete Plants?").get_by_role("button", name="Delete").click()
    expect(heartbeat(page, "guide")).to_contain_text("No tasks yet.")
    assert server.do("heartbeat.list", agent="guide")["heartbeats"][0]["tasks"] == []
    app.console_errors.clear()  # the refused request was expected


def test_the_heartbeat_of_an_agent_can_be_edited_in_the_web_app(own_app: WebApp) -> None:
    app, server = own_app, own_app.server
    page = app.open_window("/agents/clerk")
    list_ = app.open_window("/schedules/heartbeat", size="phone", theme="dark", polling=False)  # updated by events only
    page.get_by_role("heading", name="Heartbeat").click()
    page.get_by_label("Interval (seconds)").fill("3600")
    page.get_by_label("Active from").fill("eight")
    expect(page.get_by_role("alert")).to_contain_text("must be a time of day")
    page.get_by_label("Active from").fill("08:00")
    page.get_by_label("Conversation", exact=True).select_option("main")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    kept = server.do("agent.show", name="clerk")["heartbeat"]
    assert (kept["every_s"], kept["active_start"], kept["session"]) == (3600, "08:00", "main")
    assert find_violations(page) == []
    expect(heartbeat(list_, "clerk")).to_contain_text("Every hour")
    assert find_violations(list_) == [] and not scrolls_sideways(list_)
    page.get_by_label("Interval (seconds)").fill("")
    page.get_by_label("Active from").fill("")
    page.get_by_label("Conversation", exact=True).select_option("Default")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    assert set(server.do("agent.show", name="clerk")["heartbeat"].values()) == {None}
    app.console_errors.clear()  # the refused request was expected


# --- context reset ---


def test_the_context_reset_of_an_agent_can_be_edited_in_the_web_app(app: WebApp, server: ApiClient) -> None:
    page = app.open_window("/agents/clerk")
    page.get_by_role("heading", name="Context reset").click()
    daily = page.get_by_label("Daily reset time")
    expect(daily).to_have_attribute("placeholder", "Default: 04:00")
    daily.fill("25:00")
    expect(page.get_by_role("alert")).to_contain_text("must be a time of day")
    expect(daily).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    daily.fill("06:30")
    page.get_by_label("Idle time before a reset (minutes)").fill("90")
    page.get_by_label("Maximum context size (tokens)").fill("60000")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    kept = server.do("agent.show", name="clerk")["reset"]
    assert kept == {"daily_at": "06:30", "idle_minutes": 90, "context_tokens_max": 60_000}
    assert find_violations(page) == []
    page.get_by_role("heading", name="Context reset").click()
    expect(page.locator("summary").filter(has_text="Context reset")).to_contain_text("daily at 06:30")
    page.get_by_role("heading", name="Context reset").click()
    for label in ("Daily reset time", "Idle time before a reset (minutes)", "Maximum context size (tokens)"):
        page.get_by_label(label).fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Save")).to_have_count(0)
    kept = server.do("agent.show", name="clerk")["reset"]
    assert kept == {"daily_at": None, "idle_minutes": None, "context_tokens_max": None}
    app.console_errors.clear()  # the refused request was expected
