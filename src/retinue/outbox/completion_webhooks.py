"""Notifies webhooks that an envelope is done: once, signed, through the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.config import Settings
from retinue.connectors.base import Accept, Delivery, DeliveryFailed, FailureKind, Parcel
from retinue.domain.delegation import Delegation, DelegationState
from retinue.domain.envelope import Envelope, Outcome
from retinue.domain.errors import Invalid
from retinue.domain.ports import Clock
from retinue.domain.webhook import Webhook
from retinue.intake.accept import COMPLETION, is_completion
from retinue.net.signatures import LETTER, SIGNATURE, TIMESTAMP, Purpose, signed
from retinue.outbox.external_agent_delivery import USER_AGENT, way_out
from retinue.outbox.signed_request import bring
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes, webhooks
from retinue.store.runs import delegations, runs

ATTEMPT_S = 10.0
ATTEMPTS_MAX = 5

_encode = msgspec.json.Encoder().encode


class Completion(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The JSON body of the notification. `id` is the envelope that the sender posted; `status` is
    complete, failed or cancelled."""

    id: str
    status: str
    agent_id: str
    session_id: str | None
    response: str = ""
    error: str = ""


class Completions(Struct, frozen=True):
    """The connector for completion webhooks. Receivers deduplicate by id, so a notification may be
    sent twice."""

    store: Store
    clock: Clock
    settings: Callable[[], Settings]
    environment: Mapping[str, str]
    mask: Callable[[str], str]
    instance: str = COMPLETION
    repeats_safely: bool = True
    attempts_max: int = ATTEMPTS_MAX

    async def listen(self, accept: Accept) -> None:
        """Does nothing: webhooks send no messages."""
        del accept
        await asyncio.Event().wait()

    async def deliver(self, parcel: Parcel) -> Delivery:
        envelope = parcel.envelope
        found = await self.store.read(partial(_found, envelope=envelope))
        if found is None:
            raise _refused("only what came of a letter goes out here, to the webhook that was given with it")
        webhook, told = found
        body = _encode(msgspec.structs.replace(told, response=self.mask(told.response), error=self.mask(told.error)))
        settings = self.settings()
        at = str(int(self.clock.now().timestamp()))
        signature = signed(
            self._key(settings),
            Purpose.COMPLETION,
            at=at,
            session=told.session_id or "",
            letter=told.id,
            body=body,
        )
        headers = {
            **webhook.headers,
            "User-Agent": USER_AGENT,
            "Content-Type": "application/json",
            LETTER: told.id,
            TIMESTAMP: at,
            SIGNATURE: signature,
        }
        last = envelope.attempts >= self.attempts_max
        return await bring(way_out(settings), webhook.url, body, headers=headers, timeout_s=ATTEMPT_S, last=last)

    def _key(self, settings: Settings) -> str:
        secret = settings.external.webhook_secret
        if secret is None:
            raise _refused("nothing signs what is sent to webhooks: set `webhook_secret` of [external]")
        try:
            return secret.read(self.environment)
        except Invalid as error:
            raise _refused(f"{error.sentence}: {error.because}") from None


def _found(conn: sa.Connection, *, envelope: Envelope) -> tuple[Webhook, Completion] | None:
    if not is_completion(envelope) or envelope.reply_to is None:
        return None
    webhook, letter = webhooks.get(conn, envelope.reply_to), envelopes.get(conn, envelope.reply_to)
    if webhook is None or letter is None:
        return None
    return webhook, completion(conn, letter)


def completion(conn: sa.Connection, letter: Envelope) -> Completion:
    """The stored result of an envelope."""
    form: dict[str, Any] = {"id": letter.id, "agent_id": letter.recipient.name, "session_id": letter.session}
    delegation = delegations.get(conn, letter.id)
    settled = envelopes.settled(conn, letter.id)
    if settled is None:
        return Completion(**form, status="failed", error="nothing came of it yet")
    if settled.outcome is not Outcome.ANSWERED:
        cancelled = settled.outcome is Outcome.CANCELLED
        error = delegation.because if delegation is not None and delegation.because else settled.because
        return Completion(**form, status="cancelled" if cancelled else "failed", error=error)
    return Completion(**form, status="complete", response=_response(conn, letter, settled.answer, delegation))


def _response(conn: sa.Connection, letter: Envelope, answer: str | None, delegation: Delegation | None) -> str:
    """The answer text, or the final text of the run if there was no answer."""
    if (said := envelopes.get(conn, answer) if answer is not None else None) is not None:
        return said.text
    if delegation is None or delegation.state is not DelegationState.DONE or letter.run is None:
        return ""
    run = runs.get(conn, letter.run)
    return (run.final_text or "") if run is not None else ""


def _refused(sentence: str) -> DeliveryFailed:
    return DeliveryFailed(sentence, kind=FailureKind.INVALID_SENDER, permanent=True)
