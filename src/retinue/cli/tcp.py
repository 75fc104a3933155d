"""Connects to the server over TCP or TLS: at `RETINUE_URL`, or at the address that the server recorded."""

from __future__ import annotations

import _socket
import os

from retinue.cli.errors import CliError, HouseClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    Place = tuple[str, int, bool]  # host, port, whether TLS is used

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def parse_url(url: str) -> Place:
    """Parse a URL such as `http://127.0.0.1:7717`. Anything beyond host and port is an error."""
    scheme, _, rest = url.strip().partition("://") if "://" in url else ("http", "", url.strip())
    rest = rest.rstrip("/")
    host, bracket, after = rest[1:].partition("]") if rest.startswith("[") else (rest, "", "")
    if not bracket:
        host, _, after = rest.partition(":")
        after = f":{after}" if after else ""
    port = after[1:] or ("443" if scheme == "https" else "80")
    fits = host and after[:1] in ("", ":") and port.isdecimal() and 0 < int(port) < 65536
    if scheme not in ("http", "https") or not fits or any(char in host for char in "/@?# "):
        raise CliError(
            f"RETINUE_URL is '{url}'",
            code="config.invalid",
            because="it must be http:// or https://, a host, and a port if it is not the usual one",
            try_this="RETINUE_URL=http://127.0.0.1:7717",
        )
    return host.lower(), int(port), scheme == "https"


def connect(place: Place, timeout_s: float) -> tuple[_socket.socket, str]:
    """Connect. Returns the socket and the Host header. The owner's token is never sent to another machine."""
    host, port, secure = place
    if host not in LOOPBACK and not os.environ.get("RETINUE_TOKEN"):
        raise CliError(
            f"nobody is signed in for {host}",
            code="auth.no-token",
            because="the owner's token in the home is for this machine only",
            try_this="RETINUE_TOKEN=... with a token of your own: see `retinue token create`",
        )
    name = f"[{host}]" if ":" in host else host
    shown = name if port == (443 if secure else 80) else f"{name}:{port}"
    try:
        return (_tls(host, port, timeout_s) if secure else _plain(host, port, timeout_s)), shown
    except OSError as error:
        raise HouseClosed(f"nobody answers at {shown} ({error.strerror or error})") from None


def _plain(host: str, port: int, timeout_s: float) -> _socket.socket:
    trouble: OSError = OSError("no address of that name")
    for family, kind, _, _, address in _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM):
        link = _socket.socket(family, kind)
        link.settimeout(timeout_s)
        try:
            link.connect(address)
            return link
        except OSError as error:
            link.close()
            trouble = error
    raise trouble


def _tls(host: str, port: int, timeout_s: float) -> _socket.socket:
    import socket
    import ssl

    link = socket.create_connection((host, port), timeout_s)
    try:
        return ssl.create_default_context().wrap_socket(link, server_hostname=host)
    except BaseException:
        link.close()
        raise


def recorded(home: str, timeout_s: float) -> tuple[_socket.socket, str] | None:
    """Connect to the recorded address if a server runs; otherwise another program may listen there by now."""
    from retinue.cli.process_control import holder

    try:
        with open(os.path.join(home, "address"), encoding="utf-8") as file:
            address = file.read()
    except OSError:
        return None
    return connect(parse_url(address), timeout_s) if holder(home) else None
