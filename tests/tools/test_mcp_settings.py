"""[mcp.NAME] as it is written in the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config import load_configuration
from retinue.config.errors import InvalidSettings
from retinue.config.mcp import McpServerSettings

WRITTEN = """
[mcp.weather]
command = ["/usr/bin/weather-mcp", "--metric"]
env = { WEATHER_KEY = { env = "HOUSE_WEATHER" }, REGION = "north" }
hosts = ["api.weather.example"]
readable = ["/srv/maps"]
agents = ["ada"]

[mcp.tracker]
url = "https://mcp.tracker.example/mcp"
headers = { Authorization = { file = "/keys/tracker" } }
deny = ["delete_*"]
"""


def settings(tmp_path: Path, text: str) -> dict[str, McpServerSettings]:
    environment = {"RETINUE_HOME": str(tmp_path), "HOUSE_WEATHER": "sunny"}
    return dict(load_configuration(environment, text=text).settings.mcp)


def test_servers_are_read_with_secrets_as_places(tmp_path: Path) -> None:
    found = settings(tmp_path, WRITTEN)

    weather, tracker = found["weather"], found["tracker"]
    assert weather.command == ("/usr/bin/weather-mcp", "--metric")
    assert {name: each.read({"HOUSE_WEATHER": "sunny"}) for name, each in weather.env.items()} == {
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
        "call_s = 0",
        "parallel = 0",
        "comand = []",
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidSettings):
        settings(tmp_path, f"[mcp.k]\n{line}\n")
