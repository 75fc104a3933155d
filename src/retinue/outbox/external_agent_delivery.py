"""Letters to agents that run elsewhere: work that is handed out of the house, one room for each session.

The outbox brings them, so they are tried again, given up and told of like all that leaves. What comes back comes by
`callbacks`.
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

ATTEMPT_S = 5.0  # for one try; what the far side does with it may take as long as the agent's `timeout_s`
ATTEMPTS_MAX = 21  # more than any agent's own `retries`
USER_AGENT = "retinue"

_SLASHES = re.compile(r"/{2,}")
_encode = msgspec.json.Encoder().encode


def said_to(conn: sa.Connection, origin: Origin) -> tuple[Address, bool]:
    """To whom it goes what an agent elsewhere says in a session without having been asked, and whether it goes
    silently: another agent reads it with its next turn, since words that nobody asked for set nobody to work."""
    asker = sessions.get(conn, origin.parent) if origin.parent is not None else None
    if asker is not None:
        return address.agent(asker.agent, asker.id), True
    agent, _, more = origin.key.partition("/")
    if origin.kind is OriginKind.AGENT and more:
        return address.parse(f"{agent}/{more.partition('/')[0]}"), True
    return who_listens(origin), False


def callback_url(base: str, session: str) -> str:
    """Where answers for a session are to be sent."""
    parts = urlsplit(base)
    path = _SLASHES.sub("/", f"{parts.path}/external/sessions/{quote(session, safe='')}/messages")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class _Work(Struct, frozen=True):
    """What is to be brought where."""

    agent: str
    external: External
    session: str  # as the far side knows it


def _work(conn: sa.Connection, *, envelope: Envelope) -> _Work | None:
    """None for what was not handed out by a run: this door is for nobody else."""
    delegation = delegations.get(conn, envelope.id) if envelope.kind is Kind.DELEGATION else None
    if delegation is None or delegation.kind is not DelegationKind.EXTERNAL:
        return None
    agent = agents.find(conn, delegation.agent)
    if agent is None:
        return None
    return _Work(agent.name, agent.external, known_as(conn, delegation.session))


def known_as(conn: sa.Connection, session: SessionId) -> str:
    """By what id the far side knows a session: the one that was chosen for it, and else its own."""
    return external_keys.of(conn, session) or session


class Elsewhere(Struct, frozen=True):
    """The connector to agents that run elsewhere. They know a letter by its id, so it may be brought twice.

    `base` is the address of this house as they reach it.
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
        """Nobody speaks here: what they say comes in by the api."""
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
    """Where letters may go: out into the world, and to those hosts of their own network that an owner has named."""
    return Http(Guard(ports=settings.web.ports, private=settings.external.private_hosts))


def own_address(settings: Settings) -> str:
    """The house as agents elsewhere reach it. Where it listens is written down in its home once it does."""
    if named := settings.external.callback_url or settings.public_url:
        return named
    try:
        return (settings.home / "address").read_text()
    except OSError:
        return f"http://{settings.listen.host}:{settings.listen.port}"
