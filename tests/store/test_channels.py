"""Bindings, identities, pairings and ambient messages in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from retinue.connectors.base import InboundMessage, PlatformUser
from retinue.connectors.supervisor.poison_messages import to_json
from retinue.domain.access import Identity, Pairing, PairingState, PoisonMessageState
from retinue.domain.agent import Agent
from retinue.domain.binding import Binding, BindingMatch, PeerKind
from retinue.domain.errors import Conflict, Invalid, NotFound, StoreError
from retinue.domain.person import Person, Role
from retinue.domain.structs import replace
from retinue.store.agents import agents
from retinue.store.channels import ambient_messages, bindings, identities, pairings, poison_messages
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.maintenance import erase_person
from retinue.store.open_store import open_store
from retinue.store.people import people

NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_store(tmp_path / "retinue.db")

    def settle_in(conn: sa.Connection) -> None:
        for name in ("ada", "bob"):
            agents.upsert(conn, Agent(name=name), source="test", at_ms=NOW_MS)
        for name, role in (("owner", Role.OWNER), ("maria", Role.MEMBER)):
            people.add(conn, Person(name=name, role=role), at_ms=NOW_MS)

    await store.write(settle_in, point="test")
    yield store
    await store.close()


def make_binding(id_: str, agent: str, **match: str) -> Binding:
    kind = match.pop("peer_kind", "")
    return Binding(
        id=id_,
        agent=agent,
        match=BindingMatch(connector="telegram", peer_kind=PeerKind(kind) if kind else None, **match),
    )


async def replace_binding(store: Store, binding: Binding) -> Binding:
    return await store.write(partial(bindings.replace, binding=binding, at_ms=NOW_MS), point="test")


async def add(store: Store, binding: Binding) -> Binding:
    return await store.write(partial(bindings.add, binding=binding, at_ms=NOW_MS), point="test")


async def bound_agents(store: Store) -> dict[str, str]:
    return {each.id: each.agent for each in await store.scan(bindings.list_all)}


# Bindings


@pytest.mark.spec("C123")
async def test_the_store_refuses_a_binding_only_if_one_with_the_same_complete_match_exists(store: Store) -> None:
    await add(store, make_binding("1", "ada", account="family"))
    await add(store, make_binding("2", "bob", account="family", peer="7"))
    await add(store, make_binding("3", "bob", account="family", peer="7", peer_kind="dm"))
    await add(store, make_binding("4", "bob", account="family", guild="g"))
    with pytest.raises(Conflict) as refused:
        await add(store, make_binding("5", "bob", account="family"))
    assert refused.value.code == "binding.exists"
    assert await bound_agents(store) == {"1": "ada", "2": "bob", "3": "bob", "4": "bob"}


@pytest.mark.spec("H65")
async def test_a_connector_account_has_one_agent_and_the_store_replaces_its_binding_in_one_commit(store: Store) -> None:
    await replace_binding(store, make_binding("1", "ada", account="family"))
    await replace_binding(store, make_binding("2", "bob", account="family"))
    assert await bound_agents(store) == {"2": "bob"}, "the connector is bound to another agent"
    await replace_binding(store, make_binding("3", "bob", account="work"))
    assert await bound_agents(store) == {"3": "bob"}, "an agent has one binding for a whole connector"
    await replace_binding(store, make_binding("4", "bob", peer="7"))
    assert await bound_agents(store) == {"3": "bob", "4": "bob"}, "bindings of single channels coexist with it"
    await replace_binding(store, Binding(id="5", agent="ada", match=BindingMatch(connector="work")))
    assert await bound_agents(store) == {"5": "ada", "4": "bob"}, "the connector name as account is the same binding"


@pytest.mark.spec("H65")
async def test_a_failed_rebinding_keeps_the_old_binding(store: Store) -> None:
    await replace_binding(store, make_binding("1", "ada", account="family"))
    with pytest.raises(NotFound):
        await replace_binding(store, make_binding("2", "nobody", account="family"))
    assert await bound_agents(store) == {"1": "ada"}


@pytest.mark.spec("C85")
async def test_several_agents_can_be_bound_to_one_channel_each_once(store: Store) -> None:
    both = Binding(id="1", agent="Ada", extra_agents=("BOB",), match=BindingMatch(connector="telegram", peer="-1"))
    assert (await add(store, both)).agents == ("ada", "bob"), "in the spelling of the agents"
    with pytest.raises(Invalid):
        await replace_binding(
            store,
            Binding(id="2", agent="ada", extra_agents=("ADA",), match=BindingMatch(connector="telegram", peer="-2")),
        )


async def test_removing_an_agent_from_bindings_keeps_the_other_agents_of_a_channel(store: Store) -> None:
    await add(
        store, Binding(id="1", agent="ada", extra_agents=("bob",), match=BindingMatch(connector="telegram", peer="-1"))
    )
    await add(store, make_binding("2", "ada"))
    assert await store.write(partial(bindings.remove_agent, agent="ada", at_ms=NOW_MS), point="test") == 2
    assert await bound_agents(store) == {"1": "bob"}


async def test_a_binding_follows_its_channel_to_a_new_id(store: Store) -> None:
    await add(store, make_binding("1", "ada", peer="-1"))
    moved = partial(bindings.move_channel, connector="family", channel="-1", new_channel="-1001")
    assert await store.write(moved, point="test") == 1
    assert [each.match.peer for each in await store.scan(bindings.list_all)] == ["-1001"]


# Identities


@pytest.mark.spec("C9")
async def test_the_store_links_an_identity_to_one_person_and_allows_a_person_several_identities(store: Store) -> None:
    async def link(service: str, id_: str, person: str) -> Identity:
        identity = Identity(service=service, id=id_, person=person, made_by="person:owner")
        return await store.write(partial(identities.link, identity=identity, at_ms=NOW_MS), point="test")

    await link("telegram", "7", "Maria")
    await link("irc", "maria!m@home", "maria")
    assert (await link("telegram", "7", "maria")).person == "maria", "linking it again changes nothing"
    with pytest.raises(Conflict) as refused:
        await link("telegram", "7", "owner")
    assert refused.value.code == "identity.taken"
    with pytest.raises(NotFound):
        await link("telegram", "8", "nobody")

    who = await store.read(partial(identities.find_person, service="telegram", id_="7"))
    assert who == Person(name="maria", role=Role.MEMBER)
    assert await store.read(partial(identities.find_person, service="irc", id_="7")) is None, (
        "an id is valid on its platform only"
    )


async def test_erasing_a_person_removes_identities_pairings_admissions_and_ambient_messages(store: Store) -> None:
    def add_rows_of_maria(conn: sa.Connection) -> None:
        identities.link(conn, Identity(service="telegram", id="7", person="maria"), at_ms=NOW_MS)
        pairings.request_access(conn, make_pairing("7"), cap=3, at_ms=NOW_MS)
        pairings.admit(conn, "family", "7", by="person:owner", at_ms=NOW_MS)
        for speaker in ("7", "8"):
            row = {"message_id": speaker, "sender_id": speaker, "name": "Maria", "text": "hi"}
            ambient_messages.add(conn, "family", "-1", **row, limit=9, at_ms=NOW_MS)

    await store.write(add_rows_of_maria, point="test")
    await store.write(partial(erase_person.erase_person, person="maria", now_ms=NOW_MS), point="test")

    assert await store.read(partial(identities.find_person, service="telegram", id_="7")) is None
    assert not await store.read(partial(pairings.is_admitted, connector="family", sender_id="7"))
    assert await store.scan(partial(pairings.list_latest, limit=9)) == []
    left = await store.scan(partial(ambient_messages.list_messages, connector="family", channel="-1"))
    assert [each.sender_id for each in left] == ["8"], "messages of others stay"


async def test_erasing_a_person_revokes_an_admission_whose_request_is_gone_but_not_on_other_platforms(
    store: Store,
) -> None:
    def add_rows_of_maria(conn: sa.Connection) -> None:
        identities.link(conn, Identity(service="telegram", id="7", person="maria"), at_ms=NOW_MS)
        for connector in ("family", "irc-home"):
            pairings.admit(conn, connector, "7", by="person:owner", at_ms=NOW_MS)
        other = replace(make_pairing("9"), connector="irc-home", platform="irc")
        pairings.request_access(conn, other, cap=3, at_ms=NOW_MS)

    await store.write(add_rows_of_maria, point="test")
    await store.write(partial(erase_person.erase_person, person="maria", now_ms=NOW_MS), point="test")
    assert [each.instance for each in await store.scan(pairings.list_admitted)] == ["irc-home"]


async def test_erasing_a_person_drops_their_poison_messages_and_clears_the_text(store: Store) -> None:
    def add_messages(conn: sa.Connection) -> None:
        identities.link(conn, Identity(service="telegram", id="7", person="maria"), at_ms=NOW_MS)
        for sender, service in (("7", "telegram"), ("7", ""), ("7", "irc"), ("8", "telegram")):
            message = InboundMessage(
                channel="-1", message_id="1", text="my shoe size", sender=PlatformUser(id=sender), service=service
            )
            poison_messages.upsert(
                conn,
                id_=f"{sender}-{service}",
                connector="family",
                channel="-1",
                message_id=f"{sender}-{service}",
                body=to_json(message),
                because="it failed",
                tries=3,
                at_ms=NOW_MS,
            )

    await store.write(add_messages, point="test")
    await store.write(partial(erase_person.erase_person, person="maria", now_ms=NOW_MS), point="test")
    found = await store.scan(partial(poison_messages.list_messages, include_closed=True))
    assert {each.id: (each.state, bool(each.body)) for each in found} == {
        "7-telegram": (PoisonMessageState.DROPPED, False),
        "7-": (PoisonMessageState.DROPPED, False),
        "7-irc": (PoisonMessageState.WAITING, True),
        "8-telegram": (PoisonMessageState.WAITING, True),
    }


# Pairings


def make_pairing(speaker: str, *, id_: str = "", minutes: int = 60) -> Pairing:
    return Pairing(
        id=id_ or f"p{speaker}",
        connector="family",
        platform="telegram",
        sender_id=speaker,
        name="Somebody",
        code=f"CODE{speaker}",
        state=PairingState.WAITING,
        requested_at=NOW,
        expires_at=NOW + timedelta(minutes=minutes),
    )


async def request_pairing(
    store: Store, pairing: Pairing, *, cap: int = 2, at_ms: int = NOW_MS
) -> pairings.PairingRequestResult:
    return await store.write(partial(pairings.request_access, pairing=pairing, cap=cap, at_ms=at_ms), point="test")


@pytest.mark.spec("C16")
async def test_a_repeated_pairing_request_keeps_its_code_and_requests_over_the_limit_are_dropped(store: Store) -> None:
    first = await request_pairing(store, make_pairing("1"))
    again = await request_pairing(store, make_pairing("1", id_="other"))
    await request_pairing(store, make_pairing("2"))
    third = await request_pairing(store, make_pairing("3"))

    assert first.is_new and not again.is_new
    assert again.pairing == first.pairing
    assert third.pairing is None and not third.is_new
    assert await store.read(partial(pairings.is_full, connector="family", cap=2, now_ms=NOW_MS))
    assert not await store.read(partial(pairings.is_full, connector="work", cap=2, now_ms=NOW_MS))


@pytest.mark.spec("C16")
async def test_an_expired_pairing_frees_its_slot(store: Store) -> None:
    await request_pairing(store, make_pairing("1", minutes=1), cap=1)
    later = NOW_MS + 60_000
    decided = partial(pairings.decide, id_="p1", state=PairingState.ACCEPTED, by="person:owner", at_ms=later)
    assert await store.write(decided, point="test") is None, "too late"
    assert not await store.read(partial(pairings.is_admitted, connector="family", sender_id="1"))
    assert (await request_pairing(store, make_pairing("2"), cap=1, at_ms=later)).is_new
    states = {each.id: each.state for each in await store.scan(partial(pairings.list_latest, limit=9))}
    assert states == {"p1": PairingState.EXPIRED, "p2": PairingState.WAITING}


@pytest.mark.spec("C16")
async def test_a_pairing_is_decided_once_and_only_an_accepted_one_admits_its_sender(store: Store) -> None:
    for speaker in ("1", "2"):
        await request_pairing(store, make_pairing(speaker))
    found = await store.read(partial(pairings.find_by_code, code="code1", now_ms=NOW_MS))
    assert found is not None and found.id == "p1", "a code is case-insensitive"
    for id_, state in (("p1", PairingState.ACCEPTED), ("p2", PairingState.REFUSED)):
        decide = partial(pairings.decide, id_=id_, state=state, by="person:owner", at_ms=NOW_MS)
        assert await store.write(decide, point="test") is not None
        assert await store.write(decide, point="test") is None, "a decision is final"
    assert [each.sender_id for each in await store.scan(pairings.list_admitted)] == ["1"]
    assert await store.write(partial(pairings.revoke_admission, connector="family", sender_id="1"), point="test")
    assert await store.scan(pairings.list_admitted) == []


async def test_old_pairings_are_deleted_with_a_new_request(store: Store) -> None:
    await request_pairing(store, make_pairing("1", minutes=1))
    await request_pairing(store, make_pairing("2"), at_ms=NOW_MS + pairings.RETENTION_MS + 61_000)
    assert [each.id for each in await store.scan(partial(pairings.list_latest, limit=9))] == ["p2"]


# Ambient messages


@pytest.mark.spec("C84")
async def test_the_store_keeps_the_last_ambient_messages_of_a_channel_and_deletes_those_once_shown(
    store: Store,
) -> None:
    def add_messages(conn: sa.Connection) -> None:
        for number in range(1, 6):
            ambient_messages.add(
                conn,
                "family",
                "-1",
                message_id=str(number),
                sender_id="7",
                name="Maria",
                text=f"{number}" * 2_000,
                limit=3,
                at_ms=NOW_MS,
            )

    await store.write(add_messages, point="test")
    await store.write(add_messages, point="test")  # delivered again
    kept = await store.scan(partial(ambient_messages.list_messages, connector="family", channel="-1"))
    assert [each.message_id for each in kept] == ["3", "4", "5"]
    assert all(len(each.text) == ambient_messages.TEXT_CHARS_MAX for each in kept)
    await store.write(
        partial(ambient_messages.delete_shown, connector="family", channel="-1", upto=kept[1].seq), point="test"
    )
    left = await store.scan(partial(ambient_messages.list_messages, connector="family", channel="-1"))
    assert [each.message_id for each in left] == ["5"], "what came meanwhile is kept for the next run"


async def test_ambient_messages_follow_their_channel_to_a_new_id(store: Store) -> None:
    def body(conn: sa.Connection) -> None:
        row = {"message_id": "1", "sender_id": "7", "name": "", "text": "hi"}
        ambient_messages.add(conn, "family", "-1", **row, limit=3, at_ms=NOW_MS)
        ambient_messages.move(conn, "family", "-1", "-1001")

    await store.write(body, point="test")
    assert await store.scan(partial(ambient_messages.list_messages, connector="family", channel="-1")) == []
    assert len(await store.scan(partial(ambient_messages.list_messages, connector="family", channel="-1001"))) == 1


async def test_the_database_allows_one_waiting_pairing_per_sender(store: Store) -> None:
    row = {"connector": "family", "platform": "telegram", "sender": "1", "name": "", "code": "X", "state": "waiting"}
    row |= {"asked_ms": 1, "expires_ms": 2, "decided_by": "", "decided_ms": None}
    await store.write(lambda conn: conn.execute(t.pairings.insert(), {"id": "a", **row}) and None, point="test")
    with pytest.raises(StoreError):
        await store.write(lambda conn: conn.execute(t.pairings.insert(), {"id": "b", **row}) and None, point="test")
