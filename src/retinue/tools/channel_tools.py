"""The tools `send_file` and `react`: what an agent can do in a channel besides sending text.

Both work only where the platform supports them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field
from msgspec.structs import replace

from retinue.connectors.base import (
    Connector,
    ConnectorCapabilities,
    DeliveryFailed,
    get_capabilities,
    get_reaction_support,
)
from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.attachment import Attachment, safe_file_name
from retinue.domain.envelope import Envelope, EnvelopeDraft
from retinue.domain.errors import RetinueError
from retinue.domain.ids import EnvelopeId, SessionId, derive_id, short_id
from retinue.domain.permission import PermissionKind
from retinue.domain.ports import EnvelopeAcceptor
from retinue.domain.principal import Principal
from retinue.domain.record import Note, UserTurn, effective_trust
from retinue.domain.tool import ToolEffect, ToolResult, ToolSpec
from retinue.domain.trust import Trust, least_trust
from retinue.store.channels import delivery_parts
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions
from retinue.tools.base import ToolContext, ToolFailed, as_tool_failed, schema_of
from retinue.tools.errors import (
    ChannelMissing,
    FileNotChosen,
    FilesNotSupported,
    FileTooLargeForChannel,
    FileTypeMismatch,
    ReactionMessageMissing,
    ReactionRefused,
    ReactionsNotSupported,
    ReactionUnconfirmed,
    SessionFileNotFound,
)
from retinue.tools.files import FileServices
from retinue.tools.files.file_snapshot import read_snapshot
from retinue.tools.files.path_access import locate

SENT_BYTES_MAX = 50 * 1024 * 1024
RECORDS_SCANNED_MAX = 1_000  # from the newest backwards, when looking for an attachment
HASH_CHARS_MIN = 8
REACT_TIMEOUT_S = 20.0
EMOJI_CHARS_MAX = 16

FindConnector = Callable[[str], Connector | None]
"""Returns the connector with this name, or None."""


class SendAs(StrEnum):
    AUTO = "auto"  # chosen by the media type
    DOCUMENT = "document"
    PHOTO = "photo"
    VIDEO = "video"


class SendFileArguments(msgspec.Struct, forbid_unknown_fields=True):
    file_id: Annotated[str, msgspec.Meta(description="Id of a file of this conversation")] = ""
    path: Annotated[str, msgspec.Meta(description="Path of a file that you can read, instead of file_id")] = ""
    to: Annotated[str, msgspec.Meta(description="channel:CONNECTOR:CHANNEL. Default: the channel you answer in")] = ""
    text: Annotated[str, msgspec.Meta(description="Text to send with the file")] = ""
    name: Annotated[
        str, msgspec.Meta(description="File name to show in the channel. Default: the name of the file")
    ] = ""
    send_as: SendAs = SendAs.AUTO


class SendFileTool(Struct, frozen=True):
    """The tool `send_file`: sends an envelope with one file.

    The idempotency key derives from the call, so a call repeated after a crash sends one envelope.
    """

    post: EnvelopeAcceptor
    file_services: FileServices
    find_connector: FindConnector
    arguments: type[msgspec.Struct] = SendFileArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="send_file",
            description="Send a file to the channel you answer in: a file of this conversation, or one that you can "
            "read. Returns the id of the envelope.",
            parameters=schema_of(SendFileArguments),
            effects=frozenset({ToolEffect.SENDS_OUT}),
            capabilities=frozenset({"messages.send"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: SendFileArguments, context: ToolContext) -> str:
        try:
            to = _parse_channel(arguments.to, context)
            able = _require_file_support(self.find_connector, to)
            if not able.can_send_files:
                raise FilesNotSupported(str(to))
            file, trust = await self._select_file(arguments, context)
            file = _apply_send_options(file, arguments)
            if able.file_bytes_max and file.size_bytes > able.file_bytes_max:
                raise FileTooLargeForChannel(str(to), size_bytes=file.size_bytes, bytes_max=able.file_bytes_max)
            draft = EnvelopeDraft(
                id=EnvelopeId(derive_id(context.run, f"file/{context.call}")),
                sender=address.agent_address(context.agent.name, context.session),
                recipient=to,
                text=arguments.text,
                source="run",
                idempotency_key=f"{context.run}/{context.call}/file",
                attachments=(file,),
                trust=least_trust((Trust.AGENT, context.trust, trust)),
            )
            receipt = await self.post.accept(draft)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if receipt.outcome is not None and receipt.because:
            return f"Not delivered: {receipt.because}."
        return f"{file.name} was sent to {to} (envelope {short_id(receipt.envelope)})."

    async def _select_file(self, arguments: SendFileArguments, context: ToolContext) -> tuple[Attachment, Trust]:
        if bool(arguments.file_id) == bool(arguments.path):
            raise FileNotChosen
        if arguments.path:
            return await self._read_file(arguments.path, context)
        find = partial(_find_session_attachment, session=context.session, id_=arguments.file_id)
        found = await self.file_services.store.scan(find)
        if found is None:
            raise SessionFileNotFound(arguments.file_id)
        return found

    async def _read_file(self, path: str, context: ToolContext) -> tuple[Attachment, Trust]:
        resolved = await asyncio.to_thread(locate, path, context, PermissionKind.READ, self.file_services.withheld)
        async with self.file_services.lock_file(resolved.real):
            found = await asyncio.to_thread(partial(read_snapshot, resolved.real, text=path, bytes_max=SENT_BYTES_MAX))
            trust = await self.file_services.trust_of(resolved.real, found)
        import mimetypes  # slow import, needed only when a file is sent

        name = resolved.real.rpartition("/")[2]
        guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
        keep = partial(self.file_services.files.store, [found.data], name=name, media_type=guessed)
        return await asyncio.to_thread(keep), trust


def _find_session_attachment(conn: sa.Connection, *, session: SessionId, id_: str) -> tuple[Attachment, Trust] | None:
    """Find an attachment of this session by the beginning of its hash.

    Also returns the trust of the record that contains the attachment.
    """
    found = sessions.get(conn, session)
    if found is None or len(id_) < HASH_CHARS_MIN:
        return None
    first = max(1, found.record_seq - RECORDS_SCANNED_MAX)
    history, _ = records.read_range(conn, session, first=first, last=found.record_seq)
    for record in reversed(history):
        if isinstance(record.body, UserTurn | ToolResult | Note):
            for each in record.body.attachments:
                if each.hash.startswith(id_.casefold()):
                    return each, effective_trust(record)
    return None


def _apply_send_options(file: Attachment, arguments: SendFileArguments) -> Attachment:
    wanted = {SendAs.PHOTO: "image/", SendAs.VIDEO: "video/"}.get(arguments.send_as)
    if wanted is not None and not file.media_type.startswith(wanted):
        raise FileTypeMismatch(file.name, send_as=arguments.send_as, media_type=file.media_type)
    if arguments.send_as is SendAs.DOCUMENT:
        file = replace(file, media_type="application/octet-stream")
    return replace(file, name=safe_file_name(arguments.name)) if arguments.name else file


class ReactArguments(msgspec.Struct, forbid_unknown_fields=True):
    emoji: Annotated[
        str, msgspec.Meta(max_length=EMOJI_CHARS_MAX, description="The emoji. Empty: remove your reaction")
    ]
    envelope: Annotated[str, msgspec.Meta(description="Id of the envelope. Default: the one you answer")] = ""


class ReactTool(Struct, frozen=True):
    """The tool `react`: adds a reaction to the platform message of an envelope. Repeating a call changes nothing."""

    file_services: FileServices
    find_connector: FindConnector
    arguments: type[msgspec.Struct] = ReactArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="react",
            description="React to a message in a channel with one emoji.",
            parameters=schema_of(ReactArguments),
            effects=frozenset({ToolEffect.SENDS_OUT}),
            capabilities=frozenset({"messages.send"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: ReactArguments, context: ToolContext) -> str:
        try:
            channel, message = await self.file_services.store.read(
                partial(_find_platform_message, named=arguments.envelope, context=context)
            )
        except RetinueError as error:
            raise as_tool_failed(error) from error
        connector = get_reaction_support(self.find_connector(channel.name))
        if connector is None:
            raise ReactionsNotSupported(str(channel))
        try:
            async with asyncio.timeout(REACT_TIMEOUT_S):
                await connector.react(channel.rest, message, arguments.emoji)
        except DeliveryFailed as failed:
            # Only the kind: platform texts are not shown to a model.
            raise ReactionRefused(str(channel), because=failed.kind.value) from failed
        except (TimeoutError, OSError) as error:
            raise ReactionUnconfirmed from error
        return "Removed your reaction." if not arguments.emoji else f"Reacted with {arguments.emoji}."


def _find_platform_message(conn: sa.Connection, *, named: str, context: ToolContext) -> tuple[Address, str]:
    """Return the channel and the platform message id of an envelope that the agent can see."""
    envelope = _find_envelope(conn, named, context)
    for channel in (envelope.sender, envelope.recipient) if envelope is not None else ():
        if envelope is not None and channel.kind is AddressKind.CHANNEL and not channel.is_external:
            message = (
                envelope.context.platform_id
                if channel == envelope.sender
                else delivery_parts.get_first_receipt(conn, envelope.id)
            )
            if message:
                return channel, message
    raise ReactionMessageMissing


def _find_envelope(conn: sa.Connection, envelope_id: str, context: ToolContext) -> Envelope | None:
    if envelope_id:
        agent = Principal(
            address=address.agent_address(context.agent.name), level=PermissionLevel.RESTRICTED, trust=Trust.AGENT
        )
        return envelopes.get(conn, envelopes.resolve_id(conn, envelope_id, seen_by=agent))
    run = runs.get(conn, context.run)
    return envelopes.get(conn, run.envelopes[-1]) if run is not None and run.envelopes else None


def _parse_channel(text: str, context: ToolContext) -> Address:
    to = address.parse_address(text) if text else context.sender
    if to is None or to.kind is not AddressKind.CHANNEL or to.is_external:
        raise ChannelMissing(given=text)
    return to


def _require_file_support(find_connector: FindConnector, channel: Address) -> ConnectorCapabilities:
    connector = find_connector(channel.name)
    able = get_capabilities(connector) if connector is not None else None
    if able is None:
        raise FilesNotSupported(str(channel))
    return able
