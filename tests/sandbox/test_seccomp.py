"""The system call filter: interpreted by the tests for both architectures, and elsewhere by this kernel."""

from __future__ import annotations

import errno
import struct

import pytest

from retinue.sandbox import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000


def errno_action(number: int) -> int:
    return 0x00050000 | number


def run_filter(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Return what the kernel would answer, for the instructions used: load, jump and return."""
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
def filter_and_table(request: pytest.FixtureRequest) -> tuple[bytes, seccomp.SyscallTable]:
    program = seccomp.build_filter(request.param)
    assert program is not None
    return program, seccomp.MACHINES[request.param]


def test_the_seccomp_filter_refuses_system_calls_that_could_escape_the_sandbox(
    filter_and_table: tuple[bytes, seccomp.SyscallTable],
) -> None:
    program, kernel = filter_and_table
    for name in ("ptrace", "keyctl", "add_key", "mount", "unshare", "setns", "bpf", "perf_event_open", "init_module"):
        assert run_filter(program, kernel.architecture, kernel.numbers[name]) == errno_action(errno.EPERM), name
    for name in ("clone3", "memfd_create", "shmget"):
        assert run_filter(program, kernel.architecture, kernel.numbers[name]) == errno_action(errno.ENOSYS), name


def test_the_seccomp_filter_refuses_clone_with_namespace_flags_and_allows_threads_and_forks(
    filter_and_table: tuple[bytes, seccomp.SyscallTable],
) -> None:
    program, kernel = filter_and_table
    clone = kernel.numbers["clone"]
    assert run_filter(program, kernel.architecture, clone, 0x003D0F00) == ALLOW  # the flags of a new thread
    assert run_filter(program, kernel.architecture, clone, 17) == ALLOW  # a fork
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert run_filter(program, kernel.architecture, clone, flag | 17) == errno_action(errno.EPERM)


def test_the_seccomp_filter_refuses_terminal_input_ioctls_in_every_encoding_of_the_request(
    filter_and_table: tuple[bytes, seccomp.SyscallTable],
) -> None:
    program, kernel = filter_and_table
    ioctl = kernel.numbers["ioctl"]
    for request in (0x5412, 0x541C, 0x1_0000_5412, 0xFFFF_FFFF_0000_5412):  # the kernel reads only the low half
        assert run_filter(program, kernel.architecture, ioctl, 1, request) == errno_action(errno.EPERM)
    assert run_filter(program, kernel.architecture, ioctl, 1, 0x5413) == ALLOW  # the size of a terminal


def test_the_seccomp_filter_allows_only_socket_families_that_a_network_namespace_confines(
    filter_and_table: tuple[bytes, seccomp.SyscallTable],
) -> None:
    program, kernel = filter_and_table
    for name in ("socket", "socketpair"):
        for family, answer in ((1, ALLOW), (2, ALLOW), (10, ALLOW), (16, ALLOW)):
            assert run_filter(program, kernel.architecture, kernel.numbers[name], family) == answer
        for family in (17, 38, 40, 44):
            assert run_filter(program, kernel.architecture, kernel.numbers[name], family) == errno_action(
                errno.EAFNOSUPPORT
            )


MODE_ARGUMENT_INDEX = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}


def test_the_seccomp_filter_refuses_a_mode_with_a_setuid_or_setgid_bit(
    filter_and_table: tuple[bytes, seccomp.SyscallTable],
) -> None:
    program, kernel = filter_and_table
    seen = {name: index for name, index in MODE_ARGUMENT_INDEX.items() if name in kernel.numbers}
    assert seen.keys() >= {"fchmod", "fchmodat", "fchmodat2", "mknodat"}
    for name, index in seen.items():
        for mode in (0o4755, 0o2775, 0o6777, 0o104755, 0xFFFF_FFFF_0000_0800):
            arguments = (*[0] * index, mode)
            answer = run_filter(program, kernel.architecture, kernel.numbers[name], *arguments)
            assert answer == errno_action(errno.EPERM), (name, oct(mode))
        for mode in (0o755, 0o1777, 0o100644, 0):
            arguments = (*[0] * index, mode)
            assert run_filter(program, kernel.architecture, kernel.numbers[name], *arguments) == ALLOW, (
                name,
                oct(mode),
            )


def test_the_seccomp_filter_refuses_to_create_a_file_with_a_setuid_or_setgid_bit(
    filter_and_table: tuple[bytes, seccomp.SyscallTable],
) -> None:
    program, kernel = filter_and_table
    creates, unnamed, reads = 0o101, 0o20000001, 0
    for name, index in {"open": 1, "openat": 2}.items():
        if name not in kernel.numbers:
            continue
        for flags, mode, answer in (
            (creates, 0o4755, errno_action(errno.EPERM)),
            (unnamed, 0o4755, errno_action(errno.EPERM)),
            (creates, 0o2644, errno_action(errno.EPERM)),
            (creates, 0o1666, ALLOW),
            (reads, 0o4755, ALLOW),  # the kernel ignores the mode, so any value is allowed
        ):
            arguments = (*[0] * index, flags, mode)
            assert run_filter(program, kernel.architecture, kernel.numbers[name], *arguments) == answer, (
                name,
                flags,
                mode,
            )
    # The filter cannot read the mode behind a pointer.
    assert run_filter(program, kernel.architecture, kernel.numbers["openat2"]) == errno_action(errno.ENOSYS)


def test_the_seccomp_filter_kills_or_refuses_system_calls_of_another_architecture(
    filter_and_table: tuple[bytes, seccomp.SyscallTable],
) -> None:
    program, kernel = filter_and_table
    assert run_filter(program, 0x40000003, 1) == KILL  # 32-bit calls
    if kernel.has_x32:
        assert run_filter(program, kernel.architecture, 0x40000000 | kernel.numbers["ptrace"]) == errno_action(
            errno.ENOSYS
        )
    assert run_filter(program, kernel.architecture, 0) == ALLOW


def test_an_unknown_processor_has_no_seccomp_filter() -> None:
    assert seccomp.build_filter("riscv64") is None
