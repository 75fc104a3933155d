"""A house with someone at its doors, and ways to speak to it from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from retinue.config.access import DoorSettings
from retinue.connectors.base import Incoming, OfferedFile, Speaker
from retinue.domain.access import Identity
from retinue.domain.agent import Agent
from retinue.domain.binding import Binding, Match
from retinue.domain.envelope import Envelope, Receipt
from retinue.domain.structs import replace
from retinue.intake.accept import Inbox
from retinue.intake.access_control import Doorkeeper, Keeper
from retinue.intake.connector_intake import Press
from retinue.store.channels import bindings, identities
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.testing.fake_connector import QuietConnector
from retinue.testing.local_instance import House, Household
from retinue.testing.scripted_model import says


@dataclass(slots=True)
class Street:
    """A household with a keeper. `settings` may be changed while the house is open."""

    household: Household
    settings: DoorSettings = field(default_factory=DoorSettings)
    default: str | None = "ada"
    keeper: Doorkeeper | None = None
    presses: list[Press] = field(default_factory=list[Press])

    @classmethod
    def at(cls, root: Path, **settings: Any) -> Street:
        household = Household(root, agents=(Agent(name="ada", model="scripted"), Agent(name="bob", model="scripted")))
        household.connectors["quiet"] = QuietConnector(household.clock)
        household.model.rule = lambda _prompt: says("ok")
        street = cls(household, DoorSettings(**settings))
        household.keeper = street.stand
        household.press = street.press
        return street

    def stand(self, store: Store, inbox: Inbox) -> Keeper:
        clock, ids = self.household.clock, self.household.ids
        self.keeper = Doorkeeper(
            store,
            clock,
            ids,
            lambda _instance: self.settings,
            lambda _instance: "quiet",
            post=inbox,
            default=lambda: self.default,
        )
        return self.keeper

    async def press(self, press: Press) -> None:
        self.presses.append(press)

    def set(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    @property
    def place(self) -> QuietConnector:
        connector = self.household.connectors["quiet"]
        assert isinstance(connector, QuietConnector)
        return connector


def said(text: str, *, by: str = "7", id_: str = "1", room: str = "", **kw: Any) -> Incoming:
    """In person, unless a room is named."""
    name = kw.pop("name", "Maria")
    speaker = kw.pop("speaker", Speaker(id=by, name=name))
    return Incoming(room=room or f"dm-{by}", message_id=id_, text=text, speaker=speaker, peer="" if room else by, **kw)


def offered(name: str, *chunks: bytes | Exception, size_bytes: int | None = None) -> OfferedFile:
    async def fetch() -> AsyncIterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    return OfferedFile(name=name, media_type="text/plain", size_bytes=size_bytes, fetch=fetch)


async def kept(house: House, receipt: Receipt | None) -> Envelope:
    assert receipt is not None
    return await house.envelope(receipt.envelope)


async def heard(house: House) -> list[Envelope]:
    """What came in by the connector, oldest first."""
    rows = await house.sql("SELECT id FROM envelopes WHERE source = 'connector:quiet' ORDER BY seq")
    return [await house.envelope(row.id) for row in rows]


async def rows(house: House) -> int:
    """How much the store holds that a stranger could make grow."""
    names = ("envelopes", "pairings", "overheard", "set_aside", "connector_words", "sessions", "parts", "news")
    counts = [await house.sql(f"SELECT count(*) AS n FROM {name}") for name in names]
    return sum(count[0].n for count in counts)


async def link(house: House, person: str, *, id_: str = "7", service: str = "quiet") -> None:
    identity = Identity(service=service, id=id_, person=person, made_by="person:owner")
    await house.store.write(partial(identities.link, identity=identity, at_ms=1), point="test")


async def bind(house: House, *agents: str, **match: Any) -> None:
    binding = Binding(
        id=house.household.ids.new(), agent=agents[0], also=agents[1:], match=Match(connector="quiet", **match)
    )
    await house.store.write(partial(bindings.put, binding=binding, at_ms=1), point="test")


async def letter(house: House, id_: str | None) -> Envelope:
    assert id_ is not None
    found = await house.store.read(partial(envelopes.get, id_=id_))
    assert found is not None
    return found
