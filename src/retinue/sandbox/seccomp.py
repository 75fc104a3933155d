"""The seccomp filter of confined commands, assembled as BPF by hand.

A refused call fails with EPERM or ENOSYS, so that programs can use an alternative. The filter
refuses calls that bypass isolation (mounts, namespaces, other processes) and calls that namespaces
do not isolate (keys, tracing, unaccounted kernel memory). It also refuses calls that inject input
into a terminal or set a setuid or setgid bit. A file with such a bit would stay on the host after
the command, where another user could run it with the server's rights.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping

from msgspec import Struct

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32_BIT = 0x40000000

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_TERMINAL_REQUESTS = (0x5412, 0x541C)  # TIOCSTI types into a terminal, TIOCLINUX pastes into one
_SETUID_OR_SETGID = 0o4000 | 0o2000
_CREATE_FLAGS = 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE: without either, open ignores its mode, which may be garbage
_ALLOWED_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink: vsock of a virtual machine is in no network namespace


class SyscallTable(Struct, frozen=True):
    """The system call numbers of an architecture."""

    architecture: int
    numbers: Mapping[str, int]
    has_x32: bool = False


_COMMON_NUMBERS = {  # since Linux 5 the same on all architectures
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "fchmodat2": 452,
}

MACHINES: Mapping[str, SyscallTable] = {
    "x86_64": SyscallTable(
        0xC000003E,
        {
            **_COMMON_NUMBERS,
            "open": 2,
            "ioctl": 16,
            "shmget": 29,
            "socket": 41,
            "socketpair": 53,
            "clone": 56,
            "msgget": 68,
            "creat": 85,
            "chmod": 90,
            "fchmod": 91,
            "ptrace": 101,
            "syslog": 103,
            "mknod": 133,
            "pivot_root": 155,
            "adjtimex": 159,
            "acct": 163,
            "settimeofday": 164,
            "mount": 165,
            "umount2": 166,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "sethostname": 170,
            "setdomainname": 171,
            "iopl": 172,
            "ioperm": 173,
            "init_module": 175,
            "delete_module": 176,
            "quotactl": 179,
            "clock_settime": 227,
            "kexec_load": 246,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "openat": 257,
            "mknodat": 259,
            "fchmodat": 268,
            "unshare": 272,
            "perf_event_open": 298,
            "fanotify_init": 300,
            "open_by_handle_at": 304,
            "clock_adjtime": 305,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "kcmp": 312,
            "finit_module": 313,
            "memfd_create": 319,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
        },
        has_x32=True,
    ),
    "aarch64": SyscallTable(
        0xC00000B7,
        {
            **_COMMON_NUMBERS,
            "ioctl": 29,
            "mknodat": 33,
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "fchmod": 52,
            "fchmodat": 53,
            "openat": 56,
            "quotactl": 60,
            "acct": 89,
            "unshare": 97,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "clock_settime": 112,
            "syslog": 116,
            "ptrace": 117,
            "reboot": 142,
            "sethostname": 161,
            "setdomainname": 162,
            "settimeofday": 170,
            "adjtimex": 171,
            "msgget": 186,
            "shmget": 194,
            "socket": 198,
            "socketpair": 199,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "clone": 220,
            "swapon": 224,
            "swapoff": 225,
            "perf_event_open": 241,
            "fanotify_init": 262,
            "open_by_handle_at": 265,
            "clock_adjtime": 266,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "kcmp": 272,
            "finit_module": 273,
            "memfd_create": 279,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
        },
    ),
}

# Index of the mode argument. ARM64 has only fchmod and the names that end in "at". mkdir is missing on purpose: the
# kernel drops these bits from its mode, and `cp -r` passes them for every folder that inherited one.
_MODE_ARGUMENT = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}
_FLAGS_ARGUMENT = {"open": 1, "openat": 2}  # the mode argument follows the flags
# Checked by their arguments, below.
_CHECKED_BY_ARGUMENT = frozenset({"ioctl", "clone", "socket", "socketpair", *_MODE_ARGUMENT, *_FLAGS_ARGUMENT})
_ALLOWED = frozenset({"pidfd_send_signal"})  # listed to show that it was reviewed: signals stay in the pid namespace
# Reported as missing so that programs fall back. No filter can read the flags of `clone3` and `openat2`; glibc falls
# back to `clone`, and programs to `openat`. Unaccounted memory has an alternative: a file in /dev/shm, whose size is
# limited.
_REPORTED_MISSING = frozenset(
    {"clone3", "openat2", "memfd_create", "memfd_secret", "shmget", "msgget", "io_uring_setup"}
)


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the filter for a machine architecture, by default this one.

    None if its system call numbers are unknown.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, known.architecture, 1, 0),
        _instruction(_RETURN, _KILL),  # another architecture has other call numbers
        _instruction(_LOAD, _NUMBER),
    ]
    if known.has_x32:
        code += [_instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    for name, number in known.numbers.items():
        if name in _CHECKED_BY_ARGUMENT or name in _ALLOWED:
            continue
        refusal = errno.ENOSYS if name in _REPORTED_MISSING else errno.EPERM
        code += [_instruction(_JUMP_EQUAL, number, 0, 1), _instruction(_RETURN, _ERRNO | refusal)]
    code += _check_call(known.numbers["clone"], _refuse_any_bit(0, _NAMESPACES))
    code += _check_call(known.numbers["ioctl"], _refuse_values(1, _TERMINAL_REQUESTS))
    for name in ("socket", "socketpair"):
        code += _check_call(known.numbers[name], _allow_only_values(0, _ALLOWED_FAMILIES))
    for name, index in _MODE_ARGUMENT.items():
        if name in known.numbers:
            code += _check_call(known.numbers[name], _refuse_any_bit(index, _SETUID_OR_SETGID))
    for name, index in _FLAGS_ARGUMENT.items():
        if name in known.numbers:
            code += _check_call(known.numbers[name], _refuse_create_with_any_bit(index, _SETUID_OR_SETGID))
    code.append(_instruction(_RETURN, _ALLOW))
    return b"".join(code)


def _check_call(number: int, check: list[bytes]) -> list[bytes]:
    """Return instructions that check one system call by an argument. `check` overwrites the loaded
    call number, so it must return on every path.
    """
    return [_instruction(_JUMP_EQUAL, number, 0, len(check)), *check]


def _load_argument(index: int) -> bytes:
    """Return the instruction that loads the low 32 bits of an argument.

    The kernel ignores the high bits of the arguments checked here.
    """
    return _instruction(_LOAD, _ARGUMENTS + 8 * index)


def _refuse_any_bit(index: int, bits: int) -> list[bytes]:
    return [
        _load_argument(index),
        _instruction(_JUMP_ANY_BIT, bits, 0, 1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]


def _refuse_create_with_any_bit(flags_index: int, bits: int) -> list[bytes]:
    return [
        _load_argument(flags_index),
        _instruction(_JUMP_ANY_BIT, _CREATE_FLAGS, 1, 0),
        _instruction(_RETURN, _ALLOW),
        *_refuse_any_bit(flags_index + 1, bits),
    ]


def _refuse_values(index: int, values: tuple[int, ...]) -> list[bytes]:
    tests = [_instruction(_JUMP_EQUAL, value, len(values) - at, 0) for at, value in enumerate(values)]
    return [_load_argument(index), *tests, _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERRNO | errno.EPERM)]


def _allow_only_values(index: int, values: tuple[int, ...]) -> list[bytes]:
    tests = [_instruction(_JUMP_EQUAL, value, len(values) - at, 0) for at, value in enumerate(values)]
    return [
        _load_argument(index),
        *tests,
        _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        _instruction(_RETURN, _ALLOW),
    ]


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
