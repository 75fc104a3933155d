"""The house over TCP: where it is told to be, and never with the owner's token on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.server_process import HouseProcess

from retinue.cli import tcp
from retinue.cli.errors import CliError


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:7717", ("127.0.0.1", 7717, False)),
        ("http://127.0.0.1:7717/\n", ("127.0.0.1", 7717, False)),
        ("127.0.0.1:7717", ("127.0.0.1", 7717, False)),
        ("https://House.example", ("house.example", 443, True)),
        ("http://[::1]:7717", ("::1", 7717, False)),
        ("http://localhost", ("localhost", 80, False)),
    ],
)
def test_an_address_is_read(url: str, place: tcp.Endpoint) -> None:
    assert tcp.parse_url(url) == place


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://x:0", "http://x:99999", "http://x:y", "http://x/path", "http://me@x", "http://[::1"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(CliError) as refused:
        tcp.parse_url(url)

    assert refused.value.code == "config.url_invalid"


def test_the_house_is_spoken_to_over_tcp_where_the_environment_says_so(house: HouseProcess, tmp_path: Path) -> None:
    address = (house.home / "address").read_text()
    token = (house.home / "owner-token").read_text().strip()
    elsewhere = HouseProcess(tmp_path / "elsewhere")

    told = elsewhere.retinue("status", env={"RETINUE_URL": address, "RETINUE_TOKEN": token})
    assert told.returncode == 0, told.stderr
    assert "\nyou: person:owner\n" in told.stdout

    talk = elsewhere.retinue("chat", "--once", "echo hello", env={"RETINUE_URL": address, "RETINUE_TOKEN": token})
    assert (talk.returncode, talk.stdout) == (0, "hello\n")

    with_file = house.retinue("status", env={"RETINUE_URL": address})
    assert with_file.returncode == 0


def test_the_owners_token_does_not_leave_this_machine(house: HouseProcess) -> None:
    told = house.retinue("status", env={"RETINUE_URL": "http://house.invalid"})

    assert told.returncode == 1
    assert told.stderr.startswith("error: no token for house.invalid [auth.no_token]\n")


def test_nobody_at_the_address_is_a_closed_house_that_is_not_looked_at_here(house: HouseProcess) -> None:
    told = house.retinue("ledger", env={"RETINUE_URL": "http://127.0.0.1:1"})

    assert told.returncode == 3
    assert "no answer at 127.0.0.1:1" in told.stderr


def test_an_address_in_the_home_is_used_while_the_house_is_open_and_never_after(own_house: HouseProcess) -> None:
    (own_house.home / "socket").unlink()
    address = (own_house.home / "address").read_text()

    assert own_house.retinue("status").returncode == 0

    own_house.kill()
    assert (own_house.home / "address").read_text() == address  # by now, it may be anyone's
    assert own_house.retinue("status").returncode == 3
