"""An instance with a fake connector, and helpers that send messages through it."""

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
class ChatInstance:
    """A local instance with two agents and a fake connector. `settings` may be changed while the server runs."""

    instance: LocalInstance
    settings: AccessSettings = field(default_factory=AccessSettings)
    default: str | None = "ada"
    policy_access_control: PolicyAccessControl | None = None
    presses: list[ButtonPress] = field(default_factory=list[ButtonPress])

    @classmethod
    def at(cls, root: Path, **settings: Any) -> ChatInstance:
        instance = LocalInstance(
            root, agents=(Agent(name="ada", model="scripted"), Agent(name="bob", model="scripted"))
        )
        instance.connectors["quiet"] = FakeConnector(instance.clock)
        instance.model.rule = lambda _prompt: text_reply("ok")
        chat = cls(instance, AccessSettings(**settings))
        instance.create_access_control = chat.build_access_control
        instance.handle_press = chat.press
        return chat

    def build_access_control(self, store: Store, inbox: EnvelopeIntake) -> AccessControl:
        clock, ids = self.instance.clock, self.instance.ids
        self.policy_access_control = PolicyAccessControl(
            store,
            clock,
            ids,
            lambda _instance: self.settings,
            lambda _instance: "quiet",
            post=inbox,
            get_default_agent=lambda: self.default,
        )
        return self.policy_access_control

    async def press(self, press: ButtonPress) -> None:
        self.presses.append(press)

    def set(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    @property
    def quiet_connector(self) -> FakeConnector:
        connector = self.instance.connectors["quiet"]
        assert isinstance(connector, FakeConnector)
        return connector


def inbound_message(text: str, *, by: str = "7", id_: str = "1", channel: str = "", **kw: Any) -> InboundMessage:
    """A direct message, unless a channel is given."""
    name = kw.pop("name", "Maria")
    sender = kw.pop("sender", PlatformUser(id=by, name=name))
    return InboundMessage(
        channel=channel or f"dm-{by}", message_id=id_, text=text, sender=sender, peer="" if channel else by, **kw
    )


def remote_file(name: str, *chunks: bytes | Exception, size_bytes: int | None = None) -> RemoteFile:
    async def fetch() -> AsyncIterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    return RemoteFile(name=name, media_type="text/plain", size_bytes=size_bytes, fetch=fetch)


async def read_accepted_envelope(server: LocalServer, receipt: Receipt | None) -> Envelope:
    assert receipt is not None
    return await server.get_envelope(receipt.envelope)


async def list_inbound_envelopes(server: LocalServer) -> list[Envelope]:
    """The envelopes that arrived through the connector, oldest first."""
    rows = await server.execute_sql("SELECT id FROM envelopes WHERE source = 'connector:quiet' ORDER BY seq")
    return [await server.get_envelope(row.id) for row in rows]


async def rows(server: LocalServer) -> int:
    """Count the stored rows that an unknown sender could add."""
    names = (
        "envelopes",
        "pairings",
        "ambient_messages",
        "poison_messages",
        "connector_state",
        "sessions",
        "delivery_parts",
        "events",
    )
    counts = [await server.execute_sql(f"SELECT count(*) AS n FROM {name}") for name in names]
    return sum(count[0].n for count in counts)


async def link(server: LocalServer, person: str, *, id_: str = "7", service: str = "quiet") -> None:
    identity = Identity(service=service, id=id_, person=person, made_by="person:owner")
    await server.store.write(partial(identities.link, identity=identity, at_ms=1), point="test")


async def add_binding(server: LocalServer, *agents: str, **match: Any) -> None:
    binding = Binding(
        id=server.instance.ids.new(),
        agent=agents[0],
        extra_agents=agents[1:],
        match=BindingMatch(connector="quiet", **match),
    )
    await server.store.write(partial(bindings.replace, binding=binding, at_ms=1), point="test")


async def read_envelope(server: LocalServer, id_: str | None) -> Envelope:
    assert id_ is not None
    found = await server.store.read(partial(envelopes.get, id_=id_))
    assert found is not None
    return found
