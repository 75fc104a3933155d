"""The Telegram connector: receives by long polling, and sends each delivery part with one call."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from retinue.connectors.base import (
    PATIENT_ATTEMPTS_MAX,
    Abilities,
    Accept,
    Delivery,
    DeliveryFailed,
    FailureKind,
    Finding,
    Heard,
    Incoming,
    LineLost,
    Parcel,
    Surroundings,
    Unit,
)
from retinue.connectors.telegram import command_menu, outbound_call, updates
from retinue.connectors.telegram import poll_offset as offsets
from retinue.connectors.telegram.api_types import SentMessage, User, WebhookInfo
from retinue.connectors.telegram.bot_api import (
    DOWNLOAD_BYTES_MAX,
    MIB,
    UPLOAD_BYTES_MAX,
    Api,
    NoAnswer,
    NotReached,
    Refused,
)
from retinue.connectors.telegram.errors import line_lost, not_sent, token_rejected, undelivered
from retinue.connectors.telegram.long_polling import Listening, News, news
from retinue.connectors.telegram.outbound_call import ALBUM_MAX, Manner, Request
from retinue.connectors.telegram.poll_offset import Offset
from retinue.connectors.telegram.settings import TelegramSettings
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Invalid, RetinueError

TEXT_MAX = 4096  # UTF-16 units
CAPTION_MAX = 1024  # UTF-16 units
PRESS_ANSWER_LENGTH_MAX = 200  # characters
CONFLICT = 409
EMPTY_PAUSE_S = 0.5
MANNERS_MAX = 6  # attempts to send one part, each with simpler options
MOVES_MAX = 1000  # migrated chats that are cached in memory; the store has them all

_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}", re.ASCII)

log = logging.getLogger(__name__)


class FileNotFetched(RetinueError):
    """A file that a person sent cannot be downloaded."""

    code = "connector.file-not-fetched"


class TelegramConnector:
    """Connects one bot to Telegram.

    An interrupted send has an unknown result, because the Bot API has no idempotency keys.
    """

    repeats_safely = False
    attempts_max = PATIENT_ATTEMPTS_MAX
    abilities = Abilities(
        text_max=TEXT_MAX,
        unit=Unit.UTF16,
        caption_max=CAPTION_MAX,
        files=True,
        file_bytes_max=UPLOAD_BYTES_MAX,
        album_max=ALBUM_MAX,
        quotes=True,
        edits=True,
        reacts=True,
        types=True,
        buttons=True,
        formats=True,
    )

    def __init__(self, settings: TelegramSettings, surroundings: Surroundings) -> None:
        self._settings = settings
        self._house = surroundings
        self._known: tuple[str, Api] | None = None
        self._conflicts = 0  # consecutive
        self._moves: dict[int, int] = {}

    @property
    def instance(self) -> str:
        return self._house.instance

    # --- receiving ---

    async def listen(self, accept: Accept) -> None:
        api = self._api()
        async with api.line():
            try:
                await self._hear(api, accept)
            except (Refused, NotReached, NoAnswer) as error:
                lost = line_lost(error, conflicts=self._conflicts, chance=self._house.chance)
                if isinstance(error, Refused) and error.status == CONFLICT:
                    self._conflicts += 1
                raise lost from None

    async def _hear(self, api: Api, accept: Accept) -> None:
        clock, poll_s = self._house.clock, self._settings.poll_s
        me = await api.call("getMe", {}, result=User)
        if self._settings.clear_webhook:
            await api.call("deleteWebhook", {}, result=bool)
        await command_menu.offer(self._unless_refused, self._house.shelf, me.id, wanted=self._settings.command_menu)
        offset = await self._stored_offset(me)

        async def ask(start: int | None, wait_s: int) -> News:
            if offset is not None and not offset.means_something(bot=me.id, now=clock.now()):
                start = None
            asked_at = asyncio.get_running_loop().time()
            found = await news(api, start, poll_s=wait_s)
            self._conflicts = 0
            self._house.stands()
            if not found and wait_s and asyncio.get_running_loop().time() - asked_at < wait_s / 2:
                await clock.sleep(EMPTY_PAUSE_S)  # avoid a busy loop if the server ignores the timeout
            return found

        async def confirm(update_id: int) -> None:
            nonlocal offset
            offset = Offset(bot=me.id, update_id=update_id, at=clock.now())
            await self._house.shelf.put(offsets.KEY, str(offset))

        await Listening(
            ask,
            me,
            accept=accept,
            first=self._note_move,
            confirm=confirm,
            fetch=self._fetch,
            clock=clock,
            instance=self.instance,
            poll_s=poll_s,
        ).hear(offset.update_id if offset is not None else None)

    async def _stored_offset(self, me: User) -> Offset | None:
        shelf = self._house.shelf
        written = await shelf.get(offsets.KEY)
        if not written:
            return None
        offset = offsets.parse(written)
        if offset is None:
            log.warning("stored offset was damaged and is put aside", extra={"connector": self.instance})
            await shelf.put(offsets.DAMAGED_KEY, written[: offsets.DAMAGED_LENGTH_MAX])
            await shelf.put(offsets.KEY, "")
        elif offset.bot != me.id:
            log.warning("stored offset is of another bot", extra={"connector": self.instance})
        return offset

    async def _note_move(self, incoming: Incoming) -> None:
        """Record a migration before the server accepts it, so that messages for the old id already
        go to the new one."""
        if incoming.kind is Heard.MOVED:
            await self._moved(int(incoming.room), int(incoming.text))

    async def _fetch(self, file_id: str) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._api().download(file_id):
                yield chunk
        except Refused as refused:
            too_big = "too big" in refused.description.casefold()
            raise FileNotFetched(
                "Telegram does not hand out this file",
                because=f"it has more than {DOWNLOAD_BYTES_MAX // MIB} MiB" if too_big else refused.because,
                try_this="send a smaller one, or a link to it" if too_big else "send it again",
            ) from None
        except (NotReached, NoAnswer, LineLost) as error:
            raise FileNotFetched(error.sentence, because=error.because, try_this="send it again") from None

    # --- sending ---

    async def deliver(self, parcel: Parcel) -> Delivery:
        for file in parcel.files:
            self._check_file(file)
        if parcel.buttons and len(parcel.files) > 1:
            raise DeliveryFailed(
                "Telegram puts no buttons under several files",
                permanent=True,
                because="an album has no place for them",
                try_this="put them under words of their own",
            )
        return Delivery(
            await self._sent(
                parcel.room, parcel.quote, lambda manner: outbound_call.request_for(parcel, manner, self._house.path_of)
            )
        )

    async def preview(self, room: str, text: str, *, shown: str = "", quote: str = "") -> str:
        try:
            return await self._sent(room, quote, lambda manner: outbound_call.preview_for(text, shown, manner))
        except DeliveryFailed as failed:
            if shown and "message is not modified" in failed.because:
                return shown
            raise

    async def take_back(self, room: str, message_id: str) -> None:
        await self._tried("deleteMessage", room, {"message_id": int(message_id)})

    async def react(self, room: str, message_id: str, emoji: str) -> None:
        chat, _ = await self._place(room)
        reaction = [{"type": "emoji", "emoji": emoji}] if emoji else []
        arguments = {"chat_id": chat, "message_id": int(message_id), "reaction": reaction}
        try:
            await self._sender().call("setMessageReaction", arguments, result=bool)
        except Refused as refused:
            raise undelivered(refused) from None
        except NotReached as error:
            raise not_sent(error) from None

    async def type_in(self, room: str) -> None:
        await self._tried("sendChatAction", room, {"action": "typing"})

    async def answer_press(self, press_id: str, text: str) -> None:
        arguments = {"callback_query_id": press_id, "text": outbound_call.storable(text)[:PRESS_ANSWER_LENGTH_MAX]}
        await self._unless_refused("answerCallbackQuery", arguments)

    async def _sent(self, room: str, quote: str, request_in: Callable[[Manner], Request]) -> str:
        """Send a request, each time with simpler options, until Telegram accepts it. A refusal
        means that nothing was sent."""
        chat, topic = await self._place(room)
        manner = Manner(
            chat=chat,
            topic=topic,
            quote=quote if quote.isascii() and quote.isdigit() else "",
            previews=self._settings.link_previews,
        )
        api = self._sender()
        for _ in range(MANNERS_MAX):
            try:
                return await _message_id(api, request_in(manner))
            except NotReached as error:
                raise not_sent(error) from None
            except Refused as refused:
                other = outbound_call.plainer(refused, manner)
                if other is None:
                    raise undelivered(refused) from None
                if other.chat != manner.chat:
                    await self._moved(manner.chat, other.chat)
                manner = other
        raise DeliveryFailed("Telegram took it in no way that we know", permanent=True)

    async def _tried(self, method: str, room: str, arguments: Mapping[str, Any]) -> None:
        """Call a method whose failure does not matter."""
        chat, topic = await self._place(room)
        where = {"chat_id": chat} if topic is None else {"chat_id": chat, "message_thread_id": topic}
        await self._unless_refused(method, {**where, **arguments})

    async def _unless_refused(self, method: str, arguments: Mapping[str, Any]) -> bool:
        try:
            return await self._sender().call(method, arguments, result=bool)
        except (Refused, NotReached, NoAnswer) as error:
            log.info("telegram did not do it", extra={"connector": self.instance, "call": method, "code": error.code})
            return False

    def _check_file(self, file: Attachment) -> None:
        if file.size_bytes > UPLOAD_BYTES_MAX:
            raise DeliveryFailed(
                "a file is too large for Telegram",
                kind=FailureKind.TOO_LARGE,
                permanent=True,
                because=f"a bot may send {UPLOAD_BYTES_MAX // MIB} MiB in one file",
                try_this="send a smaller one, or a link to it",
            )
        if not self._house.path_of(file).is_file():
            raise DeliveryFailed("a file to send is not there any more", permanent=True, because="it was purged")

    async def _place(self, room: str) -> tuple[int, int | None]:
        """The current chat id and topic of a channel."""
        place = updates.place_of(room)
        if place is None:
            raise DeliveryFailed(
                f"'{room[:64]}' is no room of Telegram's",
                kind=FailureKind.INVALID_ADDRESS,
                permanent=True,
                because="a room is the number of a chat, or CHAT/TOPIC",
            )
        chat, topic = place
        if chat < 0 and chat not in self._moves:
            known = updates.place_of(await self._house.shelf.get(f"moved-{chat}") or "")
            self._at_hand(chat, known[0] if known is not None else chat)
        moved = self._moves.get(chat, chat)
        return (chat, topic) if moved == chat else (moved, None)

    async def _moved(self, old: int, new: int) -> None:
        await self._house.shelf.put(f"moved-{old}", str(new))
        self._at_hand(old, new)

    def _at_hand(self, old: int, new: int) -> None:
        self._moves[old] = new
        if len(self._moves) > MOVES_MAX:
            self._moves.pop(next(iter(self._moves)))

    # --- account ---

    async def check(self) -> Finding:
        try:
            api = self._api()
            async with api.line():
                me = await api.call("getMe", {}, result=User)
                webhook = await self._webhook(api)
        except (Refused, NotReached, NoAnswer) as error:
            lost = line_lost(error, conflicts=0, chance=self._house.chance)
            return Finding(ok=False, account="", sentence=lost.sentence, because=lost.because, try_this=lost.try_this)
        except LineLost as lost:
            return Finding(ok=False, account="", sentence=lost.sentence, because=lost.because, try_this=lost.try_this)
        account = f"@{me.username}"
        if webhook and not self._settings.clear_webhook:
            return Finding(
                ok=False,
                account=account,
                sentence=f"{account} is there, and somebody else hears for it",
                because="a webhook is set for this bot, perhaps by another program",
                try_this="stop that program, or set `clear_webhook = true` for this connector",
            )
        if not me.can_read_all_group_messages:
            return Finding(
                ok=True,
                account=account,
                sentence=f"Telegram knows this bot as {account}",
                because="in groups it hears only what is said to it: its privacy mode is on",
                try_this="to have it hear everything, send /setprivacy to @BotFather, and add it to the group anew",
            )
        return Finding(ok=True, account=account, sentence=f"Telegram knows this bot as {account}")

    async def _webhook(self, api: Api) -> str:
        try:
            return (await api.call("getWebhookInfo", {}, result=WebhookInfo)).url
        except (Refused, NotReached, NoAnswer):
            return ""  # polling will report it

    def _api(self) -> Api:
        """The client for the current token. A new token does not end calls that use the old one."""
        try:
            token = self._house.secret("token").strip()
        except Invalid as error:
            raise LineLost(
                error.sentence, because=error.because, try_this=error.try_this, needs_owner=True, code=error.code
            ) from None
        if not _TOKEN.fullmatch(token):
            raise token_rejected("it does not look like one: a number, a colon, letters and digits")
        if self._known is None or self._known[0] != token:
            self._known = (token, Api(self._settings.api_base, token, timeout_s=self._settings.timeout_s))
        return self._known[1]

    def _sender(self) -> Api:
        try:
            return self._api()
        except LineLost as lost:
            raise DeliveryFailed(
                lost.sentence, kind=FailureKind.INVALID_SENDER, because=lost.because, try_this=lost.try_this
            ) from None


async def _message_id(api: Api, request: Request) -> str:
    if request.is_album:
        sent = await api.call(request.method, request.arguments, result=list[SentMessage], uploads=request.uploads)
        if not sent:
            raise NoAnswer("Telegram took an album and named no message", because="its list is empty")
        return str(sent[0].message_id)
    one = await api.call(request.method, request.arguments, result=SentMessage, uploads=request.uploads)
    return str(one.message_id)
