"""The command line over TCP: which address it uses, and that the owner's token never goes to another host."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.server_process import ServerProcess

from retinue.cli import tcp_connection
from retinue.cli.errors import CliError


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:7717", ("127.0.0.1", 7717, False)),
        ("http://127.0.0.1:7717/\n", ("127.0.0.1", 7717, False)),
        ("127.0.0.1:7717", ("127.0.0.1", 7717, False)),
        ("https://Chat.example", ("chat.example", 443, True)),
        ("http://[::1]:7717", ("::1", 7717, False)),
        ("http://localhost", ("localhost", 80, False)),
    ],
)
def test_a_server_url_is_parsed_into_host_port_and_tls(url: str, place: tcp_connection.Endpoint) -> None:
    assert tcp_connection.parse_url(url) == place


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://x:0", "http://x:99999", "http://x:y", "http://x/path", "http://me@x", "http://[::1"],
)
def test_an_invalid_server_url_for_the_command_line_is_refused(url: str) -> None:
    with pytest.raises(CliError) as refused:
        tcp_connection.parse_url(url)

    assert refused.value.code == "config.url_invalid"


def test_the_server_is_reached_over_tcp_by_the_url_in_the_environment(server: ServerProcess, tmp_path: Path) -> None:
    address = (server.home / "address").read_text()
    token = (server.home / "owner-token").read_text().strip()
    elsewhere = ServerProcess(tmp_path / "elsewhere")

    completed = elsewhere.retinue("status", env={"RETINUE_URL": address, "RETINUE_TOKEN": token})
    assert completed.returncode == 0, completed.stderr
    assert "\nprincipal: person:owner\n" in completed.stdout

    talk = elsewhere.retinue("chat", "--once", "echo hello", env={"RETINUE_URL": address, "RETINUE_TOKEN": token})
    assert (talk.returncode, talk.stdout) == (0, "hello\n")

    with_file = server.retinue("status", env={"RETINUE_URL": address})
    assert with_file.returncode == 0


def test_a_command_over_tcp_does_not_send_the_owner_token_to_another_machine(server: ServerProcess) -> None:
    completed = server.retinue("status", env={"RETINUE_URL": "http://chat.invalid"})

    assert completed.returncode == 1
    assert completed.stderr.startswith("error: no token for chat.invalid [auth.no_token]\n")


def test_an_invitation_from_another_machine_is_redeemed_without_a_token(server: ServerProcess) -> None:
    completed = server.retinue("join", "x" * 43, env={"RETINUE_URL": "http://chat.invalid"})

    assert "no answer at chat.invalid" in completed.stderr, "it tries to connect, and the host does not exist"


def test_a_command_with_an_unreachable_server_url_does_not_fall_back_to_the_local_store(server: ServerProcess) -> None:
    completed = server.retinue("ledger", env={"RETINUE_URL": "http://127.0.0.1:1"})

    assert completed.returncode == 3
    assert "no answer at 127.0.0.1:1" in completed.stderr


def test_commands_use_the_tcp_address_file_while_the_server_runs_and_not_afterwards(own_server: ServerProcess) -> None:
    (own_server.home / "socket").unlink()
    address = (own_server.home / "address").read_text()

    assert own_server.retinue("status").returncode == 0

    own_server.kill()
    assert (own_server.home / "address").read_text() == address  # the port may belong to another process by now
    assert own_server.retinue("status").returncode == 3
