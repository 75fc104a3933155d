"""`process`: list, poll, write to and end the commands of one's own session, with real processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.shell_tools import ON_HOST, OTHER_SESSION, ToolSetup, is_alive, open_shell_tools, until

from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.domain.trust import Trust
from retinue.testing.wait_conditions import wait_until
from retinue.text.redaction import Redactor
from retinue.tools.base import ToolFailed
from retinue.tools.shell import job_output
from retinue.tools.shell.job_output import LINE_CHARS_MAX, JobLog, strip_control_sequences
from retinue.tools.shell.terminal_keys import PASTE_END, PASTE_START, encode_keys, encode_paste
from retinue.tools.text_pages import slice_page


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncGenerator[ToolSetup]:
    async with open_shell_tools(tmp_path) as setup:
        yield setup


async def poll_until(setup: ToolSetup, id_: str, words: str) -> str:
    """Poll until the collected output contains `words`, and return it."""
    found: list[str] = []

    async def reported() -> str:
        found.append((await setup.call_process("poll", id_)).text)
        return "".join(found) if words in "".join(found) else ""

    return await wait_until(reported, f"the output contains {words!r}")


# List and poll


@pytest.mark.spec("C59")
async def test_process_list_shows_the_commands_of_the_session(setup: ToolSetup) -> None:
    assert (await setup.call_process("list")).text.startswith("No background commands")
    running = await setup.background("read line")
    ended = await setup.background("exit 4")
    await setup.ended_process(ended)
    listed = (await setup.call_process("list")).text.splitlines()

    assert any(line.startswith(f"{running}  running, pid ") and line.endswith("read line") for line in listed)
    assert any(line.startswith(f"{ended}  exit code 4") for line in listed)


@pytest.mark.spec("C59")
async def test_process_poll_returns_only_new_output(setup: ToolSetup) -> None:
    id_ = await setup.background("echo one; read line; echo two; exit 5")
    assert "It is running." in await poll_until(setup, id_, "one")
    assert (await setup.call_process("poll", id_)).text == "It is running.\n[no new output]"
    await setup.call_process("write", id_, data="\n")
    await setup.ended_process(id_)
    last = (await setup.call_process("poll", id_)).text

    assert last.startswith("It has ended: exit code 5") and last.endswith("\ntwo\n") and "one" not in last


@pytest.mark.spec("C59")
async def test_process_log_returns_pages_of_lines(setup: ToolSetup) -> None:
    id_ = await setup.background("seq 1 1000")
    await setup.ended_process(id_)

    assert (await setup.call_process("log", id_, limit=2)).text == "Lines 998 to 999 of 1000.\n999\n1000"
    assert (await setup.call_process("log", id_, offset=0, limit=2)).text == (
        "Lines 0 to 1 of 1000. Read on with offset 2.\n1\n2"
    )
    assert (await setup.call_process("log", id_, offset=2_000)).text == "The log has 1,000 lines."
    lines: list[str] = []
    while len(lines) < 1000:
        lines += (await setup.call_process("log", id_, offset=len(lines), limit=300)).text.splitlines()[1:]
    assert lines == [str(n) for n in range(1, 1001)]


@pytest.mark.spec("C59")
async def test_a_page_of_long_lines_of_process_log_fits_the_limit_and_can_be_continued(setup: ToolSetup) -> None:
    id_ = await setup.background("head -c 300000 /dev/zero | tr '\\0' x")
    await setup.ended_process(id_)
    read, offset = "", 0
    while True:
        page = (await setup.call_process("log", id_, offset=offset, limit=2000)).text
        assert len(page) <= RESULT_CHARS_MAX
        header, *lines = page.splitlines()
        read += "".join(lines)
        if "Read on" not in header:
            break
        offset += len(lines)

    assert read == "x" * 300_000
    newest = (await setup.call_process("log", id_, limit=2000)).text
    assert len(newest) <= RESULT_CHARS_MAX and "of 75." in newest.splitlines()[0]


@pytest.mark.spec("C59")
async def test_the_process_tool_does_not_show_a_command_to_another_session(setup: ToolSetup) -> None:
    id_ = await setup.background("read line")
    [written] = await setup.written()
    elsewhere = setup.tool_context(session=OTHER_SESSION)

    assert (await setup.call_process("list", tool_context=elsewhere)).text.startswith("No background commands")
    for action in ("poll", "log", "write", "send_keys", "submit", "paste", "kill", "clear", "remove"):
        for name in (id_, written.id):
            with pytest.raises(ToolFailed, match=r"process\.not_found"):
                await setup.call_process(action, name, data="x", literal="x", tool_context=elsewhere)
    await setup.call_process("clear", tool_context=elsewhere)
    assert is_alive(written.pid)
    assert "running" in (await setup.call_process("list")).text  # the control


@pytest.mark.parametrize("id_", ["", "zz", "12345678", "../../etc"])
async def test_the_process_tool_refuses_an_unknown_or_invalid_command_id(setup: ToolSetup, id_: str) -> None:
    with pytest.raises(ToolFailed, match=r"process\.not_found|id\.invalid"):
        await setup.call_process("log", id_)


def test_the_process_tool_refuses_an_unknown_action_or_invalid_page_argument(tmp_path: Path) -> None:
    from retinue.tools.shell.process_tool import ProcessArguments

    for wrong in ({"action": "restart"}, {"action": "log", "offset": -1}, {"action": "log", "limit": 0}, {}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, ProcessArguments)


# Write


@pytest.mark.spec("C59")
async def test_process_write_sends_input_until_eof(setup: ToolSetup) -> None:
    id_ = await setup.background("cat; echo end")
    await setup.call_process("write", id_, data="one\n")
    await poll_until(setup, id_, "one")
    await setup.call_process("write", id_, data="two\n", eof=True)
    await setup.ended_process(id_)

    assert (await setup.call_process("log", id_)).text.splitlines()[1:] == ["one", "two", "end"]
    with pytest.raises(ToolFailed, match=r"process\.ended"):
        await setup.call_process("write", id_, data="three\n")


@pytest.mark.spec("C59")
async def test_process_send_keys_reaches_a_terminal(setup: ToolSetup) -> None:
    # Not `read` instead of `sleep`: a signal just before it waits for input would be handled only after that input.
    id_ = await setup.background(
        "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.02; done", pty=True
    )
    await setup.wait_for_output(id_, "ready")
    await setup.call_process("send_keys", id_, keys=["C-c"])

    assert (await setup.ended_process(id_)).exit_code == 9
    assert "interrupted" in (await setup.call_process("log", id_)).text


@pytest.mark.spec("C59")
async def test_process_submit_ends_the_typed_line(setup: ToolSetup) -> None:
    id_ = await setup.background("read line; echo got $line", pty=True)
    await setup.call_process("send_keys", id_, literal="ab", hex=["63"], keys=[])
    await setup.call_process("submit", id_)
    await setup.ended_process(id_)
    assert "got cab" in (await setup.call_process("log", id_)).text

    piped = await setup.background("read line; echo got $line")
    await setup.call_process("write", piped, data="abc")
    await setup.call_process("submit", piped)
    await setup.ended_process(piped)
    assert "got abc" in (await setup.call_process("log", piped)).text


@pytest.mark.spec("C59")
@pytest.mark.parametrize(("bracketed", "seen"), [(True, "1b5b3230307e6869"), (False, "6869")])
async def test_process_paste_uses_bracketed_paste_if_requested(setup: ToolSetup, bracketed: bool, seen: str) -> None:
    count = 14 if bracketed else 2
    id_ = await setup.background(
        f"stty raw -echo; echo ready; head -c {count} | od -An -v -tx1 | tr -d ' \\n'", pty=True
    )
    await setup.wait_for_output(id_, "ready")
    await setup.call_process("paste", id_, data="hi", bracketed=bracketed)
    await setup.ended_process(id_)

    assert seen in (await setup.call_process("log", id_)).text


async def test_process_write_and_send_keys_refuse_empty_input(setup: ToolSetup) -> None:
    id_ = await setup.background("read line")
    for action in ("write", "send_keys"):
        with pytest.raises(ToolFailed, match=r"process\.input_empty"):
            await setup.call_process(action, id_)


async def test_a_command_that_got_untrusted_input_from_process_has_untrusted_output(setup: ToolSetup) -> None:
    id_ = await setup.background("cat")
    assert (await setup.call_process("poll", id_)).trust is Trust.PRIVATE
    await setup.call_process(
        "write", id_, data="words\n", eof=True, tool_context=setup.tool_context(trust=Trust.UNTRUSTED)
    )
    await setup.ended_process(id_)

    assert (await setup.call_process("log", id_)).trust is Trust.UNTRUSTED
    assert (await setup.call_process("list")).trust is Trust.UNTRUSTED
    assert [each.trust for each in await setup.reported()] == [Trust.UNTRUSTED]


# End


@pytest.mark.spec("C59")
async def test_process_kill_ends_a_command_with_its_children(setup: ToolSetup) -> None:
    setup.policy = ON_HOST
    script = setup.workspace / "family.sh"
    script.write_text("#!/bin/sh\nsleep 600 &\necho $! $$\nwait\n")
    script.chmod(0o755)
    id_ = await setup.background("./family.sh")
    pids = [int(pid) for pid in (await setup.wait_for_output(id_, " ")).splitlines()[-1].split() if pid.isdigit()]
    while len(pids) != 2:
        pids = [
            int(pid) for pid in (await setup.call_process("log", id_)).text.splitlines()[-1].split() if pid.isdigit()
        ]
    assert all(map(is_alive, pids))
    await setup.call_process("kill", id_)

    await until(lambda: not any(map(is_alive, pids)))  # its children were killed, and may still be exiting
    with pytest.raises(ToolFailed, match=r"process\.ended"):
        await setup.call_process("kill", id_)


@pytest.mark.spec("C59")
async def test_process_clear_removes_only_ended_commands(setup: ToolSetup) -> None:
    running, ended = await setup.background("read line"), await setup.background("echo hi")
    await setup.ended_process(ended)
    with pytest.raises(ToolFailed, match=r"process\.running"):
        await setup.call_process("clear", running)
    await setup.call_process("clear", ended)
    assert [each.id[:8] for each in await setup.written()] == [running]

    await setup.ended_process(await setup.background("true"))
    assert (await setup.call_process("clear")).text == "Cleared 1 command that had ended."
    assert [each.id[:8] for each in await setup.written()] == [running]


@pytest.mark.spec("C59")
async def test_process_remove_ends_a_running_command_and_deletes_it(setup: ToolSetup) -> None:
    id_ = await setup.background("read line")
    [written] = await setup.written()
    await setup.call_process("remove", id_)

    assert not is_alive(written.pid)
    assert await setup.written() == [] and list((setup.folder / "logs").iterdir()) == []
    assert await setup.reported() == []


# Keys and logs


@pytest.mark.spec("C59")
@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        (["Enter"], b"\r"),
        (["C-c", "ctrl-D", "C-["], b"\x03\x04\x1b"),
        (["C-Space"], b"\x00"),
        (["M-x", "alt-Enter"], b"\x1bx\x1b\r"),
        (["Up", "F5", "esc", "BackTab"], b"\x1b[A\x1b[15~\x1b\x1b[Z"),
        (["-", "é", " "], "-é ".encode()),
    ],
)
def test_process_encodes_keys_as_a_terminal_sends_them(keys: list[str], sent: bytes) -> None:
    assert encode_keys(keys) == sent


@pytest.mark.parametrize(("keys", "hexes"), [(["Entr"], []), (["C-cc"], []), (["X-x"], []), ([], ["1"]), ([], ["zz"])])
def test_process_refuses_invalid_keys_or_hex_bytes(keys: list[str], hexes: list[str]) -> None:
    with pytest.raises(ToolFailed, match=r"process\.(key|hex)"):
        encode_keys(keys, hexes)
    with pytest.raises(ToolFailed, match=r"too_many_keys"):
        encode_keys(["a"] * 257)


@given(st.text(alphabet="\x1b[201~0a\n"))
def test_a_bracketed_paste_of_process_cannot_end_its_own_brackets(text: str) -> None:
    data = encode_paste(text, bracketed=True)

    assert data.startswith(PASTE_START) and data.endswith(PASTE_END)
    assert PASTE_END not in data[len(PASTE_START) : -len(PASTE_END)]
    assert encode_paste(text, bracketed=False) == text.encode()


@given(st.binary(max_size=300), st.integers(1, 50), st.integers(0, 400))
def test_the_output_of_a_job_has_no_control_characters_once_stripped(data: bytes, cut: int, bound: int) -> None:
    assert not set(strip_control_sequences(data.decode(errors="replace"))) & {
        chr(c) for c in range(32) if c not in (9, 10)
    }


@given(
    st.lists(st.binary(min_size=1, max_size=200), max_size=20),
    st.integers(min_value=0, max_value=300),
)
def test_the_log_of_a_shell_job_keeps_its_beginning_complete(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], room: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    log = JobLog(path, bytes_max=room)
    for chunk in chunks:
        log.add(chunk)
    log.close()
    log.close()
    written_bytes, kept = b"".join(chunks), path.read_bytes()

    assert kept[:room] == written_bytes[:room]
    assert kept == written_bytes  # the discarded part is shorter than the kept end
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.text(alphabet="ab\né\u4e2d", max_size=400), st.integers(2, 60))
def test_the_shown_output_of_a_shell_job_is_complete_or_has_both_its_ends(
    tmp_path_factory: pytest.TempPathFactory, text: str, chars: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    path.write_text(text)
    shown = job_output.read_with_middle_cut(path, chars_max=chars)

    if len(text) <= chars:
        assert shown == job_output.CommandOutput(text)
    else:
        half = chars // 2
        assert shown.text.startswith(text[:half]) and shown.text.endswith(text[-half:])
        assert shown.omitted_bytes == len(text[half:-half].encode())


def test_a_very_long_line_in_the_log_of_a_shell_job_is_returned_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("é" * (LINE_CHARS_MAX + 1) + "\nlast")
    page = job_output.read_page(path, offset=0, limit=10)

    assert [len(line) for line in page.lines] == [LINE_CHARS_MAX, 1, 4]
    assert page.line_count == 3


SECRET = "correct-horse-battery-staple"


@pytest.mark.parametrize("at", range(30, 70, 5))
def test_no_part_of_a_secret_is_shown_wherever_the_log_of_a_shell_job_is_cut(tmp_path: Path, at: int) -> None:
    mask = Redactor({"horse": SECRET}).redact
    path = tmp_path / "a.log"
    path.write_text("x" * at + SECRET + "y" * (120 - at))

    def is_kept(shown: str) -> bool:
        return not any(SECRET[n : n + 8] in shown for n in range(len(SECRET) - 7))

    for chars in (60, 100, 140):
        assert is_kept(job_output.read_with_middle_cut(path, chars_max=chars, mask=mask).text)
        assert is_kept(job_output.read_tail(path, chars_max=chars, mask=mask)[0])
    assert is_kept(job_output.read_tail(path, chars_max=1_000, from_byte=at + 10, mask=mask)[0])
    assert not is_kept(job_output.read_tail(path, chars_max=1_000, from_byte=at + 2)[0]), (
        "without redaction it would be kept"
    )
    assert not is_kept(job_output.read_with_middle_cut(path, chars_max=2 * at + 20).text)


@pytest.mark.parametrize("offset", [0, 1, 2, None])
def test_a_redacted_page_of_a_shell_job_log_shows_no_part_of_a_secret_and_keeps_its_line_numbers(
    tmp_path: Path, offset: int | None
) -> None:
    two_lines = "correct-horse-one\nbattery-staple-two"
    mask = Redactor({"horse": two_lines, "long": SECRET}).redact
    path = tmp_path / "a.log"
    long = "z" * (LINE_CHARS_MAX - 10) + SECRET + "z" * 100
    path.write_text(f"first\n{two_lines}\n{long}\nlast\n")
    plain_, masked = (job_output.read_page(path, offset=offset, limit=2, mask=each) for each in (str, mask))
    assert (masked.first_line, masked.line_count, len(masked.lines)) == (
        plain_.first_line,
        plain_.line_count,
        len(plain_.lines),
    )
    shown = "\n".join(masked.lines)
    assert not any(words in shown for words in ("horse-one", "battery", "correct"))
    assert any(words in "\n".join(plain_.lines) for words in ("horse-one", "battery", "correct"))
    assert "[secret:" in shown


async def test_a_slice_of_a_long_line_in_a_text_page_shows_no_part_of_a_secret(tmp_path: Path) -> None:
    text = "x" * 95 + SECRET + "y" * 95
    mask = Redactor({"horse": SECRET}).redact
    found = slice_page(text, lines_max=1, chars_max=100, redact=mask)
    assert found is not None and found.text == "x" * 95 + "[secret:horse]" and found.next_column == 101
    rest = slice_page(text, column=101, lines_max=1, chars_max=1_000, redact=mask)
    assert rest is not None and rest.text == "[secret:horse]" + "y" * 95
