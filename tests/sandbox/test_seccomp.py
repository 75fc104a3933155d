"""The filter of calls, run by a small machine of our own for both processors, and for real on this one elsewhere."""

from __future__ import annotations

import errno
import struct

import pytest

from retinue.sandbox import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000


def refusal(number: int) -> int:
    return 0x00050000 | number


def judge(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would answer: loads, jumps and returns are all there is."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *(*arguments, *[0] * (6 - len(arguments))))
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = value = 0
    while True:
        operation, then, otherwise, operand = code[at]
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x06:
                return operand
            case 0x15:
                at += then if value == operand else otherwise
            case 0x35:
                at += then if value >= operand else otherwise
            case 0x45:
                at += then if value & operand else otherwise
            case _:
                raise AssertionError(f"no such operation: {operation:#x}")
        at += 1


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> tuple[bytes, seccomp.SyscallTable]:
    program = seccomp.build_filter(request.param)
    assert program is not None
    return program, seccomp.MACHINES[request.param]


def test_what_reaches_around_the_walls_is_refused(machine: tuple[bytes, seccomp.SyscallTable]) -> None:
    program, kernel = machine
    for name in ("ptrace", "keyctl", "add_key", "mount", "unshare", "setns", "bpf", "perf_event_open", "init_module"):
        assert judge(program, kernel.architecture, kernel.numbers[name]) == refusal(errno.EPERM), name
    for name in ("clone3", "memfd_create", "shmget"):
        assert judge(program, kernel.architecture, kernel.numbers[name]) == refusal(errno.ENOSYS), name


def test_namespaces_are_refused_and_threads_are_not(machine: tuple[bytes, seccomp.SyscallTable]) -> None:
    program, kernel = machine
    clone = kernel.numbers["clone"]
    assert judge(program, kernel.architecture, clone, 0x003D0F00) == ALLOW  # what a thread is made with
    assert judge(program, kernel.architecture, clone, 17) == ALLOW  # a fork
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert judge(program, kernel.architecture, clone, flag | 17) == refusal(errno.EPERM)


def test_typing_into_a_terminal_is_refused_however_it_is_written(machine: tuple[bytes, seccomp.SyscallTable]) -> None:
    program, kernel = machine
    ioctl = kernel.numbers["ioctl"]
    for request in (0x5412, 0x541C, 0x1_0000_5412, 0xFFFF_FFFF_0000_5412):  # the kernel reads the low half alone
        assert judge(program, kernel.architecture, ioctl, 1, request) == refusal(errno.EPERM)
    assert judge(program, kernel.architecture, ioctl, 1, 0x5413) == ALLOW  # the size of a terminal


def test_only_families_that_a_network_namespace_holds_are_spoken(machine: tuple[bytes, seccomp.SyscallTable]) -> None:
    program, kernel = machine
    for name in ("socket", "socketpair"):
        for family, answer in ((1, ALLOW), (2, ALLOW), (10, ALLOW), (16, ALLOW)):
            assert judge(program, kernel.architecture, kernel.numbers[name], family) == answer
        for family in (17, 38, 40, 44):
            assert judge(program, kernel.architecture, kernel.numbers[name], family) == refusal(errno.EAFNOSUPPORT)


MODE_AT = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}


def test_a_mode_with_a_setuid_or_setgid_bit_is_refused(machine: tuple[bytes, seccomp.SyscallTable]) -> None:
    program, kernel = machine
    seen = {name: index for name, index in MODE_AT.items() if name in kernel.numbers}
    assert seen.keys() >= {"fchmod", "fchmodat", "fchmodat2", "mknodat"}
    for name, index in seen.items():
        for mode in (0o4755, 0o2775, 0o6777, 0o104755, 0xFFFF_FFFF_0000_0800):
            arguments = (*[0] * index, mode)
            answer = judge(program, kernel.architecture, kernel.numbers[name], *arguments)
            assert answer == refusal(errno.EPERM), (name, oct(mode))
        for mode in (0o755, 0o1777, 0o100644, 0):
            arguments = (*[0] * index, mode)
            assert judge(program, kernel.architecture, kernel.numbers[name], *arguments) == ALLOW, (name, oct(mode))


def test_a_file_is_not_created_with_a_setuid_or_setgid_bit(machine: tuple[bytes, seccomp.SyscallTable]) -> None:
    program, kernel = machine
    creates, unnamed, reads = 0o101, 0o20000001, 0
    for name, index in {"open": 1, "openat": 2}.items():
        if name not in kernel.numbers:
            continue
        for flags, mode, answer in (
            (creates, 0o4755, refusal(errno.EPERM)),
            (unnamed, 0o4755, refusal(errno.EPERM)),
            (creates, 0o2644, refusal(errno.EPERM)),
            (creates, 0o1666, ALLOW),
            (reads, 0o4755, ALLOW),  # the kernel ignores the mode, so a program may leave anything there
        ):
            arguments = (*[0] * index, flags, mode)
            assert judge(program, kernel.architecture, kernel.numbers[name], *arguments) == answer, (name, flags, mode)
    # A pointer hides its mode from the filter.
    assert judge(program, kernel.architecture, kernel.numbers["openat2"]) == refusal(errno.ENOSYS)


def test_calls_by_other_numbers_are_no_way_around(machine: tuple[bytes, seccomp.SyscallTable]) -> None:
    program, kernel = machine
    assert judge(program, 0x40000003, 1) == KILL  # those of 32 bits
    if kernel.has_x32:
        assert judge(program, kernel.architecture, 0x40000000 | kernel.numbers["ptrace"]) == refusal(errno.ENOSYS)
    assert judge(program, kernel.architecture, 0) == ALLOW


def test_a_processor_that_is_not_known_has_no_filter() -> None:
    assert seccomp.build_filter("riscv64") is None
