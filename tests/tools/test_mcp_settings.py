"""The settings [mcp.NAME] in the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config import load_configuration
from retinue.config.errors import InvalidSettings
from retinue.config.mcp import McpServerSettings

SETTINGS_TOML = """
[mcp.weather]
command = ["/usr/bin/weather-mcp", "--metric"]
env = { WEATHER_KEY = { env = "WEATHER_SECRET" }, REGION = "north" }
hosts = ["api.weather.example"]
readable = ["/srv/maps"]
agents = ["ada"]

[mcp.tracker]
url = "https://mcp.tracker.example/mcp"
headers = { Authorization = { file = "/keys/tracker" } }
deny = ["delete_*"]
"""


def settings(tmp_path: Path, text: str) -> dict[str, McpServerSettings]:
    environment = {"RETINUE_HOME": str(tmp_path), "WEATHER_SECRET": "sunny"}
    return dict(load_configuration(environment, text=text).settings.mcp)


def test_mcp_server_settings_are_read_and_keep_secrets_as_references(tmp_path: Path) -> None:
    found = settings(tmp_path, SETTINGS_TOML)

    weather, tracker = found["weather"], found["tracker"]
    assert weather.command == ("/usr/bin/weather-mcp", "--metric")
    assert {name: each.read({"WEATHER_SECRET": "sunny"}) for name, each in weather.env.items()} == {
        "WEATHER_KEY": "sunny",
        "REGION": "north",
    }
    assert weather.readable == (Path("/srv/maps"),) and weather.agents == ("ada",)
    assert tracker.url == "https://mcp.tracker.example/mcp" and tracker.agents == ("*",)
    assert "sunny" not in repr(found)


@pytest.mark.parametrize(
    "line",
    [
        'env = { LD_PRELOAD = "/tmp/x.so" }',
        'env = { PATH = "/tmp" }',
        'headers = { "Bad Header" = "x" }',
        'url = "ftp://x"',
        'url = "http://maria:secret@x/"',
        'hosts = ["*"]',
        "call_timeout_s = 0",
        "parallel_calls_max = 0",
        "comand = []",
    ],
)
def test_invalid_mcp_server_settings_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidSettings):
        settings(tmp_path, f"[mcp.k]\n{line}\n")
