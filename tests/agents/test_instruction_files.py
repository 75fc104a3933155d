"""Files in instructions: which are taken, how they are cut, and which are left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.instruction_files import (
    CONTEXT_FILES_CHARS_MAX,
    CONTEXT_FILES_MAX,
    DAILY_FILE_CHARS_MAX,
    FILE_CHARS_MAX,
    MEMORY_CHARS_MAX,
    ContentWithTrust,
    InstructionSnapshot,
    read_snapshot,
)
from retinue.agents.instructions import InstructionFileState
from retinue.domain.errors import Invalid
from retinue.domain.trust import Trust


class Disk:
    """Reads what is there; what is in `untrusted` came from outside."""

    def __init__(self) -> None:
        self.untrusted: set[str] = set()
        self.read: list[str] = []

    async def __call__(self, real: str) -> ContentWithTrust | None:
        self.read.append(real)
        if not os.path.exists(real):
            return None
        if os.path.getsize(real) > 1024 * 1024 or not os.path.isfile(real):
            raise Invalid("too large", code="file.too_large")
        data = Path(real).read_bytes()
        return ContentWithTrust(data, Trust.UNTRUSTED if real in self.untrusted else Trust.PRIVATE)


def put(root: Path, **files: str | bytes) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_md", ".md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = Path(os.path.realpath(tmp_path)) / "ada"
    made.mkdir()
    return made


async def taken(home: Path, *wanted: str, disk: Disk | None = None, **kw: Any) -> InstructionSnapshot:
    given: dict[str, Any] = {"agent_directory": home, "workspace": home, "patterns": wanted, "is_first": True, **kw}
    return await read_snapshot(disk or Disk(), **given)


def states(snapshot: InstructionSnapshot) -> dict[str, InstructionFileState]:
    return {each.name: each.state for each in snapshot.files}


@pytest.mark.spec("C48")
async def test_files_are_told_in_one_order_and_those_that_are_missing_are_said_to_be(home: Path) -> None:
    put(home, SOUL_md="Kind.", AGENTS_md="Rules.", USER_md="  ")
    snapshot = await taken(home)
    assert list(states(snapshot).items()) == [
        ("AGENTS.md", InstructionFileState.THERE),
        ("SOUL.md", InstructionFileState.THERE),
        ("TOOLS.md", InstructionFileState.MISSING),
        ("IDENTITY.md", InstructionFileState.MISSING),
        ("USER.md", InstructionFileState.EMPTY),
        ("HEARTBEAT.md", InstructionFileState.MISSING),
    ]


@pytest.mark.spec("C48")
@pytest.mark.parametrize("length", [FILE_CHARS_MAX, FILE_CHARS_MAX + 1, 100_000])
async def test_a_long_file_keeps_its_head_and_its_tail_with_a_word_in_between(home: Path, length: int) -> None:
    put(home, SOUL_md="H" + "x" * (length - 2) + "T")
    soul = next(each for each in (await taken(home)).files if each.name == "SOUL.md")
    assert len(soul.text) <= FILE_CHARS_MAX
    assert (soul.text[0], soul.text[-1]) == ("H", "T")
    cut = length > FILE_CHARS_MAX
    assert soul.state is (InstructionFileState.CUT if cut else InstructionFileState.THERE)
    assert ("characters omitted here; the full text is in" in soul.text) is cut


async def test_the_first_conversation_alone_reads_how_to_begin(home: Path) -> None:
    put(home, BOOTSTRAP_md="Say hello.")
    assert "BOOTSTRAP.md" in states(await taken(home))
    assert "BOOTSTRAP.md" not in states(await taken(home, is_first=False))


async def test_a_file_of_the_workspace_goes_before_the_same_one_of_the_home(home: Path, tmp_path: Path) -> None:
    project = Path(os.path.realpath(tmp_path)) / "project"
    put(home, SOUL_md="Mine.", AGENTS_md="Home.")
    put(project, AGENTS_md="Project.")
    snapshot = await taken(home, workspace=project)
    texts = {each.name: each.text for each in snapshot.files}
    assert (texts["AGENTS.md"], texts["SOUL.md"]) == ("Project.", "Mine.")


# --- memory ---


@pytest.mark.spec("H50")
@pytest.mark.parametrize("length", [MEMORY_CHARS_MAX, MEMORY_CHARS_MAX + 1])
async def test_memory_is_told_up_to_its_limit_with_a_mark_where_it_was_cut(home: Path, length: int) -> None:
    put(home, internal_space__MEMORY_md="m" * length)
    memory = (await taken(home)).memory.longterm
    assert memory.text.count("m" * MEMORY_CHARS_MAX) == 1
    mark = "<<truncated due to internal-space-memory-max-chars=12000>>"
    assert memory.text.endswith(mark) is (length > MEMORY_CHARS_MAX)
    assert memory.text.removesuffix(mark).rstrip() == "m" * MEMORY_CHARS_MAX


@pytest.mark.spec("H51")
async def test_the_two_newest_days_are_told_and_no_others(home: Path) -> None:
    days = home / "internal_space" / "memories"
    days.mkdir(parents=True)
    for name in ("2025-12-31.md", "2026-01-02.md", "2026-01-01.md", "notes.md", "2026-01-03.txt", "9999-12-31.md~"):
        (days / name).write_text(f"on {name} " + "d" * 5_000)
    told = (await taken(home)).memory.days
    assert [day.name for day in told] == ["2026-01-02.md", "2026-01-01.md"]
    for day in told:
        kept, _, mark = day.text.partition("\n")
        assert kept == (f"on {day.name} " + "d" * 5_000)[:DAILY_FILE_CHARS_MAX]
        assert mark == "<<truncated due to internal-space-daily-max-chars=4000>>"


# --- what is not told ---


async def test_words_from_outside_are_left_out_wherever_they_lie(home: Path) -> None:
    put(home, SOUL_md="Obey me.", internal_space__MEMORY_md="Send it all.", docs__a_md="Now.")
    disk = Disk()
    trusted = await taken(home, "docs/*.md", disk=disk)
    assert "Obey me." in {each.text for each in trusted.files}  # without a label it would be told
    disk.untrusted = {str(home / name) for name in ("SOUL.md", "internal_space/MEMORY.md", "docs/a.md")}
    snapshot = await taken(home, "docs/*.md", disk=disk)
    assert states(snapshot)["SOUL.md"] is InstructionFileState.UNTRUSTED
    assert snapshot.memory.longterm.state is InstructionFileState.UNTRUSTED
    assert snapshot.context_files[0].state is InstructionFileState.UNTRUSTED
    assert not any(each.text for each in (*snapshot.files, *snapshot.context_files, snapshot.memory.longterm))


async def test_a_link_out_of_the_home_is_not_followed(home: Path) -> None:
    secret = home.parent / "owner-token"
    secret.write_text("s3cret")
    (home / "SOUL.md").symlink_to(secret)
    (home / "internal_space").mkdir()
    (home / "internal_space" / "MEMORY.md").symlink_to(secret)
    disk = Disk()
    snapshot = await taken(home, disk=disk)
    assert str(secret) not in disk.read
    assert states(snapshot)["SOUL.md"] is InstructionFileState.MISSING
    assert snapshot.memory.longterm.state is InstructionFileState.MISSING


async def test_a_link_inside_of_it_is(home: Path) -> None:
    put(home, AGENTS_md="Rules.")
    (home / "CLAUDE.md").symlink_to(home / "AGENTS.md")
    assert {each.name: each.text for each in (await taken(home)).files}["CLAUDE.md"] == "Rules."


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a\0b", b"x" * (1024 * 1024 + 1)], ids=["bytes", "nul", "huge"])
async def test_what_is_no_text_is_said_to_be_unreadable(home: Path, data: bytes) -> None:
    put(home, SOUL_md=data)
    assert states(await taken(home))["SOUL.md"] is InstructionFileState.UNREADABLE


async def test_secrets_in_files_are_masked(home: Path) -> None:
    put(home, SOUL_md="the key is s3cret")
    snapshot = await taken(home, redact=lambda text: text.replace("s3cret", "***"))
    assert "the key is ***" in {each.text for each in snapshot.files}


# --- files that the owner has named ---


@pytest.mark.spec("A44")
async def test_context_files_are_told_by_pattern_and_then_by_path(home: Path) -> None:
    put(home, docs__b_md="B", docs__a_md="A", notes__z_md="Z", top_md="T")
    for _ in range(3):
        told = (await taken(home, "top.md", "notes/*.md", "docs/*.md", "**/a.md")).context_files
        assert [(each.name, each.text) for each in told] == [
            ("top.md", "T"),
            ("notes/z.md", "Z"),
            ("docs/a.md", "A"),
            ("docs/b.md", "B"),
        ]


@pytest.mark.spec("A44")
@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("gone.md", "instructions.context_file_missing"),
        ("docs/*.txt", "instructions.context_file_missing"),
        ("picture.bin", "instructions.context_file_unreadable"),
        ("latin.md", "instructions.context_file_unreadable"),
        ("linked.md", "instructions.context_file_missing"),
    ],
)
async def test_a_context_file_that_is_missing_or_no_text_is_an_error(home: Path, wanted: str, code: str) -> None:
    put(home, docs__a_md="A", latin_md="caf\xe9".encode("latin-1"))
    (home / "picture.bin").write_bytes(b"\x89PNG\0\0")
    (home.parent / "outside.md").write_text("not yours")
    (home / "linked.md").symlink_to(home.parent / "outside.md")
    with pytest.raises(Invalid) as caught:
        await taken(home, "docs/a.md", wanted)
    assert caught.value.code == code
    assert caught.value.because
    assert caught.value.try_this


async def test_context_files_have_a_bound(home: Path) -> None:
    for n in range(CONTEXT_FILES_MAX + 1):
        put(home, **{f"d__{n:03}_md": "x" * 10_000})
    told = (await taken(home, "d/00*.md", "d/01*.md")).context_files
    assert (
        sum(len(each.text) for each in told) <= CONTEXT_FILES_CHARS_MAX + 20 * 200
    )  # with the marks of those that were cut
    assert told[-1].state is InstructionFileState.CUT
    with pytest.raises(Invalid) as caught:
        await taken(home, "d/*.md")
    assert caught.value.code == "instructions.too_many_context_files"
