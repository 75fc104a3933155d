"""Ports for test servers that are stopped and started again on the same port.

The system assigns ports of its ephemeral range to outgoing connections. A server that releases such
a port for a moment may find it taken, even by a client that is waiting for it. Therefore these
ports are outside that range.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 20_000
HIGHEST = 60_999
LENT = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES_MAX = 200

_chance = random.SystemRandom()  # not seeded: test processes that run in parallel must not choose the same ports
_given: set[int] = set()


def free_port() -> int:
    """Returns a port that is free, outside the ephemeral range, and new in this process."""
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
