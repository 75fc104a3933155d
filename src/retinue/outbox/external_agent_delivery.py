"""Delivers delegated work to external agents, with one channel per session.

It goes through the outbox, so retries, dead letters and notices work as for every delivery. Answers
arrive through `intake/external_callbacks`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.config import Settings
from retinue.config.secret import Secret
from retinue.connectors.base import Accept, Delivery, DeliveryFailed, FailureKind, Parcel
from retinue.domain import address
from retinue.domain.address import EXTERNAL, Address
from retinue.domain.agent import External
from retinue.domain.delegation import DelegationKind
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.errors import Invalid
from retinue.domain.ids import SessionId
from retinue.domain.ports import Clock
from retinue.domain.session import Origin, OriginKind
from retinue.intake.routing import who_listens
from retinue.net.signatures import LETTER, SIGNATURE, TIMESTAMP, Purpose, signed
from retinue.outbox.signed_request import MakeHttp, bring
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.runs import delegations
from retinue.store.sessions import external_keys, sessions
from retinue.tools.web.guarded_request import Http
from retinue.tools.web.url_guard import Guard

ATTEMPT_S = 5.0  # for one attempt; the external agent's work may take as long as the agent's `timeout_s`
ATTEMPTS_MAX = 21  # more than any agent's own `retries`
USER_AGENT = "retinue"

_SLASHES = re.compile(r"/{2,}")
_encode = msgspec.json.Encoder().encode


def said_to(conn: sa.Connection, origin: Origin) -> tuple[Address, bool]:
    """The recipient of an external agent's unsolicited message, and whether it is silent.

    Another agent reads it with its next turn, because an unsolicited message must not start work.
    """
    asker = sessions.get(conn, origin.parent) if origin.parent is not None else None
    if asker is not None:
        return address.agent(asker.agent, asker.id), True
    agent, _, more = origin.key.partition("/")
    if origin.kind is OriginKind.AGENT and more:
        return address.parse(f"{agent}/{more.partition('/')[0]}"), True
    return who_listens(origin), False


def callback_url(base: str, session: str) -> str:
    """The callback URL of a session."""
    parts = urlsplit(base)
    path = _SLASHES.sub("/", f"{parts.path}/external/sessions/{quote(session, safe='')}/messages")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class _Work(Struct, frozen=True):
    """An envelope's agent and session."""

    agent: str
    external: External
    session: str  # its id at the external agent


def _work(conn: sa.Connection, *, envelope: Envelope) -> _Work | None:
    """The delegation of an envelope. None if no run delegated it: this connector is for nothing
    else."""
    delegation = delegations.get(conn, envelope.id) if envelope.kind is Kind.DELEGATION else None
    if delegation is None or delegation.kind is not DelegationKind.EXTERNAL:
        return None
    agent = agents.find(conn, delegation.agent)
    if agent is None:
        return None
    return _Work(agent.name, agent.external, known_as(conn, delegation.session))


def known_as(conn: sa.Connection, session: SessionId) -> str:
    """The id of a session at the external agent: the one chosen for it, or else its own."""
    return external_keys.of(conn, session) or session


class Elsewhere(Struct, frozen=True):
    """The connector to external agents. They deduplicate by envelope id, so a delivery may be
    repeated.

    `get_base_url` returns the URL of this server as they reach it.
    """

    store: Store
    clock: Clock
    http: MakeHttp
    base: Callable[[], str]
    environment: Mapping[str, str]
    instance: str = EXTERNAL
    repeats_safely: bool = True
    attempts_max: int = ATTEMPTS_MAX

    async def listen(self, accept: Accept) -> None:
        """Does nothing: their messages arrive through the API."""
        del accept
        await asyncio.Event().wait()

    async def deliver(self, parcel: Parcel) -> Delivery:
        envelope = parcel.envelope
        work = await self.store.read(partial(_work, envelope=envelope))
        if work is None:
            raise _refused("only work that was handed to an agent elsewhere goes out here")
        body = _encode(self._body(envelope, work))
        at = str(int(self.clock.now().timestamp()))
        signature = signed(self._key(work), Purpose.MESSAGE, at=at, session=work.session, letter=envelope.id, body=body)
        headers = {
            "User-Agent": USER_AGENT,
            "Content-Type": "application/json",
            LETTER: envelope.id,
            TIMESTAMP: at,
            SIGNATURE: signature,
        }
        return await bring(
            self.http(),
            work.external.url,
            body,
            headers=headers,
            timeout_s=ATTEMPT_S,
            last=envelope.attempts > work.external.retries,
        )

    def _key(self, work: _Work) -> str:
        if not work.external.secret:
            raise _refused(f"nothing signs letters to {work.agent}: set `agents.{work.agent}.external.secret`")
        try:
            return Secret.referred(work.external.secret).read(self.environment)
        except Invalid as error:
            raise _refused(f"{error.sentence}: {error.because}") from None

    def _body(self, envelope: Envelope, work: _Work) -> dict[str, Any]:
        attached = [
            {"name": each.name, "mediaType": each.media_type, "sizeBytes": each.size_bytes}
            for each in envelope.attachments
        ]
        message = {"type": "user", "text": envelope.text, "createdAt": envelope.accepted_at}
        return {
            "id": envelope.id,
            "sessionId": work.session,
            "agentId": work.agent,
            "callbackUrl": callback_url(self.base(), work.session),
            "message": {**message, "attachments": attached} if attached else message,
        }


def _refused(sentence: str) -> DeliveryFailed:
    return DeliveryFailed(sentence, kind=FailureKind.INVALID_SENDER, permanent=True)


def way_out(settings: Settings) -> Http:
    """The guarded HTTP client: public hosts, and those local hosts that the owner allowed."""
    return Http(Guard(ports=settings.web.ports, private=settings.external.private_hosts))


def own_address(settings: Settings) -> str:
    """The URL of this server for external agents. A listening server writes it to its data
    directory."""
    if named := settings.external.callback_url or settings.public_url:
        return named
    try:
        return (settings.home / "address").read_text()
    except OSError:
        return f"http://{settings.listen.host}:{settings.listen.port}"
