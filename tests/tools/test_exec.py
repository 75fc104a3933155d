"""`exec`: foreground, background, time limits, terminal, output, environment and folders, with real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tools.shell_tools import (
    ON_HOST,
    OTHER_SESSION,
    SESSION,
    DelayedSandbox,
    ToolSetup,
    is_alive,
    open_shell_tools,
    until,
)

from retinue.domain.decision import DecisionKind
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.permission import WEB_PERMISSION, Permission, PermissionKind, add_permissions
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.domain.trust import Trust
from retinue.policy.tools.exec_allowlist import parse_command_rule
from retinue.policy.tools.exec_placement import (
    CommandAsk,
    CommandSecurity,
    ElevatedPolicy,
    ElevationGates,
    ExecPolicy,
)
from retinue.sandbox.host import HostSandbox
from retinue.store.agents import file_trust
from retinue.store.runs.processes import ProcessState
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import PermissionedTool, Tool, ToolContext, ToolFailed
from retinue.tools.shell.exec_tool import ExecArguments
from retinue.tools.shell.job_output import JobLog
from retinue.tools.shell.job_store import JobLimits, JobStore


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncGenerator[ToolSetup]:
    async with open_shell_tools(tmp_path) as setup:
        yield setup


@pytest.fixture
def host_setup(setup: ToolSetup) -> ToolSetup:
    setup.policy = ON_HOST
    return setup


def asked(command: str, **arguments: object) -> ExecArguments:
    return msgspec.convert({"command": command, **arguments}, ExecArguments)


# Foreground


@pytest.mark.spec("C58", "D51")
async def test_a_foreground_command_of_exec_returns_its_exit_code_and_output(setup: ToolSetup) -> None:
    output = await setup.run("printf 'a b' && echo c >&2; exit 3")

    assert output.text.startswith("exit code 3 after ")
    assert output.text.endswith("\na bc\n")
    assert output.failed
    assert await setup.written() == [] and await setup.reported() == []
    assert list((setup.folder / "logs").iterdir()) == []


async def test_an_exec_call_whose_command_exits_with_code_zero_does_not_fail(host_setup: ToolSetup) -> None:
    output = await host_setup.run("printf %s 'a b'")

    assert not output.failed
    assert output.text.splitlines()[1:] == ["a b"]


async def test_exec_refuses_a_missing_program_or_invalid_command_and_stores_nothing(host_setup: ToolSetup) -> None:
    with pytest.raises(ToolFailed, match=r"command\.not_found"):
        await host_setup.run("no-such-program")
    with pytest.raises(ToolFailed, match=r"command\.invalid"):
        await host_setup.run("ls \x1b[2J")

    assert await host_setup.written() == []


# Yield and background


def has_output(setup: ToolSetup) -> bool:
    logs = setup.folder / "logs"
    return logs.is_dir() and any(each.stat().st_size for each in logs.iterdir())


@pytest.mark.spec("C58")
async def test_an_exec_command_longer_than_yield_ms_continues_and_its_end_is_reported_once(setup: ToolSetup) -> None:
    running = asyncio.create_task(setup.run("echo started; read line; echo got $line; exit 7", yield_ms=500))
    await until(partial(has_output, setup))
    assert not running.done()
    await setup.clock.advance(0.5)
    output = await running
    [written] = await setup.written()

    assert f"id {written.id[:8]}, pid {written.pid}" in output.text
    assert output.text.endswith("\nstarted") and not output.failed
    assert written.state is ProcessState.RUNNING and is_alive(written.pid)
    assert await setup.reported() == []

    await setup.call_process("write", written.id[:8], data="hello\n")
    await setup.ended_process(written.id)
    [envelope] = await setup.reported()

    assert (envelope.kind, envelope.silent) == (EnvelopeKind.SYSTEM, False)
    assert envelope.session == SESSION and str(envelope.recipient) == f"agent:ada/{SESSION}"
    assert "exit code 7" in envelope.text and envelope.text.endswith("got hello")
    assert envelope.trust is Trust.PRIVATE


NO_BACKGROUND = "[run in the foreground, for at most 120 s: background commands need the tool `process`]"


def without_process_tool(setup: ToolSetup) -> ToolContext:
    """Return a tool context of an agent that may not use `process`."""
    return setup.tool_context(can_use=lambda tool: tool != "process")


@pytest.mark.parametrize("arguments", [{"background": True}, {"yield_ms": 10}])
async def test_without_the_process_tool_exec_runs_a_background_command_in_the_foreground(
    host_setup: ToolSetup, arguments: dict[str, Any]
) -> None:
    slow = asyncio.create_task(
        host_setup.run(
            "sh -c 'echo on; until test -e go; do sleep 0.02; done'",
            tool_context=without_process_tool(host_setup),
            **arguments,
        )
    )
    await until(partial(has_output, host_setup))
    await host_setup.clock.advance(1)
    assert not slow.done()
    (host_setup.workspace / "go").touch()
    output = await slow
    assert output.text.startswith(f"{NO_BACKGROUND}\nexit code 0 after ") and output.text.endswith("\non\n")
    assert await host_setup.reported() == [] and await host_setup.written() == [], "no command is left to manage"


async def test_without_the_process_tool_exec_returns_the_usual_output_of_a_quick_command(host_setup: ToolSetup) -> None:
    assert (await host_setup.run("echo hi", tool_context=without_process_tool(host_setup))).text.startswith(
        "exit code 0 after "
    )


async def test_without_the_process_tool_exec_ends_a_command_after_the_foreground_limit(host_setup: ToolSetup) -> None:
    endless = asyncio.create_task(
        host_setup.run("sh -c 'echo on; sleep 600'", tool_context=without_process_tool(host_setup), timeout_s=600)
    )
    await until(partial(has_output, host_setup))
    await host_setup.clock.advance(121)
    output = await endless
    assert output.failed and output.text.startswith(NO_BACKGROUND) and "it took longer than 120 s" in output.text
    assert await host_setup.written() == []


async def test_without_the_process_tool_exec_returns_the_full_stored_output(host_setup: ToolSetup) -> None:
    output = await host_setup.run("seq 1 20000", tool_context=without_process_tool(host_setup))
    assert "[cut" not in output.text and "`process`" not in output.text and output.text.endswith("\n20000\n")
    assert len(output.text) > RESULT_CHARS_MAX, "the toolbox shows a part of it and stores the full result"


@pytest.mark.spec("C58")
async def test_exec_returns_from_a_background_command_while_it_runs(setup: ToolSetup) -> None:
    id_ = await setup.background("read line")
    [written] = await setup.written()

    assert written.id.startswith(id_) and written.state is ProcessState.RUNNING


@pytest.mark.spec("C58")
async def test_the_report_of_a_background_exec_command_has_its_last_400_characters(setup: ToolSetup) -> None:
    await setup.ended_process(await setup.background("seq 1 1000"))
    [envelope] = await setup.reported()
    tail = envelope.text.partition("[truncated: earlier output is not shown]\n")[2]

    assert 390 <= len(tail) <= 400 and tail.endswith("999\n1000")


async def test_a_background_command_killed_by_its_own_session_is_not_reported(setup: ToolSetup) -> None:
    id_ = await setup.background("read line")
    output = await setup.call_process("kill", id_)

    assert "it was killed" in output.text
    assert (await setup.ended_process(id_)).because == "it was killed"
    assert await setup.reported() == []


@pytest.mark.spec("C58")
async def test_the_end_of_a_background_exec_command_is_reported_once_even_if_notified_again(setup: ToolSetup) -> None:
    written = await setup.ended_process(await setup.background("echo hi"))
    await setup.jobs.store.notify_session(written)
    setup.jobs.store.log_path(written.id).write_text("other words")
    await setup.jobs.store.notify_session(written)

    assert len(await setup.reported()) == 1


# Time


@pytest.mark.spec("C58", "D51")
async def test_a_background_command_is_ended_at_its_timeout(setup: ToolSetup) -> None:
    id_ = await setup.background("echo begun; sleep 600 & wait", timeout_s=5)
    await setup.wait_for_output(id_, "begun")
    [written] = await setup.written()
    await setup.clock.advance(4.9)
    assert is_alive(written.pid)
    await setup.clock.advance(0.2)
    ended = await setup.ended_process(id_)

    assert ended.because == "it took longer than 5 s" and ended.exit_code != 0
    assert not is_alive(written.pid)
    assert "it took longer than 5 s" in (await setup.reported())[0].text


@pytest.mark.parametrize("wrong", [{"yield_ms": 9}, {"yield_ms": 120_001}, {"timeout_s": 0}, {"timeout_s": 86_401}])
def test_exec_refuses_times_outside_their_limits(wrong: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        asked("ls", **wrong)
    assert (asked("ls").yield_ms, asked("ls").timeout_s) == (10_000, 1_800)


# Terminal


@pytest.mark.spec("C58")
async def test_exec_gives_a_command_a_terminal_only_with_pty(setup: ToolSetup) -> None:
    command = "test -t 0 && test -t 1 && echo terminal || echo none"

    assert (await setup.run(command, pty=True)).text.splitlines()[1:] == ["terminal"]
    assert (await setup.run(command)).text.splitlines()[1:] == ["none"]


# Output


@pytest.mark.spec("C58", "D51")
async def test_a_long_exec_output_is_cut_in_the_middle_and_its_full_log_is_kept(setup: ToolSetup) -> None:
    output = await setup.run("seq 1 30000")

    assert len(output.text) <= RESULT_CHARS_MAX
    assert "\n1\n2\n3\n" in output.text and output.text.endswith("\n29999\n30000\n")
    assert "[truncated: " in output.text and "\n15000\n" not in output.text
    [written] = await setup.written()
    page = (await setup.call_process("log", written.id[:8], offset=14_998, limit=3)).text
    assert page == "Lines 14998 to 15000 of 30000. Read on with offset 15001.\n14999\n15000\n15001"
    assert await setup.reported() == []


@pytest.mark.spec("C58", "D51")
async def test_the_log_of_an_exec_command_is_limited_in_size_and_keeps_its_end(tmp_path: Path) -> None:
    async with open_shell_tools(tmp_path, job_limits=JobLimits(log_bytes_max=50_000)) as setup:
        await setup.ended_process(await setup.background("seq 1 100000"))
        [written] = await setup.written()
        kept = setup.jobs.store.log_path(written.id).read_text()

        assert len(kept) < 50_000 + 66_000
        assert kept.startswith("1\n2\n") and kept.endswith("99999\n100000\n")
        assert "[the log was full: " in kept


class FullDiskJobStore(JobStore):
    """A job store whose logs are written to a full device."""

    def create_log(self, id_: str) -> JobLog:
        log = super().create_log(id_)
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), log.fileno())
        return log


async def test_exec_ends_a_command_whose_output_cannot_be_stored(setup: ToolSetup) -> None:
    setup.jobs.store = FullDiskJobStore(setup.store, setup.clock, setup.inbox, setup.folder / "logs")
    ended = await setup.ended_process(await setup.background("yes"))

    assert ended.because == "its output could not be stored: No space left on device"


async def test_exec_removes_terminal_escape_sequences_from_the_output(setup: ToolSetup) -> None:
    output = await setup.run(r"printf '\033[31mred\033[0m \033]0;title\007x\b\rnext'")

    assert output.text.splitlines()[1:] == ["red x", "next"]


# Environment


def inherited_environment() -> str:
    return subprocess.check_output(["env"], text=True)


@pytest.mark.spec("D51")
@pytest.mark.parametrize("policy", [ON_HOST, ExecPolicy()], ids=["host", "sandbox"])
async def test_an_exec_command_inherits_no_environment_variables_of_the_server(
    setup: ToolSetup, policy: ExecPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "canary-4711")
    setup.policy = policy
    output = await setup.run("env", env={"COLOUR": "blue"})
    reported = dict(line.split("=", 1) for line in output.text.splitlines()[1:])

    assert "canary-4711" in inherited_environment()  # the control
    assert "canary-4711" not in output.text
    assert reported["HOME"] == str(setup.workspace) and reported["COLOUR"] == "blue"
    assert reported.keys() - {"RETINUE_COMMAND"} <= {
        *("PATH", "HOME", "PWD", "LANG", "TERM", "PAGER", "GIT_PAGER", "COLOUR"),
        *("TMPDIR", "USER", "LOGNAME", "OLDPWD", "SHLVL", "_"),
    }


@pytest.mark.spec("D51")
@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "BASH_ENV", "ENV", "IFS", "NODE_OPTIONS", "PERL5OPT"),
        *("GIT_SSH_COMMAND", "PAGER", "https_proxy", "DYLD_INSERT_LIBRARIES", "a=b", "A B", ""),
    ],
)
async def test_exec_on_the_host_refuses_an_environment_variable_that_changes_what_runs(
    host_setup: ToolSetup, name: str
) -> None:
    with pytest.raises(ToolFailed, match=r"command\.variable"):
        await host_setup.run("touch made", env={name: "x"})

    assert not (host_setup.workspace / "made").exists()


async def test_exec_in_a_sandbox_allows_an_environment_variable_that_changes_what_runs(setup: ToolSetup) -> None:
    assert (await setup.run("echo $PYTHONPATH", env={"PYTHONPATH": "/x"})).text.endswith("\n/x\n")


# Folders


@pytest.mark.spec("D51")
async def test_an_exec_command_runs_in_the_workspace_or_in_a_folder_inside_it(setup: ToolSetup) -> None:
    (setup.workspace / "sub").mkdir()

    assert (await setup.run("pwd")).text.splitlines()[1] == str(setup.workspace)
    assert (await setup.run("pwd", workdir="sub")).text.splitlines()[1] == str(setup.workspace / "sub")


@pytest.mark.spec("D51")
async def test_an_exec_working_folder_outside_the_workspace_needs_a_grant(setup: ToolSetup) -> None:
    outside = setup.folder / "outside"
    outside.mkdir()
    (setup.workspace / "link").symlink_to(outside)
    tool_context = setup.tool_context()

    assert setup.exec.required_permissions(asked("ls", workdir=str(outside)), tool_context) == [
        Permission(PermissionKind.WRITE, str(outside))
    ]
    for workdir in (str(outside), "../outside", "link"):
        with pytest.raises(ToolFailed, match=r"path\."):
            await setup.run("touch made", workdir=workdir)
    with pytest.raises(ToolFailed, match=r"path\.not_folder"):
        await setup.run("ls", workdir="nowhere")

    granted = add_permissions(tool_context.rights, [Permission(PermissionKind.WRITE, str(outside))])
    tool_context = setup.tool_context(rights=granted)
    assert setup.exec.required_permissions(asked("ls", workdir=str(outside)), tool_context) == []
    assert not (await setup.run("touch made", workdir=str(outside), tool_context=tool_context)).failed
    assert (outside / "made").exists()


@pytest.mark.spec("D51")
async def test_an_exec_command_writes_only_to_the_workspace_and_granted_folders(setup: ToolSetup) -> None:
    shut, readable, granted = (setup.folder / name for name in ("shut", "readable", "granted"))
    for folder in (shut, readable, granted):
        folder.mkdir()
        (folder / "text").write_text("words")
    rights = add_permissions(
        setup.tool_context().rights,
        [Permission(PermissionKind.READ, str(readable)), Permission(PermissionKind.WRITE, str(granted))],
    )
    command = "; ".join(f"(cat {folder}/text; touch {folder}/made) 2>/dev/null" for folder in (shut, readable, granted))
    output = await setup.run(f"{command}; touch made", tool_context=setup.tool_context(rights=rights))

    assert output.text.count("words") == 2
    assert [(folder / "made").exists() for folder in (shut, readable, granted, setup.workspace)] == [
        False,
        False,
        True,
        True,
    ]


# Shell


@pytest.mark.spec("C62")
@pytest.mark.parametrize(
    "command", ["touch made; ls", "touch made | ls", "touch $HOME/made", "touch made > x", "touch `echo made`", "cd /"]
)
async def test_an_exec_command_on_the_host_has_no_shell(host_setup: ToolSetup, command: str) -> None:
    with pytest.raises(ToolFailed, match=r"command\.(needs_shell|not_found)"):
        await host_setup.run(command)

    assert list(host_setup.workspace.iterdir()) == []


async def test_an_exec_command_in_a_sandbox_runs_in_a_shell(setup: ToolSetup) -> None:
    output = await setup.run("for i in 1 2; do echo $i; done | sort -r > out; cat out")

    assert output.text.splitlines()[1:] == ["2", "1"]
    assert (await setup.run("cd /usr")).text.startswith("exit code 0")


@pytest.mark.spec("C62")
async def test_exec_runs_the_program_that_the_rule_for_an_allowed_command_was_checked_against(
    host_setup: ToolSetup,
) -> None:
    """A program of the same name in the folder, or in the agent's PATH, must not run instead."""
    impostor = host_setup.workspace / "ls"
    impostor.write_text("#!/bin/sh\necho impostor\n")
    impostor.chmod(0o755)
    host_setup.policy = replace(ON_HOST, allow=(parse_command_rule("ls *"),))
    tool_context = host_setup.tool_context()

    assert host_setup.exec.decide_sandbox(asked("ls -a"), tool_context).is_allowed
    assert "impostor" not in (await host_setup.exec.perform(asked("ls -a"), tool_context)).text
    for command in ("./ls -a", f"{impostor} -a"):
        assert host_setup.exec.decide_sandbox(asked(command), host_setup.tool_context()).kind is DecisionKind.ASK


async def test_an_allowed_exec_command_with_environment_variables_requires_approval(host_setup: ToolSetup) -> None:
    host_setup.policy = replace(ON_HOST, allow=(parse_command_rule("ls *"),))

    assert (
        host_setup.exec.decide_sandbox(asked("ls", env={"A": "b"}), host_setup.tool_context()).kind is DecisionKind.ASK
    )
    assert host_setup.exec.decide_sandbox(
        asked("ls", workdir=str(host_setup.workspace)), host_setup.tool_context()
    ).is_allowed


# Where a command runs


@pytest.mark.spec("C60")
async def test_exec_does_not_run_a_command_that_requires_approval_without_it(host_setup: ToolSetup) -> None:
    with pytest.raises(ToolFailed, match=r"command\.not_approved"):
        await host_setup.exec.perform(asked("touch made"), host_setup.tool_context())

    assert not (host_setup.workspace / "made").exists()
    await host_setup.run("touch made")  # the control: decided, and approved
    assert (host_setup.workspace / "made").exists()


@pytest.mark.spec("C60")
async def test_exec_does_not_run_a_sandbox_command_on_the_host_if_the_sandbox_breaks(setup: ToolSetup) -> None:
    tool_context = setup.tool_context()
    assert setup.exec.decide_sandbox(asked("touch made"), tool_context).is_allowed
    setup.sandbox_works = False
    with pytest.raises(ToolFailed, match=r"command\.rules_changed"):
        await setup.exec.perform(asked("touch made"), tool_context)

    assert not (setup.workspace / "made").exists()


@pytest.mark.spec("C60")
async def test_an_elevated_exec_command_runs_on_the_host_only_if_all_gates_are_open(setup: ToolSetup) -> None:
    canary = setup.folder / "canary"
    canary.write_text("seen")
    setup.policy = ExecPolicy(elevated=ElevatedPolicy.FULL)
    for gates in (
        ElevationGates(),
        ElevationGates(is_for_owner=True),
        ElevationGates(is_foreground=True),
        ElevationGates(is_for_owner=True, is_foreground=True, is_agent_permitted=False),
    ):
        setup.gates = gates
        with pytest.raises(ToolFailed, match=r"command\.denied"):
            await setup.run(f"cat {canary}", elevated=True)
    setup.gates = ElevationGates(is_for_owner=True, is_foreground=True)

    assert (await setup.run(f"cat {canary}", elevated=True)).text.endswith("seen")
    assert "seen" not in (await setup.run(f"cat {canary}")).text


@pytest.mark.spec("C60")
async def test_an_exec_call_can_request_stricter_command_rules_but_not_looser_ones(host_setup: ToolSetup) -> None:
    def decision_kind(**arguments: str) -> DecisionKind:
        return host_setup.exec.decide_sandbox(asked("ls", **arguments), host_setup.tool_context()).kind

    assert decision_kind() is decision_kind(security="full") is decision_kind(ask="off") is DecisionKind.ASK
    host_setup.policy = replace(ON_HOST, security=CommandSecurity.FULL, ask=CommandAsk.OFF)
    assert decision_kind() is DecisionKind.ALLOW
    assert (decision_kind(ask="always"), decision_kind(security="deny")) == (DecisionKind.ASK, DecisionKind.DENY)


# Network and trust


async def test_exec_with_hosts_needs_the_web_permission_and_valid_host_names(setup: ToolSetup) -> None:
    with pytest.raises(ToolFailed, match=r"command\.no_web"):
        await setup.run("true", hosts=["example.com"])
    tool_context = setup.tool_context(rights=add_permissions(setup.tool_context().rights, [WEB_PERMISSION]))
    for hosts in (["*"], ["*.com"], ["http://example.com"], [""]):
        with pytest.raises(ToolFailed, match=r"command\.host_invalid"):
            await setup.run("true", hosts=hosts, tool_context=tool_context)

    assert setup.exec.required_permissions(asked("true", hosts=["example.com"]), setup.tool_context()) == [
        WEB_PERMISSION
    ]


async def read_file_trust(setup: ToolSetup, path: Path) -> Trust:
    ctime = file_trust.ctime_ms(os.stat(path))
    return await setup.store.read(partial(file_trust.get_trust, path=str(path), ctime_ms=ctime))


async def test_the_trust_of_exec_output_follows_the_context_and_the_files_the_command_can_read(
    setup: ToolSetup,
) -> None:
    clean = await setup.run("touch clean; echo hi")
    assert clean.trust is Trust.PRIVATE
    assert await read_file_trust(setup, setup.workspace / "clean") is Trust.PRIVATE

    tainted = await setup.run("touch tainted; echo hi", tool_context=setup.tool_context(trust=Trust.UNTRUSTED))
    assert tainted.trust is Trust.UNTRUSTED
    assert await read_file_trust(setup, setup.workspace / "tainted") is Trust.UNTRUSTED
    # A later command can read that file, so its output is untrusted, too.
    assert (await setup.run("cat tainted")).trust is Trust.UNTRUSTED


async def test_the_output_of_an_exec_command_with_network_access_is_untrusted(setup: ToolSetup) -> None:
    tool_context = setup.tool_context(rights=add_permissions(setup.tool_context().rights, [WEB_PERMISSION]))
    assert (await setup.run("true", hosts=["example.com"], tool_context=tool_context)).trust is Trust.UNTRUSTED


async def test_the_output_of_an_exec_command_on_the_host_is_untrusted(host_setup: ToolSetup) -> None:
    assert (await host_setup.run("true")).trust is Trust.UNTRUSTED


async def test_the_report_of_an_exec_command_has_the_trust_of_its_output(setup: ToolSetup) -> None:
    untrusted = setup.tool_context(trust=Trust.UNTRUSTED)
    await setup.ended_process(await setup.background("echo hi", tool_context=untrusted))

    assert [each.trust for each in await setup.reported()] == [Trust.UNTRUSTED]


async def test_an_untrusted_file_added_while_an_exec_command_runs_makes_its_output_untrusted(setup: ToolSetup) -> None:
    id_ = await setup.background("until test -e go; do sleep 0.02; done; cat new")
    assert (await setup.call_process("poll", id_)).trust is Trust.PRIVATE
    new = setup.workspace / "new"
    body = partial(file_trust.mark_untrusted, paths=[str(new)], at_ms=0, run=None)
    await setup.store.write(body, point="label")
    new.write_text("words from outside")
    (setup.workspace / "go").touch()
    await setup.ended_process(id_)

    [envelope] = await setup.reported()
    assert envelope.text.endswith("words from outside") and envelope.trust is Trust.UNTRUSTED


# Stopping

FAMILY_SCRIPT = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def write_family_script(setup: ToolSetup) -> str:
    script = setup.workspace / "family.py"
    script.write_text(FAMILY_SCRIPT)
    return f"{sys.executable} {script}"


async def pids_in_log(setup: ToolSetup) -> list[int]:
    def logged_pids() -> list[int]:
        return [int(pid) for log in (setup.folder / "logs").glob("*.log") for pid in log.read_text().split()]

    return await until(lambda: logged_pids() if len(logged_pids()) == 2 else None)


async def no_command_runs(setup: ToolSetup) -> bool:
    return not any(each.is_running for each in await setup.written())


@pytest.mark.spec("C58")
async def test_stopping_a_run_ends_its_foreground_exec_command(host_setup: ToolSetup) -> None:
    running = asyncio.create_task(host_setup.run(write_family_script(host_setup)))
    pids = await pids_in_log(host_setup)
    assert all(map(is_alive, pids))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    await until(lambda: not any(map(is_alive, pids)))
    await wait_until(partial(no_command_runs, host_setup), "no command runs")
    assert await host_setup.reported() == []


async def test_stopping_a_run_while_its_exec_command_starts_leaves_no_process(host_setup: ToolSetup) -> None:
    slow = host_setup.sandbox = DelayedSandbox(HostSandbox())
    running = asyncio.create_task(host_setup.run("sleep 600"))
    await slow.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert slow.children == []
    slow.released.set()
    [child] = await until(lambda: slow.children)

    await until(lambda: not is_alive(child.pid))
    await wait_until(partial(no_command_runs, host_setup), "no command runs")
    assert await host_setup.reported() == []


@pytest.mark.spec("C58")
async def test_closing_the_server_ends_all_exec_commands_and_the_next_start_reports_the_background_command(
    tmp_path: Path,
) -> None:
    async with open_shell_tools(tmp_path) as setup:
        setup.policy = ON_HOST
        await setup.background(write_family_script(setup))
        pids = await pids_in_log(setup)
        foreground = asyncio.create_task(setup.run("sleep 600"))

        async def both_commands_run() -> bool:
            written = await setup.written()
            return len(written) == 2 and all(setup.jobs.find_running(each.id) for each in written)

        await wait_until(both_commands_run, "both commands are written down and watched")
        assert all(map(is_alive, pids))
        await setup.jobs.close()

        await until(lambda: not any(map(is_alive, pids)))
        assert [each.state for each in await setup.written()].count(ProcessState.ENDED) == 1
        assert await setup.reported() == []
        with pytest.raises(ToolFailed, match=r"process\.server_stopping"):
            await setup.run("true")
        assert "the server was stopped" in (await foreground).text
    for _ in range(2):
        async with open_shell_tools(tmp_path) as setup:
            [envelope] = await setup.reported()
            assert "the server was stopped" in envelope.text


async def test_closing_the_server_ends_an_exec_command_that_is_starting(tmp_path: Path) -> None:
    async with open_shell_tools(tmp_path) as setup:
        setup.policy = ON_HOST
        slow = setup.sandbox = DelayedSandbox(HostSandbox())
        foreground = asyncio.create_task(setup.run("sleep 600"))
        await slow.asked.wait()
        closing = asyncio.create_task(setup.jobs.close())
        await asyncio.sleep(0)  # it now waits for the command that is starting
        slow.released.set()
        await closing

        [child] = slow.children
        assert not is_alive(child.pid)
        assert "the server was stopped" in (await foreground).text


# Limits


@pytest.mark.spec("C58")
async def test_concurrent_exec_commands_are_limited_per_session_and_per_server(tmp_path: Path) -> None:
    async with open_shell_tools(tmp_path, job_limits=JobLimits(per_session_max=1, per_server_max=2)) as setup:
        await setup.background("read line")
        with pytest.raises(ToolFailed, match="in this session"):
            await setup.run("touch made")
        other = await setup.background("read line", tool_context=setup.tool_context(session=OTHER_SESSION))
        with pytest.raises(ToolFailed, match="in this server"):
            await setup.run("touch made", tool_context=setup.tool_context(session="aa" * 16))
        assert not (setup.workspace / "made").exists()

        await setup.call_process("kill", other, tool_context=setup.tool_context(session=OTHER_SESSION))
        assert (await setup.run("true", tool_context=setup.tool_context(session=OTHER_SESSION))).text.startswith(
            "exit code 0"
        )


@pytest.mark.spec("C58")
async def test_an_ended_background_exec_command_is_kept_for_half_an_hour(setup: ToolSetup) -> None:
    id_ = await setup.background("echo hi")
    await setup.ended_process(id_)
    await setup.clock.advance(1_700)
    assert "hi" in (await setup.call_process("log", id_)).text
    await setup.clock.advance(200)

    async def nothing_is_kept() -> bool:
        return not await setup.written() and list((setup.folder / "logs").iterdir()) == []

    await wait_until(nothing_is_kept, "neither the command nor its log is kept any more")

    with pytest.raises(ToolFailed, match=r"process\.not_found"):
        await setup.call_process("log", id_)


async def test_only_the_newest_ended_exec_commands_of_a_session_are_kept(tmp_path: Path) -> None:
    async with open_shell_tools(tmp_path, job_limits=JobLimits(finished_per_session_max=2)) as setup:
        ids: list[str] = []
        for _ in range(4):
            ids.append(await setup.background("read line"))
            await setup.call_process("kill", ids[-1])
            await setup.clock.advance(1)
        await setup.run("true")

        assert [each.id[:8] for each in await setup.written()] == ids[-2:]


async def test_exec_is_permissioned_and_exec_and_process_have_flat_schemas(setup: ToolSetup) -> None:
    tools: list[Tool] = [setup.exec, setup.process]

    assert isinstance(setup.exec, PermissionedTool)
    for tool in tools:
        assert "$ref" not in str(tool.spec.parameters) and not tool.spec.is_repeatable
