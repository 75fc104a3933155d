"""Caches refused senders in memory, so that a flood of their messages does not load the store.

The number of cached senders is limited. Notices about refused senders are sent only once.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import datetime

from msgspec import Struct

from retinue.config.access import AccessSettings
from retinue.domain import address
from retinue.domain.access import RefusedSender
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind
from retinue.domain.errors import Conflict, RetinueError, StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import EnvelopeAcceptor, IdSource
from retinue.domain.trust import Trust
from retinue.intake.log_throttle import LogThrottle
from retinue.intake.routing import OWNER
from retinue.policy.limits.token_bucket import TokenBuckets

log = logging.getLogger(__name__)

REFUSALS_MAX = 1_000  # refused senders in the cache
SENDERS_MAX = 10_000  # senders whose rates are tracked
NOTIFIED_MAX = 1_000
NAME_CHARS_MAX = 64
RECHECK_S = 60.0  # a refused sender is checked again after this time, even without a change


class _CachedRefusal(Struct):
    refusal: RefusedSender
    settings: AccessSettings
    checked_s: float


class UnknownSenders:
    """Remembers refused senders, limits the rate of unknown senders, and sends notices about them."""

    def __init__(self, ids: IdSource, post: EnvelopeAcceptor, throttled_log: LogThrottle) -> None:
        self._ids = ids
        self._post = post
        self._throttled_log = throttled_log
        self._refused: OrderedDict[tuple[str, str, str], _CachedRefusal] = OrderedDict()
        self._notified: OrderedDict[str, None] = OrderedDict()
        self._rates: dict[str, TokenBuckets] = {}

    def recheck_all(self) -> None:
        """Apply the access rules again to the next message from each refused sender.

        Called when identities, admitted senders or bindings have changed.
        """
        for turned in self._refused.values():
            turned.checked_s = float("-inf")

    def refusals(self) -> list[RefusedSender]:
        """Return the refused senders. The latest refusal is last."""
        return [turned.refusal for turned in self._refused.values()]

    def is_refused(self, sender: tuple[str, str, str], settings: AccessSettings, now: datetime) -> bool:
        """Whether this sender was refused within the last minute and the settings have not changed since.

        `sender` is the connector, the channel and the sender's id.
        """
        turned = self._refused.get(sender)
        if turned is None or turned.settings != settings or now.timestamp() - turned.checked_s >= RECHECK_S:
            return False
        self._count(sender, turned, turned.refusal.because, now)
        return True

    def refuse(
        self, sender: tuple[str, str, str], settings: AccessSettings, *, name: str, because: str, now: datetime
    ) -> None:
        """Record a refusal. The sender gets no reply, so that people who probe the server learn nothing."""
        instance, _, sender_id = sender
        turned = self._refused.get(sender)
        if turned is None:
            refusal = RefusedSender(
                connector=instance, sender_id=sender_id, name=to_short_line(name), because=because, count=0, last_at=now
            )
            turned = self._refused[sender] = _CachedRefusal(refusal, settings, now.timestamp())
            if len(self._refused) > REFUSALS_MAX:
                self._refused.popitem(last=False)
        turned.settings, turned.checked_s = settings, now.timestamp()
        self._count(sender, turned, because, now)
        self._throttled_log.info("message refused", instance, because=because)

    def _count(self, sender: tuple[str, str, str], refused: _CachedRefusal, because: str, now: datetime) -> None:
        old = refused.refusal
        refused.refusal = RefusedSender(
            connector=old.connector,
            sender_id=old.sender_id,
            name=old.name,
            because=because,
            count=old.count + 1,
            last_at=now,
        )
        self._refused.move_to_end(sender)

    # --- rates: only for senders who are admitted because access is open ---

    def is_within_rate(self, connector: str, sender_id: str, settings: AccessSettings, now: datetime) -> bool:
        """Whether one more message from an unknown sender is within the rate limit."""
        now_s = now.timestamp()
        each = self._buckets(f"{connector}/each", settings.messages_per_minute, SENDERS_MAX)
        if each.take(sender_id, now_s):
            return False
        return not self._buckets(f"{connector}/all", settings.unknown_senders_per_minute, 1).take(connector, now_s)

    def _buckets(self, name: str, per_minute: int, remembered_max: int) -> TokenBuckets:
        found = self._rates.get(name)
        if found is None or found.per_minute != per_minute:
            found = self._rates[name] = TokenBuckets(per_minute=per_minute, buckets_max=remembered_max)
        return found

    # --- notices, each sent once ---

    async def notify_owner(self, key: str, text: str) -> None:
        await self.notify_once(OWNER, key, text)

    async def notify_once(self, recipient: address.Address, key: str, text: str) -> None:
        """Send a notice from the server, unless a notice with this key was already sent."""
        if key in self._notified:
            return
        draft = EnvelopeDraft(
            id=EnvelopeId(self._ids.new()),
            sender=address.SERVER_ADDRESS,
            recipient=recipient,
            text=text,
            source="server",
            idempotency_key=key,
            kind=EnvelopeKind.NOTICE,
            trust=Trust.PRIVATE,
        )
        try:
            await self._post.accept(draft)
        except StoreError:
            raise
        except RetinueError as error:
            if not (isinstance(error, Conflict) and error.code == "key.reused"):  # sent already, about another sender
                log.warning("access notice not sent", extra={"code": error.code})
        self._notified[key] = None
        if len(self._notified) > NOTIFIED_MAX:
            self._notified.popitem(last=False)


def to_short_line(name: str) -> str:
    """Return a sender's display name as one line of printable characters, truncated to `NAME_CHARS_MAX`."""
    return " ".join("".join(c if c.isprintable() else " " for c in name[: 4 * NAME_CHARS_MAX]).split())[:NAME_CHARS_MAX]
