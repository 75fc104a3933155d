"""A house with someone at its doors, and ways to speak to it from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from retinue.config.access import AccessSettings
from retinue.connectors.base import InboundMessage, PlatformUser, RemoteFile
from retinue.domain.access import Identity
from retinue.domain.agent import Agent
from retinue.domain.binding import Binding, BindingMatch
from retinue.domain.envelope import Envelope, Receipt
from retinue.domain.structs import replace
from retinue.intake.accept import EnvelopeIntake
from retinue.intake.access_control import AccessControl, PolicyAccessControl
from retinue.intake.connector_intake import ButtonPress
from retinue.store.channels import bindings, identities
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply


@dataclass(slots=True)
class Street:
    """A household with a keeper. `settings` may be changed while the house is open."""

    household: LocalInstance
    settings: AccessSettings = field(default_factory=AccessSettings)
    default: str | None = "ada"
    keeper: PolicyAccessControl | None = None
    presses: list[ButtonPress] = field(default_factory=list[ButtonPress])

    @classmethod
    def at(cls, root: Path, **settings: Any) -> Street:
        household = LocalInstance(
            root, agents=(Agent(name="ada", model="scripted"), Agent(name="bob", model="scripted"))
        )
        household.connectors["quiet"] = FakeConnector(household.clock)
        household.model.rule = lambda _prompt: text_reply("ok")
        street = cls(household, AccessSettings(**settings))
        household.create_access_control = street.stand
        household.handle_press = street.press
        return street

    def stand(self, store: Store, inbox: EnvelopeIntake) -> AccessControl:
        clock, ids = self.household.clock, self.household.ids
        self.keeper = PolicyAccessControl(
            store,
            clock,
            ids,
            lambda _instance: self.settings,
            lambda _instance: "quiet",
            post=inbox,
            get_default_agent=lambda: self.default,
        )
        return self.keeper

    async def press(self, press: ButtonPress) -> None:
        self.presses.append(press)

    def set(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    @property
    def place(self) -> FakeConnector:
        connector = self.household.connectors["quiet"]
        assert isinstance(connector, FakeConnector)
        return connector


def said(text: str, *, by: str = "7", id_: str = "1", room: str = "", **kw: Any) -> InboundMessage:
    """In person, unless a room is named."""
    name = kw.pop("name", "Maria")
    speaker = kw.pop("speaker", PlatformUser(id=by, name=name))
    return InboundMessage(
        room=room or f"dm-{by}", message_id=id_, text=text, speaker=speaker, peer="" if room else by, **kw
    )


def offered(name: str, *chunks: bytes | Exception, size_bytes: int | None = None) -> RemoteFile:
    async def fetch() -> AsyncIterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    return RemoteFile(name=name, media_type="text/plain", size_bytes=size_bytes, fetch=fetch)


async def kept(house: LocalServer, receipt: Receipt | None) -> Envelope:
    assert receipt is not None
    return await house.get_envelope(receipt.envelope)


async def heard(house: LocalServer) -> list[Envelope]:
    """What came in by the connector, oldest first."""
    rows = await house.execute_sql("SELECT id FROM envelopes WHERE source = 'connector:quiet' ORDER BY seq")
    return [await house.get_envelope(row.id) for row in rows]


async def rows(house: LocalServer) -> int:
    """How much the store holds that a stranger could make grow."""
    names = ("envelopes", "pairings", "overheard", "set_aside", "connector_words", "sessions", "parts", "news")
    counts = [await house.execute_sql(f"SELECT count(*) AS n FROM {name}") for name in names]
    return sum(count[0].n for count in counts)


async def link(house: LocalServer, person: str, *, id_: str = "7", service: str = "quiet") -> None:
    identity = Identity(service=service, id=id_, person=person, made_by="person:owner")
    await house.store.write(partial(identities.link, identity=identity, at_ms=1), point="test")


async def bind(house: LocalServer, *agents: str, **match: Any) -> None:
    binding = Binding(
        id=house.instance.ids.new(),
        agent=agents[0],
        extra_agents=agents[1:],
        match=BindingMatch(connector="quiet", **match),
    )
    await house.store.write(partial(bindings.replace, binding=binding, at_ms=1), point="test")


async def letter(house: LocalServer, id_: str | None) -> Envelope:
    assert id_ is not None
    found = await house.store.read(partial(envelopes.get, id_=id_))
    assert found is not None
    return found
