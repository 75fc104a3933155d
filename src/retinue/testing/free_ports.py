"""Find ports for test servers that are stopped and started again on the same port."""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
PORT_MIN = 20_000
PORT_MAX = 60_999
EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES_MAX = 200

_random = random.SystemRandom()  # not seeded: test processes that run in parallel must not choose the same ports
_returned_ports: set[int] = set()


def free_port() -> int:
    """Return a free port outside the ephemeral range, which this function has not returned in this process yet."""
    first, last = _ephemeral_range()
    for _ in range(TRIES_MAX):
        port = _random.randint(PORT_MIN, PORT_MAX)
        if port not in _returned_ports and not first <= port <= last and _is_free(port):
            _returned_ports.add(port)
            return port
    raise OSError(f"no port from {PORT_MIN} to {PORT_MAX} is free outside of {first} to {last}")


def _ephemeral_range() -> tuple[int, int]:
    try:
        first, last = map(int, EPHEMERAL_RANGE_FILE.read_text().split())
    except OSError:
        return 32_768, PORT_MAX
    return (first, last) if first > PORT_MIN or last < PORT_MAX else (0, 0)


def _is_free(port: int) -> bool:
    with socket.socket() as end:
        try:
            end.bind((HOST, port))
        except OSError:
            return False
        return True
