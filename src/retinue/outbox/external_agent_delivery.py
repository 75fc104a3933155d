"""Delivers delegated work to external agents, with one channel per session.

The outbox retries these deliveries, keeps dead letters and sends notices, as for every other
channel. Answers arrive through `intake/external_callbacks`.
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
from retinue.config.secret import SecretReference
from retinue.connectors.base import Accept, Delivery, DeliveryFailed, DeliveryPart, FailureKind
from retinue.domain import address
from retinue.domain.address import EXTERNAL, Address
from retinue.domain.agent import ExternalAgentEndpoint
from retinue.domain.delegation import DelegationKind
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.errors import Invalid
from retinue.domain.ids import SessionId
from retinue.domain.ports import Clock
from retinue.domain.session import Origin, OriginKind
from retinue.intake.routing import get_session_address
from retinue.net.signatures import (
    MESSAGE_ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SignaturePurpose,
    sign_message,
)
from retinue.outbox.signed_request import MakeHttp, post_signed
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.runs import delegations
from retinue.store.sessions import external_keys, sessions
from retinue.tools.web.guarded_request import GuardedHttpClient
from retinue.tools.web.url_guard import UrlGuard

ATTEMPT_S = 5.0  # for one attempt; the external agent's work may take as long as the agent's `timeout_s`
ATTEMPTS_MAX = 21  # more than the maximum of an agent's setting `retries`
USER_AGENT = "retinue"

_SLASHES = re.compile(r"/{2,}")
_encode = msgspec.json.Encoder().encode


def get_unsolicited_recipient(conn: sa.Connection, origin: Origin) -> tuple[Address, bool]:
    """Return the recipient of an external agent's unsolicited message, and whether the message is silent.

    A message to an agent is silent: the agent reads it in its next turn, because an unsolicited
    message must not start a run.
    """
    asker = sessions.get(conn, origin.parent) if origin.parent is not None else None
    if asker is not None:
        return address.agent_address(asker.agent, asker.id), True
    agent, _, more = origin.key.partition("/")
    if origin.kind is OriginKind.AGENT and more:
        return address.parse_address(f"{agent}/{more.partition('/')[0]}"), True
    return get_session_address(origin), False


def build_callback_url(base: str, session: str) -> str:
    """Return the URL to which an external agent sends its answers for a session."""
    parts = urlsplit(base)
    path = _SLASHES.sub("/", f"{parts.path}/external/sessions/{quote(session, safe='')}/messages")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class _ExternalDelivery(Struct, frozen=True):
    """The external agent and the session to which an envelope is delivered."""

    agent: str
    external: ExternalAgentEndpoint
    session: str  # its id at the external agent


def _find_delivery(conn: sa.Connection, *, envelope: Envelope) -> _ExternalDelivery | None:
    """Return the external agent and session for an envelope. None if it is not work for an external agent."""
    delegation = delegations.get(conn, envelope.id) if envelope.kind is EnvelopeKind.DELEGATION else None
    if delegation is None or delegation.kind is not DelegationKind.EXTERNAL:
        return None
    agent = agents.find(conn, delegation.agent)
    if agent is None:
        return None
    return _ExternalDelivery(agent.name, agent.external, get_external_session_id(conn, delegation.session))


def get_external_session_id(conn: sa.Connection, session: SessionId) -> str:
    """Return the session id that the external agent uses: a key assigned to the session, or else the session's id."""
    return external_keys.get_key(conn, session) or session


class ExternalAgentConnector(Struct, frozen=True):
    """The connector that sends envelopes to external agents.

    External agents deduplicate by envelope id, so a delivery may be repeated. `get_base_url` returns
    the URL at which they reach this server.
    """

    store: Store
    clock: Clock
    make_http: MakeHttp
    get_base_url: Callable[[], str]
    environment: Mapping[str, str]
    name: str = EXTERNAL
    repeats_safely: bool = True
    attempts_max: int = ATTEMPTS_MAX

    async def listen(self, accept: Accept) -> None:
        """Wait forever: messages from external agents arrive through the API."""
        del accept
        await asyncio.Event().wait()

    async def deliver(self, part: DeliveryPart) -> Delivery:
        envelope = part.envelope
        work = await self.store.read(partial(_find_delivery, envelope=envelope))
        if work is None:
            raise _build_refused("this connector sends only work that was delegated to an external agent")
        body = _encode(self._build_body(envelope, work))
        at = str(int(self.clock.now().timestamp()))
        signature = sign_message(
            self._read_key(work),
            SignaturePurpose.MESSAGE,
            timestamp=at,
            session=work.session,
            message_id=envelope.id,
            body=body,
        )
        headers = {
            "User-Agent": USER_AGENT,
            "Content-Type": "application/json",
            MESSAGE_ID_HEADER: envelope.id,
            TIMESTAMP_HEADER: at,
            SIGNATURE_HEADER: signature,
        }
        return await post_signed(
            self.make_http(),
            work.external.url,
            body,
            headers=headers,
            timeout_s=ATTEMPT_S,
            is_last=envelope.attempts > work.external.retries,
        )

    def _read_key(self, delivery: _ExternalDelivery) -> str:
        if not delivery.external.secret:
            raise _build_refused(
                f"messages to {delivery.agent} cannot be signed: set `agents.{delivery.agent}.external.secret`"
            )
        try:
            return SecretReference.from_text(delivery.external.secret).read(self.environment)
        except Invalid as error:
            raise _build_refused(f"{error.sentence}: {error.because}") from None

    def _build_body(self, envelope: Envelope, delivery: _ExternalDelivery) -> dict[str, Any]:
        attached = [
            {"name": each.name, "mediaType": each.media_type, "sizeBytes": each.size_bytes}
            for each in envelope.attachments
        ]
        message = {"type": "user", "text": envelope.text, "createdAt": envelope.accepted_at}
        return {
            "id": envelope.id,
            "sessionId": delivery.session,
            "agentId": delivery.agent,
            "callbackUrl": build_callback_url(self.get_base_url(), delivery.session),
            "message": {**message, "attachments": attached} if attached else message,
        }


def _build_refused(sentence: str) -> DeliveryFailed:
    return DeliveryFailed(sentence, kind=FailureKind.INVALID_SENDER, permanent=True)


def make_http(settings: Settings) -> GuardedHttpClient:
    """Return an HTTP client that connects only to public hosts, and to private hosts that the owner allowed."""
    return GuardedHttpClient(UrlGuard(ports=settings.web.ports, private_hosts=settings.external.private_hosts))


def get_own_url(settings: Settings) -> str:
    """Return the URL at which external agents reach this server.

    It is the configured URL, or else the one that the running server wrote to its data directory.
    """
    if named := settings.external.callback_url or settings.public_url:
        return named
    try:
        return (settings.home / "address").read_text()
    except OSError:
        return f"http://{settings.listen.host}:{settings.listen.port}"
