"""Long results are truncated for the model, and the full text can be read later."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
from tools.file_tools import ToolSetup, open_file_tools

from retinue.domain.ids import SessionId
from retinue.domain.record import Record, RecordKind
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX, ToolResult
from retinue.domain.trust import Trust
from retinue.store.sessions import full_results as stored
from retinue.store.sessions import records
from retinue.store.sessions.full_results import ROWS_PER_BATCH_MAX
from retinue.tools.result_truncation import FullResultStore

LONG = "".join(f"line {number}\n" for number in range(1, 20_001))
OTHER_SESSION = SessionId("7" * 32)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncGenerator[ToolSetup]:
    async with open_file_tools(tmp_path) as opened:
        yield opened


async def keep(setup: ToolSetup, *results: ToolResult, session: SessionId | None = None, seq: int = 1) -> None:
    new = [
        Record(
            session=session or setup.tool_context.session,
            seq=number,
            kind=RecordKind.TOOL,
            body=result,
            at_ms=1_800_000_000_000,
            run=None,
            trust=result.trust,
        )
        for number, result in enumerate(results, seq)
    ]
    await setup.store.write(partial(records.add, records=new), point="test")


async def truncate_result(setup: ToolSetup, text: str = LONG) -> tuple[str, str]:
    return await FullResultStore(setup.file_services.files, setup.store).truncate(text)


def parse_reference(shown: str) -> tuple[str, int]:
    words = shown.rpartition("[cut: ")[2]
    return words.partition("path=")[2].partition(",")[0], int(words.partition("offset=")[2].rstrip("]"))


@pytest.mark.spec("D18")
async def test_a_tool_result_above_the_limit_is_truncated_with_a_notice(setup: ToolSetup) -> None:
    shown, whole = await truncate_result(setup)
    assert len(shown) <= RESULT_CHARS_MAX
    words, _, notice = shown.rpartition("\n[cut: ")
    assert LONG.startswith(words)
    assert notice == (
        f"{len(LONG) - len(words)} more characters. Read on with read, path=result:{whole[:16]}, "
        f"offset={words.count(chr(10)) + 1}]"
    )
    short = "x" * RESULT_CHARS_MAX
    assert await truncate_result(setup, short) == (short, "")


@pytest.mark.spec("D18")
async def test_the_full_text_of_a_truncated_result_can_be_read_from_the_offset_in_the_notice(setup: ToolSetup) -> None:
    shown, whole = await truncate_result(setup)
    await keep(setup, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    found = shown.rpartition("\n[cut: ")[0]
    path, offset = parse_reference(shown)
    while True:
        page = await setup.text("read", path=path, offset=offset)
        words, mark, notice = page.rpartition("[lines ")
        if not mark:
            break
        found += words
        offset = int(notice.partition("offset=")[2].rstrip("]"))
    assert found + page == LONG


async def test_the_full_text_of_a_truncated_result_can_be_read_only_in_its_own_session(setup: ToolSetup) -> None:
    shown, whole = await truncate_result(setup)
    path, _ = parse_reference(shown)
    assert await setup.refusal_code("read", path=path) == "result.not_found"  # no record refers to it yet
    await keep(setup, ToolResult(call="1", tool="exec", output=shown, whole=whole), session=OTHER_SESSION)
    assert await setup.refusal_code("read", path=path) == "result.not_found"
    assert await setup.text("read", replace(setup.tool_context, session=OTHER_SESSION), path=path, limit=1)
    assert setup.needed_permissions("read", path=path) == []


@pytest.mark.parametrize("id_", ["", "%", "_" * 16, "zz", "0" * 16, "../x", '"whole":"', "a" * 65])
async def test_the_read_tool_does_not_find_a_truncated_result_with_an_invalid_id(setup: ToolSetup, id_: str) -> None:
    shown, whole = await truncate_result(setup)
    await keep(setup, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    assert await setup.refusal_code("read", path=f"result:{id_}") == "result.not_found"
    assert await setup.text("read", path=f"result:{whole}", limit=1)


async def test_a_tool_output_cannot_forge_a_reference_to_the_full_text_of_a_truncated_result(setup: ToolSetup) -> None:
    """An untrusted page may contain any text; it is distinguished from the reference in the record."""
    _, whole = await truncate_result(setup)
    forged = f'"whole":"{whole}" {{"whole":"{whole}"}} \\"whole\\":\\"{whole}'
    await keep(setup, ToolResult(call="1", tool="web_fetch", output=forged))
    assert await setup.refusal_code("read", path=f"result:{whole[:16]}") == "result.not_found"
    assert await setup.store.scan(stored.list_file_hashes) == set()


async def test_a_full_result_has_the_trust_of_its_truncated_result(setup: ToolSetup) -> None:
    shown, whole = await truncate_result(setup)
    await keep(setup, ToolResult(call="1", tool="web_fetch", output=shown, whole=whole, trust=Trust.UNTRUSTED))
    assert (await setup.call("read", path=f"result:{whole[:16]}")).trust is Trust.UNTRUSTED
    mine, mine_whole = await truncate_result(setup, "mine\n" + LONG)
    await keep(setup, ToolResult(call="2", tool="exec", output=mine, whole=mine_whole), seq=2)
    assert (await setup.call("read", path=f"result:{mine_whole[:16]}")).trust is Trust.PRIVATE


async def test_the_full_text_of_two_truncated_results_with_one_hash_has_the_lower_trust(setup: ToolSetup) -> None:
    """The same page was fetched from the web and read from a trusted file; both share one hash."""
    shown, whole = await truncate_result(setup)
    await keep(setup, ToolResult(call="1", tool="web_fetch", output=shown, whole=whole, trust=Trust.UNTRUSTED))
    await keep(setup, ToolResult(call="2", tool="exec", output=shown, whole=whole), seq=2)
    assert (await setup.call("read", path=f"result:{whole[:16]}")).trust is Trust.UNTRUSTED


async def test_a_sweep_of_stored_truncated_results_keeps_only_files_that_a_record_references(setup: ToolSetup) -> None:
    files = setup.file_services.files
    shown, whole = await truncate_result(setup)
    _, unnamed = await truncate_result(setup, "unnamed\n" + LONG)
    picture = files.store([b"picture"], name="a.png", media_type="image/png")
    others = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(ROWS_PER_BATCH_MAX)]
    await keep(setup, *(ToolResult(call="0", tool="exec", output="", whole=each) for each in others))
    await keep(setup, ToolResult(call="1", tool="exec", output=shown, whole=whole), seq=ROWS_PER_BATCH_MAX + 1)
    short = ToolResult(call="2", tool="exec", output="short")
    await keep(
        setup, short, ToolResult(call="3", tool="read", output="", attachments=(picture,)), session=OTHER_SESSION
    )
    named = await setup.store.scan(stored.list_file_hashes)
    assert named == {whole, picture.hash, *others}
    assert files.list_unwanted(keep=named.__contains__) == [unnamed]
    assert files.sweep(keep=named.__contains__) == 1
    assert await setup.text("read", path=f"result:{whole[:16]}", limit=1)


async def test_a_truncated_result_that_was_purged_returns_result_gone(setup: ToolSetup) -> None:
    shown, whole = await truncate_result(setup)
    await keep(setup, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    setup.file_services.files.sweep(keep=lambda _: False)
    assert await setup.refusal_code("read", path=f"result:{whole[:16]}") == "result.gone"


async def test_a_tool_result_that_cannot_be_stored_is_truncated_with_a_notice(setup: ToolSetup) -> None:
    (setup.server / "files").write_text("in the way")
    shown, whole = await truncate_result(setup)
    assert whole == ""
    assert len(shown) <= RESULT_CHARS_MAX
    assert "which could not be stored" in shown


async def test_a_tool_result_of_one_long_line_is_truncated_and_read_by_columns(setup: ToolSetup) -> None:
    text = "x" * 60_000 + "y" * 60_000
    shown, whole = await truncate_result(setup, text)
    assert f"path=result:{whole[:16]}, offset=1, column=49601]" in shown
    await keep(setup, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    assert (await setup.text("read", path=f"result:{whole[:16]}", column=60_000)).startswith("xyyy")
