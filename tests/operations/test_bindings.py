"""Operations on bindings, identities and pairings."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.access import Pairing, PairingState
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError
from retinue.domain.shared_errors import AgentNotFound, PersonNotFound
from retinue.domain.times import to_ms
from retinue.store.channels import identities, pairings
from retinue.testing.local_instance import LocalInstance

OWNER = person("owner")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def error_code_of(server: OperationsServer, error: type[RetinueError], operation: str, **asked: Any) -> str:
    with pytest.raises(error) as raised:
        await server.ask(OWNER, operation, **asked)
    assert raised.value.try_this
    assert raised.value.because or isinstance(raised.value, AgentNotFound | PersonNotFound)
    return raised.value.code


async def list_bindings(server: OperationsServer) -> list[tuple[str, str, str]]:
    found = (await server.ask(OWNER, "binding.list"))["bindings"]
    return [(each["agent"], each["connector"], each["peer"]) for each in found]


@pytest.mark.spec("H65")
async def test_setting_a_binding_replaces_the_previous_one_unless_it_fails(server: OperationsServer) -> None:
    first = await server.ask(OWNER, "binding.set", agent="ada", connector="family")
    assert first["replaced"] == [] and first["binding"]["created_by"] == "person:owner"
    second = await server.ask(OWNER, "binding.set", agent="bo", connector="family")
    assert [each["agent"] for each in second["replaced"]] == ["ada"]
    assert await list_bindings(server) == [("bo", "family", "")]
    assert await error_code_of(server, NotFound, "binding.set", agent="nobody", connector="family") == "agent.not_found"
    assert await list_bindings(server) == [("bo", "family", "")]  # the previous binding is unchanged


async def test_bindings_of_single_channels_coexist_and_are_removed_by_short_id(server: OperationsServer) -> None:
    await server.ask(OWNER, "binding.set", agent="ada", connector="telegram")
    made = await server.ask(OWNER, "binding.set", agent="bo", connector="telegram", peer="4711", peer_kind="dm")
    group = await server.ask(
        OWNER, "binding.set", agent="ada", connector="telegram", peer="-100", peer_kind="group", extra_agents=["bo"]
    )
    assert group["binding"]["extra_agents"] == ["bo"]
    assert len(await list_bindings(server)) == 3
    assert (await server.ask(OWNER, "binding.remove", id=made["binding"]["id"][:12]))["removed"]
    assert sorted(await list_bindings(server)) == [("ada", "telegram", ""), ("ada", "telegram", "-100")]
    assert await error_code_of(server, NotFound, "binding.remove", id=made["binding"]["id"]) == "binding.not_found"
    assert await error_code_of(server, Invalid, "binding.set", agent="ada", connector="") == "binding.match_invalid"


async def request_pairing(server: OperationsServer, code: str, speaker: str) -> str:
    now = server.services.clock.now()
    pairing = Pairing(
        id=server.services.ids.new(),
        connector="family",
        platform="telegram",
        sender_id=speaker,
        name="Maria, she says",
        code=code,
        state=PairingState.WAITING,
        requested_at=now,
        expires_at=now + timedelta(hours=1),
    )
    await server.services.store.write(
        lambda conn: pairings.request_access(conn, pairing, cap=5, at_ms=to_ms(now)), point="test"
    )
    return pairing.id


@pytest.mark.spec("C16")
async def test_a_pairing_code_admits_its_sender_once_and_can_be_revoked(server: OperationsServer) -> None:
    await request_pairing(server, "ABCD2345", "4711")
    listed = await server.ask(OWNER, "pairing.list")
    assert [(each["code"], each["sender_id"], each["state"]) for each in listed["pairings"]] == [
        ("ABCD2345", "4711", "waiting")
    ]
    assert listed["admitted"] == []
    decided = await server.ask(OWNER, "pairing.accept", request="abcd-2345")
    assert (decided["pairing"]["state"], decided["pairing"]["code"], decided["person"]) == ("accepted", "", "")
    listed = await server.ask(OWNER, "pairing.list")
    assert [(each["connector"], each["sender_id"]) for each in listed["admitted"]] == [("family", "4711")]
    assert await error_code_of(server, NotFound, "pairing.accept", request="ABCD2345") == "pairing.not_found"
    await server.ask(OWNER, "pairing.revoke", connector="family", sender_id="4711")
    assert (await server.ask(OWNER, "pairing.list"))["admitted"] == []
    code = await error_code_of(server, NotFound, "pairing.revoke", connector="family", sender_id="4711")
    assert code == "pairing.not_admitted"


async def test_a_refused_or_expired_pairing_cannot_be_accepted(server: OperationsServer) -> None:
    id_ = await request_pairing(server, "ABCD2345", "4711")
    assert (await server.ask(OWNER, "pairing.refuse", request=id_[:12]))["pairing"]["state"] == "refused"
    assert await error_code_of(server, Conflict, "pairing.accept", request=id_) == "pairing.closed"
    late = await request_pairing(server, "WXYZ2345", "4712")
    await server.server.instance.clock.advance(3601)
    assert await error_code_of(server, NotFound, "pairing.accept", request="WXYZ2345") == "pairing.not_found"
    assert await error_code_of(server, Conflict, "pairing.accept", request=late) == "pairing.closed"
    listed = await server.ask(OWNER, "pairing.list")
    assert {each["state"] for each in listed["pairings"]} == {"refused", "expired"} and listed["admitted"] == []


async def test_accepting_a_pairing_as_a_person_links_the_identity(server: OperationsServer) -> None:
    await request_pairing(server, "ABCD2345", "4711")
    await request_pairing(server, "WXYZ2345", "4712")
    await server.ask(OWNER, "pairing.accept", request="ABCD2345", person="maria")
    known = await server.services.store.read(lambda conn: identities.find_person(conn, "telegram", "4711"))
    assert known is not None and known.name == "maria"
    await error_code_of(server, NotFound, "pairing.accept", request="WXYZ2345", person="nobody")
    listed = await server.ask(OWNER, "pairing.list")
    waiting = [each["sender_id"] for each in listed["pairings"] if each["state"] == "waiting"]
    assert waiting == ["4712"]  # the pairing is accepted completely or not at all


async def test_an_identity_belongs_to_one_person_and_a_username_is_refused(server: OperationsServer) -> None:
    made = await server.ask(OWNER, "identity.link", person="maria", platform="Telegram", id=" 4711 ")
    assert made == {"person": "maria", "platform": "telegram", "id": "4711"}
    assert (await server.ask(OWNER, "identity.list"))["identities"] == [made]
    assert await error_code_of(server, Conflict, "identity.link", person="noor", platform="telegram", id="4711")
    code = await error_code_of(server, Invalid, "identity.link", person="noor", platform="telegram", id="@noor")
    assert code == "identity.is_username"
    assert (await server.ask(OWNER, "identity.unlink", platform="telegram", id="4711"))["unlinked"]
    code = await error_code_of(server, NotFound, "identity.unlink", platform="telegram", id="4711")
    assert code == "identity.not_found"
