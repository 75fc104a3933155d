"""Implements `up`, `down` and `logs`.

The running server holds a `flock` on the file `lock` in the data directory. The kernel releases the lock when the
process ends, so a crash leaves no stale lock.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from retinue.cli.client import call_raw, get_data_dir
from retinue.cli.errors import EXIT_FAILED, EXIT_OK, CliError, ServerNotAnswering
from retinue.cli.output import format_pair, print_error, print_lines, to_kebab_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

POLL_INTERVAL_S = 0.05
KILL_WAIT_S = 10.0
ANSWER_TIMEOUT_S = 5.0
START_LOGS_KEPT_MAX = 5
LOCK_RELEASE_S_MAX = 5.0
READ_BYTES = 64 * 1024
SETTINGS_PREFIX = "settings: "  # of lines about renamed settings in the start log


def find_server_pid(data_dir: str) -> int:
    """Return the process id of the server that uses this data directory.

    Returns 0 if no server is running, and -1 if the id is unknown. If the server was killed, this waits briefly,
    because a child process that the server had just started may still hold the lock.
    """
    deadline = time.monotonic() + LOCK_RELEASE_S_MAX
    while (process := _read_lock_holder(data_dir)) > 0 and _is_gone(process) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    return process


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it exists, but belongs to another user
    return False


def _read_lock_holder(data_dir: str) -> int:
    import fcntl

    try:
        fd = os.open(os.path.join(data_dir, "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        held = os.pread(fd, 32, 0).decode(errors="replace").strip()
        return int(held) if held.isdecimal() else -1
    else:
        return 0
    finally:
        os.close(fd)


# Up


def start_server(options: Namespace) -> int:
    folder = get_data_dir()
    if (process := find_server_pid(folder)) and not options.force:
        raise CliError(
            f"a server is already running in {folder} (pid {process if process > 0 else 'unknown'})",
            code="server.already_running",
            because="only one process can use a data directory",
            try_this="retinue chat, or retinue down; to restart it: retinue up --force",
        )
    if process:
        _stop_server(folder, process, wait_s=options.wait)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path, log = _new_start_log(folder)
    process = _spawn_server(log)
    _wait_until_running(folder, process, path, log, wait_s=options.wait)
    _print_renamed_settings(_read_start_log(log))
    os.close(log)
    return _print_result(
        options, {"server": "running", "data_directory": folder, "pid": process, "log": _find_log(folder)}
    )


def _print_renamed_settings(start_log: list[str]) -> None:
    """Print to stderr which old names of settings the server replaced or found when it started."""
    for line in start_log:
        if line.startswith(SETTINGS_PREFIX):
            sys.stderr.write(f"{line.removeprefix(SETTINGS_PREFIX)}\n")


def _print_result(options: Namespace, data: dict[str, str | int]) -> int:
    if options.json:
        import json

        print_lines([json.dumps(data, ensure_ascii=False)])
    else:
        print_lines([line for key, value in data.items() for line in format_pair(to_kebab_case(key), value)])
    return EXIT_OK


def _spawn_server(log: int) -> int:
    """Start the server in a new session, so that Ctrl-C or closing this terminal does not stop it."""
    words = [sys.executable, "-P", "-m", "retinue.app.server"]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    environment = {**os.environ, "RETINUE_BACKGROUND": "1"}  # it logs to the data directory only
    return os.posix_spawn(sys.executable, words, environment, file_actions=actions, setsid=True)


def _wait_until_running(data_dir: str, pid: int, path: str, log: int, *, wait_s: float) -> None:
    """Wait until the server with this process id responds. A response from another server process does not count."""
    deadline = time.monotonic() + wait_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _start_failed_error(path, _read_start_log(log), os.waitstatus_to_exitcode(status))
        if _is_answering() and find_server_pid(data_dir) == pid:
            return
        if time.monotonic() > deadline:
            raise CliError(
                "the server is not answering yet",
                code="server.slow_start",
                because=f"process {pid} has been starting for {wait_s:g} s",
                try_this=f"wait, then run retinue status; or read {path}",
            )
        time.sleep(POLL_INTERVAL_S)


def _is_answering() -> bool:
    try:
        call_raw("server.status", timeout_s=ANSWER_TIMEOUT_S)
    except ServerNotAnswering:
        return False
    except CliError:
        return True  # an error response shows that it is running
    return True


def _read_start_log(log: int) -> list[str]:
    """Read the start log through its open descriptor, because its path may already belong to a newer log."""
    return os.pread(log, READ_BYTES, 0).decode(errors="replace").splitlines()


def _start_failed_error(path: str, lines: list[str], exit_code: int) -> CliError:
    """Build the error from the server's own error message, if it printed one."""
    starts = [n for n, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        error = lines[starts[-1] :]
        because = next((line[9:] for line in error if line.startswith("because: ")), "")
        try_this = next((line[5:] for line in error if line.startswith("try: ")), f"read {path}")
        sentence, _, end = error[0][7:].rpartition(" [")
        return CliError(
            sentence or end, code=end.rstrip("]") or "server.start_failed", because=because, try_this=try_this
        )
    ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return CliError(
        "the server did not start",
        code="server.start_failed",
        because=f"its process ended with {ended}: {last}",
        try_this=f"read {path}",
    )


def _new_start_log(data_dir: str) -> tuple[str, int]:
    """Open a new start log and rotate older ones.

    The start log contains what the server prints while it starts, and crashes that cannot be logged.
    """
    logs = os.path.join(data_dir, "logs")
    os.makedirs(logs, mode=0o700, exist_ok=True)
    path = os.path.join(logs, "start.log")
    while True:
        for number in range(START_LOGS_KEPT_MAX - 1, -1, -1):
            try:
                os.replace(f"{path}.{number}" if number else path, f"{path}.{number + 1}")
            except FileNotFoundError:
                pass
        try:
            return path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # another process is starting a server at the same moment
            continue


# Down


def stop_server(options: Namespace) -> int:
    folder = get_data_dir()
    process = find_server_pid(folder)
    if not process:
        raise ServerNotAnswering("no process holds the lock of the data directory")
    how = _stop_server(folder, process, wait_s=options.wait)
    return _print_result(options, {"server": "stopped", "data_directory": folder, "pid": process, "how": how})


def _stop_server(data_dir: str, pid: int, *, wait_s: float) -> str:
    """Stop the server with SIGTERM, or kill it if it does not end in time. The next start resumes unfinished work."""
    if pid < 0:
        raise CliError(
            f"cannot stop the server in {data_dir}",
            code="server.unknown_process",
            because="the lock file of the data directory does not say which process holds the lock",
            try_this=f"find the process: fuser {os.path.join(data_dir, 'lock')}",
        )
    for number, result, patience_s in ((signal.SIGTERM, "finished", wait_s), (signal.SIGKILL, "killed", KILL_WAIT_S)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise CliError(
                f"you cannot stop process {pid}",
                code="server.not_yours",
                because="another user started it",
                try_this="ask that user, or the administrator of this machine",
            ) from None
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if find_server_pid(data_dir) != pid:
                return result
            time.sleep(POLL_INTERVAL_S)
    raise CliError(
        f"process {pid} has not ended",
        code="server.does_not_end",
        because=f"it was killed {KILL_WAIT_S:g} s ago and still holds the lock of the data directory",
        try_this="check what it is waiting for, such as a disk that is not responding",
    )


# Logs


def _find_log(data_dir: str) -> str:
    """Return the path of the server's log, or of the start log if the server has no log yet."""
    logs = os.path.join(data_dir, "logs")
    own = os.path.join(logs, "retinue.log")
    return own if os.path.exists(own) else os.path.join(logs, "start.log")


def show_logs(options: Namespace) -> int:
    path = _find_log(get_data_dir())
    try:
        file = open(path, "rb")  # noqa: SIM115 - followed through rotations
    except OSError as error:
        print_error(
            CliError(
                "no log file",
                code="logs.missing",
                because=f"cannot read {path} ({error.strerror})",
                try_this="start the server: retinue up",
            )
        )
        return EXIT_FAILED
    _write(_tail(file.read(), max(0, options.lines)))
    while options.follow:
        if new := file.read(READ_BYTES):
            _write(new)
            continue
        time.sleep(POLL_INTERVAL_S)
        file = _reopen_if_rotated(file, path)
    file.close()
    return EXIT_OK


def _tail(data: bytes, lines: int) -> bytes:
    kept = data.splitlines(keepends=True)
    return b"".join(kept[len(kept) - lines :] if lines < len(kept) else kept)


def _reopen_if_rotated(file: _File, path: str) -> _File:
    """Return the open log file. If the log was rotated, open and return the new file."""
    try:
        if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
            return file
        new = open(path, "rb")  # noqa: SIM115
    except OSError:
        return file
    file.close()
    return new


def _write(data: bytes) -> None:
    text = data.decode(errors="replace")
    if sys.stdout.isatty():
        from retinue.cli.live_region import escape_controls

        text = escape_controls(text)
    sys.stdout.write(text)
    sys.stdout.flush()


if TYPE_CHECKING:
    from io import BufferedReader

    _File = BufferedReader

COMMANDS: dict[str, Callable[[Namespace], int]] = {"up": start_server, "down": stop_server, "logs": show_logs}
