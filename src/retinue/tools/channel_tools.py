"""`send_file` and `react`: what an agent can do in a channel besides sending text.

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

from retinue.connectors.base import Abilities, Connector, DeliveryFailed, abilities_of, reacts_of
from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.attachment import Attachment, safe_name
from retinue.domain.envelope import Draft, Envelope
from retinue.domain.errors import RetinueError
from retinue.domain.ids import EnvelopeId, SessionId, derived, short
from retinue.domain.permission import Access
from retinue.domain.ports import Post
from retinue.domain.principal import Principal
from retinue.domain.record import Note, UserTurn, believed
from retinue.domain.tool import Effect, ToolResult, ToolSpec
from retinue.domain.trust import Trust, least
from retinue.store.channels import delivery_parts
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions
from retinue.tools.base import Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files import Ground
from retinue.tools.files.file_snapshot import look
from retinue.tools.files.paths import locate

SENT_BYTES_MAX = 50 * 1024 * 1024
RECORDS_LOOKED_AT_MAX = 1_000  # from the newest backwards, when looking for an attachment
HASH_CHARS_MIN = 8
REACT_S_MAX = 20.0
EMOJI_CHARS_MAX = 16

Rooms = Callable[[str], Connector | None]
"""Returns the connector with this name, or None."""


class SendAs(StrEnum):
    AUTO = "auto"  # by its media type
    DOCUMENT = "document"
    PHOTO = "photo"
    VIDEO = "video"


class SendFileArguments(msgspec.Struct, forbid_unknown_fields=True):
    file_id: Annotated[str, msgspec.Meta(description="A file of this conversation, by its id")] = ""
    path: Annotated[str, msgspec.Meta(description="Or the path of a file that you may read")] = ""
    to: Annotated[str, msgspec.Meta(description="channel:CONNECTOR:ROOM; left out, the room you are in")] = ""
    text: Annotated[str, msgspec.Meta(description="Words beside it")] = ""
    name: Annotated[str, msgspec.Meta(description="How it is to be called there")] = ""
    send_as: SendAs = SendAs.AUTO


class SendFile(Struct, frozen=True):
    """Sends an envelope with one file.

    The idempotency key derives from the call, so a call repeated after a crash sends one envelope.
    """

    post: Post
    ground: Ground
    rooms: Rooms
    arguments: type[msgspec.Struct] = SendFileArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="send_file",
            description="Send a file into the room you are in: one of this conversation, or one that you may read.",
            parameters=schema_of(SendFileArguments),
            effects=frozenset({Effect.SENDS_OUT}),
            capabilities=frozenset({"messages.send"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: SendFileArguments, scene: Scene) -> str:
        try:
            to = _room(arguments.to, scene)
            able = _able(self.rooms, to)
            if not able.files:
                raise _cannot(to, "takes no files", code="file.not-there")
            file, trust = await self._file(arguments, scene)
            file = _as(file, arguments)
            if able.file_bytes_max and file.size_bytes > able.file_bytes_max:
                raise _cannot(to, f"takes files of {able.file_bytes_max:,} bytes at most", code="file.too-large")
            draft = Draft(
                id=EnvelopeId(derived(scene.run, f"file/{scene.call}")),
                sender=address.agent(scene.agent.name, scene.session),
                recipient=to,
                text=arguments.text,
                source="run",
                key=f"{scene.run}/{scene.call}/file",
                attachments=(file,),
                trust=least((Trust.AGENT, scene.trust, trust)),
            )
            receipt = await self.post.post(draft)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if receipt.outcome is not None and receipt.because:
            return f"Not delivered: {receipt.because}."
        return f"{file.name} is on its way to {to} (envelope {short(receipt.envelope)})."

    async def _file(self, arguments: SendFileArguments, scene: Scene) -> tuple[Attachment, Trust]:
        if bool(arguments.file_id) == bool(arguments.path):
            raise ToolFailed(
                "one file is needed, and it is not clear which",
                because="either `file_id` or `path` names it",
                try_this="name one of them",
                code="file.which",
            )
        if arguments.path:
            return await self._read(arguments.path, scene)
        find = partial(_of_conversation, session=scene.session, id_=arguments.file_id)
        found = await self.ground.store.scan(find)
        if found is None:
            raise ToolFailed(
                f"there is no file '{arguments.file_id[:80]}' in this conversation",
                because="a file is known by the first letters of its id, and only where it came in or was made",
                try_this="name it by its path, if you may read it",
                code="file.not-found",
            )
        return found

    async def _read(self, path: str, scene: Scene) -> tuple[Attachment, Trust]:
        place = await asyncio.to_thread(locate, path, scene, Access.READ, self.ground.withheld)
        async with self.ground.alone_with(place.real):
            found = await asyncio.to_thread(partial(look, place.real, text=path, bytes_max=SENT_BYTES_MAX))
            trust = await self.ground.trust_of(place.real, found)
        import mimetypes  # slow import, needed only when a file is sent

        name = place.real.rpartition("/")[2]
        guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
        keep = partial(self.ground.files.keep, [found.data], name=name, media_type=guessed)
        return await asyncio.to_thread(keep), trust


def _of_conversation(conn: sa.Connection, *, session: SessionId, id_: str) -> tuple[Attachment, Trust] | None:
    """Return an attachment of this session by hash prefix, and the trust of the record that has it."""
    found = sessions.get(conn, session)
    if found is None or len(id_) < HASH_CHARS_MIN:
        return None
    first = max(1, found.record_seq - RECORDS_LOOKED_AT_MAX)
    history, _ = records.read(conn, session, first=first, last=found.record_seq)
    for record in reversed(history):
        if isinstance(record.body, UserTurn | ToolResult | Note):
            for each in record.body.attachments:
                if each.hash.startswith(id_.casefold()):
                    return each, believed(record)
    return None


def _as(file: Attachment, arguments: SendFileArguments) -> Attachment:
    wanted = {SendAs.PHOTO: "image/", SendAs.VIDEO: "video/"}.get(arguments.send_as)
    if wanted is not None and not file.media_type.startswith(wanted):
        raise ToolFailed(
            f"{file.name} cannot be sent as a {arguments.send_as}",
            because=f"it is {file.media_type}",
            try_this="send it as a document",
            code="file.other-kind",
        )
    if arguments.send_as is SendAs.DOCUMENT:
        file = replace(file, media_type="application/octet-stream")
    return replace(file, name=safe_name(arguments.name)) if arguments.name else file


class ReactArguments(msgspec.Struct, forbid_unknown_fields=True):
    emoji: Annotated[str, msgspec.Meta(max_length=EMOJI_CHARS_MAX, description="Empty: take yours back")]
    envelope: Annotated[str, msgspec.Meta(description="The id of the envelope; left out, the one you answer")] = ""


class React(Struct, frozen=True):
    """Reacts to a platform message, found by its envelope. Repeating the same reaction changes
    nothing.
    """

    ground: Ground
    rooms: Rooms
    arguments: type[msgspec.Struct] = ReactArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="react",
            description="React to a message in the room you are in with one emoji.",
            parameters=schema_of(ReactArguments),
            effects=frozenset({Effect.SENDS_OUT}),
            capabilities=frozenset({"messages.send"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: ReactArguments, scene: Scene) -> str:
        try:
            room, message = await self.ground.store.read(partial(_message, named=arguments.envelope, scene=scene))
        except RetinueError as error:
            raise as_tool_failed(error) from error
        connector = reacts_of(self.rooms(room.name))
        if connector is None:
            raise _cannot(room, "has no reactions", code="reaction.not-there")
        try:
            async with asyncio.timeout(REACT_S_MAX):
                await connector.react(room.rest, message, arguments.emoji)
        except DeliveryFailed as failed:
            raise ToolFailed(
                f"{room} did not take the reaction",
                because=f"{failed.kind.value}",  # platform texts are not shown to a model
                try_this="try another emoji, or say it in words",
                code="reaction.refused",
            ) from failed
        except (TimeoutError, OSError) as error:
            raise ToolFailed(
                "nobody knows whether the reaction is there", because="the line broke", code="reaction.unknown"
            ) from error
        return "Taken back." if not arguments.emoji else f"Reacted with {arguments.emoji}."


def _message(conn: sa.Connection, *, named: str, scene: Scene) -> tuple[Address, str]:
    """Return the channel and the platform message id of an envelope that the agent can see."""
    letter = _named(conn, named, scene)
    for room in (letter.sender, letter.recipient) if letter is not None else ():
        if letter is not None and room.kind is AddressKind.CHANNEL and not room.is_external:
            message = letter.context.platform_id if room == letter.sender else delivery_parts.first(conn, letter.id)
            if message:
                return room, message
    raise ToolFailed(
        "there is no message to react to",
        because="only what was said in a room, or sent there, is a message on a platform",
        try_this="answer in words",
        code="reaction.no-message",
    )


def _named(conn: sa.Connection, named: str, scene: Scene) -> Envelope | None:
    if named:
        agent = Principal(address=address.agent(scene.agent.name), level=PermissionLevel.RESTRICTED, trust=Trust.AGENT)
        return envelopes.get(conn, envelopes.resolve(conn, named, seen_by=agent))
    run = runs.get(conn, scene.run)
    return envelopes.get(conn, run.envelopes[-1]) if run is not None and run.envelopes else None


def _room(named: str, scene: Scene) -> Address:
    to = address.parse(named) if named else scene.sender
    if to is None or to.kind is not AddressKind.CHANNEL or to.is_external:
        raise ToolFailed(
            "there is no room to send it to",
            because="you were not written to from a channel" if not named else f"'{named[:80]}' is none",
            try_this="name it: channel:CONNECTOR:ROOM",
            code="room.none",
        )
    return to


def _able(rooms: Rooms, to: Address) -> Abilities:
    connector = rooms(to.name)
    able = abilities_of(connector) if connector is not None else None
    if able is None:
        raise _cannot(to, "is not a place that takes files", code="file.not-there")
    return able


def _cannot(room: Address, why: str, *, code: str) -> ToolFailed:
    return ToolFailed(f"{room} {why}", because="its connector says so", try_this="say it in words", code=code)
