"""A running child process: its output stream, input or terminal, time limit and exit.

This works on every event loop, because it only watches file descriptors and a pidfd. It needs no threads and no signal
handlers, and leaves no zombies.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty as ptys
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.sandbox.base import CommandExit, ResourceLimits
from retinue.sandbox.errors import CommandInputClosed

READ_BYTES = 64 * 1024
BUFFER_BYTES_MAX = 1024 * 1024  # buffered for the reader; beyond it, the command blocks
INPUT_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 10.0
EXCESS_CHECK_INTERVAL_S = 0.1
ROWS, COLUMNS = 24, 80
ROWS_MAX = 10_000
_END_OF_INPUT = b"\x04"
# Without the signals that Popen restores itself: Python must continue to ignore them.
_RESTORED_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}


class SpawnedProcess(Struct, frozen=True):
    """A process with its output and input descriptors. With a terminal, both are the same."""

    popen: subprocess.Popen[bytes]
    output: int
    input: int

    def close(self) -> None:
        """Kill a process that never became a `ChildProcess`, and close its descriptors."""
        self.popen.kill()
        self.popen.wait()
        for descriptor in {self.output, self.input}:
            os.close(descriptor)


class ChildProcess:
    """A child process in its own process group.

    `kill_all` kills everything that the process started. `last_pidfd` becomes readable when all of
    that has ended. `find_excess` is called every `EXCESS_CHECK_INTERVAL_S` and returns which limit
    is exceeded, or an empty string. `on_close` is called once at the end. `interpret_exit` converts
    the exit status, if the launcher has its own exit codes.
    """

    def __init__(
        self,
        spawned: SpawnedProcess,
        *,
        limits: ResourceLimits,
        kill_all: Callable[[], None],
        has_terminal: bool = False,
        last_pidfd: int | None = None,
        find_excess: Callable[[], str] | None = None,
        on_close: Callable[[], None] | None = None,
        interpret_exit: Callable[[CommandExit], CommandExit] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._popen = spawned.popen
        self._output: int | None = spawned.output
        self._input: int | None = spawned.input
        self._has_terminal = has_terminal
        self._limits = limits
        self._kill_all = kill_all
        self._last_pidfd = last_pidfd
        self._find_excess = find_excess
        self._on_close = on_close
        self._interpret_exit = interpret_exit
        self._because = ""
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = self._output_bytes = 0
        self._is_reading = False
        self._output_changed = asyncio.Event()  # more output was read, or the output ended
        self._exit: asyncio.Future[CommandExit] = self._loop.create_future()
        self._write_lock = asyncio.Lock()
        os.set_blocking(spawned.output, False)
        os.set_blocking(spawned.input, False)
        self._timer = self._loop.call_later(limits.seconds, self._expire)
        self._excess_timer = self._loop.call_later(EXCESS_CHECK_INTERVAL_S, self._check_excess) if find_excess else None
        self._update_reader()
        self._pidfd = _watch_exit(self._loop, spawned.popen, self._on_exit)

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def read(self) -> bytes:
        while not self._chunks:
            if self._output is None:
                return b""
            self._output_changed.clear()
            self._update_reader()
            await self._output_changed.wait()
        chunk = self._chunks.popleft()
        self._buffered_bytes -= len(chunk)
        self._update_reader()
        return chunk

    async def write(self, data: bytes) -> None:
        try:
            async with self._write_lock, asyncio.timeout(INPUT_TIMEOUT_S):
                await self._write(memoryview(data))
        except TimeoutError:
            raise CommandInputClosed(because=f"it has not read its input for {INPUT_TIMEOUT_S:g} s") from None

    async def _write(self, left: memoryview) -> None:
        while left:
            if self._input is None:
                raise CommandInputClosed()
            try:
                left = left[os.write(self._input, left) :]
            except BlockingIOError:
                await self._wait_writable(self._input)
            except OSError:
                raise CommandInputClosed() from None

    def close_input(self) -> None:
        if self._input is None:
            return
        if self._has_terminal:
            with contextlib.suppress(OSError):
                os.write(self._input, _END_OF_INPUT)
            return
        self._drop_input()

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal. Does nothing if the command has no terminal."""
        if not self._has_terminal or self._output is None:
            return
        set_terminal_size(self._output, rows, columns)

    async def wait(self) -> CommandExit:
        """Wait for the exit. Remaining output can still be read afterwards.

        If the server stopped the command and `last_pidfd` is set, all processes of the command have
        ended. In other cases its descendants have been killed, but may still be exiting.
        """
        return await asyncio.shield(self._exit)

    async def kill(self) -> None:
        self._stop("it was stopped")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await self.wait()
                while self._output is not None:  # buffered output can still be read; the pipe is closed
                    if self._buffered_bytes >= BUFFER_BYTES_MAX:
                        break
                    self._output_changed.clear()
                    await self._output_changed.wait()

    def _stop(self, because: str) -> None:
        if not self._exit.done() and not self._because:
            self._because = because
            self._kill_all()

    def _expire(self) -> None:
        self._stop(f"it took longer than {self._limits.seconds:g} s")

    def _check_excess(self) -> None:
        if self._exit.done() or self._find_excess is None:
            return
        if because := self._find_excess():
            self._stop(because)
        self._excess_timer = self._loop.call_later(EXCESS_CHECK_INTERVAL_S, self._check_excess)

    def _update_reader(self) -> None:
        """Read from the process only while the buffer has space."""
        if self._output is None:
            return
        wanted = self._buffered_bytes < BUFFER_BYTES_MAX
        if wanted and not self._is_reading:
            self._loop.add_reader(self._output, self._on_readable)
        elif self._is_reading and not wanted:
            self._loop.remove_reader(self._output)
        self._is_reading = wanted

    def _on_readable(self) -> None:
        if self._output is None:
            return
        try:
            chunk = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal returns EIO when its last user has closed it
                self._stop(f"its output could not be read: {error.strerror}")
            chunk = b""
        if not chunk:
            self._finish_output()
            return
        room = self._limits.output_bytes - self._output_bytes
        self._output_bytes += len(chunk)
        if room > 0:
            self._chunks.append(chunk[:room])
            self._buffered_bytes += min(room, len(chunk))
        if len(chunk) > room:
            self._stop(f"it wrote more than {self._limits.output_bytes:,} bytes")
        self._output_changed.set()
        self._update_reader()

    def _finish_output(self) -> None:
        if self._output is None:
            return
        if self._is_reading:
            self._loop.remove_reader(self._output)
            self._is_reading = False
        if self._has_terminal:
            self._drop_input()
        os.close(self._output)
        self._output = None
        self._output_changed.set()

    def _drop_input(self) -> None:
        if self._input is None:
            return
        self._loop.remove_writer(self._input)
        if not self._has_terminal:  # a terminal has one descriptor for both
            os.close(self._input)
        self._input = None

    def _on_exit(self) -> None:
        if self._exit.done():
            return
        self._kill_all()  # kill its descendants; until it is reaped, its pid cannot be reused
        code = self._popen.poll()
        if code is None:
            return
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._timer.cancel()
        if (
            self._last_pidfd is not None and self._because
        ):  # the server stopped it, so wait until all its processes have ended
            self._loop.add_reader(self._last_pidfd, self._conclude, code)
        else:
            self._conclude(code)

    def _conclude(self, code: int) -> None:
        if self._last_pidfd is not None:
            self._loop.remove_reader(self._last_pidfd)  # harmless if it was not watched
            self._last_pidfd = None
        if self._excess_timer is not None:
            self._excess_timer.cancel()
        if not self._has_terminal:
            self._drop_input()
        ended = CommandExit(code=None, signal=-code, because=self._because) if code < 0 else CommandExit(code=code)
        if code >= 0 and self._because:
            ended = CommandExit(code=None, signal=signal.SIGKILL, because=self._because)
        if self._interpret_exit is not None:
            ended = self._interpret_exit(ended)
        if self._on_close is not None:
            self._on_close()
        self._exit.set_result(ended)
        self._update_reader()

    async def _wait_writable(self, descriptor: int) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(descriptor, lambda: ready.done() or ready.set_result(None))
        try:
            done, _ = await asyncio.wait((ready, self._exit), return_when=asyncio.FIRST_COMPLETED)
            if ready not in done:
                raise CommandInputClosed()
        finally:
            if self._input is not None:
                self._loop.remove_writer(descriptor)


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    pty: bool = False,
    new_session: bool = True,
    pass_fds: Sequence[int] = (),
) -> SpawnedProcess:
    """Start a process. Besides its input and output, it inherits only the descriptors in `pass_fds`.

    Call this in the event loop's thread: a child with a parent death signal dies with the thread
    that created it. No Python code runs between fork and exec, so this is safe and fast in a large
    process.
    """
    if pty:
        output, theirs = ptys.openpty()
        set_terminal_size(output, ROWS, COLUMNS)
        input, their_input, their_output = output, theirs, theirs
    else:
        their_input, input = os.pipe()
        output, their_output = os.pipe()
    try:
        with _default_signals():
            popen = subprocess.Popen(
                argv,
                stdin=their_input,
                stdout=their_output,
                stderr=their_output,
                env=environment,
                cwd=folder,
                start_new_session=new_session,
                pass_fds=pass_fds,
            )
    except BaseException:
        for descriptor in {input, output}:
            os.close(descriptor)
        raise
    finally:
        for descriptor in {their_input, their_output}:
            os.close(descriptor)
    return SpawnedProcess(popen, output, input)


@contextlib.contextmanager
def _default_signals() -> Generator[None]:
    """Make a child process start with no signal blocked or ignored.

    Ignored signals are inherited, handled ones are not. A server started in the background by a shell ignores SIGINT,
    and one started by nohup ignores SIGHUP. This gives both signals a handler that does nothing, which has the same
    effect for the server.
    """
    if threading.current_thread() is threading.main_thread():  # signal handlers can be set only in the main thread
        for number in _RESTORED_SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, _do_nothing)
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _do_nothing(_number: int, _frame: object) -> None:
    return


def set_terminal_size(terminal: int, rows: int, columns: int) -> None:
    size = struct.pack("HHHH", max(1, min(rows, ROWS_MAX)), max(1, min(columns, ROWS_MAX)), 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def _watch_exit(
    loop: asyncio.AbstractEventLoop, popen: subprocess.Popen[bytes], on_exit: Callable[[], None]
) -> int | None:
    if sys.platform == "linux":
        pidfd = os.pidfd_open(popen.pid)
        loop.add_reader(pidfd, on_exit)
        return pidfd
    waiting = loop.run_in_executor(None, popen.wait)
    waiting.add_done_callback(lambda _: on_exit())
    return None
