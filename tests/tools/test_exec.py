"""`exec`: foreground, background, time, terminal, output, environment, folders. With real processes."""

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
from tools.shell_tools import ON_HOST, OTHER, SESSION, Desk, Slow, desk_in, is_alive, until

from retinue.domain.decision import DecisionKind
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.permission import WEB_PERMISSION, Permission, PermissionKind, add_permissions
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.domain.trust import Trust
from retinue.policy.tools.exec_allowlist import parse_command_rule
from retinue.policy.tools.exec_placement import CommandAsk, CommandSecurity, ElevatedPolicy, ElevationGates, ExecPolicy
from retinue.sandbox.host import HostSandbox
from retinue.store.agents import file_trust
from retinue.store.runs.processes import ProcessState
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import PermissionedTool, Tool, ToolContext, ToolFailed
from retinue.tools.shell.exec_tool import ExecArguments
from retinue.tools.shell.job_output import JobLog
from retinue.tools.shell.job_store import JobLimits, JobStore


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    async with desk_in(tmp_path) as desk:
        yield desk


@pytest.fixture
def bare(desk: Desk) -> Desk:
    desk.policy = ON_HOST
    return desk


def asked(command: str, **arguments: object) -> ExecArguments:
    return msgspec.convert({"command": command, **arguments}, ExecArguments)


# Foreground


@pytest.mark.spec("C58", "D51")
async def test_a_command_is_waited_for_and_its_output_read(desk: Desk) -> None:
    output = await desk.run("printf 'a b' && echo c >&2; exit 3")

    assert output.text.startswith("exit code 3 after ")
    assert output.text.endswith("\na bc\n")
    assert output.failed
    assert await desk.written() == [] and await desk.told() == []
    assert list((desk.folder / "logs").iterdir()) == []


async def test_a_command_that_succeeds_has_not_failed(bare: Desk) -> None:
    output = await bare.run("printf %s 'a b'")

    assert not output.failed
    assert output.text.splitlines()[1:] == ["a b"]


async def test_a_command_that_is_none_leaves_nothing_behind(bare: Desk) -> None:
    with pytest.raises(ToolFailed, match=r"command\.not_found"):
        await bare.run("no-such-program")
    with pytest.raises(ToolFailed, match=r"command\.invalid"):
        await bare.run("ls \x1b[2J")

    assert await bare.written() == []


# Yield and background


def has_said_something(desk: Desk) -> bool:
    logs = desk.folder / "logs"
    return logs.is_dir() and any(each.stat().st_size for each in logs.iterdir())


@pytest.mark.spec("C58")
async def test_a_command_that_takes_longer_is_left_to_run_and_told_of_once(desk: Desk) -> None:
    running = asyncio.create_task(desk.run("echo started; read line; echo got $line; exit 7", yield_ms=500))
    await until(partial(has_said_something, desk))
    assert not running.done()
    await desk.clock.advance(0.5)
    output = await running
    [written] = await desk.written()

    assert f"id {written.id[:8]}, pid {written.pid}" in output.text
    assert output.text.endswith("\nstarted") and not output.failed
    assert written.state is ProcessState.RUNNING and is_alive(written.pid)
    assert await desk.told() == []

    await desk.do("write", written.id[:8], data="hello\n")
    await desk.over(written.id)
    [envelope] = await desk.told()

    assert (envelope.kind, envelope.silent) == (EnvelopeKind.SYSTEM, False)
    assert envelope.session == SESSION and str(envelope.recipient) == f"agent:ada/{SESSION}"
    assert "exit code 7" in envelope.text and envelope.text.endswith("got hello")
    assert envelope.trust is Trust.PRIVATE


NO_BACKGROUND = "[run in the foreground, for at most 120 s: background commands need the tool `process`]"


def alone(desk: Desk) -> ToolContext:
    """Of an agent to whom `process` is denied."""
    return desk.scene(can_use=lambda tool: tool != "process")


@pytest.mark.parametrize("arguments", [{"background": True}, {"yield_ms": 10}])
async def test_without_process_a_command_is_waited_for_to_its_end_and_says_so(
    bare: Desk, arguments: dict[str, Any]
) -> None:
    slow = asyncio.create_task(
        bare.run("sh -c 'echo on; until test -e go; do sleep 0.02; done'", scene=alone(bare), **arguments)
    )
    await until(partial(has_said_something, bare))
    await bare.clock.advance(1)
    assert not slow.done()
    (bare.workspace / "go").touch()
    output = await slow
    assert output.text.startswith(f"{NO_BACKGROUND}\nexit code 0 after ") and output.text.endswith("\non\n")
    assert await bare.told() == [] and await bare.written() == [], "there is nothing to look after"


async def test_without_process_a_quick_command_is_as_ever(bare: Desk) -> None:
    assert (await bare.run("echo hi", scene=alone(bare))).text.startswith("exit code 0 after ")


async def test_without_process_a_command_is_ended_when_it_cannot_be_waited_for_any_longer(bare: Desk) -> None:
    endless = asyncio.create_task(bare.run("sh -c 'echo on; sleep 600'", scene=alone(bare), timeout_s=600))
    await until(partial(has_said_something, bare))
    await bare.clock.advance(121)
    output = await endless
    assert output.failed and output.text.startswith(NO_BACKGROUND) and "it took longer than 120 s" in output.text
    assert await bare.written() == []


async def test_without_process_all_that_is_kept_of_an_output_is_said(bare: Desk) -> None:
    output = await bare.run("seq 1 20000", scene=alone(bare))
    assert "[cut" not in output.text and "`process`" not in output.text and output.text.endswith("\n20000\n")
    assert len(output.text) > RESULT_CHARS_MAX, "the toolbox shows a part of it, and keeps the whole"


@pytest.mark.spec("C58")
async def test_a_command_in_the_background_is_not_waited_for(desk: Desk) -> None:
    id_ = await desk.background("read line")
    [written] = await desk.written()

    assert written.id.startswith(id_) and written.state is ProcessState.RUNNING


@pytest.mark.spec("C58")
async def test_only_the_last_400_characters_are_told(desk: Desk) -> None:
    await desk.over(await desk.background("seq 1 1000"))
    [envelope] = await desk.told()
    tail = envelope.text.partition("[truncated: earlier output is not shown]\n")[2]

    assert 390 <= len(tail) <= 400 and tail.endswith("999\n1000")


async def test_what_its_own_session_has_killed_is_not_told(desk: Desk) -> None:
    id_ = await desk.background("read line")
    output = await desk.do("kill", id_)

    assert "it was killed" in output.text
    assert (await desk.over(id_)).because == "it was killed"
    assert await desk.told() == []


@pytest.mark.spec("C58")
async def test_an_end_that_is_told_again_is_told_once(desk: Desk) -> None:
    written = await desk.over(await desk.background("echo hi"))
    await desk.jobs.store.notify_session(written)
    desk.jobs.store.log_path(written.id).write_text("other words")
    await desk.jobs.store.notify_session(written)

    assert len(await desk.told()) == 1


# Time


@pytest.mark.spec("C58", "D51")
async def test_a_command_that_takes_too_long_is_ended(desk: Desk) -> None:
    id_ = await desk.background("echo begun; sleep 600 & wait", timeout_s=5)
    await desk.says(id_, "begun")
    [written] = await desk.written()
    await desk.clock.advance(4.9)
    assert is_alive(written.pid)
    await desk.clock.advance(0.2)
    ended = await desk.over(id_)

    assert ended.because == "it took longer than 5 s" and ended.exit_code != 0
    assert not is_alive(written.pid)
    assert "it took longer than 5 s" in (await desk.told())[0].text


@pytest.mark.parametrize("wrong", [{"yield_ms": 9}, {"yield_ms": 120_001}, {"timeout_s": 0}, {"timeout_s": 86_401}])
def test_times_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        asked("ls", **wrong)
    assert (asked("ls").yield_ms, asked("ls").timeout_s) == (10_000, 1_800)


# Terminal


@pytest.mark.spec("C58")
async def test_a_terminal_is_given_to_those_that_ask_for_one(desk: Desk) -> None:
    command = "test -t 0 && test -t 1 && echo terminal || echo none"

    assert (await desk.run(command, pty=True)).text.splitlines()[1:] == ["terminal"]
    assert (await desk.run(command)).text.splitlines()[1:] == ["none"]


# Output


@pytest.mark.spec("C58", "D51")
async def test_a_long_output_is_cut_in_the_middle_and_kept_whole(desk: Desk) -> None:
    output = await desk.run("seq 1 30000")

    assert len(output.text) <= RESULT_CHARS_MAX
    assert "\n1\n2\n3\n" in output.text and output.text.endswith("\n29999\n30000\n")
    assert "[truncated: " in output.text and "\n15000\n" not in output.text
    [written] = await desk.written()
    page = (await desk.do("log", written.id[:8], offset=14_998, limit=3)).text
    assert page == "Lines 14998 to 15000 of 30000. Read on with offset 15001.\n14999\n15000\n15001"
    assert await desk.told() == []


@pytest.mark.spec("C58", "D51")
async def test_a_log_has_a_bound_and_keeps_the_end(tmp_path: Path) -> None:
    async with desk_in(tmp_path, caps=JobLimits(log_bytes_max=50_000)) as desk:
        await desk.over(await desk.background("seq 1 100000"))
        [written] = await desk.written()
        kept = desk.jobs.store.log_path(written.id).read_text()

        assert len(kept) < 50_000 + 66_000
        assert kept.startswith("1\n2\n") and kept.endswith("99999\n100000\n")
        assert "[the log was full: " in kept


class OnAFullDisk(JobStore):
    """Its logs are written to a device that has no room."""

    def create_log(self, id_: str) -> JobLog:
        log = super().create_log(id_)
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), log.fileno())
        return log


async def test_a_command_whose_output_cannot_be_kept_is_ended(desk: Desk) -> None:
    desk.jobs.store = OnAFullDisk(desk.store, desk.clock, desk.inbox, desk.folder / "logs")
    ended = await desk.over(await desk.background("yes"))

    assert ended.because == "its output could not be stored: No space left on device"


async def test_escapes_of_a_terminal_do_not_reach_the_model(desk: Desk) -> None:
    output = await desk.run(r"printf '\033[31mred\033[0m \033]0;title\007x\b\rnext'")

    assert output.text.splitlines()[1:] == ["red x", "next"]


# Environment


def inherited() -> str:
    return subprocess.check_output(["env"], text=True)


@pytest.mark.spec("D51")
@pytest.mark.parametrize("policy", [ON_HOST, ExecPolicy()], ids=["host", "sandbox"])
async def test_nothing_of_our_environment_is_inherited(
    desk: Desk, policy: ExecPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "canary-4711")
    desk.policy = policy
    output = await desk.run("env", env={"COLOUR": "blue"})
    told = dict(line.split("=", 1) for line in output.text.splitlines()[1:])

    assert "canary-4711" in inherited()  # the control
    assert "canary-4711" not in output.text
    assert told["HOME"] == str(desk.workspace) and told["COLOUR"] == "blue"
    assert told.keys() - {"RETINUE_COMMAND"} <= {
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
async def test_a_variable_that_decides_what_runs_is_not_set_on_the_host(bare: Desk, name: str) -> None:
    with pytest.raises(ToolFailed, match=r"command\.variable"):
        await bare.run("touch made", env={name: "x"})

    assert not (bare.workspace / "made").exists()


async def test_inside_a_sandbox_it_is_its_own_affair(desk: Desk) -> None:
    assert (await desk.run("echo $PYTHONPATH", env={"PYTHONPATH": "/x"})).text.endswith("\n/x\n")


# Folders


@pytest.mark.spec("D51")
async def test_a_command_runs_in_its_workspace_or_in_a_folder_of_it(desk: Desk) -> None:
    (desk.workspace / "sub").mkdir()

    assert (await desk.run("pwd")).text.splitlines()[1] == str(desk.workspace)
    assert (await desk.run("pwd", workdir="sub")).text.splitlines()[1] == str(desk.workspace / "sub")


@pytest.mark.spec("D51")
async def test_a_folder_outside_has_to_be_granted(desk: Desk) -> None:
    outside = desk.folder / "outside"
    outside.mkdir()
    (desk.workspace / "link").symlink_to(outside)
    scene = desk.scene()

    assert desk.exec.required_permissions(asked("ls", workdir=str(outside)), scene) == [
        Permission(PermissionKind.WRITE, str(outside))
    ]
    for workdir in (str(outside), "../outside", "link"):
        with pytest.raises(ToolFailed, match=r"path\."):
            await desk.run("touch made", workdir=workdir)
    with pytest.raises(ToolFailed, match=r"path\.not_folder"):
        await desk.run("ls", workdir="nowhere")

    granted = add_permissions(scene.rights, [Permission(PermissionKind.WRITE, str(outside))])
    scene = desk.scene(rights=granted)
    assert desk.exec.required_permissions(asked("ls", workdir=str(outside)), scene) == []
    assert not (await desk.run("touch made", workdir=str(outside), scene=scene)).failed
    assert (outside / "made").exists()


@pytest.mark.spec("D51")
async def test_a_command_writes_only_where_its_agent_may(desk: Desk) -> None:
    shut, readable, granted = (desk.folder / name for name in ("shut", "readable", "granted"))
    for folder in (shut, readable, granted):
        folder.mkdir()
        (folder / "text").write_text("words")
    rights = add_permissions(
        desk.scene().rights,
        [Permission(PermissionKind.READ, str(readable)), Permission(PermissionKind.WRITE, str(granted))],
    )
    command = "; ".join(f"(cat {folder}/text; touch {folder}/made) 2>/dev/null" for folder in (shut, readable, granted))
    output = await desk.run(f"{command}; touch made", scene=desk.scene(rights=rights))

    assert output.text.count("words") == 2
    assert [(folder / "made").exists() for folder in (shut, readable, granted, desk.workspace)] == [
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
async def test_outside_a_sandbox_there_is_no_shell(bare: Desk, command: str) -> None:
    with pytest.raises(ToolFailed, match=r"command\.(needs_shell|not_found)"):
        await bare.run(command)

    assert list(bare.workspace.iterdir()) == []


async def test_inside_a_sandbox_a_shell_does_what_it_does(desk: Desk) -> None:
    output = await desk.run("for i in 1 2; do echo $i; done | sort -r > out; cat out")

    assert output.text.splitlines()[1:] == ["2", "1"]
    assert (await desk.run("cd /usr")).text.startswith("exit code 0")


@pytest.mark.spec("C62")
async def test_a_listed_command_runs_as_the_program_that_was_found(bare: Desk) -> None:
    """A program of the same name in the folder, or on a PATH of the agent's own, is not the one that was meant."""
    impostor = bare.workspace / "ls"
    impostor.write_text("#!/bin/sh\necho impostor\n")
    impostor.chmod(0o755)
    bare.policy = replace(ON_HOST, allow=(parse_command_rule("ls *"),))
    scene = bare.scene()

    assert bare.exec.decide_sandbox(asked("ls -a"), scene).is_allowed
    assert "impostor" not in (await bare.exec.perform(asked("ls -a"), scene)).text
    for command in ("./ls -a", f"{impostor} -a"):
        assert bare.exec.decide_sandbox(asked(command), bare.scene()).kind is DecisionKind.ASK


async def test_a_listed_command_with_variables_is_asked_about(bare: Desk) -> None:
    bare.policy = replace(ON_HOST, allow=(parse_command_rule("ls *"),))

    assert bare.exec.decide_sandbox(asked("ls", env={"A": "b"}), bare.scene()).kind is DecisionKind.ASK
    assert bare.exec.decide_sandbox(asked("ls", workdir=str(bare.workspace)), bare.scene()).is_allowed


# Who says where


@pytest.mark.spec("C60")
async def test_a_command_that_has_to_be_asked_about_does_not_run_unasked(bare: Desk) -> None:
    with pytest.raises(ToolFailed, match=r"command\.not_approved"):
        await bare.exec.perform(asked("touch made"), bare.scene())

    assert not (bare.workspace / "made").exists()
    await bare.run("touch made")  # the control: judged, and answered with a yes
    assert (bare.workspace / "made").exists()


@pytest.mark.spec("C60")
async def test_what_was_decided_in_a_sandbox_does_not_run_bare_when_that_breaks(desk: Desk) -> None:
    scene = desk.scene()
    assert desk.exec.decide_sandbox(asked("touch made"), scene).is_allowed
    desk.sandbox_works = False
    with pytest.raises(ToolFailed, match=r"command\.rules_changed"):
        await desk.exec.perform(asked("touch made"), scene)

    assert not (desk.workspace / "made").exists()


@pytest.mark.spec("C60")
async def test_elevated_runs_outside_only_through_open_gates(desk: Desk) -> None:
    canary = desk.folder / "canary"
    canary.write_text("seen")
    desk.policy = ExecPolicy(elevated=ElevatedPolicy.FULL)
    for gates in (
        ElevationGates(),
        ElevationGates(is_for_owner=True),
        ElevationGates(is_foreground=True),
        ElevationGates(is_for_owner=True, is_foreground=True, is_agent_permitted=False),
    ):
        desk.gates = gates
        with pytest.raises(ToolFailed, match=r"command\.denied"):
            await desk.run(f"cat {canary}", elevated=True)
    desk.gates = ElevationGates(is_for_owner=True, is_foreground=True)

    assert (await desk.run(f"cat {canary}", elevated=True)).text.endswith("seen")
    assert "seen" not in (await desk.run(f"cat {canary}")).text


@pytest.mark.spec("C60")
async def test_a_call_can_ask_for_stricter_rules_and_not_for_looser(bare: Desk) -> None:
    def verdict(**arguments: str) -> DecisionKind:
        return bare.exec.decide_sandbox(asked("ls", **arguments), bare.scene()).kind

    assert verdict() is verdict(security="full") is verdict(ask="off") is DecisionKind.ASK
    bare.policy = replace(ON_HOST, security=CommandSecurity.FULL, ask=CommandAsk.OFF)
    assert verdict() is DecisionKind.ALLOW
    assert (verdict(ask="always"), verdict(security="deny")) == (DecisionKind.ASK, DecisionKind.DENY)


# Network and trust


async def test_hosts_need_the_web_and_a_name(desk: Desk) -> None:
    with pytest.raises(ToolFailed, match=r"command\.no_web"):
        await desk.run("true", hosts=["example.com"])
    scene = desk.scene(rights=add_permissions(desk.scene().rights, [WEB_PERMISSION]))
    for hosts in (["*"], ["*.com"], ["http://example.com"], [""]):
        with pytest.raises(ToolFailed, match=r"command\.host_invalid"):
            await desk.run("true", hosts=hosts, scene=scene)

    assert desk.exec.required_permissions(asked("true", hosts=["example.com"]), desk.scene()) == [WEB_PERMISSION]


async def believed(desk: Desk, path: Path) -> Trust:
    ctime = file_trust.ctime_ms(os.stat(path))
    return await desk.store.read(partial(file_trust.get_trust, path=str(path), ctime_ms=ctime))


async def test_what_a_command_says_is_believed_as_far_as_what_it_was_told(desk: Desk) -> None:
    clean = await desk.run("touch clean; echo hi")
    assert clean.trust is Trust.PRIVATE
    assert await believed(desk, desk.workspace / "clean") is Trust.PRIVATE

    tainted = await desk.run("touch tainted; echo hi", scene=desk.scene(trust=Trust.UNTRUSTED))
    assert tainted.trust is Trust.UNTRUSTED
    assert await believed(desk, desk.workspace / "tainted") is Trust.UNTRUSTED
    # From now on it could read what that one wrote.
    assert (await desk.run("cat tainted")).trust is Trust.UNTRUSTED


async def test_a_command_with_a_network_is_not_believed(desk: Desk) -> None:
    scene = desk.scene(rights=add_permissions(desk.scene().rights, [WEB_PERMISSION]))
    assert (await desk.run("true", hosts=["example.com"], scene=scene)).trust is Trust.UNTRUSTED


async def test_a_command_without_walls_is_not_believed(bare: Desk) -> None:
    assert (await bare.run("true")).trust is Trust.UNTRUSTED


async def test_an_end_is_told_with_the_trust_of_what_was_said(desk: Desk) -> None:
    untrusted = desk.scene(trust=Trust.UNTRUSTED)
    await desk.over(await desk.background("echo hi", scene=untrusted))

    assert [each.trust for each in await desk.told()] == [Trust.UNTRUSTED]


async def test_what_comes_within_reach_of_a_running_command_counts(desk: Desk) -> None:
    id_ = await desk.background("until test -e go; do sleep 0.02; done; cat new")
    assert (await desk.do("poll", id_)).trust is Trust.PRIVATE
    new = desk.workspace / "new"
    body = partial(file_trust.mark_untrusted, paths=[str(new)], at_ms=0, run=None)
    await desk.store.write(body, point="label")
    new.write_text("words from outside")
    (desk.workspace / "go").touch()
    await desk.over(id_)

    [envelope] = await desk.told()
    assert envelope.text.endswith("words from outside") and envelope.trust is Trust.UNTRUSTED


# Stopping

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def family(desk: Desk) -> str:
    script = desk.workspace / "family.py"
    script.write_text(FAMILY)
    return f"{sys.executable} {script}"


async def pids_in_log(desk: Desk) -> list[int]:
    def said() -> list[int]:
        return [int(pid) for log in (desk.folder / "logs").glob("*.log") for pid in log.read_text().split()]

    return await until(lambda: said() if len(said()) == 2 else None)


@pytest.mark.spec("C58")
async def test_a_run_that_is_stopped_takes_its_command_along(bare: Desk) -> None:
    running = asyncio.create_task(bare.run(family(bare)))
    pids = await pids_in_log(bare)
    assert all(map(is_alive, pids))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    await until(lambda: not any(map(is_alive, pids)))
    assert await bare.told() == []
    assert all(not each.is_running for each in await bare.written())


async def test_a_run_that_is_stopped_while_its_command_begins_leaves_none(bare: Desk) -> None:
    slow = bare.sandbox = Slow(HostSandbox())
    running = asyncio.create_task(bare.run("sleep 600"))
    await slow.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert slow.children == []
    slow.may.set()
    [child] = await until(lambda: slow.children)

    await until(lambda: not is_alive(child.pid))

    async def at_rest() -> bool:
        return not any(each.is_running for each in await bare.written())

    await wait_until(at_rest, "no command runs")
    assert await bare.told() == []


@pytest.mark.spec("C58")
async def test_closing_ends_every_command_and_the_next_house_tells(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        desk.policy = ON_HOST
        await desk.background(family(desk))
        pids = await pids_in_log(desk)
        foreground = asyncio.create_task(desk.run("sleep 600"))

        async def both() -> bool:
            return len(await desk.written()) == 2

        await wait_until(both, "both commands are written down")
        assert all(map(is_alive, pids))
        await desk.jobs.close()

        await until(lambda: not any(map(is_alive, pids)))
        assert [each.state for each in await desk.written()].count(ProcessState.ENDED) == 1
        assert await desk.told() == []
        with pytest.raises(ToolFailed, match=r"process\.server_stopping"):
            await desk.run("true")
        assert "the server was stopped" in (await foreground).text
    for _ in range(2):
        async with desk_in(tmp_path) as desk:
            [envelope] = await desk.told()
            assert "the server was stopped" in envelope.text


# Bounds


@pytest.mark.spec("C58")
async def test_commands_at_once_are_bounded_per_session_and_per_house(tmp_path: Path) -> None:
    async with desk_in(tmp_path, caps=JobLimits(per_session_max=1, per_server_max=2)) as desk:
        await desk.background("read line")
        with pytest.raises(ToolFailed, match="in this session"):
            await desk.run("touch made")
        other = await desk.background("read line", scene=desk.scene(session=OTHER))
        with pytest.raises(ToolFailed, match="in this server"):
            await desk.run("touch made", scene=desk.scene(session="aa" * 16))
        assert not (desk.workspace / "made").exists()

        await desk.do("kill", other, scene=desk.scene(session=OTHER))
        assert (await desk.run("true", scene=desk.scene(session=OTHER))).text.startswith("exit code 0")


@pytest.mark.spec("C58")
async def test_what_has_ended_is_kept_for_half_an_hour(desk: Desk) -> None:
    id_ = await desk.background("echo hi")
    await desk.over(id_)
    await desk.clock.advance(1_700)
    assert "hi" in (await desk.do("log", id_)).text
    await desk.clock.advance(200)

    async def forgotten() -> bool:
        return not await desk.written()

    await wait_until(forgotten, "nothing is kept any more")

    assert list((desk.folder / "logs").iterdir()) == []
    with pytest.raises(ToolFailed, match=r"process\.not_found"):
        await desk.do("log", id_)


async def test_of_those_that_have_ended_only_so_many_are_kept(tmp_path: Path) -> None:
    async with desk_in(tmp_path, caps=JobLimits(finished_per_session_max=2)) as desk:
        ids: list[str] = []
        for _ in range(4):
            ids.append(await desk.background("read line"))
            await desk.do("kill", ids[-1])
            await desk.clock.advance(1)
        await desk.run("true")

        assert [each.id[:8] for each in await desk.written()] == ids[-2:]


async def test_it_is_a_tool_that_reaches(desk: Desk) -> None:
    tools: list[Tool] = [desk.exec, desk.process]

    assert isinstance(desk.exec, PermissionedTool)
    for tool in tools:
        assert "$ref" not in str(tool.spec.parameters) and not tool.spec.is_repeatable
