"""Who answers where, and who is who there: over operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.domain.access import Pairing, PairingState
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError
from retinue.domain.shared_errors import AgentNotFound, PersonNotFound
from retinue.domain.times import to_ms
from retinue.store.channels import identities, pairings
from retinue.testing.local_instance import LocalInstance

OWNER = person("owner")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def refused(house: DeskHouse, error: type[RetinueError], operation: str, **asked: Any) -> str:
    with pytest.raises(error) as raised:
        await house.ask(OWNER, operation, **asked)
    assert raised.value.try_this
    assert raised.value.because or isinstance(raised.value, AgentNotFound | PersonNotFound)
    return raised.value.code


async def bound(house: DeskHouse) -> list[tuple[str, str, str]]:
    found = (await house.ask(OWNER, "binding.list"))["bindings"]
    return [(each["agent"], each["connector"], each["peer"]) for each in found]


@pytest.mark.spec("H65")
async def test_binding_anew_takes_the_place_of_the_old_one_in_one_commit(house: DeskHouse) -> None:
    first = await house.ask(OWNER, "binding.set", agent="ada", connector="family")
    assert first["replaced"] == [] and first["binding"]["made-by"] == "person:owner"
    second = await house.ask(OWNER, "binding.set", agent="bo", connector="family")
    assert [each["agent"] for each in second["replaced"]] == ["ada"]
    assert await bound(house) == [("bo", "family", "")]
    assert await refused(house, NotFound, "binding.set", agent="nobody", connector="family") == "agent.not_found"
    assert await bound(house) == [("bo", "family", "")]  # who answered there still does


async def test_finer_bindings_stand_beside_each_other_and_are_removed_by_their_short_ids(house: DeskHouse) -> None:
    await house.ask(OWNER, "binding.set", agent="ada", connector="telegram")
    made = await house.ask(OWNER, "binding.set", agent="bo", connector="telegram", peer="4711", peer_kind="dm")
    group = await house.ask(
        OWNER, "binding.set", agent="ada", connector="telegram", peer="-100", peer_kind="group", also=["bo"]
    )
    assert group["binding"]["also"] == ["bo"]
    assert len(await bound(house)) == 3
    assert (await house.ask(OWNER, "binding.remove", id=made["binding"]["id"][:12]))["removed"]
    assert sorted(await bound(house)) == [("ada", "telegram", ""), ("ada", "telegram", "-100")]
    assert await refused(house, NotFound, "binding.remove", id=made["binding"]["id"]) == "binding.not_found"
    assert await refused(house, Invalid, "binding.set", agent="ada", connector="") == "binding.match_invalid"


async def ask_in(house: DeskHouse, code: str, speaker: str) -> str:
    now = house.desk.clock.now()
    pairing = Pairing(
        id=house.desk.ids.new(),
        connector="family",
        platform="telegram",
        sender_id=speaker,
        name="Maria, she says",
        code=code,
        state=PairingState.WAITING,
        requested_at=now,
        expires_at=now + timedelta(hours=1),
    )
    await house.desk.store.write(
        lambda conn: pairings.request_access(conn, pairing, cap=5, at_ms=to_ms(now)), point="test"
    )
    return pairing.id


@pytest.mark.spec("C16")
async def test_whoever_was_shown_a_code_is_let_in_by_it_once(house: DeskHouse) -> None:
    await ask_in(house, "ABCD2345", "4711")
    listed = await house.ask(OWNER, "pairing.list")
    assert [(each["code"], each["speaker"], each["state"]) for each in listed["pairings"]] == [
        ("ABCD2345", "4711", "waiting")
    ]
    assert listed["admitted"] == []
    decided = await house.ask(OWNER, "pairing.accept", which="abcd-2345")
    assert (decided["pairing"]["state"], decided["pairing"]["code"], decided["person"]) == ("accepted", "", "")
    listed = await house.ask(OWNER, "pairing.list")
    assert [(each["connector"], each["speaker"]) for each in listed["admitted"]] == [("family", "4711")]
    assert await refused(house, NotFound, "pairing.accept", which="ABCD2345") == "pairing.not_found"
    await house.ask(OWNER, "pairing.dismiss", connector="family", speaker="4711")
    assert (await house.ask(OWNER, "pairing.list"))["admitted"] == []
    code = await refused(house, NotFound, "pairing.dismiss", connector="family", speaker="4711")
    assert code == "pairing.not_admitted"


async def test_whoever_is_refused_or_comes_too_late_is_not_let_in(house: DeskHouse) -> None:
    id_ = await ask_in(house, "ABCD2345", "4711")
    assert (await house.ask(OWNER, "pairing.refuse", which=id_[:12]))["pairing"]["state"] == "refused"
    assert await refused(house, Conflict, "pairing.accept", which=id_) == "pairing.closed"
    late = await ask_in(house, "WXYZ2345", "4712")
    await house.house.instance.clock.advance(3601)
    assert await refused(house, NotFound, "pairing.accept", which="WXYZ2345") == "pairing.not_found"
    assert await refused(house, Conflict, "pairing.accept", which=late) == "pairing.closed"
    listed = await house.ask(OWNER, "pairing.list")
    assert {each["state"] for each in listed["pairings"]} == {"refused", "expired"} and listed["admitted"] == []


async def test_whoever_is_let_in_as_a_person_is_that_person_there_from_now_on(house: DeskHouse) -> None:
    await ask_in(house, "ABCD2345", "4711")
    await ask_in(house, "WXYZ2345", "4712")
    await house.ask(OWNER, "pairing.accept", which="ABCD2345", person="maria")
    known = await house.desk.store.read(lambda conn: identities.find_person(conn, "telegram", "4711"))
    assert known is not None and known.name == "maria"
    await refused(house, NotFound, "pairing.accept", which="WXYZ2345", person="nobody")
    listed = await house.ask(OWNER, "pairing.list")
    waiting = [each["speaker"] for each in listed["pairings"] if each["state"] == "waiting"]
    assert waiting == ["4712"]  # all of it or nothing


async def test_an_id_is_one_persons_and_a_username_is_nobodys(house: DeskHouse) -> None:
    made = await house.ask(OWNER, "identity.link", person="maria", service="Telegram", id=" 4711 ")
    assert made == {"person": "maria", "service": "telegram", "id": "4711"}
    assert (await house.ask(OWNER, "identity.list"))["identities"] == [made]
    assert await refused(house, Conflict, "identity.link", person="noor", service="telegram", id="4711")
    code = await refused(house, Invalid, "identity.link", person="noor", service="telegram", id="@noor")
    assert code == "identity.is_username"
    assert (await house.ask(OWNER, "identity.unlink", service="telegram", id="4711"))["unlinked"]
    code = await refused(house, NotFound, "identity.unlink", service="telegram", id="4711")
    assert code == "identity.not_found"
