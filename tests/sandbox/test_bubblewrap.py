"""A command in bubblewrap: what it sees, its input and output, how it ends, and what is refused before it starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cronsim
import msgspec
import pytest
import uvloop
from sandbox.support import (
    PATIENCE_S,
    PYTHON,
    SandboxDirectories,
    find_sleep_processes,
    make_sandbox_directories,
    run,
    shell,
    unique_sleep_time,
    until,
)

from retinue.domain.structs import replace
from retinue.sandbox import mounts
from retinue.sandbox.base import Confinement, NetworkAccess, ResourceLimits, SandboxFailed
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.host import HostSandbox
from retinue.testing.wait_conditions import assert_stays_true

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def grounds(tmp_path: Path) -> SandboxDirectories:
    return make_sandbox_directories(tmp_path)


@pytest.fixture
def sandbox(grounds: SandboxDirectories) -> BubblewrapSandbox:
    return grounds.bubblewrap()


@pytest.mark.spec("D51")
async def test_a_command_in_bubblewrap_sees_only_its_workspace_and_its_readable_folders(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    script = (
        f"pwd; echo made > here; cat here; cat {grounds.readable}/book.txt; echo; ls {grounds.root}; ls {grounds.state}"
    )
    output = await shell(sandbox, script, grounds.confinement())
    assert output.exit_status.code == 0
    assert output.text.split("\n")[:3] == [str(grounds.workspace), "made", "to be read"]
    assert output.text.split()[5:] == ["library", "state", "agents"]  # the rest of maria's home is not visible
    assert (grounds.workspace / "here").read_text() == "made\n"


@pytest.mark.spec("D51")
async def test_a_command_in_bubblewrap_gets_its_given_environment_and_none_of_the_server(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_API_KEY", "s3cret")
    output = await run(sandbox, ["/usr/bin/env"], grounds.confinement(environment={"GREETING": "a b", "LANG": "de"}))
    variables = dict(line.split("=", 1) for line in output.text.splitlines())
    assert variables["GREETING"] == "a b" and variables["LANG"] == "de"
    assert set(variables) == {"GREETING", "LANG", "PATH", "HOME", "TMPDIR", "TERM", "USER", "LOGNAME", "PWD"}


async def test_bubblewrap_mounts_folders_of_etc_read_only_from_the_host(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    folders = [folder for folder in ("/etc/alternatives", "/etc/ssl/certs") if Path(folder).is_dir()]
    assert folders, "this machine has none of these folders"
    for folder in folders:
        output = await shell(sandbox, f"ls -A {folder}; touch {folder}/mine && echo written", grounds.confinement())
        assert sorted(set(output.text.splitlines()) & set(os.listdir(folder))) == sorted(os.listdir(folder))
        assert "written" not in output.text
        assert not os.listdir(grounds.state / "sandbox" / folder[1:]), "it is mounted, not copied"


_CONSTRUCTOR = """
#include <stdio.h>
__attribute__((constructor)) static void leave_marks(void) {
    FILE *one = fopen("%s", "w"), *two = fopen("%s", "w");
    if (one) fclose(one);
    if (two) fclose(two);
}
"""


async def test_environment_variables_of_a_command_do_not_affect_the_bubblewrap_launcher(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    """LD_PRELOAD would be loaded by the launcher, which is not confined."""
    mark = grounds.workspace / "loaded"
    library = grounds.workspace / "evil.so"
    source = grounds.workspace / "evil.c"
    source.write_text(_CONSTRUCTOR % (grounds.root / "outside", mark))
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    built = await asyncio.create_subprocess_exec(compiler, "-shared", "-fPIC", "-o", library, source)
    assert await built.wait() == 0
    await run(sandbox, ["/usr/bin/true"], grounds.confinement(environment={"LD_PRELOAD": str(library)}))
    assert mark.exists()  # the command got the variable
    assert not (grounds.root / "outside").exists()


async def test_the_environment_of_a_command_is_not_visible_in_the_bubblewrap_launcher_process(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    child = await sandbox.start(["/bin/sleep", "30"], grounds.confinement(environment={"TOKEN": "s3cret-token"}))
    listed = Path(f"/proc/{child.pid}/cmdline").read_bytes() + Path(f"/proc/{child.pid}/environ").read_bytes()
    await child.kill()
    assert b"sleep" in listed
    assert b"s3cret-token" not in listed


async def test_a_command_in_bubblewrap_reads_its_input_until_the_end_and_its_output_is_returned(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    large = os.urandom(300_000).hex().encode()
    child = await sandbox.start(["/bin/cat"], grounds.confinement())

    async def read_all() -> bytes:
        output = b""
        while chunk := await child.read():
            output += chunk
        return output

    reading = asyncio.ensure_future(read_all())
    await child.write(large)
    child.close_input()
    assert await reading == large
    assert (await child.wait()).code == 0
    with pytest.raises(SandboxFailed) as failed:
        await child.write(b"more")
    assert failed.value.code == "sandbox.input_closed"


async def test_a_command_in_bubblewrap_whose_output_is_not_read_is_paused_and_loses_no_output(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    child = await sandbox.start(
        ["/bin/sh", "-c", "yes | head -c 5000000; echo >&2; echo over > done"], grounds.confinement()
    )
    child.close_input()
    done = grounds.workspace / "done"
    await assert_stays_true(lambda: not done.exists(), "that a command waits has no event", for_s=0.5)
    output = 0
    while chunk := await child.read():
        output += len(chunk)
    assert output == 5_000_001
    assert (grounds.workspace / "done").exists()


@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_the_pty_of_a_sandboxed_command_is_a_terminal_that_can_be_resized_and_interrupted(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, kind: str
) -> None:
    child = await (HostSandbox() if kind == "host" else sandbox).start(["/bin/sh"], grounds.confinement(), pty=True)
    await child.write(b"stty -echo; test -t 0 && echo is-a-terminal; stty size\n")
    output = await _read_until(child.read, b"24 80")
    assert b"is-a-terminal" in output
    child.resize(50, 132)
    await child.write(b"stty size; trap 'echo interrupted' INT; sleep 0.2; echo ready\n")
    assert b"50 132" in await _read_until(child.read, b"ready")
    await child.write(b"sh -c 'echo sle''eps; exec sleep 600'\n")
    await _read_until(child.read, b"sleeps")
    await child.write(b"\x03")  # Ctrl-C reaches the foreground process
    await child.write(b"echo after\n")
    await _read_until(child.read, b"after")
    child.close_input()
    while await child.read():
        pass
    assert (await child.wait()).signal is None


async def _read_until(read: Callable[[], object], wanted: bytes) -> bytes:
    output = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in output:
            output += await read()  # pyright: ignore
    return output


_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_STATUS_COMMAND = ["/bin/cat", "/proc/self/status"]


def parse_signal_mask(status: str, line: str) -> set[int]:
    """Return the signals in a mask of /proc/PID/status, without those that the C library reserves."""
    mask = int(next(each for each in status.splitlines() if each.startswith(line)).split()[1], 16)
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


@pytest.fixture
def deaf() -> Iterator[None]:
    """Ignore signals as a shell does for a background process, or nohup, and block one more."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED_SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    plain = subprocess.run(_STATUS_COMMAND, capture_output=True, text=True, check=True).stdout
    assert parse_signal_mask(plain, "SigIgn") >= {*_IGNORED_SIGNALS} and parse_signal_mask(plain, "SigBlk"), (
        "without our handling, a child inherits both"
    )
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("kind", ["bubblewrap", "networked", "host"])
async def test_a_sandboxed_command_does_not_inherit_ignored_or_blocked_signals_of_the_server(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, kind: str
) -> None:
    network = NetworkAccess(hosts=("example.com",)) if kind == "networked" else None
    chosen_sandbox = HostSandbox() if kind == "host" else sandbox
    output = await run(
        chosen_sandbox, _STATUS_COMMAND, grounds.confinement(**({"network": network} if network else {}))
    )
    assert output.exit_status.code == 0
    assert not parse_signal_mask(output.text, "SigIgn") and not parse_signal_mask(output.text, "SigBlk")
    os.kill(os.getpid(), signal.SIGINT)  # the server still ignores it
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR1}


@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_killing_a_sandboxed_command_ends_all_processes_that_it_started(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, kind: str
) -> None:
    time = unique_sleep_time()
    script = f"setsid sleep {time} & (sleep {time} & ) & nohup sleep {time} >/dev/null 2>&1 & echo up; sleep {time}"
    child = await (HostSandbox() if kind == "host" else sandbox).start(["/bin/sh", "-c", script], grounds.confinement())
    await _read_until(child.read, b"up")
    await until(lambda: len(find_sleep_processes(time)) == 4)
    await child.kill()
    exit_status = await child.wait()
    assert (exit_status.code, exit_status.because) == (None, "it was stopped")
    await until(lambda: not find_sleep_processes(time))
    await child.kill()  # a second kill does no harm


async def test_background_processes_end_with_their_command_in_bubblewrap(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    time = unique_sleep_time()
    output = await shell(sandbox, f"setsid sleep {time} >/dev/null 2>&1 & echo over", grounds.confinement())
    assert output.text == "over\n"
    await until(lambda: not find_sleep_processes(time))


async def test_a_command_in_bubblewrap_ends_when_the_server_is_killed(grounds: SandboxDirectories) -> None:
    """However the server ends: nothing else would end its commands."""
    time = unique_sleep_time()
    script = (
        "import asyncio, os, signal\nfrom pathlib import Path\n"
        "from retinue.sandbox.bubblewrap import BubblewrapSandbox\nfrom retinue.sandbox.base import Confinement\n"
        "async def main():\n"
        f" w = Path({str(grounds.workspace)!r})\n"
        f" s = BubblewrapSandbox(folder=Path({str(grounds.state / 'other')!r}))\n"
        f" script = 'echo up; setsid sleep {time} & sleep {time}'\n"
        " c = await s.start(['/bin/sh', '-c', script], Confinement(folder=w, writable=(w,)))\n"
        " await c.read()\n"
        " os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env={"PYTHONPATH": str(SOURCE)})
    assert await server.wait() == -9
    await until(lambda: not find_sleep_processes(time))


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["/bin/sh", "-c", "exit 3"], 3),
        (["/bin/sh", "-c", "kill -9 $$"], 137),
        (["no-such-program"], 127),
        (["/"], 127),
    ],
)
async def test_the_exit_code_of_a_command_in_bubblewrap_is_reported(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, argv: list[str], code: int
) -> None:
    assert (await run(sandbox, argv, grounds.confinement())).exit_status.code == code


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_commands_in_bubblewrap_run_on_every_event_loop_and_leave_no_open_descriptors(
    grounds: SandboxDirectories, loop: str
) -> None:
    async def run_many_commands() -> None:
        sandbox = grounds.bubblewrap()
        networked = grounds.confinement(network=NetworkAccess(hosts=("example.com",)))
        for pty in (False, True):
            assert (await run(sandbox, ["/bin/echo", "hi"], grounds.confinement(), pty=pty)).text.strip() == "hi"
        assert (await run(sandbox, ["/bin/echo", "hi"], networked)).text == "hi\n"
        await asyncio.sleep(0.1)  # sleep: files that are still open then only raise the limit
        before, zombies_before = len(os.listdir("/proc/self/fd")), _zombies()
        for _ in range(4):
            await asyncio.gather(*(run(sandbox, ["/bin/echo", "hi"], grounds.confinement()) for _ in range(10)))
        await asyncio.gather(*(run(sandbox, ["/bin/echo", "hi"], networked) for _ in range(3)))
        for _ in range(3):
            with pytest.raises(SandboxFailed):
                await sandbox.start(["/bin/echo"], grounds.confinement(folder=Path("/nowhere")))
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before and _zombies() <= zombies_before)

    if loop == "uvloop":
        uvloop.run(run_many_commands())
    else:
        asyncio.run(run_many_commands())


def _zombies() -> set[str]:
    found: set[str] = set()
    for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(OSError):  # another thread may wait for it now
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                found.add(pid)
    return found


# Fail closed


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/", "whole machine"),
        ("/etc", "whole machine"),
        ("/proc", "whole machine"),
        ("/proc/self", "link"),
        ("/home", "whole machine"),
        ("/run/user", "whole machine"),
        ("{state}", "private to the server"),
        ("{state}/agents", "private to the server"),
        ("{state}/owner-token", "private to the server"),
        ("{workspace}/planted-link", "symbolic link"),
        ("{root}/maria/../state", "absolute"),
        ("relative", "absolute"),
        ("{root}/docker.sock", "control of the machine"),
        ("{root}/pipe", "neither a folder nor a file"),
    ],
)
async def test_bubblewrap_refuses_a_forbidden_folder_even_if_it_is_granted(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, path: str, why: str
) -> None:
    (grounds.root / "docker.sock").touch()
    os.mkfifo(grounds.root / "pipe")
    asked = Path(path.format(state=grounds.state, workspace=grounds.workspace, root=grounds.root))
    for confinement in (grounds.confinement(readable=(asked,)), grounds.confinement(writable=(asked,))):
        with pytest.raises(SandboxFailed) as failed:
            await sandbox.start(["/bin/true"], confinement)
        assert failed.value.code == "sandbox.folder_refused"
        assert why in failed.value.because


@pytest.mark.parametrize("writable", [False, True])
async def test_bubblewrap_hides_the_data_directory_and_keys_inside_a_wider_granted_folder(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, writable: bool
) -> None:
    (grounds.user_home / ".config/gh").mkdir(parents=True)
    (grounds.user_home / ".config/gh/hosts.yml").write_text("a token")
    root = grounds.root
    wide = (
        {"writable": (root, grounds.workspace)} if writable else {"readable": (root,), "writable": (grounds.workspace,)}
    )
    script = (
        f"cat {root}/maria/letter.txt {root}/state/owner-token {root}/maria/.ssh/id_ed25519 "
        f"{root}/maria/.config/gh/hosts.yml {root}/state/agents/ben/token; "
        f"mv {root}/maria {root}/moved; mv {root}/state {root}/moved; mv {root}/maria/.config {root}/maria/c; "
        "echo mine > own; cat own"
    )
    output = await shell(sandbox, script, grounds.confinement(**wide))
    assert "dear maria" in output.text and output.text.endswith("mine\n")
    for hidden in ("owner's token", "a key", "a token", "ben's token"):
        assert hidden not in output.text
    assert (root / "maria/.config/gh").is_dir() and (root / "state/owner-token").exists()  # nothing was moved
    named = grounds.confinement(readable=(grounds.user_home / ".ssh",))
    assert "a key" in (await shell(sandbox, f"cat {root}/maria/.ssh/id_ed25519", named)).text  # a named path is visible


async def test_a_command_in_bubblewrap_runs_without_a_granted_folder_that_does_not_exist(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    output = await shell(sandbox, "echo ran", grounds.confinement(readable=(grounds.root / "gone",)))
    assert output.text == "ran\n"


async def test_a_failing_bubblewrap_launcher_runs_no_command_and_reports_the_reason(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    mark = grounds.workspace / "ran"
    with pytest.raises(SandboxFailed) as failed:
        await sandbox.start(["/bin/touch", str(mark)], grounds.confinement(limits=ResourceLimits(disk_bytes=2**70)))
    assert "size" in failed.value.because
    assert not mark.exists()
    await run(sandbox, ["/bin/touch", str(mark)], grounds.confinement())
    assert mark.exists()


@pytest.mark.parametrize("folder", ["{root}", "{root}/nowhere", "{workspace}/nowhere", "/etc/ssh", "relative"])
async def test_bubblewrap_refuses_a_command_whose_working_folder_is_not_available(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, folder: str
) -> None:
    asked = Path(folder.format(root=grounds.root, workspace=grounds.workspace))
    with pytest.raises(SandboxFailed) as failed:
        await sandbox.start(["/bin/true"], grounds.confinement(folder=asked))
    assert failed.value.code == "sandbox.folder_refused"


@pytest.mark.parametrize("argv", [[], ["/bin/echo", "a\0b"]])
async def test_bubblewrap_refuses_an_empty_command_and_a_command_with_a_null_byte(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories, argv: list[str]
) -> None:
    with pytest.raises(SandboxFailed):
        await sandbox.start(argv, grounds.confinement())


async def test_bubblewrap_refuses_an_invalid_environment_variable_name(
    sandbox: BubblewrapSandbox, grounds: SandboxDirectories
) -> None:
    with pytest.raises(SandboxFailed) as failed:
        await sandbox.start(["/bin/true"], grounds.confinement(environment={"A=B": "c"}))
    assert failed.value.code == "sandbox.environment_invalid"


# The probe


async def test_the_bubblewrap_probe_runs_once_and_its_result_is_kept(sandbox: BubblewrapSandbox) -> None:
    first = await sandbox.probe()
    assert first.works and first.notes
    assert await sandbox.probe() is first


async def test_no_command_runs_if_the_bubblewrap_launcher_is_missing(grounds: SandboxDirectories) -> None:
    missing = grounds.bubblewrap(program="/nowhere/bwrap")
    assert not (await missing.probe()).works
    with pytest.raises(SandboxFailed) as failed:
        await missing.start(["/bin/true"], grounds.confinement())
    assert failed.value.try_this


LEAKS = {
    "read-a-file-outside": "--ro-bind / /",
    "write-outside": "--bind / /",
    "signal-the-server": "no-pid-namespace",
    "reach-loopback": "no-net-namespace",
}


@pytest.mark.parametrize("leak", LEAKS)
async def test_the_bubblewrap_probe_fails_if_the_launcher_leaves_out_a_protection(
    grounds: SandboxDirectories, leak: str, tmp_path: Path
) -> None:
    """A launcher that leaves out one protection, as an unusual system might."""
    taken_out = {"signal-the-server": "--unshare-pid", "reach-loopback": "--unshare-net"}.get(leak)
    launcher = tmp_path / "leaky"
    launcher.write_text(
        f"""#!{PYTHON}
import os, sys
fd = int(sys.argv[2])
words = open(fd, closefd=False).read().split("\\0")[:-1]
if {taken_out!r}:
    words.remove({taken_out!r})
    if {leak!r} == "signal-the-server":
        at = words.index("--proc"); words[at:at + 2] = ["--bind", "/proc", "/proc"]
else:
    at = words.index("--chdir")
    words[at:at] = [{LEAKS[leak].split()[0]!r}, "/tmp", "/tmp"]
    at = words.index("/proc", words.index("--proc") + 2)
    del words[at - 1:at + 1]  # its --remount-ro
fds = [int(words[words.index(n) + 1]) for n in ("--json-status-fd", "--block-fd", "--seccomp")]
for one in fds: os.set_inheritable(one, True)
os.execv("/usr/bin/bwrap", ["bwrap", *words, *sys.argv[3:]])
"""
    )
    launcher.chmod(0o755)
    probe = await grounds.bubblewrap(program=str(launcher)).probe()
    assert not probe.works
    assert leak in probe.because


# Not as root


@pytest.mark.skipif(os.getuid() != 0, reason="it is what every other test here shows")
def test_the_bubblewrap_sandbox_works_for_an_unprivileged_user(tmp_path: Path) -> None:
    """As a normal user: without control groups, but with a process limit that the kernel keeps for each namespace."""
    folder = Path("/var/tmp") / f"retinue-user-{os.getpid()}"
    script = f"""
import asyncio, sys
from pathlib import Path
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.base import Confinement, NetworkAccess, ResourceLimits
async def run(sandbox, confinement, *argv):
    child = await sandbox.start(argv, confinement)
    child.close_input()
    said = b""
    while chunk := await child.read():
        said += chunk
    return said.decode(), await child.wait()
async def main():
    folder = Path({str(folder)!r})
    work = folder / "work"
    work.mkdir()
    sandbox = BubblewrapSandbox(folder=folder / "sandbox")
    print(await sandbox.probe())
    few = Confinement(folder=work, writable=(work,), limits=ResourceLimits(processes=20))
    bomb = (
        "import os, time\\ntry:\\n for n in range(60):\\n  if os.fork() == 0: time.sleep(9)\\n"
        "except OSError: print('bomb refused', flush=True)\\nos._exit(0)"
    )
    print(await run(sandbox, few, "/usr/bin/python3", "-I", "-S", "-c", bomb))
    print(await run(sandbox, few, "/bin/sh", "-c", "echo mine > x; cat x; id -u; cat /etc/shadow {tmp_path}"))
    net = Confinement(folder=Path("/tmp"), network=NetworkAccess(hosts=("example.com",)))
    print(await run(sandbox, net, "/bin/sh", "-c", "echo proxy $HTTP_PROXY"))
asyncio.run(main())
"""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    source = folder / "src"
    # Other processes may be writing bytecode.
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for needed in (msgspec, cronsim):
        subprocess.run(["cp", "-r", str(Path(str(needed.__file__)).parent), str(source)], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(source)], check=True)
    try:
        tried = subprocess.run(
            [
                "/usr/bin/setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "/usr/bin/python3",
                "-B",
                "-c",
                script,
            ],
            env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    assert tried.returncode == 0, tried.stderr
    assert "works=True" in tried.stdout
    assert "bomb refused" in tried.stdout
    assert "mine\\n1000" in tried.stdout
    assert "proxy http://127.0.0.1:3128" in tried.stdout


def test_a_sandbox_confinement_hides_its_environment_in_repr_and_can_be_replaced() -> None:
    one = Confinement(folder=Path("/w"), environment={"TOKEN": "s3cret"}, limits=ResourceLimits(seconds=1))
    assert "s3cret" not in repr(one)
    assert replace(one, folder=Path("/x")).limits == one.limits
    assert mounts.build_command_environment(one)["TOKEN"] == "s3cret"


def test_the_etc_folder_of_the_sandbox_is_rebuilt_if_anything_in_it_has_changed(tmp_path: Path) -> None:
    folder, inside = tmp_path / "etc", tmp_path / "inside.py"
    left = folder / "left-behind"

    def is_kept_by_second_build() -> bool:
        """Whether a second build keeps the files; unknown files are removed when the folder is built again."""
        mounts.build_etc(folder, inside)
        made = (folder / "passwd").stat().st_ino, (folder / "passwd").stat().st_mtime_ns
        mounts.build_etc(folder, inside)
        return made == ((folder / "passwd").stat().st_ino, (folder / "passwd").stat().st_mtime_ns)

    inside.write_text("pass")
    assert is_kept_by_second_build()
    left.write_text("an unknown file")
    mounts.build_etc(folder, inside)
    assert not left.exists()
    (folder / "passwd").write_text("root::0:0::/:/bin/sh\n")
    mounts.build_etc(folder, inside)
    assert "agent" in (folder / "passwd").read_text()
    inside.write_text("raise SystemExit")
    mounts.build_etc(folder, inside)
    assert (folder / "retinue" / "inside.py").read_text() == "raise SystemExit"
    (folder / "hosts").unlink()  # as after an interrupted start
    mounts.build_etc(folder, inside)
    assert (folder / "hosts").exists()
    assert is_kept_by_second_build()
