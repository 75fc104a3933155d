"""Web settings: how agents access the web."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retinue.config import validators
from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect, setting

MIB = 1024 * 1024
BRAVE_KEY = "BRAVE_API_KEY"


def host_and_port(text: str) -> str | None:
    """Check an exact host of the owner's own network: a name or IP address, optionally with a port."""
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and not (host.count(":") and not host.startswith("[")):
        if not 0 < int(port[:6]) <= validators.PORT_MAX:
            return f"must have a port from 1 to {validators.PORT_MAX}"
        text = host
    return (
        validators.host(text.removeprefix("[").removesuffix("]")) and "must be HOST or HOST:PORT, with no pattern in it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """A headless Chromium per session that uses it."""

    enabled: bool = setting(True, "Whether agents can have a browser, where Chromium is installed.", effect=Effect.HOT)
    path: Path | None = setting(None, "The program. Not set: `chromium`, `chromium-browser` or `google-chrome`.")
    idle_s: float = setting(300.0, "How long a browser that nobody uses stays open.", least=5, most=86_400)
    browsers_max: int = setting(4, "How many are open at once, in all sessions.", least=1, most=64)
    memory_bytes_max: int = setting(
        2048 * MIB, "What one browser may have in memory before it is closed.", least=256 * MIB, most=1024 * 1024 * MIB
    )
    traffic_bytes_max: int = setting(
        512 * MIB, "What one browser may send and receive before it is closed.", least=MIB, most=1024 * 1024 * MIB
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Pages, searches and the browser."""

    timeout_s: float = setting(30.0, "How long a page may take.", effect=Effect.MESSAGE, least=1, most=600)
    page_bytes_max: int = setting(
        5 * MIB, "What is read of one page, unpacked.", effect=Effect.MESSAGE, least=1024, most=64 * MIB
    )
    ports: tuple[int, ...] = setting(
        (80, 443), "Ports that may be reached.", effect=Effect.MESSAGE, least=1, most=validators.PORT_MAX
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Hosts of your own network that agents may reach, as HOST or HOST:PORT. Whatever a page says can make an "
        "agent ask one of these anything.",
        effect=Effect.MESSAGE,
        check=host_and_port,
        example="nas.lan:5000",
    )
    searxng_url: str | None = setting(
        None,
        "A SearXNG server to search with, in place of Brave. It may be in your own network.",
        effect=Effect.MESSAGE,
        check=validators.public_url,
        example="http://127.0.0.1:8888",
    )
    brave_key: Secret | None = setting(
        None, f"Where the key for Brave Search is: `env` or `file`. Not set: ${BRAVE_KEY}.", effect=Effect.MESSAGE
    )
    browser: BrowserSettings = BrowserSettings()
