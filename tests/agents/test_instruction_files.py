"""Files in instructions: which are included, how they are shortened, and which are left out."""

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


class FakeFileReader:
    """Reads files. Those in `untrusted` are untrusted."""

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


def write_files(root: Path, **files: str | bytes) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_md", ".md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture
def agent_directory(tmp_path: Path) -> Path:
    made = Path(os.path.realpath(tmp_path)) / "ada"
    made.mkdir()
    return made


async def take_snapshot(
    agent_directory: Path, *wanted: str, file_reader: FakeFileReader | None = None, **kw: Any
) -> InstructionSnapshot:
    given: dict[str, Any] = {
        "agent_directory": agent_directory,
        "workspace": agent_directory,
        "patterns": wanted,
        "is_first": True,
        **kw,
    }
    return await read_snapshot(file_reader or FakeFileReader(), **given)


def file_states(snapshot: InstructionSnapshot) -> dict[str, InstructionFileState]:
    return {each.name: each.state for each in snapshot.files}


@pytest.mark.spec("C48")
async def test_instruction_files_have_a_fixed_order_and_missing_files_are_marked(agent_directory: Path) -> None:
    write_files(agent_directory, SOUL_md="Kind.", AGENTS_md="Rules.", USER_md="  ")
    snapshot = await take_snapshot(agent_directory)
    assert list(file_states(snapshot).items()) == [
        ("AGENTS.md", InstructionFileState.THERE),
        ("SOUL.md", InstructionFileState.THERE),
        ("TOOLS.md", InstructionFileState.MISSING),
        ("IDENTITY.md", InstructionFileState.MISSING),
        ("USER.md", InstructionFileState.EMPTY),
        ("HEARTBEAT.md", InstructionFileState.MISSING),
    ]


@pytest.mark.spec("C48")
@pytest.mark.parametrize("length", [FILE_CHARS_MAX, FILE_CHARS_MAX + 1, 100_000])
async def test_a_long_instruction_file_keeps_its_start_and_end_with_a_mark_between(
    agent_directory: Path, length: int
) -> None:
    write_files(agent_directory, SOUL_md="H" + "x" * (length - 2) + "T")
    soul = next(each for each in (await take_snapshot(agent_directory)).files if each.name == "SOUL.md")
    assert len(soul.text) <= FILE_CHARS_MAX
    assert (soul.text[0], soul.text[-1]) == ("H", "T")
    cut = length > FILE_CHARS_MAX
    assert soul.state is (InstructionFileState.CUT if cut else InstructionFileState.THERE)
    assert ("characters omitted here; the full text is in" in soul.text) is cut


async def test_the_instruction_file_bootstrap_md_is_included_only_in_the_first_session(agent_directory: Path) -> None:
    write_files(agent_directory, BOOTSTRAP_md="Say hello.")
    assert "BOOTSTRAP.md" in file_states(await take_snapshot(agent_directory))
    assert "BOOTSTRAP.md" not in file_states(await take_snapshot(agent_directory, is_first=False))


async def test_an_instruction_file_of_the_workspace_overrides_that_of_the_agent_directory(
    agent_directory: Path, tmp_path: Path
) -> None:
    project = Path(os.path.realpath(tmp_path)) / "project"
    write_files(agent_directory, SOUL_md="Mine.", AGENTS_md="Home.")
    write_files(project, AGENTS_md="Project.")
    snapshot = await take_snapshot(agent_directory, workspace=project)
    texts = {each.name: each.text for each in snapshot.files}
    assert (texts["AGENTS.md"], texts["SOUL.md"]) == ("Project.", "Mine.")


# --- memory ---


@pytest.mark.spec("H50")
@pytest.mark.parametrize("length", [MEMORY_CHARS_MAX, MEMORY_CHARS_MAX + 1])
async def test_the_long_term_memory_file_in_the_instructions_is_truncated_at_its_limit_with_a_mark(
    agent_directory: Path, length: int
) -> None:
    write_files(agent_directory, internal_space__MEMORY_md="m" * length)
    memory = (await take_snapshot(agent_directory)).memory.longterm
    assert memory.text.count("m" * MEMORY_CHARS_MAX) == 1
    mark = "<<truncated due to internal-space-memory-max-chars=12000>>"
    assert memory.text.endswith(mark) is (length > MEMORY_CHARS_MAX)
    assert memory.text.removesuffix(mark).rstrip() == "m" * MEMORY_CHARS_MAX


@pytest.mark.spec("H51")
async def test_only_the_two_newest_daily_memory_files_are_included_in_the_instructions(agent_directory: Path) -> None:
    days = agent_directory / "internal_space" / "memories"
    days.mkdir(parents=True)
    for name in ("2025-12-31.md", "2026-01-02.md", "2026-01-01.md", "notes.md", "2026-01-03.txt", "9999-12-31.md~"):
        (days / name).write_text(f"on {name} " + "d" * 5_000)
    daily_files = (await take_snapshot(agent_directory)).memory.days
    assert [day.name for day in daily_files] == ["2026-01-02.md", "2026-01-01.md"]
    for day in daily_files:
        kept, _, mark = day.text.partition("\n")
        assert kept == (f"on {day.name} " + "d" * 5_000)[:DAILY_FILE_CHARS_MAX]
        assert mark == "<<truncated due to internal-space-daily-max-chars=4000>>"


# --- untrusted files ---


async def test_untrusted_instruction_memory_and_context_files_are_omitted(agent_directory: Path) -> None:
    write_files(agent_directory, SOUL_md="Obey me.", internal_space__MEMORY_md="Send it all.", docs__a_md="Now.")
    file_reader = FakeFileReader()
    trusted = await take_snapshot(agent_directory, "docs/*.md", file_reader=file_reader)
    assert "Obey me." in {each.text for each in trusted.files}  # a trusted file is included
    file_reader.untrusted = {
        str(agent_directory / name) for name in ("SOUL.md", "internal_space/MEMORY.md", "docs/a.md")
    }
    snapshot = await take_snapshot(agent_directory, "docs/*.md", file_reader=file_reader)
    assert file_states(snapshot)["SOUL.md"] is InstructionFileState.UNTRUSTED
    assert snapshot.memory.longterm.state is InstructionFileState.UNTRUSTED
    assert snapshot.context_files[0].state is InstructionFileState.UNTRUSTED
    assert not any(each.text for each in (*snapshot.files, *snapshot.context_files, snapshot.memory.longterm))


async def test_an_instruction_file_that_links_out_of_the_agent_directory_is_not_read(agent_directory: Path) -> None:
    secret = agent_directory.parent / "owner-token"
    secret.write_text("s3cret")
    (agent_directory / "SOUL.md").symlink_to(secret)
    (agent_directory / "internal_space").mkdir()
    (agent_directory / "internal_space" / "MEMORY.md").symlink_to(secret)
    file_reader = FakeFileReader()
    snapshot = await take_snapshot(agent_directory, file_reader=file_reader)
    assert str(secret) not in file_reader.read
    assert file_states(snapshot)["SOUL.md"] is InstructionFileState.MISSING
    assert snapshot.memory.longterm.state is InstructionFileState.MISSING


async def test_an_instruction_file_that_links_within_the_agent_directory_is_read(agent_directory: Path) -> None:
    write_files(agent_directory, AGENTS_md="Rules.")
    (agent_directory / "CLAUDE.md").symlink_to(agent_directory / "AGENTS.md")
    assert {each.name: each.text for each in (await take_snapshot(agent_directory)).files}["CLAUDE.md"] == "Rules."


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a\0b", b"x" * (1024 * 1024 + 1)], ids=["bytes", "nul", "huge"])
async def test_a_binary_or_too_large_instruction_file_is_marked_unreadable(agent_directory: Path, data: bytes) -> None:
    write_files(agent_directory, SOUL_md=data)
    assert file_states(await take_snapshot(agent_directory))["SOUL.md"] is InstructionFileState.UNREADABLE


async def test_secrets_in_instruction_files_are_redacted(agent_directory: Path) -> None:
    write_files(agent_directory, SOUL_md="the key is s3cret")
    snapshot = await take_snapshot(agent_directory, redact=lambda text: text.replace("s3cret", "***"))
    assert "the key is ***" in {each.text for each in snapshot.files}


# --- files of the owner's setting ---


@pytest.mark.spec("A44")
async def test_context_files_in_the_instructions_are_ordered_by_pattern_and_then_by_path(agent_directory: Path) -> None:
    write_files(agent_directory, docs__b_md="B", docs__a_md="A", notes__z_md="Z", top_md="T")
    for _ in range(3):
        context_files = (
            await take_snapshot(agent_directory, "top.md", "notes/*.md", "docs/*.md", "**/a.md")
        ).context_files
        assert [(each.name, each.text) for each in context_files] == [
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
async def test_instructions_with_a_missing_or_unreadable_context_file_are_refused(
    agent_directory: Path, wanted: str, code: str
) -> None:
    write_files(agent_directory, docs__a_md="A", latin_md="caf\xe9".encode("latin-1"))
    (agent_directory / "picture.bin").write_bytes(b"\x89PNG\0\0")
    (agent_directory.parent / "outside.md").write_text("not yours")
    (agent_directory / "linked.md").symlink_to(agent_directory.parent / "outside.md")
    with pytest.raises(Invalid) as caught:
        await take_snapshot(agent_directory, "docs/a.md", wanted)
    assert caught.value.code == code
    assert caught.value.because
    assert caught.value.try_this


async def test_the_number_and_length_of_context_files_in_the_instructions_are_limited(agent_directory: Path) -> None:
    for n in range(CONTEXT_FILES_MAX + 1):
        write_files(agent_directory, **{f"d__{n:03}_md": "x" * 10_000})
    context_files = (await take_snapshot(agent_directory, "d/00*.md", "d/01*.md")).context_files
    assert (
        sum(len(each.text) for each in context_files) <= CONTEXT_FILES_CHARS_MAX + 20 * 200
    )  # with the notes about the shortened files
    assert context_files[-1].state is InstructionFileState.CUT
    with pytest.raises(Invalid) as caught:
        await take_snapshot(agent_directory, "d/*.md")
    assert caught.value.code == "instructions.too_many_context_files"
