"""Ports for what is closed and opened again at the same place.

The system lends the ports of its own range to whoever calls out, for as long as the call lasts. A server that gives one
of those up for a moment may find it taken, even by the call of one who waits for it."""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 20_000
HIGHEST = 60_999
LENT = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES_MAX = 200

_chance = random.SystemRandom()  # no seed of a test has two runs at once choose alike
_given: set[int] = set()


def free_port() -> int:
    """One that nobody has now, that the system lends to nobody, and that was not given before."""
    first, last = _lent()
    for _ in range(TRIES_MAX):
        port = _chance.randint(LOWEST, HIGHEST)
        if port not in _given and not first <= port <= last and _is_free(port):
            _given.add(port)
            return port
    raise OSError(f"no port from {LOWEST} to {HIGHEST} is free outside of {first} to {last}")


def _lent() -> tuple[int, int]:
    try:
        first, last = map(int, LENT.read_text().split())
    except OSError:
        return 32_768, HIGHEST
    return (first, last) if first > LOWEST or last < HIGHEST else (0, 0)


def _is_free(port: int) -> bool:
    with socket.socket() as end:
        try:
            end.bind((HOST, port))
        except OSError:
            return False
        return True
