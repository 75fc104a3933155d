"""What a hostile command would try. Run as a program, inside a sandbox or bare; says of each attempt what came of it.

    python attempts.py FACTS.json  ->  {"NAME": "done" | "refused: WHY", ...}

Only the standard library. Nothing here does harm where it succeeds: what it changes, it changes back. Only files with a
setuid or setgid bit stay, empty, so that the test can look at them from outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pty
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
ATTEMPTS: dict[str, Callable[[Any], object]] = {}
WAIT_S = 3.0


def attempt(named: Callable[[Any], object]) -> Callable[[Any], object]:
    ATTEMPTS[named.__name__.replace("_", "-")] = named
    return named


def call(name: str, *arguments: object) -> int:
    """A function of the C library; raises where it fails."""
    result = getattr(LIBC, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def in_a_child(act: Callable[[], object]) -> None:
    """Do it where it changes nobody but a process that ends at once; raises where it failed there."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:  # noqa: BLE001 - the parent is told by the code
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise PermissionError(f"the child ended with {status}")


@contextlib.contextmanager
def put_back(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def contents(path: str | Path) -> str:
    text = Path(path).read_text(errors="replace")
    if not text:
        raise FileNotFoundError("empty")
    return text


# What is to be read.


@attempt
def read_a_file_of_the_users_home(facts: Any) -> object:
    return contents(f"{facts['user_home']}/letter.txt")


@attempt
def list_the_users_home(facts: Any) -> object:
    assert "letter.txt" in os.listdir(facts["user_home"])
    return None


@attempt
def read_the_users_ssh_key(facts: Any) -> object:
    return contents(f"{facts['user_home']}/.ssh/id_ed25519")


@attempt
def read_the_owners_token(facts: Any) -> object:
    return contents(f"{facts['state']}/owner-token")


@attempt
def read_the_store(facts: Any) -> object:
    return contents(f"{facts['state']}/house.db")


@attempt
def list_the_state_folder(facts: Any) -> object:
    assert "owner-token" in os.listdir(facts["state"])
    return None


@attempt
def read_another_agents_token(facts: Any) -> object:
    return contents(f"{facts['state']}/agents/ben/token")


@attempt
def list_the_homes_of_agents(facts: Any) -> object:
    assert "ben" in os.listdir(f"{facts['state']}/agents")
    return None


@attempt
def read_upwards_from_the_workspace(facts: Any) -> object:
    return contents(f"{facts['workspace']}/../../../owner-token")


@attempt
def read_through_a_symlink_of_ones_own(facts: Any) -> object:
    link = Path(facts["workspace"]) / "own-link"
    with put_back(link):
        link.symlink_to(f"{facts['state']}/owner-token")
        return contents(link)


@attempt
def read_through_a_symlink_that_was_there(facts: Any) -> object:
    return contents(f"{facts['workspace']}/planted-link")


@attempt
def read_through_a_hard_link_of_ones_own(facts: Any) -> object:
    link = Path(facts["workspace"]) / "hard-link"
    with put_back(link):
        os.link(f"{facts['state']}/owner-token", link)
        return contents(link)


@attempt
def read_through_the_process_that_began_it(facts: Any) -> object:
    """In a namespace of its own, that is the first of all."""
    return contents(f"/proc/{os.getppid()}/root{facts['state']}/owner-token")


@attempt
def read_through_the_houses_process(facts: Any) -> object:
    return contents(f"/proc/{facts['daemon']}/root{facts['state']}/owner-token")


@attempt
def read_the_houses_environment(facts: Any) -> object:
    assert "DAEMON_SECRET" in contents(f"/proc/{facts['daemon']}/environ")
    return None


@attempt
def read_the_houses_arguments(facts: Any) -> object:
    return contents(f"/proc/{facts['daemon']}/cmdline")


@attempt
def read_the_passwords_of_the_machine(facts: Any) -> object:
    return contents("/etc/shadow")


@attempt
def read_an_inherited_descriptor(facts: Any) -> object:
    """The secret file was opened by whoever started us, and left inheritable."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if b"inherited" in os.pread(int(name), 100, 0):
                return None
    raise PermissionError("none of ours")


@attempt
def read_a_secret_of_the_environment(facts: Any) -> object:
    return os.environ["ESCAPE_SECRET"]


@attempt
def read_the_houses_memory(facts: Any) -> object:
    with open(f"/proc/{facts['daemon']}/maps") as maps:
        address = int(maps.readline().partition("-")[0], 16)
    with open(f"/proc/{facts['daemon']}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        assert memory.read(4)
    return None


# What is to be changed.


def _write(path: str) -> None:
    target = Path(path)
    with put_back(target):
        target.write_text("x")


@attempt
def write_into_the_users_home(facts: Any) -> object:
    return _write(f"{facts['user_home']}/escaped")


@attempt
def write_into_the_state_folder(facts: Any) -> object:
    return _write(f"{facts['state']}/escaped")


@attempt
def write_beside_the_workspace(facts: Any) -> object:
    return _write(f"{facts['workspace']}/../escaped")


@attempt
def write_into_another_agents_home(facts: Any) -> object:
    return _write(f"{facts['state']}/agents/ben/escaped")


@attempt
def write_into_a_folder_that_may_be_read(facts: Any) -> object:
    return _write(f"{facts['readable']}/escaped")


@attempt
def write_into_the_system(facts: Any) -> object:
    return _write("/usr/retinue-escaped")


@attempt
def write_into_etc(facts: Any) -> object:
    return _write("/etc/retinue-escaped")


@attempt
def write_into_the_root(facts: Any) -> object:
    return _write("/retinue-escaped")


@attempt
def write_through_a_symlink(facts: Any) -> object:
    with open(f"{facts['workspace']}/planted-link-to-write", "r+") as found:
        found.write("x")


@attempt
def change_the_mode_of_a_file_outside(facts: Any) -> object:
    return os.chmod(f"{facts['user_home']}/letter.txt", 0o644)


@attempt
def give_the_workspace_another_name(facts: Any) -> object:
    os.rename(facts["workspace"], facts["workspace"] + "-moved")
    os.rename(facts["workspace"] + "-moved", facts["workspace"])


@attempt
def open_a_setting_of_the_kernel_for_writing(facts: Any) -> object:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_RDWR))


@attempt
def open_the_machines_trigger_for_writing(facts: Any) -> object:
    os.close(os.open("/proc/sysrq-trigger" if os.path.exists("/proc/sysrq-trigger") else "/proc/mtrr", os.O_WRONLY))


@attempt
def make_a_device(facts: Any) -> object:
    path = Path(facts["workspace"]) / "device"
    with put_back(path):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


@attempt
def give_a_file_to_root(facts: Any) -> object:
    path = Path(facts["workspace"]) / "gift"
    with put_back(path):
        path.write_text("x")
        os.chown(path, 12345, 12345)


# What is to be reached.


def _connect(family: int, address: Any) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(WAIT_S)  # time limit: what is shut out hears nothing
        one.connect(address)
        assert one.recv(5) == b"hello"


@attempt
def reach_loopback_by_address(facts: Any) -> object:
    return _connect(socket.AF_INET, ("127.0.0.1", facts["port"]))


@attempt
def reach_loopback_by_another_address(facts: Any) -> object:
    return _connect(socket.AF_INET, ("127.8.8.8", facts["port_any"]))


@attempt
def reach_loopback_by_name(facts: Any) -> object:
    with socket.create_connection(("localhost", facts["port"]), WAIT_S) as one:
        assert one.recv(5) == b"hello"
    return None


@attempt
def reach_loopback_by_zero(facts: Any) -> object:
    return _connect(socket.AF_INET, ("0.0.0.0", facts["port"]))


@attempt
def reach_loopback_by_ipv6(facts: Any) -> object:
    return _connect(socket.AF_INET6, ("::1", facts["port6"]))


@attempt
def reach_loopback_by_a_mapped_address(facts: Any) -> object:
    return _connect(socket.AF_INET6, ("::ffff:127.0.0.1", facts["port"]))


@attempt
def reach_loopback_by_udp(facts: Any) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(WAIT_S)  # time limit: what is shut out hears nothing
        one.sendto(b"ping", ("127.0.0.1", facts["port_udp"]))
        assert one.recv(5) == b"hello"
    return None


@attempt
def reach_the_houses_socket(facts: Any) -> object:
    return _connect(socket.AF_UNIX, facts["socket"])


@attempt
def reach_an_abstract_socket(facts: Any) -> object:
    return _connect(socket.AF_UNIX, b"\0" + facts["abstract"].encode())


@attempt
def see_a_network_beyond_loopback(facts: Any) -> object:
    assert len(socket.if_nameindex()) > 1
    return None


@attempt
def listen_to_the_wire(facts: Any) -> object:
    socket.socket(17, socket.SOCK_RAW).close()  # AF_PACKET


# Other processes, and the kernel.


@attempt
def see_the_houses_process(facts: Any) -> object:
    """By its name: in a namespace of its own, another process may have the number."""
    assert "daemon-stand-in" in contents(f"/proc/{facts['daemon']}/cmdline")
    return None


@attempt
def signal_the_house(facts: Any) -> object:
    return os.kill(facts["daemon"], signal.SIGUSR1)


@attempt
def slow_the_house_down(facts: Any) -> object:
    return os.setpriority(os.PRIO_PROCESS, facts["daemon"], 5)


@attempt
def trace_the_house(facts: Any) -> object:
    call("ptrace", 16, facts["daemon"], 0, 0)  # PTRACE_ATTACH
    os.waitpid(facts["daemon"], 0x40000000)  # __WALL
    call("ptrace", 17, facts["daemon"], 0, 0)  # PTRACE_DETACH


@attempt
def enter_the_houses_network(facts: Any) -> object:
    def act() -> None:
        descriptor = os.open(f"/proc/{facts['daemon']}/ns/net", os.O_RDONLY)
        call("setns", descriptor, 0)

    return in_a_child(act)


@attempt
def become_root(facts: Any) -> object:
    return in_a_child(lambda: (os.setuid(0), os.chroot("/")))


@attempt
def have_capabilities(facts: Any) -> object:
    line = next(line for line in contents("/proc/self/status").splitlines() if line.startswith("CapEff"))
    assert int(line.split()[1], 16)
    return None


@attempt
def gain_privileges_by_a_program(facts: Any) -> object:
    assert call("prctl", 39, 0, 0, 0, 0) == 0  # PR_GET_NO_NEW_PRIVS
    return None


@attempt
def change_the_root_folder(facts: Any) -> object:
    return in_a_child(lambda: os.chroot("/usr"))


@attempt
def mount_something(facts: Any) -> object:
    def act() -> None:
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, 0x44000, None)  # private, all of it
        call("mount", b"none", facts["workspace"].encode(), b"tmpfs", 0, None)

    return in_a_child(act)


@attempt
def type_into_a_terminal(facts: Any) -> object:
    def act() -> None:
        os.setsid()
        _, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")

    return in_a_child(act)


@attempt
def outlive_the_command(facts: Any) -> object:
    """A process that has left its group and its parent; whoever started us looks for its mark."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in (0, 1, 2):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            os.execv("/bin/sleep", ["sleep", facts["outlives"]])
        os._exit(0)
    os.wait()


# What only the filter of calls stands against.


@attempt
def make_a_user_namespace(facts: Any) -> object:
    return in_a_child(lambda: call("unshare", CLONE_NEWUSER))


@attempt
def make_a_user_namespace_by_clone(facts: Any) -> object:
    flags = CLONE_NEWUSER | signal.SIGCHLD
    pid = call("syscall", 56 if os.uname().machine == "x86_64" else 220, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt
def trace_ones_own_child(facts: Any) -> object:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        call("ptrace", 16, pid, 0, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@attempt
def keep_a_key_in_the_kernel(facts: Any) -> object:
    number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    call("syscall", number, b"user", b"retinue-escape", b"x", 1, -1)  # add_key, into the thread's own keyring


@attempt
def use_memory_that_nobody_counts(facts: Any) -> object:
    os.close(os.memfd_create("escape"))


@attempt
def speak_to_the_hypervisor(facts: Any) -> object:
    socket.socket(40, socket.SOCK_STREAM).close()  # AF_VSOCK


@attempt
def give_the_kernel_a_program(facts: Any) -> object:
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    attributes = (ctypes.c_uint32 * 32)(2, 4, 4, 1)  # BPF_MAP_CREATE of a small array
    os.close(call("syscall", number, 0, attributes, 72))


@attempt
def watch_the_processor(facts: Any) -> object:
    number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
    attributes = (ctypes.c_uint32 * 32)(1, 128)  # PERF_TYPE_SOFTWARE, its size
    os.close(call("syscall", number, attributes, 0, -1, -1, 0))


@attempt
def open_a_ring_to_the_kernel(facts: Any) -> object:
    os.close(call("syscall", 425, 4, (ctypes.c_uint32 * 64)()))


# What is to be left behind for another user of the machine to run.

SETUID, SETGID, AT_FDCWD, O_TMPFILE = 0o4755, 0o2755, -100, 0o20000000 | os.O_DIRECTORY


def _left(facts: Any, name: str) -> Path:
    return Path(facts["workspace"]) / f"left-{name}"


def _empty(facts: Any, name: str) -> Path:
    path = _left(facts, name)
    path.touch(0o755)
    return path


def _see_that_it_is_privileged(path: Path) -> None:
    """A call may be allowed and yet leave out the bit."""
    if not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise PermissionError("the bit is not set")


@attempt
def leave_a_setuid_program_by_chmod(facts: Any) -> object:
    path = _empty(facts, "chmod")
    os.chmod(path, SETUID)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setgid_program_by_chmod(facts: Any) -> object:
    path = _empty(facts, "chmod-setgid")
    os.chmod(path, SETGID)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setgid_folder_by_chmod(facts: Any) -> object:
    path = _left(facts, "folder")
    path.mkdir()
    os.chmod(path, SETGID)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_its_descriptor(facts: Any) -> object:
    path = _empty(facts, "fchmod")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(descriptor, SETUID)
    finally:
        os.close(descriptor)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_fchmodat(facts: Any) -> object:
    path = _empty(facts, "fchmodat")
    number = {"x86_64": 268, "aarch64": 53}[os.uname().machine]
    call("syscall", number, AT_FDCWD, bytes(path), SETUID)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_fchmodat2(facts: Any) -> object:
    path = _empty(facts, "fchmodat2")
    try:
        call("syscall", 452, AT_FDCWD, bytes(path), SETUID, 0)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        os.chmod(path, SETUID)  # this kernel is older than the call
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_creat(facts: Any) -> object:
    path = _left(facts, "creat")
    os.close(call("creat", bytes(path), SETUID))
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_open(facts: Any) -> object:
    path = _left(facts, "open")
    if os.uname().machine == "x86_64":
        os.close(call("syscall", 2, bytes(path), os.O_CREAT | os.O_WRONLY, SETUID))
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, SETUID))
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_openat(facts: Any) -> object:
    path = _left(facts, "openat")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, SETUID))
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_openat2(facts: Any) -> object:
    path = _left(facts, "openat2")
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, SETUID, 0)
    os.close(call("syscall", 437, AT_FDCWD, bytes(path), how, ctypes.sizeof(how)))
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_that_had_no_name(facts: Any) -> object:
    path = _left(facts, "unnamed")
    descriptor = os.open(facts["workspace"], O_TMPFILE | os.O_WRONLY, SETUID)
    try:
        call("linkat", AT_FDCWD, f"/proc/self/fd/{descriptor}".encode(), AT_FDCWD, bytes(path), 0x400)
    finally:
        os.close(descriptor)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_mknod(facts: Any) -> object:
    path = _left(facts, "mknod")
    if os.uname().machine == "x86_64":
        call("syscall", 133, bytes(path), stat.S_IFREG | SETUID, 0)
    else:
        os.mknod(path, stat.S_IFREG | SETUID)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_mknodat(facts: Any) -> object:
    path = _left(facts, "mknodat")
    number = {"x86_64": 259, "aarch64": 33}[os.uname().machine]
    call("syscall", number, AT_FDCWD, bytes(path), stat.S_IFREG | SETUID, 0)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_install(facts: Any) -> object:
    path = _left(facts, "install")
    subprocess.run(["install", "-m", "4755", "/dev/null", str(path)], check=True, capture_output=True)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_setuid_program_by_unpacking_it(facts: Any) -> object:
    archive, path = _left(facts, "archive.tar"), _left(facts, "unpacked")
    with tarfile.open(archive, "w") as packed:
        entry = tarfile.TarInfo(path.name)
        entry.mode, entry.uid, entry.gid = SETUID, os.getuid(), os.getgid()
        packed.addfile(entry)
    subprocess.run(["tar", "-xpf", str(archive), "-C", facts["workspace"]], check=False, capture_output=True)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_link_to_a_setuid_program_of_the_system(facts: Any) -> object:
    path = _left(facts, "linked")
    os.link("/usr/bin/su", path)
    return _see_that_it_is_privileged(path)


@attempt
def leave_a_program_with_capabilities(facts: Any) -> object:
    path = _empty(facts, "capabilities")
    permitted = struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0)  # CAP_SETUID, permitted and effective
    os.setxattr(path, "security.capability", permitted)


def main() -> None:
    facts = json.loads(Path(sys.argv[1]).read_text())
    said: dict[str, str] = {}
    for name, act in ATTEMPTS.items():
        try:
            act(facts)
            said[name] = "done"
        except (Exception, AssertionError) as error:  # noqa: BLE001 - whatever stood in the way
            said[name] = f"refused: {type(error).__name__}: {error}"
    print(json.dumps(said))


if __name__ == "__main__":
    main()
