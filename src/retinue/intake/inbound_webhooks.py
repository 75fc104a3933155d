"""Accepts inbound webhook requests: verifies and parses them, and stores them as ordinary envelopes.

Once `accept` returns, the envelope survives a crash. A repeated request is stored only once, even
after a restart or after the text of its envelope was purged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.connectors.base import Connector
from retinue.connectors.webhook import inbound_request, webhook_signature
from retinue.connectors.webhook.connector import WebhookConnector
from retinue.connectors.webhook.inbound_request import WebhookRequest
from retinue.connectors.webhook.settings import WakeMode, WebhookKind
from retinue.domain import address, session_keys
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import EnvelopeContext, EnvelopeDraft, EnvelopeKind, Receipt
from retinue.domain.errors import Invalid
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock, EnvelopeAcceptor, IdSource
from retinue.domain.principal import Principal
from retinue.domain.run import NO_RUN_REQUEST, RunRequest
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.intake.errors import WebhookConnectorNotFound, WebhookUnverified
from retinue.intake.routing import OWNER, get_session_address
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions
from retinue.text.untrusted_wrapper import wrap_untrusted

_OWNER = Principal(address=OWNER, level=PermissionLevel.BOSS, trust=Trust.OWNER)


class RawWebhookRequest(Struct, frozen=True, kw_only=True):
    """A webhook request as received, before its signature is verified. Header names are lowercase."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class WebhookReceipt(Struct, frozen=True):
    """The result of a webhook request. `receipt` is None if no mapping matched and nothing was stored."""

    kind: WebhookKind | None
    receipt: Receipt | None


class WebhookIntake:
    """Accepts webhook requests. `connectors` returns the running connectors by name.

    `default_agent` returns the agent that answers if a request names no agent.
    """

    def __init__(
        self,
        store: Store,
        post: EnvelopeAcceptor,
        clock: Clock,
        ids: IdSource,
        *,
        connectors: Callable[[], Mapping[str, Connector]],
        default_agent: Callable[[sa.Connection], str],
    ) -> None:
        self._store = store
        self._post = post
        self._clock = clock
        self._ids = ids
        self._connectors = connectors
        self._default_agent = default_agent

    def find_connector(self, connector: str) -> WebhookConnector:
        found = self._connectors().get(connector)
        # the wrapper redacts outbound text; inbound requests need the connector itself
        found = getattr(found, "inner", found)
        if isinstance(found, WebhookConnector):
            return found
        raise WebhookConnectorNotFound(connector)

    def verify(self, connector: WebhookConnector, raw: RawWebhookRequest) -> str:
        """Verify a request and return its idempotency key. Raises `WebhookUnverified` if the signature is invalid."""
        try:
            secret = connector.read_secret()
            return webhook_signature.verify_request(
                connector.settings.signature_scheme, secret, raw.headers, raw.body, now_s=self._clock.now().timestamp()
            )
        except webhook_signature.SignatureInvalid as error:
            raise WebhookUnverified(because=str(error)) from None
        except Invalid:
            raise WebhookUnverified(because="this connector has no secret to verify requests with") from None

    async def accept(self, connector: WebhookConnector, key: str, raw: RawWebhookRequest) -> WebhookReceipt:
        """Store a verified request as an envelope. If no mapping matches the request, nothing is stored."""
        webhook_request = inbound_request.parse_request(connector.settings, raw.path, raw.headers, raw.body)
        if webhook_request is None:
            return WebhookReceipt(None, None)
        id_ = EnvelopeId(self._ids.new())
        key = key or id_
        agent = webhook_request.agent or connector.settings.agent or await self._store.read(self._default_agent)
        if webhook_request.kind is WebhookKind.WAKE:
            origin = await self._store.read(partial(_get_owner_origin, agent=agent))
        else:
            own = session_keys.hook_key(webhook_request.session or key, name=connector.name)
            origin = Origin(OriginKind.EXTERNAL, str(own))
        draft = EnvelopeDraft(
            id=id_,
            sender=Address(AddressKind.CHANNEL, connector.name, webhook_request.session or webhook_request.kind.value),
            recipient=address.agent_address(agent),
            text=_wrap_text(connector, webhook_request, key),
            source=f"hook:{connector.name}",
            idempotency_key=f"{raw.path}/{key}",
            kind=EnvelopeKind.SYSTEM if webhook_request.kind is WebhookKind.WAKE else EnvelopeKind.MESSAGE,
            origin=origin,
            context=_build_context(connector, webhook_request, origin),
            trust=Trust.PRIVATE if connector.settings.trusted else Trust.UNTRUSTED,
            silent=webhook_request.mode is WakeMode.NEXT,
        )
        return WebhookReceipt(webhook_request.kind, await self._post.accept(draft))


def _get_owner_origin(conn: sa.Connection, *, agent: str) -> Origin:
    """Return the origin of the owner's latest session with an agent, or of a new session in the web app."""
    return sessions.get_latest_origin(conn, agent, principal=_OWNER) or Origin(OriginKind.WEB, str(OWNER))


def _wrap_text(connector: WebhookConnector, webhook_request: WebhookRequest, key: str) -> str:
    """Return the text of a request, wrapped as untrusted unless the connector is trusted.

    A slash at the beginning of trusted text is escaped, so that the text is never executed as a command.
    """
    if connector.settings.trusted:
        return f"/{webhook_request.text}" if webhook_request.text.startswith("/") else webhook_request.text
    source = {"webhook": connector.name, "from": webhook_request.name}
    return wrap_untrusted(webhook_request.text, id=connector.make_wrapper_id(key), source=source)


def _build_context(connector: WebhookConnector, webhook_request: WebhookRequest, origin: Origin) -> EnvelopeContext:
    request = replace(
        NO_RUN_REQUEST,
        model=webhook_request.model,
        effort=webhook_request.effort,
        seconds_max=webhook_request.timeout_s,
    )
    return EnvelopeContext(
        sender_name=webhook_request.name or connector.name,
        request=request if request != RunRequest() else None,
        answer_to=_get_answer_address(connector, webhook_request, origin),
    )


def _get_answer_address(connector: WebhookConnector, webhook_request: WebhookRequest, origin: Origin) -> str:
    """Return the address for the answer. If it is empty, the connector sends the answer to its `url`."""
    if webhook_request.deliver or connector.settings.deliver_to:
        return webhook_request.deliver or connector.settings.deliver_to
    if webhook_request.kind is WebhookKind.WAKE:
        return str(get_session_address(origin))
    return "" if connector.settings.url is not None else str(OWNER)
