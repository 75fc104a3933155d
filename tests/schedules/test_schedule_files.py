"""Schedule files: read, applied and written back. A file that cannot be read is reported with the line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import ScriptedServer, open_scripted_server
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.errors import Invalid
from retinue.domain.schedule import MissedPolicy, ScheduleSession
from retinue.schedules.schedule_front_matter import (
    SCHEDULE_FILE_BYTES_MAX,
    MissingScheduleId,
    parse_schedule_file,
    render_schedule_file,
)
from retinue.schedules.schedule_parser import GateForm, ScheduleForm
from retinue.testing.wait_conditions import wait_until

ID = "4f" * 16
FILE_TEXT = f"""---
id: {ID}
cron: "0 9 * * 1-5"
to: agent:ada
zone: Europe/Berlin   # where the garden is
---

What is on today?
"""


async def wait_for_result(ask: Callable[[], Any], what: str) -> Any:
    async def find_result() -> tuple[Any] | None:
        found = await ask()
        return None if found is None else (found,)

    answer = await wait_until(find_result, what)
    assert answer is not None
    return answer[0]


def schedules_folder(server: ScriptedServer) -> Path:
    return server.root / "schedules"


async def find_schedule(server: ScriptedServer, name: str) -> dict[str, Any] | None:
    found = (await server.ask("schedule.list"))["schedules"]
    return next((each for each in found if each["name"] == name), None)


async def list_file_errors(server: ScriptedServer) -> list[str] | None:
    return (await server.ask("schedule.list"))["unreadable_files"] or None


@pytest.mark.spec("D38")
async def test_adding_changing_and_removing_a_schedule_file_adds_changes_and_deletes_a_schedule(
    tmp_path: Path,
) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        file = schedules_folder(server) / "garden.md"
        file.write_text(FILE_TEXT)
        made = await wait_for_result(lambda: find_schedule(server, "garden"), "the schedule")
        assert (made["id"], made["cron"], made["zone"]) == (ID, "0 9 * * 1-5", "Europe/Berlin")
        assert (made["text"], made["to"], made["source"]) == ("What is on today?", "agent:ada", "file")

        file.write_text(FILE_TEXT.replace("0 9", "30 7").replace("today", "tomorrow"))

        async def changed() -> Any:
            found = await find_schedule(server, "garden")
            return found if found and found["cron"] == "30 7 * * 1-5" else None

        assert (await wait_for_result(changed, "the change"))["text"] == "What is on tomorrow?"
        assert "where the garden is" in file.read_text()  # a person's file is not overwritten
        file.unlink()

        async def gone() -> Any:
            return True if await find_schedule(server, "garden") is None else None

        await wait_for_result(gone, "the schedule to be deleted")


@pytest.mark.spec("D38")
async def test_schedule_changes_are_written_to_the_file_and_a_renamed_file_keeps_its_history(
    tmp_path: Path,
) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        made = await server.ask("schedule.add", name="tea", to="agent:ada", text="Tea.", every="1h", session="own")
        file = schedules_folder(server) / "tea.md"

        async def file_contains(text: str) -> Any:
            return True if file.exists() and text in file.read_text() else None

        await wait_for_result(lambda: file_contains('every: "1h"'), "the file")
        filed = parse_schedule_file(file.read_text())
        assert (filed.id, filed.form.text, filed.form.session, filed.is_enabled) == (
            made["id"],
            "Tea.",
            ScheduleSession.OWN,
            True,
        )
        assert file.stat().st_mode & 0o777 == 0o600
        await server.ask("schedule.disable", schedule="tea")
        await wait_for_result(lambda: file_contains("enabled: false"), "the file to change")
        await server.ask("schedule.set", schedule="tea", text="Green tea.")
        await wait_for_result(lambda: file_contains("Green tea."), "the new text")

        file.rename(schedules_folder(server) / "supper.md")
        renamed = await wait_for_result(lambda: find_schedule(server, "supper"), "the new name")
        assert renamed["id"] == made["id"] and await find_schedule(server, "tea") is None
        await server.ask("schedule.delete", schedule="supper")

        async def no_files() -> Any:
            return True if not list(schedules_folder(server).glob("*.md")) else None

        await wait_for_result(no_files, "the file to be deleted")


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_lost_schedules_folder_is_written_again_and_deletes_no_schedule(
    tmp_path: Path, is_running: bool
) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        made = await server.ask("schedule.add", name="tea", to="agent:ada", text="Tea.", every="1h")
        file = schedules_folder(server) / "tea.md"
        await wait_until(file.exists, "the file is written")
        if is_running:
            file.parent.rename(tmp_path / "moved")
            await wait_until(file.exists, "the file is written again")
            assert (await find_schedule(server, "tea") or {})["id"] == made["id"]
    file.parent.rename(tmp_path / "moved again")
    async with open_scripted_server(tmp_path / "home") as server:
        await wait_until(file.exists, "the file is written again")
        assert (await find_schedule(server, "tea") or {})["id"] == made["id"]


@pytest.mark.spec("D38", "D43")
@pytest.mark.parametrize(
    ("make_unreadable", "reason"),
    [
        (lambda file: file.write_bytes(b"x" * (SCHEDULE_FILE_BYTES_MAX + 1)), "garden.md: it is too large"),
        (lambda file: file.symlink_to("elsewhere"), "garden.md: it is a link"),
        (lambda file: file.mkdir(), "garden.md: it cannot be read"),
        (lambda file: file.with_name("flowers.md").symlink_to("elsewhere"), "flowers.md: it is a link"),
    ],
    ids=["too large", "link", "folder", "perhaps renamed"],
)
async def test_a_schedule_whose_file_cannot_be_read_is_kept_and_the_file_is_reported(
    tmp_path: Path, make_unreadable: Callable[[Path], object], reason: str
) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        file = schedules_folder(server) / "garden.md"
        file.write_text(FILE_TEXT)
        await wait_for_result(lambda: find_schedule(server, "garden"), "the schedule")

    file.unlink()
    make_unreadable(file)
    async with open_scripted_server(tmp_path / "home") as server:
        assert (await wait_for_result(lambda: list_file_errors(server), "the report"))[0].startswith(reason)
        schedule = await find_schedule(server, "garden")
        assert schedule is not None and schedule["id"] == ID


@pytest.mark.spec("D38", "D43")
async def test_an_invalid_schedule_file_is_reported_with_its_line_and_changes_nothing(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        file = schedules_folder(server) / "garden.md"
        file.write_text(FILE_TEXT)
        await wait_for_result(lambda: find_schedule(server, "garden"), "the schedule")
        for text, told in (
            (FILE_TEXT.replace("0 9", "0 99"), "its hour is invalid"),
            (FILE_TEXT.replace("to: agent:ada", "to: agent:nobody"), "no agent named 'nobody'"),
            (FILE_TEXT.replace("zone: Europe/Berlin", "colour: blue"), "line 5: "),
            (FILE_TEXT.replace("to: agent:ada", "to"), "line 4: "),
            (FILE_TEXT.replace('cron: "0 9', "cron: */5 9"), "line 3: "),
            (FILE_TEXT.replace(f"id: {ID}\n", ""), "the id is missing"),
        ):
            file.write_text(text)

            async def is_reported(told: str = told) -> Any:
                found = await list_file_errors(server)
                return found if found and told in found[0] else None

            assert (await wait_for_result(is_reported, told))[0].startswith("garden.md: ")
            kept = await find_schedule(server, "garden")
            assert kept is not None and (kept["cron"], kept["enabled"]) == ("0 9 * * 1-5", True)
        file.write_text(FILE_TEXT)

        async def fine() -> Any:
            return True if await list_file_errors(server) is None else None

        await wait_for_result(fine, "the file to be read again")


@pytest.mark.spec("D38")
async def test_a_schedule_file_without_an_id_and_a_copy_of_a_file_are_reported_and_ignored(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        (schedules_folder(server) / "new.md").write_text(FILE_TEXT.replace(f"id: {ID}\n", ""))
        [warning] = await wait_for_result(lambda: list_file_errors(server), "the warning")
        assert warning.startswith("new.md: line 2: the id is missing, so the file is ignored; add a new one: `id: ")
        assert await find_schedule(server, "new") is None
        (schedules_folder(server) / "new.md").unlink()
        (schedules_folder(server) / "garden.md").write_text(FILE_TEXT)
        await wait_for_result(lambda: find_schedule(server, "garden"), "the schedule")
        (schedules_folder(server) / "copy.md").write_text(FILE_TEXT)

        async def is_copy() -> Any:
            found = await list_file_errors(server)
            return found if found and "this schedule file is a copy" in found[0] else None

        await wait_for_result(is_copy, "the copy to be reported")
        assert await find_schedule(server, "copy") is None and await find_schedule(server, "garden") is not None


@pytest.mark.spec("D38", "D41")
async def test_schedule_file_changes_made_while_the_server_was_stopped_are_applied_at_start(tmp_path: Path) -> None:
    root = tmp_path / "home"
    async with open_scripted_server(root) as server:
        for name in ("kept", "edited", "removed"):
            await server.ask("schedule.add", name=name, to="agent:ada", text=f"{name}.", cron="0 9 * * *")

        async def all_there() -> Any:
            return True if len(list(schedules_folder(server).glob("*.md"))) == 3 else None

        await wait_for_result(all_there, "the files")
        await server.server.services.schedule_files.sync()  # type: ignore[union-attr]
    edited = root / "schedules" / "edited.md"
    edited.write_text(edited.read_text().replace("0 9", "0 8"))
    os.utime(edited, (2**31, 2**31))
    (root / "schedules" / "removed.md").unlink()
    (root / "schedules" / "added.md").write_text(FILE_TEXT)
    async with open_scripted_server(root) as server:
        found = {each["name"]: each["cron"] for each in (await server.ask("schedule.list"))["schedules"]}
        assert found == {"kept": "0 9 * * *", "edited": "0 8 * * *", "added": "0 9 * * 1-5"}
        # A server that stops between deleting a schedule and its file does not restore it.
        await server.server.services.schedule_files.stop()  # type: ignore[union-attr]
        await server.ask("schedule.delete", schedule="kept")
        assert (root / "schedules" / "kept.md").exists()
    async with open_scripted_server(root) as server:
        assert await find_schedule(server, "kept") is None
        assert not (root / "schedules" / "kept.md").exists()


# --- the file format ---

plain_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=40)
line_texts = st.lists(plain_texts, max_size=5).map("\n".join)
forms = st.builds(
    ScheduleForm,
    to=st.just("agent:ada"),
    text=line_texts.map(
        lambda text: text.strip("\n").replace("\u2028", " ").replace("\u2029", " ").replace("\x85", " ")
    ),
    cron=st.sampled_from(["0 9 * * 1-5", "*/5 * * * *", "@daily"]),
    zone=st.sampled_from(["", "Europe/Berlin"]),
    session=st.sampled_from([None, ScheduleSession.OWN, ScheduleSession.MAIN]),
    deliver_to=st.sampled_from(["", "none", "person:maria"]),
    missed=st.sampled_from([None, *MissedPolicy]),
    delete_after_run=st.booleans(),
    gate=st.none() | st.builds(GateForm, command=plain_texts, env=st.dictionaries(st.just("A"), plain_texts)),
    model=st.sampled_from(["", "scripted"]),
    title=plain_texts,
    attributes=st.dictionaries(plain_texts, plain_texts | st.integers(-5, 5), max_size=3),
    description=plain_texts,
)


@pytest.mark.spec("D38")
@given(forms, st.booleans())
def test_a_rendered_schedule_file_is_parsed_to_the_same_form(form: ScheduleForm, enabled: bool) -> None:
    filed = parse_schedule_file(render_schedule_file(ID, form, enabled=enabled, owner="agent:ada"))
    assert (filed.id, filed.form, filed.is_enabled) == (ID, form, enabled)


def test_schedule_files_with_daycare_keys_are_read() -> None:
    text = f"""---
taskId: {ID}
name: Garden
schedule: 0 9 * * *
oneOff: true
gate:
  command: test -s inbox.txt
  timeoutMs: 500
  allowedDomains: [a.example]
---
Words."""
    filed = parse_schedule_file(text)
    assert (filed.form.cron, filed.form.delete_after_run) == ("0 9 * * *", True)
    assert filed.form.gate == GateForm(command="test -s inbox.txt", timeout_ms=500, domains=["a.example"])
    with pytest.raises(MissingScheduleId):
        parse_schedule_file("---\ncron: 0 9 * * *\n---\n")
    with pytest.raises(Invalid, match="line 3"):
        parse_schedule_file(f"---\nid: {ID}\nat: +2h\n---\nx")
