"""A running child process: its output stream, input or terminal, time limit and exit.

It works on every event loop: it watches file descriptors and a pidfd. It needs no threads and no
signal handlers, and leaves no zombies.
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

from retinue.sandbox.base import Ended, Limits, SandboxFailed

READ_BYTES = 64 * 1024
BUFFER_BYTES_MAX = 1024 * 1024  # buffered for the reader; beyond it, the command blocks
INPUT_WAIT_S = 30.0
END_WAIT_S = 10.0
WATCH_S = 0.1
ROWS, COLUMNS = 24, 80
ROWS_MAX = 10_000
_END_OF_INPUT = b"\x04"
# Without the signals that Popen restores itself: Python must continue to ignore them.
_HEEDED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}


class Spawned(Struct, frozen=True):
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


class Process:
    """A child process in its own process group.

    `kill_all` kills everything it started. `last_pidfd` reports when all of that has ended.
    `find_excess` is called every `EXCESS_CHECK_INTERVAL_S` and returns which limit is exceeded.
    `on_close` is called once at the end. `interpret_exit` converts the exit status, if the launcher
    has its own exit codes.
    """

    def __init__(
        self,
        spawned: Spawned,
        *,
        limits: Limits,
        end: Callable[[], None],
        terminal: bool = False,
        last: int | None = None,
        excess: Callable[[], str] | None = None,
        closing: Callable[[], None] | None = None,
        ended_as: Callable[[Ended], Ended] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._popen = spawned.popen
        self._output: int | None = spawned.output
        self._input: int | None = spawned.input
        self._terminal = terminal
        self._limits = limits
        self._end = end
        self._last = last
        self._excess = excess
        self._closing = closing
        self._ended_as = ended_as
        self._because = ""
        self._chunks: deque[bytes] = deque()
        self._held = self._said = 0
        self._reading = False
        self._changed = asyncio.Event()  # more output was read, or the output ended
        self._ended: asyncio.Future[Ended] = self._loop.create_future()
        self._writing = asyncio.Lock()
        os.set_blocking(spawned.output, False)
        os.set_blocking(spawned.input, False)
        self._timer = self._loop.call_later(limits.seconds, self._expire)
        self._watch = self._loop.call_later(WATCH_S, self._look) if excess else None
        self._listen()
        self._pidfd = _watch_exit(self._loop, spawned.popen, self._exited)

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def read(self) -> bytes:
        while not self._chunks:
            if self._output is None:
                return b""
            self._changed.clear()
            self._listen()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._held -= len(chunk)
        self._listen()
        return chunk

    async def write(self, data: bytes) -> None:
        try:
            async with self._writing, asyncio.timeout(INPUT_WAIT_S):
                await self._write(memoryview(data))
        except TimeoutError:
            raise _takes_no_input(f"it has not read what it was given for {INPUT_WAIT_S:g} s") from None

    async def _write(self, left: memoryview) -> None:
        while left:
            if self._input is None:
                raise _takes_no_input()
            try:
                left = left[os.write(self._input, left) :]
            except BlockingIOError:
                await self._until_writable(self._input)
            except OSError:
                raise _takes_no_input() from None

    def close_input(self) -> None:
        if self._input is None:
            return
        if self._terminal:
            with contextlib.suppress(OSError):
                os.write(self._input, _END_OF_INPUT)
            return
        self._drop_input()

    def resize(self, rows: int, columns: int) -> None:
        """Has no effect without a terminal."""
        if not self._terminal or self._output is None:
            return
        set_size(self._output, rows, columns)

    async def wait(self) -> Ended:
        """Wait for the exit. Remaining output can still be read.

        If we ended it, nothing of it runs any more. If it exited by itself, its descendants were
        killed and are gone as soon as the kernel has finished with them.
        """
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        self._stop("it was ended")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_WAIT_S):
                await self.wait()
                while self._output is not None:  # buffered output can still be read; the pipe is closed
                    if self._held >= BUFFER_BYTES_MAX:
                        break
                    self._changed.clear()
                    await self._changed.wait()

    def _stop(self, because: str) -> None:
        if not self._ended.done() and not self._because:
            self._because = because
            self._end()

    def _expire(self) -> None:
        self._stop(f"it took longer than {self._limits.seconds:g} s")

    def _look(self) -> None:
        if self._ended.done() or self._excess is None:
            return
        if because := self._excess():
            self._stop(because)
        self._watch = self._loop.call_later(WATCH_S, self._look)

    def _listen(self) -> None:
        """Watch the output while there is space in the buffer."""
        if self._output is None:
            return
        wanted = self._held < BUFFER_BYTES_MAX
        if wanted and not self._reading:
            self._loop.add_reader(self._output, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._output)
        self._reading = wanted

    def _readable(self) -> None:
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
        room = self._limits.output_bytes - self._said
        self._said += len(chunk)
        if room > 0:
            self._chunks.append(chunk[:room])
            self._held += min(room, len(chunk))
        if len(chunk) > room:
            self._stop(f"it said more than {self._limits.output_bytes:,} bytes")
        self._changed.set()
        self._listen()

    def _finish_output(self) -> None:
        if self._output is None:
            return
        if self._reading:
            self._loop.remove_reader(self._output)
            self._reading = False
        if self._terminal:
            self._drop_input()
        os.close(self._output)
        self._output = None
        self._changed.set()

    def _drop_input(self) -> None:
        if self._input is None:
            return
        self._loop.remove_writer(self._input)
        if not self._terminal:  # a terminal has one descriptor for both
            os.close(self._input)
        self._input = None

    def _exited(self) -> None:
        if self._ended.done():
            return
        self._end()  # kill its descendants; until it is reaped, its pid cannot be reused
        code = self._popen.poll()
        if code is None:
            return
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._timer.cancel()
        if self._last is not None and self._because:  # we ended it, so wait until all of it is gone
            self._loop.add_reader(self._last, self._conclude, code)
        else:
            self._conclude(code)

    def _conclude(self, code: int) -> None:
        if self._last is not None:
            self._loop.remove_reader(self._last)  # harmless if it was not watched
            self._last = None
        if self._watch is not None:
            self._watch.cancel()
        if not self._terminal:
            self._drop_input()
        ended = Ended(code=None, signal=-code, because=self._because) if code < 0 else Ended(code=code)
        if code >= 0 and self._because:
            ended = Ended(code=None, signal=signal.SIGKILL, because=self._because)
        if self._ended_as is not None:
            ended = self._ended_as(ended)
        if self._closing is not None:
            self._closing()
        self._ended.set_result(ended)
        self._listen()

    async def _until_writable(self, descriptor: int) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(descriptor, lambda: ready.done() or ready.set_result(None))
        try:
            done, _ = await asyncio.wait((ready, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if ready not in done:
                raise _takes_no_input()
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
) -> Spawned:
    """Start a process. It inherits only the named descriptors.

    Call this in the event loop's thread: a child with a parent death signal dies with the thread
    that created it. No Python code runs between fork and exec, so this is safe and fast in a large
    process.
    """
    if pty:
        output, theirs = ptys.openpty()
        set_size(output, ROWS, COLUMNS)
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
    return Spawned(popen, output, input)


@contextlib.contextmanager
def _default_signals() -> Generator[None]:
    """Start the child with no signal blocked or ignored.

    Ignored signals are inherited, handled ones are not. A server started in the background by a
    shell ignores SIGINT, and one started by nohup ignores SIGHUP. From now on they have a handler
    that does nothing, which has the same effect for the server.
    """
    if threading.current_thread() is threading.main_thread():  # signal handlers can be set only in the main thread
        for number in _HEEDED:
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, _do_nothing)
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _do_nothing(_number: int, _frame: object) -> None:
    return


def set_size(terminal: int, rows: int, columns: int) -> None:
    size = struct.pack("HHHH", max(1, min(rows, ROWS_MAX)), max(1, min(columns, ROWS_MAX)), 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def _watch_exit(
    loop: asyncio.AbstractEventLoop, popen: subprocess.Popen[bytes], exited: Callable[[], None]
) -> int | None:
    if sys.platform == "linux":
        pidfd = os.pidfd_open(popen.pid)
        loop.add_reader(pidfd, exited)
        return pidfd
    waiting = loop.run_in_executor(None, popen.wait)
    waiting.add_done_callback(lambda _: exited())
    return None


def _takes_no_input(because: str = "it has ended, or its input was closed") -> SandboxFailed:
    return SandboxFailed(
        "the command takes no more input",
        because=because,
        try_this="look at what it said, and start it again",
        code="sandbox.input-closed",
    )
