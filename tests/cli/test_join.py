"""A second person comes in with the command line alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.server_process import HouseProcess, environment


@pytest.fixture
def house(tmp_path: Path) -> Iterator[HouseProcess]:
    process = HouseProcess(tmp_path / "home")
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


def test_an_invitation_lets_a_second_person_talk_to_the_staff(house: HouseProcess, tmp_path: Path) -> None:
    invited = json.loads(retinue("person", "invite", "zoe", "--json", home=house.home).stdout)
    url = (house.home / "address").read_text()
    elsewhere = tmp_path / "elsewhere"
    came = retinue("join", invited["invitation"], home=elsewhere, RETINUE_URL=url)
    assert came.returncode == 0, came.stderr
    assert "name: zoe" in came.stdout and f"export RETINUE_URL={url}" in came.stdout
    token = next(line for line in came.stdout.splitlines() if line.startswith("token: ")).removeprefix("token: ")
    said = retinue("chat", "--once", "echo good morning", home=elsewhere, RETINUE_URL=url, RETINUE_TOKEN=token)
    assert "good morning" in said.stdout, said.stderr
    owners = retinue("sessions", "--json", home=house.home).stdout
    assert "person:zoe" in owners
    again = retinue("join", invited["invitation"], home=elsewhere, RETINUE_URL=url)
    assert again.returncode != 0 and "invalid invitation" in again.stderr
    assert list(elsewhere.glob("*")) == []  # nothing was written there


def test_what_a_second_person_asks_about_others_is_not_there(house: HouseProcess, tmp_path: Path) -> None:
    sent = json.loads(retinue("send", "agent:guide", "mine", "--json", home=house.home).stdout)
    invited = json.loads(retinue("person", "invite", "zoe", "--json", home=house.home).stdout)
    came = json.loads(retinue("join", invited["invitation"], "--json", home=house.home).stdout)
    told = retinue("why", sent["envelope"], home=house.home, RETINUE_TOKEN=came["token"])
    assert told.returncode != 0 and "nothing has the id" in told.stderr
