"""Schedules as files: taken in, set, written back, and told of with a line where they cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import HandsHouse, hands_house
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.errors import Invalid
from retinue.domain.schedule import MissedPolicy, ScheduleSession
from retinue.schedules.schedule_front_matter import MissingScheduleId, parse_schedule_file, render_schedule_file
from retinue.schedules.schedule_parser import GateForm, ScheduleForm
from retinue.testing.wait_conditions import wait_until

ID = "4f" * 16
FILE = f"""---
id: {ID}
cron: "0 9 * * 1-5"
to: agent:ada
zone: Europe/Berlin   # where the garden is
---

What is on today?
"""


async def until(ask: Callable[[], Any], what: str) -> Any:
    async def asked() -> tuple[Any] | None:
        found = await ask()
        return None if found is None else (found,)

    answer = await wait_until(asked, what)
    assert answer is not None
    return answer[0]


def folder(house: HandsHouse) -> Path:
    return house.root / "schedules"


async def named(house: HandsHouse, name: str) -> dict[str, Any] | None:
    found = (await house.ask("schedule.list"))["schedules"]
    return next((each for each in found if each["name"] == name), None)


async def unread(house: HandsHouse) -> list[str] | None:
    return (await house.ask("schedule.list"))["unread"] or None


@pytest.mark.spec("D38")
async def test_a_file_that_is_put_there_changed_and_removed_is_a_schedule_that_is_added_set_and_deleted(
    tmp_path: Path,
) -> None:
    async with hands_house(tmp_path / "home") as house:
        file = folder(house) / "garden.md"
        file.write_text(FILE)
        made = await until(lambda: named(house, "garden"), "the schedule")
        assert (made["id"], made["cron"], made["zone"]) == (ID, "0 9 * * 1-5", "Europe/Berlin")
        assert (made["text"], made["to"], made["source"]) == ("What is on today?", "agent:ada", "file")

        file.write_text(FILE.replace("0 9", "30 7").replace("today", "tomorrow"))

        async def changed() -> Any:
            found = await named(house, "garden")
            return found if found and found["cron"] == "30 7 * * 1-5" else None

        assert (await until(changed, "the change"))["text"] == "What is on tomorrow?"
        assert "where the garden is" in file.read_text()  # a person's file is not written over
        file.unlink()

        async def gone() -> Any:
            return True if await named(house, "garden") is None else None

        await until(gone, "the schedule to be gone")


@pytest.mark.spec("D38")
async def test_what_is_set_elsewhere_is_written_into_the_file_and_what_is_renamed_keeps_its_history(
    tmp_path: Path,
) -> None:
    async with hands_house(tmp_path / "home") as house:
        made = await house.ask("schedule.add", name="tea", to="agent:ada", text="Tea.", every="1h", place="own")
        file = folder(house) / "tea.md"

        async def says(text: str) -> Any:
            return True if file.exists() and text in file.read_text() else None

        await until(lambda: says('every: "1h"'), "the file")
        filed = parse_schedule_file(file.read_text())
        assert (filed.id, filed.form.text, filed.form.place, filed.is_enabled) == (
            made["id"],
            "Tea.",
            ScheduleSession.OWN,
            True,
        )
        assert file.stat().st_mode & 0o777 == 0o600
        await house.ask("schedule.disable", schedule="tea")
        await until(lambda: says("enabled: false"), "the file to say so")
        await house.ask("schedule.set", schedule="tea", text="Green tea.")
        await until(lambda: says("Green tea."), "the new words")

        file.rename(folder(house) / "supper.md")
        renamed = await until(lambda: named(house, "supper"), "the new name")
        assert renamed["id"] == made["id"] and await named(house, "tea") is None
        await house.ask("schedule.delete", schedule="supper")

        async def no_files() -> Any:
            return True if not list(folder(house).glob("*.md")) else None

        await until(no_files, "the file to be gone")


@pytest.mark.spec("D38", "D43")
async def test_a_file_that_cannot_be_read_is_told_of_with_its_line_and_changes_nothing(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home") as house:
        file = folder(house) / "garden.md"
        file.write_text(FILE)
        await until(lambda: named(house, "garden"), "the schedule")
        for text, told in (
            (FILE.replace("0 9", "0 99"), "its hour is invalid"),
            (FILE.replace("to: agent:ada", "to: agent:nobody"), "no agent named 'nobody'"),
            (FILE.replace("zone: Europe/Berlin", "colour: blue"), "line 5: "),
            (FILE.replace("to: agent:ada", "to"), "line 4: "),
            (FILE.replace('cron: "0 9', "cron: */5 9"), "line 3: "),
            (FILE.replace(f"id: {ID}\n", ""), "the id is missing"),
        ):
            file.write_text(text)

            async def is_told(told: str = told) -> Any:
                found = await unread(house)
                return found if found and told in found[0] else None

            assert (await until(is_told, told))[0].startswith("garden.md: ")
            kept = await named(house, "garden")
            assert kept is not None and (kept["cron"], kept["enabled"]) == ("0 9 * * 1-5", True)
        file.write_text(FILE)

        async def fine() -> Any:
            return True if await unread(house) is None else None

        await until(fine, "the file to be read again")


@pytest.mark.spec("D38")
async def test_a_file_without_an_id_is_left_alone_and_a_copy_is_not_a_second_one(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home") as house:
        (folder(house) / "new.md").write_text(FILE.replace(f"id: {ID}\n", ""))
        [told] = await until(lambda: unread(house), "the warning")
        assert told.startswith("new.md: line 2: the id is missing, so the file is ignored; add a new one: `id: ")
        assert await named(house, "new") is None
        (folder(house) / "new.md").unlink()
        (folder(house) / "garden.md").write_text(FILE)
        await until(lambda: named(house, "garden"), "the schedule")
        (folder(house) / "copy.md").write_text(FILE)

        async def is_copy() -> Any:
            found = await unread(house)
            return found if found and "this file is a copy" in found[0] else None

        await until(is_copy, "the copy to be told of")
        assert await named(house, "copy") is None and await named(house, "garden") is not None


@pytest.mark.spec("D38", "D41")
async def test_what_was_changed_while_the_house_was_closed_is_set_when_it_opens(tmp_path: Path) -> None:
    root = tmp_path / "home"
    async with hands_house(root) as house:
        for name in ("kept", "edited", "removed"):
            await house.ask("schedule.add", name=name, to="agent:ada", text=f"{name}.", cron="0 9 * * *")

        async def all_there() -> Any:
            return True if len(list(folder(house).glob("*.md"))) == 3 else None

        await until(all_there, "the files")
        await house.house.services.schedule_files.sync()  # type: ignore[union-attr]
    edited = root / "schedules" / "edited.md"
    edited.write_text(edited.read_text().replace("0 9", "0 8"))
    os.utime(edited, (2**31, 2**31))
    (root / "schedules" / "removed.md").unlink()
    (root / "schedules" / "added.md").write_text(FILE)
    async with hands_house(root) as house:
        found = {each["name"]: each["cron"] for each in (await house.ask("schedule.list"))["schedules"]}
        assert found == {"kept": "0 9 * * *", "edited": "0 8 * * *", "added": "0 9 * * 1-5"}
        # A house that stops between deleting a schedule and its file does not bring it back.
        await house.house.services.schedule_files.stop()  # type: ignore[union-attr]
        await house.ask("schedule.delete", schedule="kept")
        assert (root / "schedules" / "kept.md").exists()
    async with hands_house(root) as house:
        assert await named(house, "kept") is None
        assert not (root / "schedules" / "kept.md").exists()


# --- the form alone ---

plain = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=40)
lines = st.lists(plain, max_size=5).map("\n".join)
forms = st.builds(
    ScheduleForm,
    to=st.just("agent:ada"),
    text=lines.map(lambda text: text.strip("\n").replace("\u2028", " ").replace("\u2029", " ").replace("\x85", " ")),
    cron=st.sampled_from(["0 9 * * 1-5", "*/5 * * * *", "@daily"]),
    zone=st.sampled_from(["", "Europe/Berlin"]),
    place=st.sampled_from([None, ScheduleSession.OWN, ScheduleSession.MAIN]),
    deliver=st.sampled_from(["", "none", "person:maria"]),
    missed=st.sampled_from([None, *MissedPolicy]),
    delete_after_run=st.booleans(),
    gate=st.none() | st.builds(GateForm, command=plain, env=st.dictionaries(st.just("A"), plain)),
    model=st.sampled_from(["", "scripted"]),
    title=plain,
    attributes=st.dictionaries(plain, plain | st.integers(-5, 5), max_size=3),
    description=plain,
)


@pytest.mark.spec("D38")
@given(forms, st.booleans())
def test_what_is_written_is_read_as_it_was(form: ScheduleForm, enabled: bool) -> None:
    filed = parse_schedule_file(render_schedule_file(ID, form, enabled=enabled, owner="agent:ada"))
    assert (filed.id, filed.form, filed.is_enabled) == (ID, form, enabled)


def test_files_of_another_house_are_read_by_what_they_call_things() -> None:
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
