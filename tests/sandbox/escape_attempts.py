"""Escape attempts of a hostile command, run as a program in a sandbox or without one. It prints each result:

    python escape_attempts.py FACTS.json  ->  {"NAME": "done" | "refused: WHY", ...}

It uses only the standard library. A successful attempt does no harm and undoes its changes. Only empty files with a
setuid or setgid bit stay, so that the test can check them from outside.
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
WAIT_S = 60.0  # for an answer of the test, which shares a busy machine; in a sandbox, the kernel refuses at once


def attempt(function: Callable[[Any], object]) -> Callable[[Any], object]:
    ATTEMPTS[function.__name__.replace("_", "-")] = function
    return function


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library and raise `OSError` if it fails."""
    result = getattr(LIBC, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def run_in_child_process(act: Callable[[], object]) -> None:
    """Run `act` in a child process that ends at once, and raise if it failed there."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:  # noqa: BLE001 - the exit code reports it to the parent
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise PermissionError(f"the child ended with {status}")


@contextlib.contextmanager
def removed_afterwards(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_nonempty_file(path: str | Path) -> str:
    text = Path(path).read_text(errors="replace")
    if not text:
        raise FileNotFoundError("empty")
    return text


# Reading


@attempt
def read_a_file_of_the_users_home(facts: Any) -> object:
    return read_nonempty_file(f"{facts['user_home']}/letter.txt")


@attempt
def list_the_users_home(facts: Any) -> object:
    assert "letter.txt" in os.listdir(facts["user_home"])
    return None


@attempt
def read_the_users_ssh_key(facts: Any) -> object:
    return read_nonempty_file(f"{facts['user_home']}/.ssh/id_ed25519")


@attempt
def read_the_owners_token(facts: Any) -> object:
    return read_nonempty_file(f"{facts['state']}/owner-token")


@attempt
def read_the_store(facts: Any) -> object:
    return read_nonempty_file(f"{facts['state']}/retinue.db")


@attempt
def list_the_data_directory(facts: Any) -> object:
    assert "owner-token" in os.listdir(facts["state"])
    return None


@attempt
def read_another_agents_token(facts: Any) -> object:
    return read_nonempty_file(f"{facts['state']}/agents/ben/token")


@attempt
def list_the_agent_directories(facts: Any) -> object:
    assert "ben" in os.listdir(f"{facts['state']}/agents")
    return None


@attempt
def read_upwards_from_the_workspace(facts: Any) -> object:
    return read_nonempty_file(f"{facts['workspace']}/../../../owner-token")


@attempt
def read_through_a_new_symlink(facts: Any) -> object:
    link = Path(facts["workspace"]) / "own-link"
    with removed_afterwards(link):
        link.symlink_to(f"{facts['state']}/owner-token")
        return read_nonempty_file(link)


@attempt
def read_through_an_existing_symlink(facts: Any) -> object:
    return read_nonempty_file(f"{facts['workspace']}/planted-link")


@attempt
def read_through_a_new_hard_link(facts: Any) -> object:
    link = Path(facts["workspace"]) / "hard-link"
    with removed_afterwards(link):
        os.link(f"{facts['state']}/owner-token", link)
        return read_nonempty_file(link)


@attempt
def read_through_the_parent_process(facts: Any) -> object:
    """In its own process namespace the parent process is process 1."""
    return read_nonempty_file(f"/proc/{os.getppid()}/root{facts['state']}/owner-token")


@attempt
def read_through_the_server_process(facts: Any) -> object:
    return read_nonempty_file(f"/proc/{facts['daemon']}/root{facts['state']}/owner-token")


@attempt
def read_the_server_environment(facts: Any) -> object:
    assert "DAEMON_SECRET" in read_nonempty_file(f"/proc/{facts['daemon']}/environ")
    return None


@attempt
def read_the_server_arguments(facts: Any) -> object:
    return read_nonempty_file(f"/proc/{facts['daemon']}/cmdline")


@attempt
def read_the_passwords_of_the_machine(facts: Any) -> object:
    return read_nonempty_file("/etc/shadow")


@attempt
def read_an_inherited_descriptor(facts: Any) -> object:
    """The secret file was opened by the parent process and left inheritable."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if b"inherited" in os.pread(int(name), 100, 0):
                return None
    raise PermissionError("none of ours")


@attempt
def read_a_secret_from_the_environment(facts: Any) -> object:
    return os.environ["ESCAPE_SECRET"]


@attempt
def read_the_server_memory(facts: Any) -> object:
    with open(f"/proc/{facts['daemon']}/maps") as maps:
        address = int(maps.readline().partition("-")[0], 16)
    with open(f"/proc/{facts['daemon']}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        assert memory.read(4)
    return None


# Writing


def _write(path: str) -> None:
    target = Path(path)
    with removed_afterwards(target):
        target.write_text("x")


@attempt
def write_into_the_users_home(facts: Any) -> object:
    return _write(f"{facts['user_home']}/escaped")


@attempt
def write_into_the_data_directory(facts: Any) -> object:
    return _write(f"{facts['state']}/escaped")


@attempt
def write_beside_the_workspace(facts: Any) -> object:
    return _write(f"{facts['workspace']}/../escaped")


@attempt
def write_into_another_agents_directory(facts: Any) -> object:
    return _write(f"{facts['state']}/agents/ben/escaped")


@attempt
def write_into_a_read_only_folder(facts: Any) -> object:
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
def rename_the_workspace(facts: Any) -> object:
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
    with removed_afterwards(path):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


@attempt
def give_a_file_to_root(facts: Any) -> object:
    path = Path(facts["workspace"]) / "gift"
    with removed_afterwards(path):
        path.write_text("x")
        os.chown(path, 12345, 12345)


# Network


def _connect(family: int, address: Any) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(address)
        assert connection.recv(5) == b"hello"


@attempt
def reach_loopback_by_address(facts: Any) -> object:
    return _connect(socket.AF_INET, ("127.0.0.1", facts["port"]))


@attempt
def reach_loopback_by_another_address(facts: Any) -> object:
    return _connect(socket.AF_INET, ("127.8.8.8", facts["port_any"]))


@attempt
def reach_loopback_by_name(facts: Any) -> object:
    with socket.create_connection(("localhost", facts["port"]), WAIT_S) as connection:
        assert connection.recv(5) == b"hello"
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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(("127.0.0.1", facts["port_udp"]))  # so that a refusal is reported
        connection.send(b"ping")
        assert connection.recv(5) == b"hello"
    return None


@attempt
def reach_the_server_socket(facts: Any) -> object:
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


# Other processes, and the kernel


@attempt
def see_the_server_process(facts: Any) -> object:
    """Find it by its name: in a process namespace, another process may have its number."""
    assert "daemon-stand-in" in read_nonempty_file(f"/proc/{facts['daemon']}/cmdline")
    return None


@attempt
def signal_the_server(facts: Any) -> object:
    return os.kill(facts["daemon"], signal.SIGUSR1)


@attempt
def slow_the_server_down(facts: Any) -> object:
    return os.setpriority(os.PRIO_PROCESS, facts["daemon"], 5)


@attempt
def trace_the_server(facts: Any) -> object:
    call("ptrace", 16, facts["daemon"], 0, 0)  # PTRACE_ATTACH
    os.waitpid(facts["daemon"], 0x40000000)  # __WALL
    call("ptrace", 17, facts["daemon"], 0, 0)  # PTRACE_DETACH


@attempt
def enter_the_server_network(facts: Any) -> object:
    def act() -> None:
        descriptor = os.open(f"/proc/{facts['daemon']}/ns/net", os.O_RDONLY)
        call("setns", descriptor, 0)

    return run_in_child_process(act)


@attempt
def become_root(facts: Any) -> object:
    return run_in_child_process(lambda: (os.setuid(0), os.chroot("/")))


@attempt
def have_capabilities(facts: Any) -> object:
    line = next(line for line in read_nonempty_file("/proc/self/status").splitlines() if line.startswith("CapEff"))
    assert int(line.split()[1], 16)
    return None


@attempt
def gain_privileges_through_a_setuid_program(facts: Any) -> object:
    assert call("prctl", 39, 0, 0, 0, 0) == 0  # PR_GET_NO_NEW_PRIVS
    return None


@attempt
def change_the_root_folder(facts: Any) -> object:
    return run_in_child_process(lambda: os.chroot("/usr"))


@attempt
def mount_something(facts: Any) -> object:
    def act() -> None:
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, 0x44000, None)  # make all mounts private
        call("mount", b"none", facts["workspace"].encode(), b"tmpfs", 0, None)

    return run_in_child_process(act)


@attempt
def type_into_a_terminal(facts: Any) -> object:
    def act() -> None:
        os.setsid()
        _, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")

    return run_in_child_process(act)


@attempt
def outlive_the_command(facts: Any) -> object:
    """Start a process that leaves its group and its parent; the test then looks for its mark."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in (0, 1, 2):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            os.execv("/bin/sleep", ["sleep", facts["outlives"]])
        os._exit(0)
    os.wait()


# Blocked only by the system call filter


@attempt
def make_a_user_namespace(facts: Any) -> object:
    return run_in_child_process(lambda: call("unshare", CLONE_NEWUSER))


@attempt
def make_a_user_namespace_by_clone(facts: Any) -> object:
    flags = CLONE_NEWUSER | signal.SIGCHLD
    pid = call("syscall", 56 if os.uname().machine == "x86_64" else 220, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt
def trace_a_child_process(facts: Any) -> object:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        call("ptrace", 16, pid, 0, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@attempt
def add_a_key_to_a_kernel_keyring(facts: Any) -> object:
    number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    call("syscall", number, b"user", b"retinue-escape", b"x", 1, -1)  # add_key, into the thread's own keyring


@attempt
def create_an_anonymous_memory_file(facts: Any) -> object:
    os.close(os.memfd_create("escape"))


@attempt
def open_a_hypervisor_socket(facts: Any) -> object:
    socket.socket(40, socket.SOCK_STREAM).close()  # AF_VSOCK


@attempt
def give_the_kernel_a_program(facts: Any) -> object:
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    attributes = (ctypes.c_uint32 * 32)(2, 4, 4, 1)  # BPF_MAP_CREATE of a small array
    os.close(call("syscall", number, 0, attributes, 72))


@attempt
def open_a_performance_counter(facts: Any) -> object:
    number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
    attributes = (ctypes.c_uint32 * 32)(1, 128)  # PERF_TYPE_SOFTWARE, and the size of the structure
    os.close(call("syscall", number, attributes, 0, -1, -1, 0))


@attempt
def set_up_an_io_uring(facts: Any) -> object:
    os.close(call("syscall", 425, 4, (ctypes.c_uint32 * 64)()))


# Files left behind for another user of the machine to run

SETUID, SETGID, AT_FDCWD, O_TMPFILE = 0o4755, 0o2755, -100, 0o20000000 | os.O_DIRECTORY


def _left_path(facts: Any, name: str) -> Path:
    return Path(facts["workspace"]) / f"left-{name}"


def _create_empty_file(facts: Any, name: str) -> Path:
    path = _left_path(facts, name)
    path.touch(0o755)
    return path


def _check_privilege_bits(path: Path) -> None:
    """A call may succeed and still leave out the bit."""
    if not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise PermissionError("the bit is not set")


@attempt
def leave_a_setuid_program_by_chmod(facts: Any) -> object:
    path = _create_empty_file(facts, "chmod")
    os.chmod(path, SETUID)
    return _check_privilege_bits(path)


@attempt
def leave_a_setgid_program_by_chmod(facts: Any) -> object:
    path = _create_empty_file(facts, "chmod-setgid")
    os.chmod(path, SETGID)
    return _check_privilege_bits(path)


@attempt
def leave_a_setgid_folder_by_chmod(facts: Any) -> object:
    path = _left_path(facts, "folder")
    path.mkdir()
    os.chmod(path, SETGID)
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_fchmod(facts: Any) -> object:
    path = _create_empty_file(facts, "fchmod")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(descriptor, SETUID)
    finally:
        os.close(descriptor)
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_fchmodat(facts: Any) -> object:
    path = _create_empty_file(facts, "fchmodat")
    number = {"x86_64": 268, "aarch64": 53}[os.uname().machine]
    call("syscall", number, AT_FDCWD, bytes(path), SETUID)
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_fchmodat2(facts: Any) -> object:
    path = _create_empty_file(facts, "fchmodat2")
    try:
        call("syscall", 452, AT_FDCWD, bytes(path), SETUID, 0)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        os.chmod(path, SETUID)  # this kernel does not have the call yet
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_creat(facts: Any) -> object:
    path = _left_path(facts, "creat")
    os.close(call("creat", bytes(path), SETUID))
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_open(facts: Any) -> object:
    path = _left_path(facts, "open")
    if os.uname().machine == "x86_64":
        os.close(call("syscall", 2, bytes(path), os.O_CREAT | os.O_WRONLY, SETUID))
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, SETUID))
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_openat(facts: Any) -> object:
    path = _left_path(facts, "openat")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, SETUID))
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_openat2(facts: Any) -> object:
    path = _left_path(facts, "openat2")
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, SETUID, 0)
    os.close(call("syscall", 437, AT_FDCWD, bytes(path), how, ctypes.sizeof(how)))
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_linking_an_unnamed_file(facts: Any) -> object:
    path = _left_path(facts, "unnamed")
    descriptor = os.open(facts["workspace"], O_TMPFILE | os.O_WRONLY, SETUID)
    try:
        call("linkat", AT_FDCWD, f"/proc/self/fd/{descriptor}".encode(), AT_FDCWD, bytes(path), 0x400)
    finally:
        os.close(descriptor)
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_mknod(facts: Any) -> object:
    path = _left_path(facts, "mknod")
    if os.uname().machine == "x86_64":
        call("syscall", 133, bytes(path), stat.S_IFREG | SETUID, 0)
    else:
        os.mknod(path, stat.S_IFREG | SETUID)
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_mknodat(facts: Any) -> object:
    path = _left_path(facts, "mknodat")
    number = {"x86_64": 259, "aarch64": 33}[os.uname().machine]
    call("syscall", number, AT_FDCWD, bytes(path), stat.S_IFREG | SETUID, 0)
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_install(facts: Any) -> object:
    path = _left_path(facts, "install")
    subprocess.run(["install", "-m", "4755", "/dev/null", str(path)], check=True, capture_output=True)
    return _check_privilege_bits(path)


@attempt
def leave_a_setuid_program_by_unpacking_an_archive(facts: Any) -> object:
    archive, path = _left_path(facts, "archive.tar"), _left_path(facts, "unpacked")
    with tarfile.open(archive, "w") as packed:
        entry = tarfile.TarInfo(path.name)
        entry.mode, entry.uid, entry.gid = SETUID, os.getuid(), os.getgid()
        packed.addfile(entry)
    subprocess.run(["tar", "-xpf", str(archive), "-C", facts["workspace"]], check=False, capture_output=True)
    return _check_privilege_bits(path)


@attempt
def leave_a_link_to_a_setuid_program_of_the_system(facts: Any) -> object:
    path = _left_path(facts, "linked")
    os.link("/usr/bin/su", path)
    return _check_privilege_bits(path)


@attempt
def leave_a_program_with_capabilities(facts: Any) -> object:
    path = _create_empty_file(facts, "capabilities")
    permitted = struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0)  # CAP_SETUID, permitted and effective
    os.setxattr(path, "security.capability", permitted)


def main() -> None:
    facts = json.loads(Path(sys.argv[1]).read_text())
    results: dict[str, str] = {}
    for name, act in ATTEMPTS.items():
        try:
            act(facts)
            results[name] = "done"
        except (Exception, AssertionError) as error:  # noqa: BLE001 - whatever stood in the way
            results[name] = f"refused: {type(error).__name__}: {error}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
