"""Accepts inbound webhook requests: verifies and parses them, and posts them as normal envelopes.

Once `accept` returns, the envelope survives a crash. A repeated request is the same envelope, also
after a restart and after its text was purged.
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
from retinue.connectors.webhook.inbound_request import Wish
from retinue.connectors.webhook.settings import HookKind, WakeMode
from retinue.domain import address, session_keys
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import Context, Draft, Kind, Receipt
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock, Ids, Post
from retinue.domain.principal import Principal
from retinue.domain.run import NO_REQUEST, RunRequest
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.intake.external_callbacks import Unsigned
from retinue.intake.routing import OWNER, who_listens
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions
from retinue.text.untrusted_wrapper import wrap

_OWNER = Principal(address=OWNER, level=PermissionLevel.BOSS, trust=Trust.OWNER)


class Came(Struct, frozen=True, kw_only=True):
    """A request as received: nothing in it is trusted yet. Header names are lowercase."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Taken(Struct, frozen=True):
    """The result of a request. `receipt` is None if no mapping matched: then nothing was stored."""

    kind: HookKind | None
    receipt: Receipt | None


class Requests:
    """`connectors` are the running ones by name. `default_agent` answers requests that name no
    agent."""

    def __init__(
        self,
        store: Store,
        post: Post,
        clock: Clock,
        ids: Ids,
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

    def find(self, instance: str) -> WebhookConnector:
        found = self._connectors().get(instance)
        # the wrapper redacts outbound text; inbound requests need the connector itself
        found = getattr(found, "inside", found)
        if isinstance(found, WebhookConnector):
            return found
        raise NotFound(
            f"no requests are taken at {instance[:64]!r}",
            because="no webhook connector of that name is open",
            try_this="look at `retinue connector list`",
            code="webhook.no-connector",
        )

    def prove(self, connector: WebhookConnector, came: Came) -> str:
        """Verify a request and return its idempotency key. Raises `UnsignedRequest` if its
        signature is invalid."""
        try:
            secret = connector.secret()
            return webhook_signature.proved(
                connector.settings.proof, secret, came.headers, came.body, now_s=self._clock.now().timestamp()
            )
        except webhook_signature.Unproved as error:
            raise _unproved(str(error)) from None
        except Invalid:
            raise _unproved("this connector has no secret, so nothing can be proved to it") from None

    async def take(self, connector: WebhookConnector, key: str, came: Came) -> Taken:
        """Store what a verified request asks for."""
        wish = inbound_request.read(connector.settings, came.path, came.headers, came.body)
        if wish is None:
            return Taken(None, None)
        id_ = EnvelopeId(self._ids.new())
        key = key or id_
        agent = wish.agent or connector.settings.agent or await self._store.read(self._default_agent)
        if wish.kind is HookKind.WAKE:
            origin = await self._store.read(partial(_main, agent=agent))
        else:
            own = session_keys.hook(wish.session or key, name=connector.instance)
            origin = Origin(OriginKind.EXTERNAL, str(own))
        draft = Draft(
            id=id_,
            sender=Address(AddressKind.CHANNEL, connector.instance, wish.session or wish.kind.value),
            recipient=address.agent(agent),
            text=_labelled(connector, wish, key),
            source=f"hook:{connector.instance}",
            key=f"{came.path}/{key}",
            kind=Kind.SYSTEM if wish.kind is HookKind.WAKE else Kind.MESSAGE,
            origin=origin,
            context=_context(connector, wish, origin),
            trust=Trust.PRIVATE if connector.settings.trusted else Trust.UNTRUSTED,
            silent=wish.mode is WakeMode.NEXT,
        )
        return Taken(wish.kind, await self._post.post(draft))


def _main(conn: sa.Connection, *, agent: str) -> Origin:
    """The session that the owner last had with an agent, or the one that they would have next."""
    return sessions.latest(conn, agent, whose=_OWNER) or Origin(OriginKind.WEB, str(OWNER))


def _labelled(connector: WebhookConnector, wish: Wish, key: str) -> str:
    """The text of a request, wrapped as untrusted. A slash at the beginning is no command."""
    if connector.settings.trusted:
        return f"/{wish.text}" if wish.text.startswith("/") else wish.text
    source = {"webhook": connector.instance, "from": wish.name}
    return wrap(wish.text, id=connector.marker(key), source=source)


def _context(connector: WebhookConnector, wish: Wish, origin: Origin) -> Context:
    request = replace(NO_REQUEST, model=wish.model, effort=wish.effort, seconds_max=wish.timeout_s)
    return Context(
        sender_name=wish.name or connector.instance,
        request=request if request != RunRequest() else None,
        answer_to=_answered(connector, wish, origin),
    )


def _answered(connector: WebhookConnector, wish: Wish, origin: Origin) -> str:
    """The address for the answer. Empty: the sender, which is this connector's own `url`."""
    if wish.deliver or connector.settings.deliver:
        return wish.deliver or connector.settings.deliver
    if wish.kind is HookKind.WAKE:
        return str(who_listens(origin))
    return "" if connector.settings.url is not None else str(OWNER)


def _unproved(because: str) -> Unsigned:
    return Unsigned(
        "this request was not proved",
        because=because,
        try_this="see the guide on webhooks for how requests are signed",
        code="webhook.unproved",
    )
