"""The Telegram connector: receives by long polling, and sends each delivery part with one call."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from retinue.connectors.base import (
    REMOTE_ATTEMPTS_MAX,
    Accept,
    ConnectionLost,
    ConnectorCapabilities,
    ConnectorCheckResult,
    ConnectorContext,
    Delivery,
    DeliveryFailed,
    DeliveryPart,
    FailureKind,
    InboundKind,
    InboundMessage,
    LengthUnit,
)
from retinue.connectors.errors import FileNotFetched
from retinue.connectors.telegram import command_menu, outbound_call, updates
from retinue.connectors.telegram import poll_offset as offsets
from retinue.connectors.telegram.api_types import SentMessage, TelegramUser, WebhookInfo
from retinue.connectors.telegram.bot_api import (
    DOWNLOAD_BYTES_MAX,
    MIB,
    UPLOAD_BYTES_MAX,
    BotApi,
    TelegramNoAnswer,
    TelegramRefused,
    TelegramUnreachable,
)
from retinue.connectors.telegram.errors import (
    TelegramTokenRejected,
    build_connection_lost,
    build_delivery_refused,
    build_not_sent,
)
from retinue.connectors.telegram.long_polling import LongPoller, UpdateBatch, get_updates
from retinue.connectors.telegram.outbound_call import ALBUM_MAX, BotApiRequest, TelegramSendOptions
from retinue.connectors.telegram.poll_offset import PollOffset
from retinue.connectors.telegram.settings import TelegramSettings
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Invalid

TEXT_MAX = 4096  # UTF-16 units
CAPTION_MAX = 1024  # UTF-16 units
PRESS_ANSWER_LENGTH_MAX = 200  # characters
CONFLICT = 409
EMPTY_PAUSE_S = 0.5
SEND_ATTEMPTS_MAX = 6  # attempts to send one part, each with simpler options
MIGRATIONS_MAX = 1000  # migrated chats that are cached in memory; the store has them all

_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}", re.ASCII)

log = logging.getLogger(__name__)


class TelegramConnector:
    """Connects one bot to Telegram.

    The result of an interrupted send is unknown, because the Bot API has no idempotency keys.
    """

    repeats_safely = False
    attempts_max = REMOTE_ATTEMPTS_MAX
    capabilities = ConnectorCapabilities(
        text_max=TEXT_MAX,
        unit=LengthUnit.UTF16,
        caption_max=CAPTION_MAX,
        can_send_files=True,
        file_bytes_max=UPLOAD_BYTES_MAX,
        album_max=ALBUM_MAX,
        can_quote=True,
        can_edit=True,
        can_react=True,
        can_show_typing=True,
        can_show_buttons=True,
        can_render_markdown=True,
    )

    def __init__(self, settings: TelegramSettings, context: ConnectorContext) -> None:
        self._settings = settings
        self._context = context
        self._current_api: tuple[str, BotApi] | None = None
        self._conflicts = 0  # consecutive
        self._migrations: dict[int, int] = {}

    @property
    def name(self) -> str:
        return self._context.name

    # --- receiving ---

    async def listen(self, accept: Accept) -> None:
        api = self._get_api()
        async with api.http_session():
            try:
                await self._poll(api, accept)
            except (TelegramRefused, TelegramUnreachable, TelegramNoAnswer) as error:
                lost = build_connection_lost(error, conflicts=self._conflicts, random=self._context.random)
                if isinstance(error, TelegramRefused) and error.status == CONFLICT:
                    self._conflicts += 1
                raise lost from None

    async def _poll(self, api: BotApi, accept: Accept) -> None:
        clock, poll_s = self._context.clock, self._settings.poll_s
        me = await api.call("getMe", {}, result=TelegramUser)
        if self._settings.clear_webhook:
            await api.call("deleteWebhook", {}, result=bool)
        await command_menu.sync_menu(self._try_call, self._context.state, me.id, is_enabled=self._settings.command_menu)
        offset = await self._stored_offset(me)

        async def ask(start: int | None, wait_s: int) -> UpdateBatch:
            if offset is not None and not offset.is_valid(bot=me.id, now=clock.now()):
                start = None
            asked_at = asyncio.get_running_loop().time()
            found = await get_updates(api, start, poll_s=wait_s)
            self._conflicts = 0
            self._context.on_connected()
            if not found and wait_s and asyncio.get_running_loop().time() - asked_at < wait_s / 2:
                await clock.sleep(EMPTY_PAUSE_S)  # avoid a busy loop if the server ignores the timeout
            return found

        async def confirm(update_id: int) -> None:
            nonlocal offset
            offset = PollOffset(bot=me.id, update_id=update_id, at=clock.now())
            await self._context.state.put(offsets.KEY, str(offset))

        await LongPoller(
            ask,
            me,
            accept=accept,
            before_accept=self._note_migration,
            confirm=confirm,
            fetch=self._fetch,
            clock=clock,
            connector_name=self.name,
            poll_s=poll_s,
        ).run(offset.update_id if offset is not None else None)

    async def _stored_offset(self, me: TelegramUser) -> PollOffset | None:
        state = self._context.state
        stored = await state.get(offsets.KEY)
        if not stored:
            return None
        offset = offsets.parse_offset(stored)
        if offset is None:
            log.warning("stored offset is damaged and ignored", extra={"connector": self.name})
            await state.put(offsets.DAMAGED_KEY, stored[: offsets.DAMAGED_LENGTH_MAX])
            await state.put(offsets.KEY, "")
        elif offset.bot != me.id:
            log.warning("stored offset belongs to another bot", extra={"connector": self.name})
        return offset

    async def _note_migration(self, incoming: InboundMessage) -> None:
        """Store the new id of a group, before the server accepts the message that reports the new id.

        From then on, messages for the old id are sent to the new id.
        """
        if incoming.kind is InboundKind.MOVED:
            await self._store_migration(int(incoming.channel), int(incoming.text))

    async def _fetch(self, file_id: str) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._get_api().download(file_id):
                yield chunk
        except TelegramRefused as refused:
            too_big = "too big" in refused.description.casefold()
            because = f"it is larger than {DOWNLOAD_BYTES_MAX // MIB} MiB" if too_big else refused.because
            raise FileNotFetched(because=because, is_too_large=too_big) from None
        except (TelegramUnreachable, TelegramNoAnswer, ConnectionLost) as error:
            raise FileNotFetched(because=f"{error.sentence}: {error.because}") from None

    # --- sending ---

    async def deliver(self, part: DeliveryPart) -> Delivery:
        """Send one part of an envelope to Telegram."""
        for file in part.files:
            self._check_file(file)
        if part.buttons and len(part.files) > 1:
            raise DeliveryFailed(
                "Telegram does not support buttons under several files",
                permanent=True,
                because="several files are sent as an album, and an album cannot have buttons",
                try_this="send the buttons in a separate message",
            )
        return Delivery(
            await self._send(
                part.channel,
                part.quoted_message_id,
                lambda manner: outbound_call.build_request(part, manner, self._context.get_attachment_path),
            )
        )

    async def preview(self, channel: str, text: str, *, preview_id: str = "", quoted_message_id: str = "") -> str:
        try:
            return await self._send(
                channel, quoted_message_id, lambda manner: outbound_call.build_preview(text, preview_id, manner)
            )
        except DeliveryFailed as failed:
            if preview_id and "message is not modified" in failed.because:
                return preview_id
            raise

    async def delete_preview(self, channel: str, message_id: str) -> None:
        await self._try_in_channel("deleteMessage", channel, {"message_id": int(message_id)})

    async def react(self, channel: str, message_id: str, emoji: str) -> None:
        chat, _ = await self._resolve_channel(channel)
        reaction = [{"type": "emoji", "emoji": emoji}] if emoji else []
        arguments = {"chat_id": chat, "message_id": int(message_id), "reaction": reaction}
        try:
            await self._get_sending_api().call("setMessageReaction", arguments, result=bool)
        except TelegramRefused as refused:
            raise build_delivery_refused(refused) from None
        except TelegramUnreachable as error:
            raise build_not_sent(error) from None

    async def show_typing(self, channel: str) -> None:
        await self._try_in_channel("sendChatAction", channel, {"action": "typing"})

    async def answer_press(self, press_id: str, text: str) -> None:
        arguments = {
            "callback_query_id": press_id,
            "text": outbound_call.replace_lone_surrogates(text)[:PRESS_ANSWER_LENGTH_MAX],
        }
        await self._try_call("answerCallbackQuery", arguments)

    async def _send(
        self, channel: str, quoted_message_id: str, build_request: Callable[[TelegramSendOptions], BotApiRequest]
    ) -> str:
        """Send a request, and return the message id.

        If Telegram refuses the request, nothing was sent, so it is sent again with simpler options.
        """
        chat, topic = await self._resolve_channel(channel)
        manner = TelegramSendOptions(
            chat=chat,
            topic=topic,
            quote=quoted_message_id if quoted_message_id.isascii() and quoted_message_id.isdigit() else "",
            previews=self._settings.link_previews,
        )
        api = self._get_sending_api()
        for _ in range(SEND_ATTEMPTS_MAX):
            try:
                return await _send_request(api, build_request(manner))
            except TelegramUnreachable as error:
                raise build_not_sent(error) from None
            except TelegramRefused as refused:
                other = outbound_call.simplify_options(refused, manner)
                if other is None:
                    raise build_delivery_refused(refused) from None
                if other.chat != manner.chat:
                    await self._store_migration(manner.chat, other.chat)
                manner = other
        raise DeliveryFailed(
            "Telegram did not accept the message",
            permanent=True,
            because=f"it refused {SEND_ATTEMPTS_MAX} attempts, each with simpler options",
            try_this="send it as plain text",
        )

    async def _try_in_channel(self, method: str, channel: str, arguments: Mapping[str, Any]) -> None:
        """Call a Bot API method for a channel. A failure is only logged."""
        chat, topic = await self._resolve_channel(channel)
        where = {"chat_id": chat} if topic is None else {"chat_id": chat, "message_thread_id": topic}
        await self._try_call(method, {**where, **arguments})

    async def _try_call(self, method: str, arguments: Mapping[str, Any]) -> bool:
        try:
            return await self._get_sending_api().call(method, arguments, result=bool)
        except (TelegramRefused, TelegramUnreachable, TelegramNoAnswer) as error:
            log.info("telegram call failed", extra={"connector": self.name, "call": method, "code": error.code})
            return False

    def _check_file(self, file: Attachment) -> None:
        if file.size_bytes > UPLOAD_BYTES_MAX:
            raise DeliveryFailed(
                "the file is too large for Telegram",
                kind=FailureKind.TOO_LARGE,
                permanent=True,
                because=f"the limit is {UPLOAD_BYTES_MAX // MIB} MiB for each file",
                try_this="send a smaller file, or a link to it",
            )
        if not self._context.get_attachment_path(file).is_file():
            raise DeliveryFailed(
                "the file to send no longer exists",
                permanent=True,
                because="it was purged from the attachments",
                try_this="create it again",
            )

    async def _resolve_channel(self, channel: str) -> tuple[int, int | None]:
        """Return the current chat id and topic of a channel."""
        place = updates.parse_channel(channel)
        if place is None:
            raise DeliveryFailed(
                f"invalid Telegram channel: '{channel[:64]}'",
                kind=FailureKind.INVALID_ADDRESS,
                permanent=True,
                because="it must be the id of a chat (a number), or CHAT/TOPIC",
                try_this="copy the address from a message of that chat",
            )
        chat, topic = place
        if chat < 0 and chat not in self._migrations:
            known = updates.parse_channel(await self._context.state.get(f"moved-{chat}") or "")
            self._cache_migration(chat, known[0] if known is not None else chat)
        moved = self._migrations.get(chat, chat)
        return (chat, topic) if moved == chat else (moved, None)

    async def _store_migration(self, old: int, new: int) -> None:
        await self._context.state.put(f"moved-{old}", str(new))
        self._cache_migration(old, new)

    def _cache_migration(self, old: int, new: int) -> None:
        self._migrations[old] = new
        if len(self._migrations) > MIGRATIONS_MAX:
            self._migrations.pop(next(iter(self._migrations)))

    # --- account ---

    async def check(self) -> ConnectorCheckResult:
        try:
            api = self._get_api()
            async with api.http_session():
                me = await api.call("getMe", {}, result=TelegramUser)
                webhook = await self._get_webhook_url(api)
        except (TelegramRefused, TelegramUnreachable, TelegramNoAnswer) as error:
            lost = build_connection_lost(error, conflicts=0, random=self._context.random)
            return ConnectorCheckResult(
                ok=False, account="", sentence=lost.sentence, because=lost.because, try_this=lost.try_this
            )
        except ConnectionLost as lost:
            return ConnectorCheckResult(
                ok=False, account="", sentence=lost.sentence, because=lost.because, try_this=lost.try_this
            )
        account = f"@{me.username}"
        if webhook and not self._settings.clear_webhook:
            return ConnectorCheckResult(
                ok=False,
                account=account,
                sentence=f"another program receives the updates of {account}",
                because="a webhook is set for this bot, perhaps by another program",
                try_this="stop that program, or set `clear_webhook = true` for this connector",
            )
        if not me.can_read_all_group_messages:
            return ConnectorCheckResult(
                ok=True,
                account=account,
                sentence=f"Telegram accepted the token of {account}",
                because="its privacy mode is on: in groups it receives only messages addressed to it",
                try_this="to receive all messages, send /setprivacy to @BotFather, then add the bot to the group again",
            )
        return ConnectorCheckResult(ok=True, account=account, sentence=f"Telegram accepted the token of {account}")

    async def _get_webhook_url(self, api: BotApi) -> str:
        try:
            return (await api.call("getWebhookInfo", {}, result=WebhookInfo)).url
        except (TelegramRefused, TelegramUnreachable, TelegramNoAnswer):
            return ""  # polling will report it

    def _get_api(self) -> BotApi:
        """Return the client for the current token. If the token changes, calls with the old token continue."""
        try:
            token = self._context.read_secret("token").strip()
        except Invalid as error:
            raise ConnectionLost(
                error.sentence, because=error.because, try_this=error.try_this, needs_owner=True, code=error.code
            ) from None
        if not _TOKEN.fullmatch(token):
            raise TelegramTokenRejected("it must be a number, a colon, and letters and digits")
        if self._current_api is None or self._current_api[0] != token:
            self._current_api = (token, BotApi(self._settings.api_base, token, timeout_s=self._settings.timeout_s))
        return self._current_api[1]

    def _get_sending_api(self) -> BotApi:
        try:
            return self._get_api()
        except ConnectionLost as lost:
            raise DeliveryFailed(
                lost.sentence, kind=FailureKind.INVALID_SENDER, because=lost.because, try_this=lost.try_this
            ) from None


async def _send_request(api: BotApi, request: BotApiRequest) -> str:
    """Send a request, and return the id of the (first) message that Telegram created."""
    if request.is_album:
        sent = await api.call(request.method, request.arguments, result=list[SentMessage], uploads=request.uploads)
        if not sent:
            raise TelegramNoAnswer(request.method, because="the list of sent messages is empty")
        return str(sent[0].message_id)
    one = await api.call(request.method, request.arguments, result=SentMessage, uploads=request.uploads)
    return str(one.message_id)
