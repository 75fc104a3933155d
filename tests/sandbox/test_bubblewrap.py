"""A confined command: what it sees, how it is spoken with, how it ends, and what is refused before it begins."""

from __future__ import annotations

import asyncio
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
from sandbox.support import PATIENCE_S, PYTHON, Grounds, make_grounds, run, shell, sleepers, until

from retinue.domain.structs import replace
from retinue.sandbox import mounts
from retinue.sandbox.base import Confinement, NetworkAccess, ResourceLimits, SandboxFailed
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.host import HostSandbox
from retinue.testing.wait_conditions import assert_stays_true

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def grounds(tmp_path: Path) -> Grounds:
    return make_grounds(tmp_path)


@pytest.fixture
def sandbox(grounds: Grounds) -> BubblewrapSandbox:
    return grounds.bubblewrap()


@pytest.mark.spec("D51")
async def test_a_command_has_its_workspace_what_it_may_read_and_nothing_else(
    sandbox: BubblewrapSandbox, grounds: Grounds
) -> None:
    script = (
        f"pwd; echo made > here; cat here; cat {grounds.readable}/book.txt; echo; ls {grounds.root}; ls {grounds.state}"
    )
    said = await shell(sandbox, script, grounds.confinement())
    assert said.ended.code == 0
    assert said.text.split("\n")[:3] == [str(grounds.workspace), "made", "to be read"]
    assert said.text.split()[5:] == ["library", "state", "agents"]  # maria's home is not even a name there
    assert (grounds.workspace / "here").read_text() == "made\n"


@pytest.mark.spec("D51")
async def test_a_command_is_told_what_was_said_for_it_and_nothing_of_ours(
    sandbox: BubblewrapSandbox, grounds: Grounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_API_KEY", "s3cret")
    said = await run(sandbox, ["/usr/bin/env"], grounds.confinement(environment={"GREETING": "a b", "LANG": "de"}))
    told = dict(line.split("=", 1) for line in said.text.splitlines())
    assert told["GREETING"] == "a b" and told["LANG"] == "de"
    assert set(told) == {"GREETING", "LANG", "PATH", "HOME", "TMPDIR", "TERM", "USER", "LOGNAME", "PWD"}


async def test_folders_of_etc_are_the_machines_own_to_read_only(sandbox: BubblewrapSandbox, grounds: Grounds) -> None:
    folders = [folder for folder in ("/etc/alternatives", "/etc/ssl/certs") if Path(folder).is_dir()]
    assert folders, "this machine has neither"
    for folder in folders:
        said = await shell(sandbox, f"ls -A {folder}; touch {folder}/mine && echo written", grounds.confinement())
        assert sorted(set(said.text.splitlines()) & set(os.listdir(folder))) == sorted(os.listdir(folder))
        assert "written" not in said.text
        assert not os.listdir(grounds.state / "sandbox" / folder[1:]), "it is mounted, not copied"


_CONSTRUCTOR = """
#include <stdio.h>
__attribute__((constructor)) static void leave_marks(void) {
    FILE *one = fopen("%s", "w"), *two = fopen("%s", "w");
    if (one) fclose(one);
    if (two) fclose(two);
}
"""


async def test_what_a_command_is_told_never_reaches_the_launcher_outside(
    sandbox: BubblewrapSandbox, grounds: Grounds
) -> None:
    """LD_PRELOAD would be loaded by the launcher, which has no walls around it."""
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
    assert mark.exists()  # the command had it, as it was told
    assert not (grounds.root / "outside").exists()


async def test_arguments_and_environment_of_a_command_are_not_listed_with_the_launcher(
    sandbox: BubblewrapSandbox, grounds: Grounds
) -> None:
    child = await sandbox.start(["/bin/sleep", "30"], grounds.confinement(environment={"TOKEN": "s3cret-token"}))
    listed = Path(f"/proc/{child.pid}/cmdline").read_bytes() + Path(f"/proc/{child.pid}/environ").read_bytes()
    await child.kill()
    assert b"sleep" in listed
    assert b"s3cret-token" not in listed


async def test_words_go_in_and_come_out_and_the_end_of_input_is_seen(
    sandbox: BubblewrapSandbox, grounds: Grounds
) -> None:
    large = os.urandom(300_000).hex().encode()
    child = await sandbox.start(["/bin/cat"], grounds.confinement())

    async def hear() -> bytes:
        said = b""
        while chunk := await child.read():
            said += chunk
        return said

    hearing = asyncio.ensure_future(hear())
    await child.write(large)
    child.close_input()
    assert await hearing == large
    assert (await child.wait()).code == 0
    with pytest.raises(SandboxFailed) as failed:
        await child.write(b"more")
    assert failed.value.code == "sandbox.input_closed"


async def test_a_command_whose_words_nobody_takes_waits_and_loses_none(
    sandbox: BubblewrapSandbox, grounds: Grounds
) -> None:
    child = await sandbox.start(
        ["/bin/sh", "-c", "yes | head -c 5000000; echo >&2; echo over > done"], grounds.confinement()
    )
    child.close_input()
    done = grounds.workspace / "done"
    await assert_stays_true(lambda: not done.exists(), "that a command waits has no event", for_s=0.5)
    said = 0
    while chunk := await child.read():
        said += len(chunk)
    assert said == 5_000_001
    assert (grounds.workspace / "done").exists()


@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_a_terminal_is_one_and_can_be_resized(sandbox: BubblewrapSandbox, grounds: Grounds, kind: str) -> None:
    child = await (HostSandbox() if kind == "host" else sandbox).start(["/bin/sh"], grounds.confinement(), pty=True)
    await child.write(b"stty -echo; test -t 0 && echo is-a-terminal; stty size\n")
    said = await _until_said(child.read, b"24 80")
    assert b"is-a-terminal" in said
    child.resize(50, 132)
    await child.write(b"stty size; trap 'echo interrupted' INT; sleep 0.2; echo ready\n")
    assert b"50 132" in await _until_said(child.read, b"ready")
    await child.write(b"sh -c 'echo sle''eps; exec sleep 600'\n")
    await _until_said(child.read, b"sleeps")
    await child.write(b"\x03")  # Ctrl-C reaches what runs in the foreground
    await child.write(b"echo after\n")
    await _until_said(child.read, b"after")
    child.close_input()
    while await child.read():
        pass
    assert (await child.wait()).signal is None


async def _until_said(read: Callable[[], object], wanted: bytes) -> bytes:
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in said:
            said += await read()  # pyright: ignore
    return said


_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_STATUS = ["/bin/cat", "/proc/self/status"]


def unheeded(status: str, line: str) -> set[int]:
    """What a process ignores or holds back. Those that the C library keeps for itself are nobody's to set."""
    mask = int(next(each for each in status.splitlines() if each.startswith(line)).split()[1], 16)
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


@pytest.fixture
def deaf() -> Iterator[None]:
    """As a shell begins a house in the background, or nohup does; and with a signal held back beside."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    plain = subprocess.run(_STATUS, capture_output=True, text=True, check=True).stdout
    assert unheeded(plain, "SigIgn") >= {*_IGNORED} and unheeded(plain, "SigBlk"), "it is handed on by itself"
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("kind", ["bubblewrap", "networked", "host"])
async def test_a_command_heeds_every_signal_whatever_its_house_ignores(
    sandbox: BubblewrapSandbox, grounds: Grounds, kind: str
) -> None:
    network = NetworkAccess(hosts=("example.com",)) if kind == "networked" else None
    place = HostSandbox() if kind == "host" else sandbox
    said = await run(place, _STATUS, grounds.confinement(**({"network": network} if network else {})))
    assert said.ended.code == 0
    assert not unheeded(said.text, "SigIgn") and not unheeded(said.text, "SigBlk")
    os.kill(os.getpid(), signal.SIGINT)  # and the house goes on ignoring it
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR1}


@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_killed_it_ends_with_all_that_it_began(sandbox: BubblewrapSandbox, grounds: Grounds, kind: str) -> None:
    script = "setsid sleep 93.1 & (sleep 93.1 & ) & nohup sleep 93.1 >/dev/null 2>&1 & echo up; sleep 93.1"
    child = await (HostSandbox() if kind == "host" else sandbox).start(["/bin/sh", "-c", script], grounds.confinement())
    await _until_said(child.read, b"up")
    await until(lambda: len(sleepers("93.1")) == 4)
    await child.kill()
    ended = await child.wait()
    assert (ended.code, ended.because) == (None, "it was stopped")
    await until(lambda: not sleepers("93.1"))
    await child.kill()  # once more is no harm


async def test_what_is_left_running_ends_with_the_command(sandbox: BubblewrapSandbox, grounds: Grounds) -> None:
    said = await shell(sandbox, "setsid sleep 94.2 >/dev/null 2>&1 & echo over", grounds.confinement())
    assert said.text == "over\n"
    await until(lambda: not sleepers("94.2"))


async def test_a_command_dies_with_the_house(grounds: Grounds) -> None:
    """However that ends: nobody else would end what it has begun."""
    script = (
        "import asyncio, os, signal\nfrom pathlib import Path\n"
        "from retinue.sandbox.bubblewrap import BubblewrapSandbox\nfrom retinue.sandbox.base import Confinement\n"
        "async def main():\n"
        f" w = Path({str(grounds.workspace)!r})\n"
        f" s = BubblewrapSandbox(folder=Path({str(grounds.state / 'other')!r}))\n"
        " script = 'echo up; setsid sleep 95.3 & sleep 95.3'\n"
        " c = await s.start(['/bin/sh', '-c', script], Confinement(folder=w, writable=(w,)))\n"
        " await c.read()\n"
        " os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    house = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env={"PYTHONPATH": str(SOURCE)})
    assert await house.wait() == -9
    await until(lambda: not sleepers("95.3"))


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["/bin/sh", "-c", "exit 3"], 3),
        (["/bin/sh", "-c", "kill -9 $$"], 137),
        (["no-such-program"], 127),
        (["/"], 127),
    ],
)
async def test_how_it_ended_is_told(sandbox: BubblewrapSandbox, grounds: Grounds, argv: list[str], code: int) -> None:
    assert (await run(sandbox, argv, grounds.confinement())).ended.code == code


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_is_the_same_on_every_loop_and_leaves_nothing_open(grounds: Grounds, loop: str) -> None:
    async def many() -> None:
        sandbox = grounds.bubblewrap()
        networked = grounds.confinement(network=NetworkAccess(hosts=("example.com",)))
        for pty in (False, True):
            assert (await run(sandbox, ["/bin/echo", "hi"], grounds.confinement(), pty=pty)).text.strip() == "hi"
        assert (await run(sandbox, ["/bin/echo", "hi"], networked)).text == "hi\n"
        await asyncio.sleep(0.1)  # sleep: what is still open then only makes the bound wider
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(4):
            await asyncio.gather(*(run(sandbox, ["/bin/echo", "hi"], grounds.confinement()) for _ in range(10)))
        await asyncio.gather(*(run(sandbox, ["/bin/echo", "hi"], networked) for _ in range(3)))
        for _ in range(3):
            with pytest.raises(SandboxFailed):
                await sandbox.start(["/bin/echo"], grounds.confinement(folder=Path("/nowhere")))
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before and not _zombies())

    if loop == "uvloop":
        uvloop.run(many())
    else:
        asyncio.run(many())


def _zombies() -> list[str]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in children if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()]


# Fail closed.


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
async def test_a_folder_that_no_command_may_see_is_refused_whoever_grants_it(
    sandbox: BubblewrapSandbox, grounds: Grounds, path: str, why: str
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
async def test_in_a_wider_folder_that_was_granted_the_house_and_the_keys_stay_covered(
    sandbox: BubblewrapSandbox, grounds: Grounds, writable: bool
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
    said = await shell(sandbox, script, grounds.confinement(**wide))
    assert "dear maria" in said.text and said.text.endswith("mine\n")
    for hidden in ("owner's token", "a key", "a token", "ben's token"):
        assert hidden not in said.text
    assert (root / "maria/.config/gh").is_dir() and (root / "state/owner-token").exists()  # all is where it was
    named = grounds.confinement(readable=(grounds.user_home / ".ssh",))
    assert "a key" in (await shell(sandbox, f"cat {root}/maria/.ssh/id_ed25519", named)).text  # by name, it is shown


async def test_a_folder_that_has_gone_is_not_shown_and_stops_nothing(
    sandbox: BubblewrapSandbox, grounds: Grounds
) -> None:
    said = await shell(sandbox, "echo ran", grounds.confinement(readable=(grounds.root / "gone",)))
    assert said.text == "ran\n"


async def test_where_the_launcher_fails_nothing_runs_and_it_is_said_why(
    sandbox: BubblewrapSandbox, grounds: Grounds
) -> None:
    mark = grounds.workspace / "ran"
    with pytest.raises(SandboxFailed) as failed:
        await sandbox.start(["/bin/touch", str(mark)], grounds.confinement(limits=ResourceLimits(disk_bytes=2**70)))
    assert "size" in failed.value.because
    assert not mark.exists()
    await run(sandbox, ["/bin/touch", str(mark)], grounds.confinement())
    assert mark.exists()


@pytest.mark.parametrize("folder", ["{root}", "{root}/nowhere", "{workspace}/nowhere", "/etc/ssh", "relative"])
async def test_a_command_begins_where_it_may_be_or_not_at_all(
    sandbox: BubblewrapSandbox, grounds: Grounds, folder: str
) -> None:
    asked = Path(folder.format(root=grounds.root, workspace=grounds.workspace))
    with pytest.raises(SandboxFailed) as failed:
        await sandbox.start(["/bin/true"], grounds.confinement(folder=asked))
    assert failed.value.code == "sandbox.folder_refused"


@pytest.mark.parametrize("argv", [[], ["/bin/echo", "a\0b"]])
async def test_no_command_is_no_command(sandbox: BubblewrapSandbox, grounds: Grounds, argv: list[str]) -> None:
    with pytest.raises(SandboxFailed):
        await sandbox.start(argv, grounds.confinement())


async def test_a_variable_that_is_none_is_refused(sandbox: BubblewrapSandbox, grounds: Grounds) -> None:
    with pytest.raises(SandboxFailed) as failed:
        await sandbox.start(["/bin/true"], grounds.confinement(environment={"A=B": "c"}))
    assert failed.value.code == "sandbox.environment_invalid"


# The probe.


async def test_the_probe_tries_it_once(sandbox: BubblewrapSandbox) -> None:
    first = await sandbox.probe()
    assert first.works and first.notes
    assert await sandbox.probe() is first


async def test_without_the_launcher_nothing_runs(grounds: Grounds) -> None:
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
async def test_the_probe_sees_a_wall_that_is_missing(grounds: Grounds, leak: str, tmp_path: Path) -> None:
    """A launcher that leaves one wall out, as a strange system might."""
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


# Not as root.


@pytest.mark.skipif(os.getuid() != 0, reason="it is what every other test here shows")
def test_it_works_for_a_user_without_any_rights(tmp_path: Path) -> None:
    """With what a user has: no control groups, but a count of processes that the kernel keeps for each namespace."""
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
    subprocess.run(["cp", "-r", str(SOURCE), str(source)], check=True)
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


def test_limits_and_confinements_are_nouns() -> None:
    one = Confinement(folder=Path("/w"), environment={"TOKEN": "s3cret"}, limits=ResourceLimits(seconds=1))
    assert "s3cret" not in repr(one)
    assert replace(one, folder=Path("/x")).limits == one.limits
    assert mounts.build_command_environment(one)["TOKEN"] == "s3cret"


def test_what_commands_see_of_etc_is_made_anew_where_anything_in_it_has_changed(tmp_path: Path) -> None:
    folder, inside = tmp_path / "etc", tmp_path / "inside.py"
    left = folder / "left-behind"

    def stays() -> bool:
        """Whether a second look leaves it as it is: what is no part of it goes when it is made anew."""
        mounts.build_etc(folder, inside)
        made = (folder / "passwd").stat().st_ino, (folder / "passwd").stat().st_mtime_ns
        mounts.build_etc(folder, inside)
        return made == ((folder / "passwd").stat().st_ino, (folder / "passwd").stat().st_mtime_ns)

    inside.write_text("pass")
    assert stays()
    left.write_text("of someone else")
    mounts.build_etc(folder, inside)
    assert not left.exists()
    (folder / "passwd").write_text("root::0:0::/:/bin/sh\n")
    mounts.build_etc(folder, inside)
    assert "agent" in (folder / "passwd").read_text()
    inside.write_text("raise SystemExit")
    mounts.build_etc(folder, inside)
    assert (folder / "retinue" / "inside.py").read_text() == "raise SystemExit"
    (folder / "hosts").unlink()  # as where a start was cut off in the middle
    mounts.build_etc(folder, inside)
    assert (folder / "hosts").exists()
    assert stays()
