"""Refused senders: kept only in memory and limited, so that a flood of them costs nothing. The
owner is notified once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import datetime

from msgspec import Struct

from retinue.config.access import DoorSettings
from retinue.domain import address
from retinue.domain.access import Refusal
from retinue.domain.envelope import Draft, Kind
from retinue.domain.errors import Conflict, RetinueError, StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Ids, Post
from retinue.domain.trust import Trust
from retinue.intake.log_throttle import Sparing
from retinue.intake.routing import OWNER
from retinue.policy.limits.token_bucket import Buckets

log = logging.getLogger(__name__)

REFUSALS_MAX = 1_000  # senders that are remembered
SENDERS_MAX = 10_000  # whose rates are tracked
TOLD_MAX = 1_000
NAME_CHARS_MAX = 64
AGAIN_S = 60.0  # a refused sender is checked again after this time, even without a change


class _Turned(Struct):
    refusal: Refusal
    settings: DoorSettings
    looked_s: float


class Strangers:
    """Remembers refused senders, limits the rate of unknown ones, and sends notices about them."""

    def __init__(self, ids: Ids, post: Post, lines: Sparing) -> None:
        self._ids = ids
        self._post = post
        self._lines = lines
        self._turned: OrderedDict[tuple[str, str, str], _Turned] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()
        self._rates: dict[str, Buckets] = {}

    def forget(self) -> None:
        """Access data changed: check every sender again."""
        for turned in self._turned.values():
            turned.looked_s = float("-inf")

    def refusals(self) -> list[Refusal]:
        """The refusals, the latest last."""
        return [turned.refusal for turned in self._turned.values()]

    def is_turned_away(self, who: tuple[str, str, str], settings: DoorSettings, now: datetime) -> bool:
        """Whether the sender was refused a moment ago by the same settings. `sender` is connector,
        channel, sender id."""
        turned = self._turned.get(who)
        if turned is None or turned.settings != settings or now.timestamp() - turned.looked_s >= AGAIN_S:
            return False
        self._count(who, turned, turned.refusal.because, now)
        return True

    def turn_away(
        self, who: tuple[str, str, str], settings: DoorSettings, *, name: str, because: str, now: datetime
    ) -> None:
        """Refuse silently: a prober learns nothing."""
        instance, _, speaker = who
        turned = self._turned.get(who)
        if turned is None:
            refusal = Refusal(
                instance=instance, speaker=speaker, name=plain(name), because=because, count=0, last_at=now
            )
            turned = self._turned[who] = _Turned(refusal, settings, now.timestamp())
            if len(self._turned) > REFUSALS_MAX:
                self._turned.popitem(last=False)
        turned.settings, turned.looked_s = settings, now.timestamp()
        self._count(who, turned, because, now)
        self._lines.info("message refused at the door", instance, because=because)

    def _count(self, who: tuple[str, str, str], turned: _Turned, because: str, now: datetime) -> None:
        old = turned.refusal
        turned.refusal = Refusal(
            instance=old.instance,
            speaker=old.speaker,
            name=old.name,
            because=because,
            count=old.count + 1,
            last_at=now,
        )
        self._turned.move_to_end(who)

    # --- rates: only for senders who are admitted because access is open ---

    def has_room_for(self, instance: str, speaker: str, settings: DoorSettings, now: datetime) -> bool:
        """Whether one more message of an unknown sender is within the rate limit."""
        now_s = now.timestamp()
        each = self._buckets(f"{instance}/each", settings.messages_per_minute, SENDERS_MAX)
        if each.take(speaker, now_s):
            return False
        return not self._buckets(f"{instance}/all", settings.strangers_per_minute, 1).take(instance, now_s)

    def _buckets(self, name: str, per_minute: int, remembered_max: int) -> Buckets:
        found = self._rates.get(name)
        if found is None or found.per_minute != per_minute:
            found = self._rates[name] = Buckets(per_minute=per_minute, remembered_max=remembered_max)
        return found

    # --- notices, each sent once ---

    async def tell_owner(self, key: str, text: str) -> None:
        await self.tell(OWNER, key, text)

    async def tell(self, recipient: address.Address, key: str, text: str) -> None:
        """Send a notice of the server once, however often this is called: the store remembers the
        key."""
        if key in self._told:
            return
        draft = Draft(
            id=EnvelopeId(self._ids.new()),
            sender=address.HOUSE,
            recipient=recipient,
            text=text,
            source="house",
            key=key,
            kind=Kind.NOTICE,
            trust=Trust.PRIVATE,
        )
        try:
            await self._post.post(draft)
        except StoreError:
            raise
        except RetinueError as error:
            if not (isinstance(error, Conflict) and error.code == "key.reused"):  # sent already, about another sender
                log.warning("notice of a door not sent", extra={"code": error.code})
        self._told[key] = None
        if len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)


def plain(name: str) -> str:
    """A self-chosen name, as one short line."""
    return " ".join("".join(c if c.isprintable() else " " for c in name[: 4 * NAME_CHARS_MAX]).split())[:NAME_CHARS_MAX]
