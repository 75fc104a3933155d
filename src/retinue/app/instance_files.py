"""Files in the data directory besides the store: the lock, the socket, the listen address and the owner's token."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from retinue.app.errors import ListenFailed, ListenPortTaken, ServerAlreadyRunning, SocketFolderExposed
from retinue.store.core.durable_files import replace_private_file

SOCKET_PATH_LENGTH_MAX = 100  # Linux allows 107 bytes, other systems fewer
BACKLOG = 1024
LOCK_RETRY_S_MAX = 5.0
LOCK_POLL_S = 0.02


@contextmanager
def instance_lock(data_dir: Path) -> Generator[None]:
    """Lock a data directory, so that only one server process uses it. The kernel releases it when the process ends."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(fd, data_dir)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def _acquire(fd: int, data_dir: Path) -> None:
    """Take the lock of a data directory without waiting, or raise `ServerAlreadyRunning`.

    If the process that held the lock was killed, this retries briefly, because child processes of that process may
    still hold the lock.
    """
    deadline = time.monotonic() + LOCK_RETRY_S_MAX
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            if not is_process_gone(holder) or time.monotonic() > deadline:
                raise ServerAlreadyRunning(data_dir, holder) from error
        time.sleep(LOCK_POLL_S)


def is_process_gone(pid: str) -> bool:
    """Whether the process with this id has ended."""
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def socket_path(data_dir: Path, environment: Mapping[str, str]) -> Path:
    """Return the path of the server's Unix socket.

    The socket is in `XDG_RUNTIME_DIR` if that is set, and otherwise in the data directory. If the path would be too
    long, the socket is in the temporary folder.
    """
    name = hashlib.sha256(str(data_dir).encode()).hexdigest()[:12]
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / f"retinue-{name}.sock"
    plain = data_dir / "retinue.sock"
    if len(str(plain).encode()) <= SOCKET_PATH_LENGTH_MAX:
        return plain
    folder = Path(tempfile.gettempdir()) / f"retinue-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SocketFolderExposed(folder)
    return folder / f"{name}.sock"


@contextmanager
def listening_socket(data_dir: Path, path: Path) -> Generator[socket.socket]:
    """Listen on a Unix socket with mode 0600, and write its path to the data directory.

    The caller must hold the instance lock. An existing socket is replaced, because it is from an earlier process.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    _write_atomically(data_dir / "socket", str(path))
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


@contextmanager
def listening_address(data_dir: Path, host: str, port: int) -> Generator[tuple[socket.socket, str]]:
    """Listen on TCP, and write the address to the data directory. Port 0 means any free port."""
    path = data_dir / "address"
    listener = _bind(host, port)
    try:
        bound_host, bound_port = listener.getsockname()[:2]
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        address = f"http://{shown}:{bound_port}"
        _write_atomically(path, address)
        yield listener, address
    finally:
        listener.close()
        path.unlink(missing_ok=True)


@contextmanager
def remove_address(data_dir: Path) -> Generator[None]:
    """Remove the address file of a crashed server. Used by a server that does not listen on TCP."""
    (data_dir / "address").unlink(missing_ok=True)
    yield


def _write_atomically(path: Path, text: str) -> None:
    """Write a file atomically, so that a command that reads it at the same time never gets partial content."""
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.write_text(text)
    os.replace(new, path)


def _bind(host: str, port: int) -> socket.socket:
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        if listener is not None:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenPortTaken(host, port) from error
        raise ListenFailed(host, port, because=str(error.strerror or error)) from error


def owner_token(data_dir: Path, create_token: Callable[[], str]) -> str:
    """Return the owner's token from its file.

    If the file does not exist, it is created with a new token. Only the server's user can read the file.
    """
    path = data_dir / "owner-token"
    if not path.exists():
        replace_private_file(path, f"{create_token()}\n".encode())
    return path.read_text().strip()
