"""read, write, edit, ls and find, as a model uses them."""

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
from tools.file_tools import Desk, open_desk

from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.tools.files import atomic_write, build_file_tools, find_tool, read_tool
from retinue.tools.files.globs import parse as parse_glob
from retinue.tools.files.text_edits import EditedText, TextEdit, apply_edits
from retinue.tools.text_pages import slice_page

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 32


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


# --- read ---


@pytest.mark.spec("D52")
async def test_a_text_is_read_as_it_is(desk: Desk) -> None:
    (desk.work / "a.md").write_bytes("\ufeffGrüße\r\nzwei\n".encode())
    assert await desk.text("read", path="a.md") == "Grüße\r\nzwei\n"
    assert await desk.text("read", path=str(desk.work / "a.md")) == "Grüße\r\nzwei\n"
    (desk.work / "empty").touch()
    assert await desk.text("read", path="empty") == ""


@pytest.mark.spec("D52")
async def test_a_long_text_is_read_in_pages_that_say_how_to_go_on(desk: Desk) -> None:
    lines = [f"line {number}\n" for number in range(1, 5_001)]
    (desk.work / "long").write_text("".join(lines))
    first = await desk.text("read", path="long")
    assert first == "".join(lines[:2_000]) + "[lines 1-2000 of 5000; read on with offset=2001]"
    assert await desk.text("read", path="long", offset=4_999, limit=1) == (
        "line 4999\n[lines 4999-4999 of 5000; read on with offset=5000]"
    )
    assert await desk.text("read", path="long", offset=4_500, limit=9_999_999) == "".join(lines[4_499:])
    assert await desk.refusal("read", path="long", offset=5_001) == "file.line_not_found"
    assert await desk.refusal("read", path="long", offset=5_000, column=11) == "file.line_not_found"


async def test_a_line_that_is_longer_than_a_page_is_read_by_columns(desk: Desk) -> None:
    """As in a file that a program made. No page is so long that it would be cut once more."""
    (desk.work / "wide").write_text("a\n" + "b" * 60_000 + "\nc")
    first = await desk.text("read", path="wide")
    assert first == "a\n[lines 1-1 of 3; read on with offset=2]"
    second = await desk.text("read", path="wide", offset=2)
    assert second.startswith("bbb") and len(second) <= RESULT_CHARS_MAX
    assert second.endswith("\n[lines 2-2 of 3; read on with offset=2, column=49001]")
    assert await desk.text("read", path="wide", offset=2, column=49_001) == "b" * 11_000 + "\nc"


@given(st.text(alphabet="ab\n", max_size=60), st.integers(1, 5), st.integers(1, 9))
def test_all_pages_together_are_the_text(text: str, lines_max: int, chars_max: int) -> None:
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


async def test_what_is_no_text_is_attached(desk: Desk) -> None:
    (desk.work / "picture.txt").write_bytes(PNG)  # its name is not believed
    output = await desk.call("read", path="picture.txt")
    [attachment] = output.attachments
    assert (attachment.media_type, attachment.size_bytes) == ("image/png", len(PNG))
    with desk.ground.files.open(attachment.hash) as kept:
        assert kept.read() == PNG
    (desk.work / "data.bin").write_bytes(b"ab\x00cd")
    assert (await desk.call("read", path="data.bin")).attachments[0].media_type == "application/octet-stream"
    (desk.work / "latin1.txt").write_bytes(b"caf\xe9\n")
    assert (await desk.text("read", path="latin1.txt")).startswith("caf\ufffd\n\n[not valid UTF-8")


async def test_a_file_that_is_too_large_is_refused_and_not_loaded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_tool, "READ_BYTES_MAX", 1_000)
    monkeypatch.setattr(read_tool, "ATTACHED_BYTES_MAX", 30)
    (desk.work / "large").write_text("x" * 1_001)
    assert await desk.refusal("read", path="large") == "file.too_large"
    (desk.work / "large").write_text("x" * 1_000)
    assert len(await desk.text("read", path="large")) == 1_000
    (desk.work / "picture").write_bytes(PNG)
    assert await desk.refusal("read", path="picture") == "file.not_text"


async def test_what_is_not_there_is_told(desk: Desk) -> None:
    assert await desk.refusal("read", path="nothing") == "path.not_found"
    assert await desk.refusal("read", path="no/folder/here") == "path.not_found"
    assert await desk.refusal("read", path=".") == "path.is_folder"
    (desk.work / "a").touch()
    assert await desk.refusal("read", path="a/b") == "path.not_found"


# --- write ---


@pytest.mark.spec("D52")
async def test_a_file_is_written_with_the_folders_on_the_way(desk: Desk) -> None:
    """As before a compaction, when an agent is asked to add to memory/DATE.md."""
    assert await desk.text("write", path="memory/2026-03-01.md", content="one\n") == (
        "created memory/2026-03-01.md: 4 bytes"
    )
    assert await desk.text("write", path="memory/2026-03-01.md", content="two\n", append=True) == (
        "appended 4 bytes to memory/2026-03-01.md: 8 bytes"
    )
    assert (desk.work / "memory" / "2026-03-01.md").read_text() == "one\ntwo\n"
    assert await desk.text("write", path="memory/2026-03-01.md", content="three") == (
        "replaced memory/2026-03-01.md: 5 bytes"
    )
    assert await desk.text("write", path="new/by/adding", content="x", append=True) == "created new/by/adding: 1 bytes"


async def test_what_is_written_again_after_a_crash_is_there_once(desk: Desk) -> None:
    for _ in range(2):
        await desk.call("write", path="log", content="one\n", append=True)
    assert (desk.work / "log").read_text() == "one\n"
    await desk.call("write", path="log", content="two\n", append=True)
    assert (desk.work / "log").read_text() == "one\ntwo\n"


async def test_the_named_files_of_the_home_can_be_written(desk: Desk) -> None:
    await desk.call("write", path="~/SOUL.md", content="Be kind.")
    assert (desk.home / "SOUL.md").read_text() == "Be kind."
    await desk.call("write", path="~/skills/tea/SKILL.md", content="Boil water.")
    assert (desk.home / "skills" / "tea" / "SKILL.md").read_text() == "Boil water."
    assert not (desk.work / "~").exists()


async def test_a_file_keeps_its_mode_and_another_name_of_it_its_content(desk: Desk) -> None:
    file, other = desk.work / "run.sh", desk.work / "other-name"
    file.write_text("old")
    file.chmod(0o750)
    os.link(file, other)
    await desk.call("write", path="run.sh", content="new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    await desk.call("edit", path="run.sh", old="new", new="newer")
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert (file.read_text(), other.read_text()) == ("newer", "old")
    assert sorted(os.listdir(desk.work)) == ["other-name", "run.sh"]  # nothing is left lying about


async def test_a_reader_sees_the_old_file_or_the_new_one(desk: Desk) -> None:
    file = desk.work / "a"
    old, new = "o" * 300_000, "n" * 300_000
    file.write_text(old)
    seen: set[str] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(file.read_text())

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(20):
        await desk.call("write", path="a", content=new)
        await desk.call("write", path="a", content=old)
    stop.set()
    reader.join()
    assert seen <= {old, new}


async def test_a_write_that_fails_leaves_everything_as_it_was(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk.work / "a").write_text("old")

    def full(writing: int, data: bytes) -> None:
        os.write(writing, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_write, "_write_all", full)
    assert await desk.refusal("write", path="a", content="new") == "path.disk_full"
    assert await desk.refusal("edit", path="a", old="old", new="new") == "path.disk_full"
    assert (desk.work / "a").read_text() == "old"
    assert os.listdir(desk.work) == ["a"]


async def test_what_no_text_file_can_hold_is_refused(desk: Desk) -> None:
    assert await desk.refusal("write", path="a", content="x\x00y") == "file.text_invalid"
    assert await desk.refusal("write", path="a", content="x" * (8 * 1024 * 1024 + 1)) == "file.would_be_too_large"
    assert os.listdir(desk.work) == []


# --- edit ---


@pytest.mark.spec("D52")
async def test_an_edit_changes_exactly_what_it_names(desk: Desk) -> None:
    file = desk.work / "a.py"
    file.write_text("def a():\n    return 1\n\ndef b():\n    return 2\n")
    said = await desk.text("edit", path="a.py", old="return 2", new="return 3")
    assert said == "edited a.py in 1 place (line 5)"
    assert file.read_text() == "def a():\n    return 1\n\ndef b():\n    return 3\n"
    await desk.call("edit", path="a.py", old="return", new="yield", replace_all=True)
    assert file.read_text() == "def a():\n    yield 1\n\ndef b():\n    yield 3\n"


@pytest.mark.spec("D52")
async def test_an_edit_whose_text_is_missing_changes_nothing_and_names_the_nearest_line(desk: Desk) -> None:
    file = desk.work / "a.py"
    file.write_text("x = 1\ndef  greet(name):\n    return 'hello ' + name\n")
    before = file.stat()
    output = await desk.call("edit", path="a.py", old="def greet(name):\n    return", new="x")
    assert output.failed
    assert "[edit.not_found]" in output.text
    assert "line 2 is the most similar: 'def  greet(name):'" in output.text
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "nearest" not in await desk.text("edit", path="a.py", old="§§§§§§", new="x")


@pytest.mark.spec("D52")
async def test_several_edits_are_made_together_or_not_at_all(desk: Desk) -> None:
    file = desk.work / "a"
    file.write_text("one\ntwo\nthree\n")
    good, bad = {"old": "one", "new": "two"}, {"old": "four", "new": "x"}
    output = await desk.call("edit", path="a", edits=[good, bad])
    assert output.failed and output.text.startswith("edit 2 of 2 cannot be applied to 'a'; nothing was changed")
    assert file.read_text() == "one\ntwo\nthree\n"
    # Each is looked for in the file as it was: the `two` that the first one makes is not the second's.
    await desk.call("edit", path="a", edits=[good, {"old": "two", "new": "three"}])
    assert file.read_text() == "two\nthree\nthree\n"
    assert await desk.refusal("edit", path="a", edits=[{"old": "wo\nth", "new": ""}, {"old": "two", "new": ""}]) == (
        "edit.overlap"
    )


@pytest.mark.spec("D52")
async def test_an_edit_that_could_mean_two_places_changes_nothing(desk: Desk) -> None:
    file = desk.work / "a"
    file.write_text("same\nother\nsame\naaa\n")
    output = await desk.call("edit", path="a", old="same", new="x")
    assert output.failed and "more than once: in lines 1, 3" in output.text
    assert await desk.refusal("edit", path="a", old="aa", new="x") == "edit.ambiguous"  # they overlap, and are two
    assert await desk.refusal("edit", path="a", old="", new="x") == "edit.empty"
    assert await desk.refusal("edit", path="a", old="other", new="other") == "edit.no_change"
    assert file.read_text() == "same\nother\nsame\naaa\n"


async def test_lines_that_end_with_crlf_keep_doing_so(desk: Desk) -> None:
    file = desk.work / "dos.txt"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await desk.call("edit", path="dos.txt", old="one\ntwo", new="1\n2\n2.5")
    assert file.read_bytes() == b"1\r\n2\r\n2.5\r\nthree\r\n"


async def test_what_is_not_there_or_no_text_cannot_be_edited(desk: Desk) -> None:
    assert await desk.refusal("edit", path="nothing", old="a", new="b") == "path.not_found"
    (desk.work / "latin1").write_bytes(b"caf\xe9")
    assert await desk.refusal("edit", path="latin1", old="caf", new="b") == "file.not_utf8"
    assert (desk.work / "latin1").read_bytes() == b"caf\xe9"


async def test_an_edit_of_a_file_that_somebody_else_has_changed_meanwhile_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = desk.work / "a"
    file.write_text("old and theirs")
    real_change = apply_edits

    def slowly(*args: object, **named: object) -> object:
        file.write_text("old and THEIRS")
        return real_change(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("retinue.tools.files.edit_tool.apply_edits", slowly)
    assert await desk.refusal("edit", path="a", old="old", new="new") == "file.changed"
    assert file.read_text() == "old and THEIRS"


async def test_two_at_the_same_file_wait_for_each_other(desk: Desk) -> None:
    (desk.work / "a").write_text("0\n")
    await asyncio.gather(*(desk.call("write", path="a", content=f"{n}\n", append=True) for n in range(1, 21)))
    assert sorted((desk.work / "a").read_text().split(), key=int) == [str(n) for n in range(21)]


def test_a_change_is_what_replacing_would_do() -> None:
    found = apply_edits("a-b-a", [TextEdit(old="a", new="c", replace_all=True)], path="x")
    assert isinstance(found, EditedText) and (found.text, found.places) == ("c-b-c", 2)


# --- ls and find ---


async def test_a_folder_is_listed_in_order(desk: Desk) -> None:
    (desk.work / "b").mkdir()
    (desk.work / "a.md").write_text("abc")
    (desk.work / "c").symlink_to("/etc")
    os.mkfifo(desk.work / "pipe")
    assert await desk.text("ls") == "a.md  3 bytes\nb/\nc  (link)\npipe  (not a regular file)"
    assert await desk.text("ls", path="b") == "[the folder is empty]"
    assert await desk.text("ls", limit=1) == "a.md  3 bytes\n[3 more; use find with a glob]"
    assert await desk.refusal("ls", path="a.md") == "path.not_found"


async def test_files_are_found_by_globs_and_by_text(desk: Desk) -> None:
    for name in ("docs/a.md", "docs/deep/b.md", "docs/c.txt", "d.md", ".hidden/e.md"):
        file = desk.work / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"first\nThe text of {name}\n")
    assert await desk.text("find", glob="*.md") == "d.md\ndocs/a.md\ndocs/deep/b.md"
    assert await desk.text("find", glob="docs/*.md") == "docs/a.md"
    assert await desk.text("find", glob="docs/**/*.md") == "docs/a.md\ndocs/deep/b.md"
    assert await desk.text("find", glob="docs/**") == "docs/\ndocs/a.md\ndocs/c.txt\ndocs/deep/\ndocs/deep/b.md"
    assert await desk.text("find", path="docs", glob="deep") == "deep/"
    assert await desk.text("find", glob="e.md") == "[nothing found]"
    assert await desk.text("find", glob="e.md", hidden=True) == ".hidden/e.md"
    assert await desk.text("find", text="text of docs/c") == "docs/c.txt:2: The text of docs/c.txt"
    assert await desk.text("find", text="TEXT OF D.", ignore_case=True) == "d.md:2: The text of d.md"
    assert await desk.text("find", text="TEXT OF D.") == "[nothing found]"
    assert await desk.text("find", glob="*.md", limit=1) == "d.md\n[there are more results: only the first 1 are shown]"


async def test_a_text_is_looked_for_as_it_stands(desk: Desk) -> None:
    (desk.work / "a").write_text("(a+)+$\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\n")
    assert await desk.text("find", text="(a+)+$") == "a:1: (a+)+$"
    assert await desk.refusal("find", text="two\nlines") == "find.text_invalid"


async def test_a_search_ends_at_its_bounds_and_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (desk.work / f"{number:02}").write_text("x" * 50)
    deep = desk.work / "d"
    for _ in range(4):
        deep.mkdir()
        deep = deep / "d"
    monkeypatch.setattr(find_tool, "FIND_DEPTH_MAX", 2)
    assert "incomplete: folders more than 2 levels deep" in await desk.text("find")
    monkeypatch.setattr(find_tool, "FIND_FILE_BYTES_MAX", 10)
    assert "only the first 10 bytes of large files" in await desk.text("find", text="x")
    monkeypatch.setattr(find_tool, "FIND_BYTES_MAX", 50)
    assert "incomplete: only the first 50 bytes" in await desk.text("find", text="x")
    monkeypatch.setattr(find_tool, "FIND_ENTRIES_MAX", 5)
    assert "incomplete: only the first 5 names" in await desk.text("find")
    monkeypatch.setattr(find_tool, "FIND_TIMEOUT_S", -1.0)
    assert "incomplete: stopped after" in await desk.text("find")


async def test_a_glob_that_would_try_every_way_does_not(desk: Desk) -> None:
    (desk.work / ("a" * 250)).touch()
    assert await desk.text("find", glob="*a" * 120 + "b") == "[nothing found]"
    assert await desk.text("find", glob="**/" * 100 + "b") == "[nothing found]"
    assert await desk.refusal("find", glob="x" * 513) == "glob.invalid"


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
def test_globs(glob: str, fits: list[str], fits_not: list[str]) -> None:
    for path in fits:
        assert parse_glob(glob).matches(path), path
    for path in fits_not:
        assert not parse_glob(glob).matches(path), path


# --- arguments ---


async def test_an_argument_by_another_name_is_the_same_argument(desk: Desk) -> None:
    (desk.work / "a").write_text("old")
    assert await desk.text("read", file_path="a") == "old"
    await desk.call("edit", file_path="a", old_string="old", new_string="new")
    await desk.call("edit", filename="a", edits=[{"oldText": "new", "newText": "newer"}])
    assert (desk.work / "a").read_text() == "newer"
    for name in ("path", "file_path", "file", "filename"):
        elsewhere: dict[str, Any] = {name: "/etc/passwd"}
        assert await desk.refusal("read", **elsewhere) == "path.outside"
        assert await desk.refusal("write", **elsewhere, content="x") == "path.outside"


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
async def test_arguments_that_do_not_fit_are_refused(desk: Desk, tool: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        await desk.call(tool, **arguments)


async def test_a_model_is_told_one_name_for_each_argument(desk: Desk) -> None:
    specs = {tool.spec.name: tool.spec for tool in build_file_tools(desk.ground)}
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
