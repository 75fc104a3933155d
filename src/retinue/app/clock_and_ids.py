"""The real sources of time, ids and random numbers. All other code gets them as parameters."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from retinue.app.errors import CrashPointInvalid, CrashPointOutsideTest
from retinue.domain.ports import CrashPoints
from retinue.store.core.connection import NO_FAULTS

ID_BYTES = 16
IDS_PER_BATCH = 256


class RealClock:
    """The system clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_later(seconds, call).cancel


class RandomIds:
    """Generates random ids. Random bytes are read in batches, because each read is a system call."""

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def new(self) -> str:
        try:
            return self._drawn.pop()  # atomic: no two threads get the same id
        except IndexError:
            chance = os.urandom(ID_BYTES * IDS_PER_BATCH)
            self._drawn += [chance[i : i + ID_BYTES].hex() for i in range(ID_BYTES, len(chance), ID_BYTES)]
            return chance[:ID_BYTES].hex()


def new_token() -> str:
    """Return a random token of 256 bits. It never begins with a hyphen, so that a CLI does not read it as an option."""
    while True:
        token = secrets.token_urlsafe(32)
        if not token.startswith("-"):
            return token


def new_random() -> random.Random:
    """Return a random generator for values that need not be secret, such as back-off delays."""
    return random.Random(secrets.randbits(64))


class CrashAtPoint:
    """Kills the process, like `kill -9`, when a named point in the code is reached for the nth time. For tests."""

    def __init__(self, point: str, nth: int) -> None:
        self._point = point
        self._left = nth

    def reach(self, point: str) -> None:
        if point != self._point:
            return
        self._left -= 1
        if self._left <= 0:
            sys.stderr.write(f"crash point {point} reached\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def crash_points_from(environment: dict[str, str]) -> CrashPoints:
    """Parse the crash point in `RETINUE_TEST_CRASH=point:n`. Raises an error if it is set without `RETINUE_TEST=1`."""
    wanted = environment.get("RETINUE_TEST_CRASH")
    if not wanted:
        return NO_FAULTS
    if environment.get("RETINUE_TEST") != "1":
        raise CrashPointOutsideTest
    point, _, nth = wanted.rpartition(":")
    if not point or not nth.isdigit():
        raise CrashPointInvalid(wanted)
    return CrashAtPoint(point, int(nth))
