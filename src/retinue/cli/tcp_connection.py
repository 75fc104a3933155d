"""Connects to the server over TCP or TLS: to `RETINUE_URL`, or to the address in the data directory."""

from __future__ import annotations

import _socket
import os

from retinue.cli.errors import CliError, ServerNotAnswering

TYPE_CHECKING = False
if TYPE_CHECKING:
    Endpoint = tuple[str, int, bool]  # host, port, whether TLS is used

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def parse_url(url: str) -> Endpoint:
    """Parse a server URL such as `http://127.0.0.1:7717`. A path or query after the port is an error."""
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
            f"invalid value for RETINUE_URL: '{url}'",
            code="config.url_invalid",
            because="it must be http:// or https://, then a host, then a port if it is not the default port",
            try_this="RETINUE_URL=http://127.0.0.1:7717",
        )
    return host.lower(), int(port), scheme == "https"


def connect(endpoint: Endpoint, timeout_s: float, *, sends_token: bool = True) -> tuple[_socket.socket, str]:
    """Connect to the URL. Returns the socket and the value for the Host header.

    For a server on another machine, `RETINUE_TOKEN` must be set. The owner's token is used on this machine only.
    """
    host, port, secure = endpoint
    if sends_token and host not in LOOPBACK_HOSTS and not os.environ.get("RETINUE_TOKEN"):
        raise CliError(
            f"no token for {host}",
            code="auth.no_token",
            because="the owner's token in the data directory is used only on this machine",
            try_this="set RETINUE_TOKEN to a token that was created on that server: retinue token create",
        )
    name = f"[{host}]" if ":" in host else host
    shown = name if port == (443 if secure else 80) else f"{name}:{port}"
    try:
        return (_connect_tls(host, port, timeout_s) if secure else _connect_plain(host, port, timeout_s)), shown
    except OSError as error:
        raise ServerNotAnswering(f"no answer at {shown} ({error.strerror or error})") from None


def _connect_plain(host: str, port: int, timeout_s: float) -> _socket.socket:
    trouble: OSError = OSError("unknown host name")
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


def _connect_tls(host: str, port: int, timeout_s: float) -> _socket.socket:
    import socket
    import ssl

    link = socket.create_connection((host, port), timeout_s)
    try:
        return ssl.create_default_context().wrap_socket(link, server_hostname=host)
    except BaseException:
        link.close()
        raise


def connect_recorded(data_dir: str, timeout_s: float) -> tuple[_socket.socket, str] | None:
    """Connect to the address in the data directory, but only if its server is running.

    If it is not running, another program may be listening at this address.
    """
    from retinue.cli.process_control import find_server_pid

    try:
        with open(os.path.join(data_dir, "address"), encoding="utf-8") as file:
            address = file.read()
    except OSError:
        return None
    return connect(parse_url(address), timeout_s) if find_server_pid(data_dir) else None
