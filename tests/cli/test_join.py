"""A second person joins with the command line alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.server_process import ServerProcess, environment


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "home")
    process.open()
    yield process
    process.close()


def retinue(*words: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("retinue"), *words],
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_invited_person_joins_and_talks_to_an_agent_by_command_line(server: ServerProcess, tmp_path: Path) -> None:
    invited = json.loads(retinue("person", "invite", "zoe", "--json", home=server.home).stdout)
    url = (server.home / "address").read_text()
    elsewhere = tmp_path / "elsewhere"
    joined = retinue("join", invited["invitation"], home=elsewhere, RETINUE_URL=url)
    assert joined.returncode == 0, joined.stderr
    assert "name: zoe" in joined.stdout and f"export RETINUE_URL={url}" in joined.stdout
    token = next(line for line in joined.stdout.splitlines() if line.startswith("token: ")).removeprefix("token: ")
    completed = retinue("chat", "--once", "echo good morning", home=elsewhere, RETINUE_URL=url, RETINUE_TOKEN=token)
    assert "good morning" in completed.stdout, completed.stderr
    owners = retinue("sessions", "--json", home=server.home).stdout
    assert "person:zoe" in owners
    again = retinue("join", invited["invitation"], home=elsewhere, RETINUE_URL=url)
    assert again.returncode != 0 and "invalid invitation" in again.stderr
    assert list(elsewhere.glob("*")) == []  # nothing was written there


def test_an_invited_person_cannot_read_about_others_by_command_line(server: ServerProcess, tmp_path: Path) -> None:
    sent = json.loads(retinue("send", "agent:guide", "mine", "--json", home=server.home).stdout)
    invited = json.loads(retinue("person", "invite", "zoe", "--json", home=server.home).stdout)
    joined = json.loads(retinue("join", invited["invitation"], "--json", home=server.home).stdout)
    told = retinue("why", sent["envelope"], home=server.home, RETINUE_TOKEN=joined["token"])
    assert told.returncode != 0 and "nothing has the id" in told.stderr
