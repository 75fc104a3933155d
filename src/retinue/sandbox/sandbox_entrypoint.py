"""Runs first in a sandbox with a network: sends a listening socket to the server, then executes the command.

A listening socket belongs to the network namespace in which it was created. So the server can
accept the connections that the command makes to 127.0.0.1, and no server process stays in the
sandbox. This module must start fast, so it imports only built-in modules.
"""

import _signal  # pyright: ignore[reportMissingImports]
import _socket
import posix
import sys

NOT_STARTED = 125
NOT_FOUND = 127
BACKLOG = 64
SIGPIPE, SIGXFSZ, _DEFAULT = 13, 25, 0


def main(socket_fd: int, port: int, argv: list[str]) -> int:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    server = _socket.socket(fileno=socket_fd)
    descriptor = listener.fileno().to_bytes(4, sys.byteorder)
    server.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor)])
    if server.recv(1) != b"x":
        return NOT_STARTED
    server.close()
    listener.close()
    for number in (SIGPIPE, SIGXFSZ):  # Python ignores both; commands expect the default
        _signal.signal(number, _DEFAULT)  # pyright: ignore[reportUnknownMemberType]
    return exec_command(argv)


def exec_command(argv: list[str]) -> int:
    """Replace this process with the command. Returns only if the command cannot be executed."""
    folders = [""] if "/" in argv[0] else posix.environ.get(b"PATH", b"/usr/bin:/bin").decode().split(":")
    because = "No such file or directory"
    for folder in folders:
        try:
            posix.execv(f"{folder}/{argv[0]}" if folder else argv[0], argv)
        except FileNotFoundError:
            continue
        except OSError as error:
            because = error.strerror or because
    posix.write(2, f"{argv[0]}: {because}\n".encode())
    return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
