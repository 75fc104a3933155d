"""Whom the doors have turned away: remembered in memory alone and bounded, so that a flood of them costs nothing, and
told to the owner once."""

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

REFUSALS_MAX = 1_000  # speakers that are remembered
SENDERS_MAX = 10_000  # whose rates are remembered
TOLD_MAX = 1_000
NAME_CHARS_MAX = 64
AGAIN_S = 60.0  # whoever was turned away is looked up again after so long, whatever has changed


class _Turned(Struct):
    refusal: Refusal
    settings: DoorSettings
    looked_s: float


class Strangers:
    def __init__(self, ids: Ids, post: Post, lines: Sparing) -> None:
        self._ids = ids
        self._post = post
        self._lines = lines
        self._turned: OrderedDict[tuple[str, str, str], _Turned] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()
        self._rates: dict[str, Buckets] = {}

    def forget(self) -> None:
        """Something was changed about who may talk: everyone is looked up again."""
        for turned in self._turned.values():
            turned.looked_s = float("-inf")

    def refusals(self) -> list[Refusal]:
        """Whom the doors turned away, the latest last."""
        return [turned.refusal for turned in self._turned.values()]

    def is_turned_away(self, who: tuple[str, str, str], settings: DoorSettings, now: datetime) -> bool:
        """Whether the answer is known from a moment ago, by the same settings. `who` is instance, room, speaker."""
        turned = self._turned.get(who)
        if turned is None or turned.settings != settings or now.timestamp() - turned.looked_s >= AGAIN_S:
            return False
        self._count(who, turned, turned.refusal.because, now)
        return True

    def turn_away(
        self, who: tuple[str, str, str], settings: DoorSettings, *, name: str, because: str, now: datetime
    ) -> None:
        """Quietly: whoever tries doors learns nothing from them."""
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

    # --- rates: of those who are let in because a door is open, and of nobody else ---

    def has_room_for(self, instance: str, speaker: str, settings: DoorSettings, now: datetime) -> bool:
        """Whether one more message of somebody who is not known is taken in now."""
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

    # --- telling people, each thing once ---

    async def tell_owner(self, key: str, text: str) -> None:
        await self.tell(OWNER, key, text)

    async def tell(self, recipient: address.Address, key: str, text: str) -> None:
        """Words of the house, sent once however often they are said: the key is the store's to remember."""
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
            if not (isinstance(error, Conflict) and error.code == "key.reused"):  # it was told, of somebody else
                log.warning("notice of a door not sent", extra={"code": error.code})
        self._told[key] = None
        if len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)


def plain(name: str) -> str:
    """A name as somebody gave it to themselves, in one line and short."""
    return " ".join("".join(c if c.isprintable() else " " for c in name[: 4 * NAME_CHARS_MAX]).split())[:NAME_CHARS_MAX]
