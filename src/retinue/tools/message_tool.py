"""The tool `message`: sends an envelope to a person or a channel, besides the answer, or starts a background job."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain import address
from retinue.domain.address import BACKGROUND, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.attachment import Attachment
from retinue.domain.delegation import DelegationKind, NotifyMode
from retinue.domain.delegation_request import DelegateWork, DelegationRequest
from retinue.domain.envelope import ATTACHMENTS_MAX, EnvelopeDraft
from retinue.domain.errors import RetinueError
from retinue.domain.ids import EnvelopeId, derive_id, short_id
from retinue.domain.permission import PermissionKind
from retinue.domain.ports import EnvelopeAcceptor
from retinue.domain.principal import Principal
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust, least_trust
from retinue.store.envelopes import envelopes
from retinue.tools.base import ToolContext, ToolFailed, as_tool_failed, schema_of
from retinue.tools.errors import MessageRecipientInvalid
from retinue.tools.files import FileServices
from retinue.tools.files.file_snapshot import read_snapshot
from retinue.tools.files.path_access import locate

SENT_BYTES_MAX = 20 * 1024 * 1024  # of one file
BACKGROUND_ADDRESS = address.agent_address(BACKGROUND)


class MessageArguments(msgspec.Struct, forbid_unknown_fields=True):
    to: Annotated[str, msgspec.Meta(description="person:NAME, channel:CONNECTOR:CHANNEL, or agent:background")]
    text: str
    files: Annotated[list[str], msgspec.Meta(max_length=ATTACHMENTS_MAX, description="Paths of files to attach")] = []
    silent: Annotated[bool, msgspec.Meta(description="Whether to send the message without a notification")] = False
    reply_to: Annotated[str, msgspec.Meta(description="Id of the envelope that this message replies to")] = ""


class MessageTool(Struct, frozen=True):
    """The tool `message`: sends an envelope.

    The idempotency key derives from the call, so a call repeated after a crash sends one envelope.
    """

    post: EnvelopeAcceptor
    file_services: FileServices
    delegate: DelegateWork
    arguments: type[msgspec.Struct] = MessageArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="message",
            description=(
                "Send a message to a person or a channel. Do not use it to answer the message you work on: your answer "
                "is sent automatically. agent:background starts a background job that knows only your text; you get "
                "its result as a message, which you use and do not answer. Returns the id of the envelope."
            ),
            parameters=schema_of(MessageArguments),
            effects=frozenset({ToolEffect.SENDS_OUT}),
            capabilities=frozenset({"messages.send"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: MessageArguments, context: ToolContext) -> str:
        try:
            to = address.parse_address(arguments.to)
            reply_to = await self._resolve_reply_to(arguments.reply_to, context)
            if to == BACKGROUND_ADDRESS:
                return await self._delegate_to_background(arguments, context, reply_to)
            if to.kind not in (AddressKind.PERSON, AddressKind.CHANNEL):
                raise MessageRecipientInvalid(arguments.to)
            attached = [await self._attach_file(path, context) for path in arguments.files]
            draft = EnvelopeDraft(
                id=EnvelopeId(derive_id(context.run, f"message/{context.call}")),
                sender=address.agent_address(context.agent.name, context.session),
                recipient=to,
                text=arguments.text,
                source="run",
                idempotency_key=f"{context.run}/{context.call}/message",
                attachments=tuple(attachment for attachment, _ in attached),
                reply_to=reply_to,
                trust=least_trust((Trust.AGENT, context.trust, *(trust for _, trust in attached))),
                silent=arguments.silent,
            )
            receipt = await self.post.accept(draft)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if receipt.outcome is not None and receipt.because:
            return f"Not delivered: {receipt.because}."
        return f"Sent to {to} (envelope {short_id(receipt.envelope)})."

    async def _resolve_reply_to(self, text: str, context: ToolContext) -> EnvelopeId | None:
        """Return the full id of an envelope that the agent can see: its own, or one in its sessions."""
        if not text:
            return None
        agent = Principal(
            address=address.agent_address(context.agent.name), level=PermissionLevel.RESTRICTED, trust=Trust.AGENT
        )
        return await self.file_services.store.read(partial(envelopes.resolve_id, text=text, seen_by=agent))

    async def _delegate_to_background(
        self, arguments: MessageArguments, context: ToolContext, reply_to: EnvelopeId | None
    ) -> str:
        attached = [await self._attach_file(path, context) for path in arguments.files]
        request = DelegationRequest(
            kind=DelegationKind.BACKGROUND,
            run=context.run,
            call=context.call,
            target=context.agent.name,
            text=arguments.text,
            trust=least_trust((context.trust, *(trust for _, trust in attached))),
            notify=NotifyMode.NOTE if arguments.silent else NotifyMode.WAKE,
            attachments=tuple(attachment for attachment, _ in attached),
            reply_to=reply_to,
        )
        started = await self.delegate(request)
        id_ = short_id(started.delegation.id)
        return f"Started a background job (envelope {id_}). You will get its result as a message."

    async def _attach_file(self, path: str, context: ToolContext) -> tuple[Attachment, Trust]:
        resolved = await asyncio.to_thread(locate, path, context, PermissionKind.READ, self.file_services.withheld)
        async with self.file_services.lock_file(resolved.real):
            found = await asyncio.to_thread(partial(read_snapshot, resolved.real, text=path, bytes_max=SENT_BYTES_MAX))
            trust = await self.file_services.trust_of(resolved.real, found)
        keep = partial(
            self.file_services.files.store,
            [found.data],
            name=resolved.real.rpartition("/")[2],
            media_type="application/octet-stream",
        )
        return await asyncio.to_thread(keep), trust
