"""Test IRC over TLS, with a self-signed certificate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from connectors.irc_instance import listen_in_background, make_irc_connector, wait_until_true

from retinue.testing.fault_kit.irc_peer import IrcPerson, NgircdServer
from retinue.testing.fault_kit.kit_server import build_part

ROOM = "#home"


async def run_openssl(*words: str) -> None:
    nowhere = asyncio.subprocess.DEVNULL
    making = await asyncio.create_subprocess_exec("openssl", *words, stdout=nowhere, stderr=nowhere)
    assert await making.wait() == 0


async def create_certificate(folder: Path) -> Path:
    certificate = folder / "server.pem"
    await run_openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)),
    )
    # Without these, the server generates its own when it starts, which takes seconds.
    parameters_file = str(certificate.with_suffix(".dh"))
    await run_openssl(
        "genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048", "-out", parameters_file
    )
    return certificate


@pytest.fixture
async def irc_server(tmp_path: Path) -> AsyncGenerator[NgircdServer]:
    irc_server = NgircdServer(tmp_path, certificate=await create_certificate(tmp_path))
    await irc_server.open()
    yield irc_server
    await irc_server.close()


async def test_a_message_over_an_irc_tls_connection_is_answered(irc_server: NgircdServer, tmp_path: Path) -> None:
    maria = IrcPerson(irc_server.port)
    await maria.connect(ROOM)
    trusted = str(irc_server.certificate)
    connector = make_irc_connector(tmp_path, irc_server.tls_port, tls=True, tls_ca_file=trusted, channels=(ROOM,))
    async with listen_in_background(connector) as server:
        await maria.say(ROOM, "hello")
        await wait_until_true(lambda: bool(server.committed))
        await connector.deliver(build_part("kit", ROOM, "hello yourself", number=1))
        await maria.wait_until_read()
    await maria.disconnect()

    assert [text for _, _, text in maria.received] == ["hello yourself"]


async def test_an_untrusted_irc_certificate_is_refused_and_tls_ca_file_is_suggested(
    irc_server: NgircdServer, tmp_path: Path
) -> None:
    connector = make_irc_connector(tmp_path, irc_server.tls_port, tls=True, answer_timeout_s=10.0)
    finding = await connector.check()
    for _ in range(3):
        if finding.because == "it timed out":  # a server that has just started may leave a handshake unanswered
            finding = await connector.check()

    assert not finding.ok
    assert "certificate" in finding.sentence
    assert "tls_ca_file" in finding.try_this


async def test_the_irc_check_reports_a_missing_tls_ca_file(irc_server: NgircdServer, tmp_path: Path) -> None:
    finding = await make_irc_connector(
        tmp_path, irc_server.tls_port, tls=True, tls_ca_file=str(tmp_path / "none.pem")
    ).check()

    assert not finding.ok
    assert "certificate" in finding.sentence
