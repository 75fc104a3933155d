"""`up`, `down` and `logs`. A `flock` identifies the running server, so no crash can leave a stale state."""

from __future__ import annotations

import os
import signal
import sys
import time

from retinue.cli.client import ask, home
from retinue.cli.errors import FAILED, OK, CliError, HouseClosed
from retinue.cli.output import complain, pair, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

LOOK_S = 0.05
KILL_WAIT_S = 10.0
ANSWER_S = 5.0
START_LOGS_KEPT = 5
LEFT_LOCKED_S_MAX = 5.0
READ_BYTES = 64 * 1024


def holder(folder: str) -> int:
    """Return the process id of the server in this data directory: 0 if none runs, -1 if it is unknown.

    After a kill, a child process that the server had just started may hold the lock a moment longer.
    """
    deadline = time.monotonic() + LEFT_LOCKED_S_MAX
    while (process := _locked_by(folder)) > 0 and _is_gone(process) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return process


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it exists, but belongs to another user
    return False


def _locked_by(folder: str) -> int:
    import fcntl

    try:
        fd = os.open(os.path.join(folder, "lock"), os.O_RDONLY | os.O_CLOEXEC)
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


def up(options: Namespace) -> int:
    folder = home()
    if (process := holder(folder)) and not options.force:
        raise CliError(
            f"a house is already open in {folder}",
            code="house.already-open",
            because=f"process {process} serves it" if process > 0 else "another process holds its lock",
            try_this="retinue status, or retinue up --force to open it anew",
        )
    if process:
        _close(folder, process, wait_s=options.wait)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path, log = _new_start_log(folder)
    process = _start(log)
    _wait_until_open(folder, process, path, log, wait_s=options.wait)
    os.close(log)
    return _tell(options, {"house": "open", "home": folder, "process": process, "log": _log_of(folder)})


def _tell(options: Namespace, form: dict[str, str | int]) -> int:
    if options.json:
        import json

        say([json.dumps(form, ensure_ascii=False)])
    else:
        say([line for key, value in form.items() for line in pair(key, value)])
    return OK


def _start(log: int) -> int:
    """Start the server in a new session, so that Ctrl-C or closing this terminal does not stop it."""
    words = [sys.executable, "-P", "-m", "retinue.app.server"]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    environment = {**os.environ, "RETINUE_BACKGROUND": "1"}  # it logs to the data directory only
    return os.posix_spawn(sys.executable, words, environment, file_actions=actions, setsid=True)


def _wait_until_open(folder: str, process: int, path: str, log: int, *, wait_s: float) -> None:
    """Wait until this process answers, since another process may have started a server just before us."""
    deadline = time.monotonic() + wait_s
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            raise _did_not_open(path, _said(log), os.waitstatus_to_exitcode(status))
        if _answers() and holder(folder) == process:
            return
        if time.monotonic() > deadline:
            raise CliError(
                "the house does not answer yet",
                code="house.slow-start",
                because=f"process {process} has been starting for {wait_s:g} s",
                try_this=f"wait and look with `retinue status`, or read {path}",
            )
        time.sleep(LOOK_S)


def _answers() -> bool:
    try:
        ask("house.status", timeout_s=ANSWER_S)
    except HouseClosed:
        return False
    except CliError:
        return True  # an error response shows that it runs
    return True


def _said(log: int) -> list[str]:
    """Read the start log by descriptor, since its name may refer to a newer log by now."""
    return os.pread(log, READ_BYTES, 0).decode(errors="replace").splitlines()


def _did_not_open(path: str, said: list[str], code: int) -> CliError:
    """Build the error from the server's own error message, if it printed one."""
    starts = [n for n, line in enumerate(said) if line.startswith("error: ")]
    if starts:
        told = said[starts[-1] :]
        because = next((line[9:] for line in told if line.startswith("because: ")), "")
        try_this = next((line[5:] for line in told if line.startswith("try: ")), f"read {path}")
        sentence, _, end = told[0][7:].rpartition(" [")
        return CliError(
            sentence or end, code=end.rstrip("]") or "house.did-not-open", because=because, try_this=try_this
        )
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
    return CliError(
        "the house did not open",
        code="house.did-not-open",
        because=f"it ended with {ended}: {last}",
        try_this=f"read {path}",
    )


def _new_start_log(folder: str) -> tuple[str, int]:
    """Open a new log for output during the start and crashes that cannot be logged. Rotates older ones."""
    logs = os.path.join(folder, "logs")
    os.makedirs(logs, mode=0o700, exist_ok=True)
    path = os.path.join(logs, "start.log")
    while True:
        for number in range(START_LOGS_KEPT - 1, -1, -1):
            try:
                os.replace(f"{path}.{number}" if number else path, f"{path}.{number + 1}")
            except FileNotFoundError:
                pass
        try:
            return path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # another process starts a server at the same moment
            continue


# Down


def down(options: Namespace) -> int:
    folder = home()
    process = holder(folder)
    if not process:
        raise HouseClosed(f"nobody serves {folder}")
    how = _close(folder, process, wait_s=options.wait)
    return _tell(options, {"house": "closed", "home": folder, "process": process, "how": how})


def _close(folder: str, process: int, *, wait_s: float) -> str:
    """Ask the server to finish, and kill it if it does not. Its work resumes at the next start either way."""
    if process < 0:
        raise CliError(
            f"whoever serves {folder} cannot be asked to stop",
            code="house.unknown-process",
            because="its lock does not say which process holds it",
            try_this=f"fuser {os.path.join(folder, 'lock')}",
        )
    for number, words, patience_s in ((signal.SIGTERM, "finished", wait_s), (signal.SIGKILL, "killed", KILL_WAIT_S)):
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise CliError(
                f"process {process} is not yours to stop",
                code="house.not-yours",
                because="another user started it",
                try_this="ask them, or the owner of this machine",
            ) from None
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if holder(folder) != process:
                return words
            time.sleep(LOOK_S)
    raise CliError(
        f"process {process} does not end",
        code="house.does-not-end",
        because=f"it was killed {KILL_WAIT_S:g} s ago and still holds its lock",
        try_this="look at what it waits for; a disk that hangs does this",
    )


# Logs


def _log_of(folder: str) -> str:
    """Return the path of the server's log, or of the start log if there is none."""
    logs = os.path.join(folder, "logs")
    own = os.path.join(logs, "retinue.log")
    return own if os.path.exists(own) else os.path.join(logs, "start.log")


def logs(options: Namespace) -> int:
    path = _log_of(home())
    try:
        file = open(path, "rb")  # noqa: SIM115 - followed through rotations
    except OSError as error:
        complain(
            CliError(
                "there is no log",
                code="logs.missing",
                because=f"{path} cannot be read ({error.strerror})",
                try_this="retinue up",
            )
        )
        return FAILED
    _write(_tail(file.read(), max(0, options.lines)))
    while options.follow:
        if new := file.read(READ_BYTES):
            _write(new)
            continue
        time.sleep(LOOK_S)
        file = _followed(file, path)
    file.close()
    return OK


def _tail(data: bytes, lines: int) -> bytes:
    kept = data.splitlines(keepends=True)
    return b"".join(kept[len(kept) - lines :] if lines < len(kept) else kept)


def _followed(file: _File, path: str) -> _File:
    """Return the same file, or the one that replaced it in a rotation."""
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
        from retinue.cli.live_region import visible

        text = visible(text)
    sys.stdout.write(text)
    sys.stdout.flush()


if TYPE_CHECKING:
    from io import BufferedReader

    _File = BufferedReader

COMMANDS: dict[str, Callable[[Namespace], int]] = {"up": up, "down": down, "logs": logs}
