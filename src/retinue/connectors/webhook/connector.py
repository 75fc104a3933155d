"""The webhook connector: messages to its channels are posted as signed requests. Inbound requests
are verified with its secret.

Requests arrive at the server's own HTTP API (see `intake/inbound_webhooks`), so nothing listens
here.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac

import msgspec
from msgspec import Struct

from retinue.connectors.base import (
    Abilities,
    Accept,
    Delivery,
    DeliveryFailed,
    FailureKind,
    Finding,
    Parcel,
    Surroundings,
    Unit,
)
from retinue.connectors.webhook import webhook_request, webhook_signature, webhook_templates
from retinue.connectors.webhook.settings import WebhookSettings
from retinue.domain.envelope import TEXT_BYTES_MAX
from retinue.domain.errors import Invalid
from retinue.domain.ids import ID_LENGTH

ATTEMPTS_MAX = 8
USER_AGENT = "retinue"
TYPE = "message"

_encode = msgspec.json.Encoder().encode
_ABILITIES = Abilities(text_max=TEXT_BYTES_MAX, unit=Unit.BYTES, quotes=True, formats=True)


class _Sent(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The JSON body of an outbound request. `id` is the same whenever the same part is sent again."""

    id: str
    type: str
    room: str
    text: str
    sender: str
    created_at: str
    quote: str = ""
    part: int = 1
    parts: int = 1


class WebhookConnector:
    """Posts messages to a URL. The receiver deduplicates by id, so a message may be sent twice."""

    repeats_safely = True
    attempts_max = ATTEMPTS_MAX
    abilities = _ABILITIES

    def __init__(self, settings: WebhookSettings, surroundings: Surroundings) -> None:
        for name, mapping in settings.mappings.items():
            for key, text in (("text", mapping.text), ("name", mapping.name), ("session", mapping.session)):
                if wrong := webhook_templates.check(text):
                    raise _broken(surroundings.instance, name, key, wrong)
            if not mapping.text.strip():
                raise _broken(surroundings.instance, name, "text", "it is empty, and an agent is told words")
        self.settings = settings
        self.instance = surroundings.instance
        self._clock = surroundings.clock
        self._secret = surroundings.secret

    def secret(self) -> str:
        """Read the shared secret. Raises `Invalid` if there is none."""
        return self._secret("secret")

    def marker(self, key: str) -> str:
        """Digits for the wrapper around the text of a request. The same request has the same
        digits, and they cannot be guessed without the secret."""
        return hmac.new(self.secret().encode(), f"wrapper/{key}".encode(), hashlib.sha256).hexdigest()[:ID_LENGTH]

    async def listen(self, accept: Accept) -> None:
        """Does nothing: requests arrive over HTTP."""
        del accept
        await asyncio.Event().wait()

    async def deliver(self, parcel: Parcel) -> Delivery:
        url = self.settings.url
        if url is None:
            raise _not_sent(f"nothing leaves here: set `url` of connectors.{self.instance}")
        try:
            secret = self.secret()
        except Invalid as error:
            raise _not_sent(f"{error.sentence}: {error.because}") from None
        target = await webhook_request.judged(url, private=self.settings.private_hosts)
        body = _encode(_sent(parcel))
        at = str(int(self._clock.now().timestamp()))
        headers = {
            "User-Agent": USER_AGENT,
            "Content-Type": "application/json",
            webhook_signature.ID: parcel.key,
            webhook_signature.TIMESTAMP: at,
            webhook_signature.SIGNATURE: webhook_signature.sign(secret, id_=parcel.key, at=at, body=body),
        }
        status = await webhook_request.post(target, body, headers=headers, timeout_s=self.settings.timeout_s)
        return Delivery(f"HTTP {status}")

    async def check(self) -> Finding:
        """Check that there is a secret and that the URL is allowed. Sends nothing: that would be a
        message."""
        account = f"/hooks/{self.instance}"
        try:
            self.secret()
            if self.settings.url is not None:
                await webhook_request.judged(self.settings.url, private=self.settings.private_hosts)
        except (Invalid, DeliveryFailed) as error:
            return Finding(
                ok=False, account=account, sentence=error.sentence, because=error.because, try_this=error.try_this
            )
        out = "messages may leave" if self.settings.url is not None else "no messages leave: `url` is not set"
        return Finding(ok=True, account=account, sentence=f"requests can come in, and {out}")


def _sent(parcel: Parcel) -> _Sent:
    return _Sent(
        id=parcel.key,
        type=TYPE,
        room=parcel.room,
        text=parcel.text,
        sender=str(parcel.envelope.sender),
        created_at=parcel.envelope.accepted_at.isoformat(),
        quote=parcel.quote,
        part=parcel.index + 1,
        parts=parcel.count,
    )


def _not_sent(sentence: str) -> DeliveryFailed:
    return DeliveryFailed(sentence, kind=FailureKind.INVALID_SENDER, permanent=True)


def _broken(instance: str, mapping: str, key: str, because: str) -> Invalid:
    return Invalid(
        f"the template connectors.{instance}.mappings.{mapping}.{key} cannot be used",
        because=because,
        try_this="correct it in the settings",
        code="webhook.template-broken",
    )
