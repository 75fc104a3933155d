"""IRC over an encrypted line, with a certificate of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from connectors.irc_instance import connector_in, listening, until

from retinue.testing.fault_kit.irc_peer import IrcPerson, NgircdServer
from retinue.testing.fault_kit.kit_server import build_part

ROOM = "#home"


async def openssl(*words: str) -> None:
    nowhere = asyncio.subprocess.DEVNULL
    making = await asyncio.create_subprocess_exec("openssl", *words, stdout=nowhere, stderr=nowhere)
    assert await making.wait() == 0


async def certified(folder: Path) -> Path:
    certificate = folder / "server.pem"
    await openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)),
    )
    # A server without these makes its own as it starts, for seconds.
    known = str(certificate.with_suffix(".dh"))
    await openssl("genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048", "-out", known)
    return certificate


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[NgircdServer]:
    server = NgircdServer(tmp_path, certificate=await certified(tmp_path))
    await server.open()
    yield server
    await server.close()


async def test_a_question_over_an_encrypted_line_is_answered(server: NgircdServer, tmp_path: Path) -> None:
    maria = IrcPerson(server.port)
    await maria.connect(ROOM)
    trusted = str(server.certificate)
    connector = connector_in(tmp_path, server.tls_port, tls=True, tls_ca_file=trusted, rooms=(ROOM,))
    async with listening(connector) as house:
        await maria.say(ROOM, "hello")
        await until(lambda: bool(house.committed))
        await connector.deliver(build_part("kit", ROOM, "hello yourself", number=1))
        await maria.wait_until_read()
    await maria.disconnect()

    assert [text for _, _, text in maria.received] == ["hello yourself"]


async def test_a_certificate_that_nobody_vouches_for_is_not_trusted(server: NgircdServer, tmp_path: Path) -> None:
    connector = connector_in(tmp_path, server.tls_port, tls=True, answer_s=10.0)
    finding = await connector.check()
    for _ in range(3):
        if finding.because == "it took too long":  # a server that has just begun may leave a handshake lying
            finding = await connector.check()

    assert not finding.ok
    assert "certificate" in finding.sentence
    assert "tls_ca_file" in finding.try_this


async def test_a_certificate_file_that_is_not_there_is_said_to_be_so(server: NgircdServer, tmp_path: Path) -> None:
    finding = await connector_in(tmp_path, server.tls_port, tls=True, tls_ca_file=str(tmp_path / "none.pem")).check()

    assert not finding.ok
    assert "certificate" in finding.sentence
