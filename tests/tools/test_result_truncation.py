"""Results that are too long: cut where the model sees it, and the whole to be read on."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
from tools.file_tools import Desk, open_desk

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
OTHER = SessionId("7" * 32)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


async def keep(desk: Desk, *results: ToolResult, session: SessionId | None = None, seq: int = 1) -> None:
    new = [
        Record(
            session=session or desk.scene.session,
            seq=number,
            kind=RecordKind.TOOL,
            body=result,
            at_ms=1_800_000_000_000,
            run=None,
            trust=result.trust,
        )
        for number, result in enumerate(results, seq)
    ]
    await desk.store.write(partial(records.add, records=new), point="test")


async def shortened(desk: Desk, text: str = LONG) -> tuple[str, str]:
    return await FullResultStore(desk.ground.files, desk.store).truncate(text)


def reference(shown: str) -> tuple[str, int]:
    words = shown.rpartition("[cut: ")[2]
    return words.partition("path=")[2].partition(",")[0], int(words.partition("offset=")[2].rstrip("]"))


@pytest.mark.spec("D18")
async def test_a_result_above_the_limit_is_cut_with_a_notice(desk: Desk) -> None:
    shown, whole = await shortened(desk)
    assert len(shown) <= RESULT_CHARS_MAX
    words, _, notice = shown.rpartition("\n[cut: ")
    assert LONG.startswith(words)
    assert notice == (
        f"{len(LONG) - len(words)} more characters. Read on with read, path=result:{whole[:16]}, "
        f"offset={words.count(chr(10)) + 1}]"
    )
    short = "x" * RESULT_CHARS_MAX
    assert await shortened(desk, short) == (short, "")


@pytest.mark.spec("D18")
async def test_the_whole_can_be_read_on_where_the_notice_says(desk: Desk) -> None:
    shown, whole = await shortened(desk)
    await keep(desk, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    found = shown.rpartition("\n[cut: ")[0]
    path, offset = reference(shown)
    while True:
        page = await desk.text("read", path=path, offset=offset)
        words, mark, notice = page.rpartition("[lines ")
        if not mark:
            break
        found += words
        offset = int(notice.partition("offset=")[2].rstrip("]"))
    assert found + page == LONG


async def test_a_whole_is_read_only_in_its_own_session(desk: Desk) -> None:
    shown, whole = await shortened(desk)
    path, _ = reference(shown)
    assert await desk.refusal("read", path=path) == "result.not_found"  # no record names it yet
    await keep(desk, ToolResult(call="1", tool="exec", output=shown, whole=whole), session=OTHER)
    assert await desk.refusal("read", path=path) == "result.not_found"
    assert await desk.text("read", replace(desk.scene, session=OTHER), path=path, limit=1)
    assert desk.needs("read", path=path) == []


@pytest.mark.parametrize("id_", ["", "%", "_" * 16, "zz", "0" * 16, "../x", '"whole":"', "a" * 65])
async def test_what_is_no_result_of_this_session_is_not_read(desk: Desk, id_: str) -> None:
    shown, whole = await shortened(desk)
    await keep(desk, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    assert await desk.refusal("read", path=f"result:{id_}") == "result.not_found"
    assert await desk.text("read", path=f"result:{whole}", limit=1)


async def test_an_output_cannot_pretend_to_have_a_whole(desk: Desk) -> None:
    """A page that an agent reads may hold any words; those of its record are told from them."""
    _, whole = await shortened(desk)
    forged = f'"whole":"{whole}" {{"whole":"{whole}"}} \\"whole\\":\\"{whole}'
    await keep(desk, ToolResult(call="1", tool="web_fetch", output=forged))
    assert await desk.refusal("read", path=f"result:{whole[:16]}") == "result.not_found"
    assert await desk.store.scan(stored.list_file_hashes) == set()


async def test_a_whole_is_believed_as_far_as_its_result(desk: Desk) -> None:
    shown, whole = await shortened(desk)
    await keep(desk, ToolResult(call="1", tool="web_fetch", output=shown, whole=whole, trust=Trust.UNTRUSTED))
    assert (await desk.call("read", path=f"result:{whole[:16]}")).trust is Trust.UNTRUSTED
    mine, mine_whole = await shortened(desk, "mine\n" + LONG)
    await keep(desk, ToolResult(call="2", tool="exec", output=mine, whole=mine_whole), seq=2)
    assert (await desk.call("read", path=f"result:{mine_whole[:16]}")).trust is Trust.PRIVATE


async def test_bytes_that_two_results_share_are_believed_as_far_as_the_worse(desk: Desk) -> None:
    """The same page, once fetched and once out of a clean file: whoever reads it by its hash reads both."""
    shown, whole = await shortened(desk)
    await keep(desk, ToolResult(call="1", tool="web_fetch", output=shown, whole=whole, trust=Trust.UNTRUSTED))
    await keep(desk, ToolResult(call="2", tool="exec", output=shown, whole=whole), seq=2)
    assert (await desk.call("read", path=f"result:{whole[:16]}")).trust is Trust.UNTRUSTED


async def test_a_sweep_keeps_what_a_record_names_and_nothing_else(desk: Desk) -> None:
    files = desk.ground.files
    shown, whole = await shortened(desk)
    _, unnamed = await shortened(desk, "unnamed\n" + LONG)
    picture = files.store([b"picture"], name="a.png", media_type="image/png")
    others = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(ROWS_PER_BATCH_MAX)]
    await keep(desk, *(ToolResult(call="0", tool="exec", output="", whole=each) for each in others))
    await keep(desk, ToolResult(call="1", tool="exec", output=shown, whole=whole), seq=ROWS_PER_BATCH_MAX + 1)
    short = ToolResult(call="2", tool="exec", output="short")
    await keep(desk, short, ToolResult(call="3", tool="read", output="", attachments=(picture,)), session=OTHER)
    named = await desk.store.scan(stored.list_file_hashes)
    assert named == {whole, picture.hash, *others}
    assert files.list_unwanted(keep=named.__contains__) == [unnamed]
    assert files.sweep(keep=named.__contains__) == 1
    assert await desk.text("read", path=f"result:{whole[:16]}", limit=1)


async def test_a_whole_that_is_gone_is_told(desk: Desk) -> None:
    shown, whole = await shortened(desk)
    await keep(desk, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    desk.ground.files.sweep(keep=lambda _: False)
    assert await desk.refusal("read", path=f"result:{whole[:16]}") == "result.gone"


async def test_a_result_that_cannot_be_kept_is_cut_all_the_same(desk: Desk) -> None:
    (desk.house / "files").write_text("in the way")
    shown, whole = await shortened(desk)
    assert whole == ""
    assert len(shown) <= RESULT_CHARS_MAX
    assert "which could not be stored" in shown


async def test_one_endless_line_is_cut_and_read_on(desk: Desk) -> None:
    text = "x" * 60_000 + "y" * 60_000
    shown, whole = await shortened(desk, text)
    assert f"path=result:{whole[:16]}, offset=1, column=49601]" in shown
    await keep(desk, ToolResult(call="1", tool="exec", output=shown, whole=whole))
    assert (await desk.text("read", path=f"result:{whole[:16]}", column=60_000)).startswith("xyyy")
