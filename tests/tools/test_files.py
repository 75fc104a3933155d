"""The tools read, write, edit, ls and find, called as a model calls them."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.file_tools import ToolSetup, open_file_tools

from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.testing.wait_conditions import wait_until_sync
from retinue.tools.files import atomic_write, build_file_tools, find_tool, read_tool
from retinue.tools.files.globs import parse as parse_glob
from retinue.tools.files.text_edits import EditedText, TextEdit, apply_edits
from retinue.tools.text_pages import slice_page

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 32


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncGenerator[ToolSetup]:
    async with open_file_tools(tmp_path) as opened:
        yield opened


# --- read ---


@pytest.mark.spec("D52")
async def test_read_returns_a_text_file_unchanged(setup: ToolSetup) -> None:
    (setup.work / "a.md").write_bytes("\ufeffGrüße\r\nzwei\n".encode())
    assert await setup.text("read", path="a.md") == "Grüße\r\nzwei\n"
    assert await setup.text("read", path=str(setup.work / "a.md")) == "Grüße\r\nzwei\n"
    (setup.work / "empty").touch()
    assert await setup.text("read", path="empty") == ""


@pytest.mark.spec("D52")
async def test_read_returns_a_long_text_in_pages_with_the_next_offset(setup: ToolSetup) -> None:
    lines = [f"line {number}\n" for number in range(1, 5_001)]
    (setup.work / "long").write_text("".join(lines))
    first = await setup.text("read", path="long")
    assert first == "".join(lines[:2_000]) + "[lines 1-2000 of 5000; read on with offset=2001]"
    assert await setup.text("read", path="long", offset=4_999, limit=1) == (
        "line 4999\n[lines 4999-4999 of 5000; read on with offset=5000]"
    )
    assert await setup.text("read", path="long", offset=4_500, limit=9_999_999) == "".join(lines[4_499:])
    assert await setup.refusal_code("read", path="long", offset=5_001) == "file.line_not_found"
    assert await setup.refusal_code("read", path="long", offset=5_000, column=11) == "file.line_not_found"


async def test_read_returns_a_line_longer_than_a_page_by_columns(setup: ToolSetup) -> None:
    """As in a file made by a program. No page is so long that it would be truncated again."""
    (setup.work / "wide").write_text("a\n" + "b" * 60_000 + "\nc")
    first = await setup.text("read", path="wide")
    assert first == "a\n[lines 1-1 of 3; read on with offset=2]"
    second = await setup.text("read", path="wide", offset=2)
    assert second.startswith("bbb") and len(second) <= RESULT_CHARS_MAX
    assert second.endswith("\n[lines 2-2 of 3; read on with offset=2, column=49001]")
    assert await setup.text("read", path="wide", offset=2, column=49_001) == "b" * 11_000 + "\nc"


@given(st.text(alphabet="ab\n", max_size=60), st.integers(1, 5), st.integers(1, 9))
def test_all_pages_of_a_text_that_read_returns_are_the_full_text_when_joined(
    text: str, lines_max: int, chars_max: int
) -> None:
    found, line, column = "", 1, 1
    for _ in range(len(text) + 1):
        part = slice_page(text, line=line, column=column, lines_max=lines_max, chars_max=chars_max)
        assert part is not None
        assert len(part.text) <= chars_max and part.text.count("\n") <= lines_max
        found += part.text
        if part.next_line is None:
            break
        line, column = part.next_line, part.next_column
    assert found == text


async def test_read_attaches_a_binary_file(setup: ToolSetup) -> None:
    (setup.work / "picture.txt").write_bytes(PNG)  # the type comes from the content, not from the name
    output = await setup.call("read", path="picture.txt")
    [attachment] = output.attachments
    assert (attachment.media_type, attachment.size_bytes) == ("image/png", len(PNG))
    with setup.file_services.files.open(attachment.hash) as kept:
        assert kept.read() == PNG
    (setup.work / "data.bin").write_bytes(b"ab\x00cd")
    assert (await setup.call("read", path="data.bin")).attachments[0].media_type == "application/octet-stream"
    (setup.work / "latin1.txt").write_bytes(b"caf\xe9\n")
    assert (await setup.text("read", path="latin1.txt")).startswith("caf\ufffd\n\n[not valid UTF-8")


async def test_read_refuses_a_file_that_is_too_large(setup: ToolSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_tool, "READ_BYTES_MAX", 1_000)
    monkeypatch.setattr(read_tool, "ATTACHED_BYTES_MAX", 30)
    (setup.work / "large").write_text("x" * 1_001)
    assert await setup.refusal_code("read", path="large") == "file.too_large"
    (setup.work / "large").write_text("x" * 1_000)
    assert len(await setup.text("read", path="large")) == 1_000
    (setup.work / "picture").write_bytes(PNG)
    assert await setup.refusal_code("read", path="picture") == "file.not_text"


async def test_read_of_a_missing_path_or_a_folder_fails_with_its_own_code(setup: ToolSetup) -> None:
    assert await setup.refusal_code("read", path="nothing") == "path.not_found"
    assert await setup.refusal_code("read", path="no/folder/here") == "path.not_found"
    assert await setup.refusal_code("read", path=".") == "path.is_folder"
    (setup.work / "a").touch()
    assert await setup.refusal_code("read", path="a/b") == "path.not_found"


# --- write ---


@pytest.mark.spec("D52")
async def test_write_creates_missing_folders_and_can_append(setup: ToolSetup) -> None:
    """As before a compaction, when an agent is asked to add to memory/DATE.md."""
    assert await setup.text("write", path="memory/2026-03-01.md", content="one\n") == (
        "created memory/2026-03-01.md: 4 bytes"
    )
    assert await setup.text("write", path="memory/2026-03-01.md", content="two\n", append=True) == (
        "appended 4 bytes to memory/2026-03-01.md: 8 bytes"
    )
    assert (setup.work / "memory" / "2026-03-01.md").read_text() == "one\ntwo\n"
    assert await setup.text("write", path="memory/2026-03-01.md", content="three") == (
        "replaced memory/2026-03-01.md: 5 bytes"
    )
    assert await setup.text("write", path="new/by/adding", content="x", append=True) == "created new/by/adding: 1 bytes"


async def test_append_of_the_write_tool_repeated_after_a_crash_adds_the_text_once(setup: ToolSetup) -> None:
    for _ in range(2):
        await setup.call("write", path="log", content="one\n", append=True)
    assert (setup.work / "log").read_text() == "one\n"
    await setup.call("write", path="log", content="two\n", append=True)
    assert (setup.work / "log").read_text() == "one\ntwo\n"


async def test_write_accepts_the_named_files_of_the_agent_directory(setup: ToolSetup) -> None:
    await setup.call("write", path="~/SOUL.md", content="Be kind.")
    assert (setup.home / "SOUL.md").read_text() == "Be kind."
    await setup.call("write", path="~/skills/tea/SKILL.md", content="Boil water.")
    assert (setup.home / "skills" / "tea" / "SKILL.md").read_text() == "Boil water."
    assert not (setup.work / "~").exists()


async def test_write_and_edit_keep_the_file_mode_and_do_not_change_a_hard_link(setup: ToolSetup) -> None:
    file, other = setup.work / "run.sh", setup.work / "other-name"
    file.write_text("old")
    file.chmod(0o750)
    os.link(file, other)
    await setup.call("write", path="run.sh", content="new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    await setup.call("edit", path="run.sh", old="new", new="newer")
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert (file.read_text(), other.read_text()) == ("newer", "old")
    assert sorted(os.listdir(setup.work)) == ["other-name", "run.sh"]  # no temporary file is left


async def test_a_reader_of_a_file_sees_either_the_old_or_the_new_text_during_a_write(setup: ToolSetup) -> None:
    file = setup.work / "a"
    old, new = "o" * 300_000, "n" * 300_000
    file.write_text(old)
    seen: set[str] = set()
    stop = threading.Event()

    def read_repeatedly() -> None:
        while not stop.is_set():
            seen.add(file.read_text())

    reader = threading.Thread(target=read_repeatedly)
    reader.start()
    for _ in range(20):
        await setup.call("write", path="a", content=new)
        await setup.call("write", path="a", content=old)
    stop.set()
    reader.join()
    assert seen <= {old, new}


async def test_a_failed_write_or_edit_leaves_the_folder_unchanged(
    setup: ToolSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    (setup.work / "a").write_text("old")

    def fail_with_full_disk(writing: int, data: bytes) -> None:
        os.write(writing, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_write, "_write_all", fail_with_full_disk)
    assert await setup.refusal_code("write", path="a", content="new") == "path.disk_full"
    assert await setup.refusal_code("edit", path="a", old="old", new="new") == "path.disk_full"
    assert (setup.work / "a").read_text() == "old"
    assert os.listdir(setup.work) == ["a"]


async def test_write_refuses_a_null_character_or_a_text_that_is_too_large(setup: ToolSetup) -> None:
    assert await setup.refusal_code("write", path="a", content="x\x00y") == "file.text_invalid"
    assert await setup.refusal_code("write", path="a", content="x" * (8 * 1024 * 1024 + 1)) == "file.would_be_too_large"
    assert os.listdir(setup.work) == []


# --- edit ---


@pytest.mark.spec("D52")
async def test_an_edit_replaces_exactly_the_given_text(setup: ToolSetup) -> None:
    file = setup.work / "a.py"
    file.write_text("def a():\n    return 1\n\ndef b():\n    return 2\n")
    result_text = await setup.text("edit", path="a.py", old="return 2", new="return 3")
    assert result_text == "edited a.py in 1 place (line 5)"
    assert file.read_text() == "def a():\n    return 1\n\ndef b():\n    return 3\n"
    await setup.call("edit", path="a.py", old="return", new="yield", replace_all=True)
    assert file.read_text() == "def a():\n    yield 1\n\ndef b():\n    yield 3\n"


@pytest.mark.spec("D52")
async def test_an_edit_whose_text_is_missing_changes_nothing_and_names_the_nearest_line(setup: ToolSetup) -> None:
    file = setup.work / "a.py"
    file.write_text("x = 1\ndef  greet(name):\n    return 'hello ' + name\n")
    before = file.stat()
    output = await setup.call("edit", path="a.py", old="def greet(name):\n    return", new="x")
    assert output.failed
    assert "[edit.not_found]" in output.text
    assert "line 2 is the most similar: 'def  greet(name):'" in output.text
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "most similar" not in await setup.text("edit", path="a.py", old="§§§§§§", new="x")


@pytest.mark.spec("D52")
async def test_several_edits_of_a_file_are_made_together_or_not_at_all(setup: ToolSetup) -> None:
    file = setup.work / "a"
    file.write_text("one\ntwo\nthree\n")
    good, bad = {"old": "one", "new": "two"}, {"old": "four", "new": "x"}
    output = await setup.call("edit", path="a", edits=[good, bad])
    assert output.failed and output.text.startswith("edit 2 of 2 cannot be applied to 'a'; nothing was changed")
    assert file.read_text() == "one\ntwo\nthree\n"
    # Each text is searched in the original file: the `two` that the first edit makes is not the one of the second.
    await setup.call("edit", path="a", edits=[good, {"old": "two", "new": "three"}])
    assert file.read_text() == "two\nthree\nthree\n"
    assert await setup.refusal_code(
        "edit", path="a", edits=[{"old": "wo\nth", "new": ""}, {"old": "two", "new": ""}]
    ) == ("edit.overlap")


@pytest.mark.spec("D52")
async def test_an_ambiguous_or_empty_edit_changes_nothing(setup: ToolSetup) -> None:
    file = setup.work / "a"
    file.write_text("same\nother\nsame\naaa\n")
    output = await setup.call("edit", path="a", old="same", new="x")
    assert output.failed and "more than once: in lines 1, 3" in output.text
    assert (
        await setup.refusal_code("edit", path="a", old="aa", new="x") == "edit.ambiguous"
    )  # they overlap and count as two
    assert await setup.refusal_code("edit", path="a", old="", new="x") == "edit.empty"
    assert await setup.refusal_code("edit", path="a", old="other", new="other") == "edit.no_change"
    assert file.read_text() == "same\nother\nsame\naaa\n"


async def test_an_edit_keeps_crlf_line_endings(setup: ToolSetup) -> None:
    file = setup.work / "dos.txt"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await setup.call("edit", path="dos.txt", old="one\ntwo", new="1\n2\n2.5")
    assert file.read_bytes() == b"1\r\n2\r\n2.5\r\nthree\r\n"


async def test_an_edit_of_a_missing_or_non_utf8_file_is_refused(setup: ToolSetup) -> None:
    assert await setup.refusal_code("edit", path="nothing", old="a", new="b") == "path.not_found"
    (setup.work / "latin1").write_bytes(b"caf\xe9")
    assert await setup.refusal_code("edit", path="latin1", old="caf", new="b") == "file.not_utf8"
    assert (setup.work / "latin1").read_bytes() == b"caf\xe9"


async def test_an_edit_of_a_file_changed_in_the_meantime_is_refused(
    setup: ToolSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = setup.work / "a"
    file.write_text("old and theirs")
    real_change = apply_edits

    def change_file() -> bool:
        file.write_text("old and THEIRS")
        return file.stat().st_ctime_ns != before

    before = file.stat().st_ctime_ns

    def slowly(*args: object, **named: object) -> object:
        wait_until_sync(change_file, "the file has a new ctime, which some systems set in steps of milliseconds")
        return real_change(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("retinue.tools.files.edit_tool.apply_edits", slowly)
    assert await setup.refusal_code("edit", path="a", old="old", new="new") == "file.changed"
    assert file.read_text() == "old and THEIRS"


async def test_concurrent_writes_to_one_file_wait_for_each_other(setup: ToolSetup) -> None:
    (setup.work / "a").write_text("line 00\n")
    await asyncio.gather(*(setup.call("write", path="a", content=f"line {n:02}\n", append=True) for n in range(1, 21)))
    assert sorted((setup.work / "a").read_text().splitlines()) == [f"line {n:02}" for n in range(21)]


def test_apply_edits_with_replace_all_replaces_every_occurrence() -> None:
    found = apply_edits("a-b-a", [TextEdit(old="a", new="c", replace_all=True)], path="x")
    assert isinstance(found, EditedText) and (found.text, found.places) == ("c-b-c", 2)


# --- ls and find ---


async def test_ls_lists_a_folder_in_order(setup: ToolSetup) -> None:
    (setup.work / "b").mkdir()
    (setup.work / "a.md").write_text("abc")
    (setup.work / "c").symlink_to("/etc")
    os.mkfifo(setup.work / "pipe")
    assert await setup.text("ls") == "a.md  3 bytes\nb/\nc  (link)\npipe  (not a regular file)"
    assert await setup.text("ls", path="b") == "[the folder is empty]"
    assert await setup.text("ls", limit=1) == "a.md  3 bytes\n[3 more; use find with a glob]"
    assert await setup.refusal_code("ls", path="a.md") == "path.not_found"


async def test_find_returns_files_by_glob_and_by_text(setup: ToolSetup) -> None:
    for name in ("docs/a.md", "docs/deep/b.md", "docs/c.txt", "d.md", ".hidden/e.md"):
        file = setup.work / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"first\nThe text of {name}\n")
    assert await setup.text("find", glob="*.md") == "d.md\ndocs/a.md\ndocs/deep/b.md"
    assert await setup.text("find", glob="docs/*.md") == "docs/a.md"
    assert await setup.text("find", glob="docs/**/*.md") == "docs/a.md\ndocs/deep/b.md"
    assert await setup.text("find", glob="docs/**") == "docs/\ndocs/a.md\ndocs/c.txt\ndocs/deep/\ndocs/deep/b.md"
    assert await setup.text("find", path="docs", glob="deep") == "deep/"
    assert await setup.text("find", glob="e.md") == "[nothing found]"
    assert await setup.text("find", glob="e.md", hidden=True) == ".hidden/e.md"
    assert await setup.text("find", text="text of docs/c") == "docs/c.txt:2: The text of docs/c.txt"
    assert await setup.text("find", text="TEXT OF D.", ignore_case=True) == "d.md:2: The text of d.md"
    assert await setup.text("find", text="TEXT OF D.") == "[nothing found]"
    assert (
        await setup.text("find", glob="*.md", limit=1) == "d.md\n[there are more results: only the first 1 are shown]"
    )


async def test_find_searches_for_literal_text(setup: ToolSetup) -> None:
    (setup.work / "a").write_text("(a+)+$\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\n")
    assert await setup.text("find", text="(a+)+$") == "a:1: (a+)+$"
    assert await setup.refusal_code("find", text="two\nlines") == "find.text_invalid"


async def test_find_stops_at_its_limits_and_reports_them(setup: ToolSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (setup.work / f"{number:02}").write_text("x" * 50)
    deep = setup.work / "d"
    for _ in range(4):
        deep.mkdir()
        deep = deep / "d"
    monkeypatch.setattr(find_tool, "FIND_DEPTH_MAX", 2)
    assert "incomplete: folders more than 2 levels deep" in await setup.text("find")
    monkeypatch.setattr(find_tool, "FIND_FILE_BYTES_MAX", 10)
    assert "only the first 10 bytes of large files" in await setup.text("find", text="x")
    monkeypatch.setattr(find_tool, "FIND_BYTES_MAX", 50)
    assert "incomplete: only the first 50 bytes" in await setup.text("find", text="x")
    monkeypatch.setattr(find_tool, "FIND_ENTRIES_MAX", 5)
    assert "incomplete: only the first 5 names" in await setup.text("find")
    monkeypatch.setattr(find_tool, "FIND_TIMEOUT_S", -1.0)
    assert "incomplete: stopped after" in await setup.text("find")


async def test_find_with_a_hostile_glob_ends_quickly(setup: ToolSetup) -> None:
    (setup.work / ("a" * 250)).touch()
    assert await setup.text("find", glob="*a" * 120 + "b") == "[nothing found]"
    assert await setup.text("find", glob="**/" * 100 + "b") == "[nothing found]"
    assert await setup.refusal_code("find", glob="x" * 513) == "glob.invalid"


@pytest.mark.parametrize(
    ("glob", "fits", "fits_not"),
    [
        ("*.md", ["a.md", "x/y/a.md", ".md"], ["a.mdx", "a.md/b"]),
        ("a/*", ["a/b"], ["a", "a/b/c", "b/a/c"]),
        ("/a/*", ["a/b"], ["x/a/b"]),
        ("**/a", ["a", "x/a", "x/y/a"], ["a/x"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "ab", "a/x/c"]),
        ("a/**", ["a", "a/b", "a/b/c"], ["b"]),
        ("?[a-c][!x]", ["zab", "éb1"], ["zax", "zdb", "ab"]),
        ("[]", ["[]"], ["]"]),
        ("*a*b", ["ab", "xaxb", "aab"], ["abx", "ba"]),
        ("**", ["a", "a/b"], []),
    ],
)
def test_a_glob_of_the_find_tool_matches_only_the_expected_paths(
    glob: str, fits: list[str], fits_not: list[str]
) -> None:
    for path in fits:
        assert parse_glob(glob).matches(path), path
    for path in fits_not:
        assert not parse_glob(glob).matches(path), path


# --- arguments ---


async def test_alternative_argument_names_of_file_tools_are_accepted_and_checked_alike(setup: ToolSetup) -> None:
    (setup.work / "a").write_text("old")
    assert await setup.text("read", file_path="a") == "old"
    await setup.call("edit", file_path="a", old_string="old", new_string="new")
    await setup.call("edit", filename="a", edits=[{"oldText": "new", "newText": "newer"}])
    assert (setup.work / "a").read_text() == "newer"
    for name in ("path", "file_path", "file", "filename"):
        elsewhere: dict[str, Any] = {name: "/etc/passwd"}
        assert await setup.refusal_code("read", **elsewhere) == "path.outside"
        assert await setup.refusal_code("write", **elsewhere, content="x") == "path.outside"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {}),
        ("read", {"path": "a", "file_path": "b"}),
        ("read", {"path": "a", "offset": 0}),
        ("read", {"path": "a", "more": 1}),
        ("read", {"path": 1}),
        ("write", {"path": "a"}),
        ("edit", {"path": "a"}),
        ("edit", {"path": "a", "old": "x"}),
        ("edit", {"path": "a", "old": "x", "new": "y", "edits": [{"old": "x", "new": "y"}]}),
        ("edit", {"path": "a", "old": "x", "old_string": "z", "new": "y"}),
        ("edit", {"path": "a", "edits": []}),
        ("edit", {"path": "a", "edits": [{"old": "x"}]}),
    ],
)
async def test_invalid_file_tool_arguments_are_refused(setup: ToolSetup, tool: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        await setup.call(tool, **arguments)


async def test_file_tool_schemas_show_one_name_for_each_argument(setup: ToolSetup) -> None:
    specs = {tool.spec.name: tool.spec for tool in build_file_tools(setup.file_services)}
    shown = {name: list(spec.parameters["properties"]) for name, spec in specs.items()}
    assert shown == {
        "read": ["path", "offset", "limit", "column"],
        "write": ["path", "content", "append"],
        "edit": ["path", "old", "new", "replace_all", "edits"],
        "ls": ["path", "limit"],
        "find": ["path", "glob", "text", "ignore_case", "hidden", "limit"],
    }
    assert {name: spec.is_repeatable for name, spec in specs.items()} == {
        "read": True,
        "write": True,
        "edit": False,
        "ls": True,
        "find": True,
    }
    assert all(
        argument.get("description") for spec in specs.values() for argument in spec.parameters["properties"].values()
    )
    assert "$" not in msgspec.json.encode([spec.parameters for spec in specs.values()]).decode()
