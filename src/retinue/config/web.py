"""Web settings: how agents access the web."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retinue.config import validators
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting

MIB = 1024 * 1024
BRAVE_KEY_VARIABLE = "BRAVE_API_KEY"


def check_host_and_port(text: str) -> str | None:
    """Check a host in the owner's network: a name or IP address without wildcards, with or without a port."""
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and not (host.count(":") and not host.startswith("[")):
        if not 0 < int(port[:6]) <= validators.PORT_MAX:
            return f"must have a port from 1 to {validators.PORT_MAX}"
        text = host
    return (
        validators.check_host(text.removeprefix("[").removesuffix("]"))
        and "must be HOST or HOST:PORT, without wildcards"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """The browser that agents use: a headless Chromium for each session that needs one."""

    enabled: bool = setting(
        True, "Whether agents can use a browser. Chromium must be installed.", effect=SettingEffect.HOT
    )
    path: Path | None = setting(
        None,
        "Path of the browser's program. Default: the first of `chromium`, `chromium-browser` and `google-chrome` that "
        "is installed.",
    )
    idle_s: float = setting(300.0, "Time after which an unused browser is closed, in seconds.", least=5, most=86_400)
    browsers_max: int = setting(
        4, "Maximum number of browsers that are open at once, in all sessions together.", least=1, most=64
    )
    memory_bytes_max: int = setting(
        2048 * MIB,
        "Maximum memory of one browser, in bytes. A browser that uses more is closed.",
        least=256 * MIB,
        most=1024 * 1024 * MIB,
    )
    traffic_bytes_max: int = setting(
        512 * MIB,
        "Maximum network traffic of one browser, in bytes. A browser that causes more is closed.",
        least=MIB,
        most=1024 * 1024 * MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """How agents read web pages, search the web and use a browser."""

    timeout_s: float = setting(
        30.0, "Maximum time to load a web page, in seconds.", effect=SettingEffect.MESSAGE, least=1, most=600
    )
    page_bytes_max: int = setting(
        5 * MIB,
        "Maximum size of a web page, uncompressed, in bytes.",
        effect=SettingEffect.MESSAGE,
        least=1024,
        most=64 * MIB,
    )
    ports: tuple[int, ...] = setting(
        (80, 443),
        "Ports of web servers to which agents may connect.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=validators.PORT_MAX,
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Hosts in your own network that agents may reach, as HOST or HOST:PORT. A web page that an agent reads can "
        "make the agent send requests to these hosts.",
        effect=SettingEffect.MESSAGE,
        check=check_host_and_port,
        example="nas.lan:5000",
    )
    searxng_url: str | None = setting(
        None,
        "URL of a SearXNG server to use instead of Brave Search. The SearXNG server may be in your own network.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_public_url,
        example="http://127.0.0.1:8888",
    )
    brave_key: SecretReference | None = setting(
        None,
        f"Location of the API key for Brave Search: an environment variable (`env`) or a file (`file`). Default: the "
        f"environment variable `{BRAVE_KEY_VARIABLE}`.",
        effect=SettingEffect.MESSAGE,
    )
    browser: BrowserSettings = BrowserSettings()
