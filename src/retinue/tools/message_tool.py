"""`message`: sends an envelope to a person or a channel, besides the answer, or starts a background
job.
"""

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
from retinue.domain.delegation import DelegationKind, Notify
from retinue.domain.delegation_request import Handing, HandOver
from retinue.domain.envelope import ATTACHMENTS_MAX, Draft
from retinue.domain.errors import RetinueError
from retinue.domain.ids import EnvelopeId, derived, short
from retinue.domain.permission import Access
from retinue.domain.ports import Post
from retinue.domain.principal import Principal
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust, least
from retinue.store.envelopes import envelopes
from retinue.tools.base import Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files import Ground
from retinue.tools.files.file_snapshot import look
from retinue.tools.files.paths import locate

SENT_BYTES_MAX = 20 * 1024 * 1024  # of one file
JOBS = address.agent(BACKGROUND)


class MessageArguments(msgspec.Struct, forbid_unknown_fields=True):
    to: Annotated[str, msgspec.Meta(description="person:NAME, channel:CONNECTOR:ROOM, or agent:background")]
    text: str
    files: Annotated[
        list[str], msgspec.Meta(max_length=ATTACHMENTS_MAX, description="Paths of files to send with it")
    ] = []
    silent: Annotated[bool, msgspec.Meta(description="To be noticed when they next look, and not at once")] = False
    reply_to: Annotated[str, msgspec.Meta(description="The id of the envelope that this follows up")] = ""


class Message(Struct, frozen=True):
    """Sends an envelope.

    The idempotency key derives from the call, so a call repeated after a crash sends one envelope.
    """

    post: Post
    ground: Ground
    hand_over: HandOver
    arguments: type[msgspec.Struct] = MessageArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="message",
            description=(
                "Send a message to a person or into a room. Your answer to whoever wrote to you is sent by itself; "
                "use this for everyone else. agent:background does one job on the side, which knows nothing but your "
                "text: what comes of it is a message to you, to be used and not to be answered."
            ),
            parameters=schema_of(MessageArguments),
            effects=frozenset({Effect.SENDS_OUT}),
            capabilities=frozenset({"messages.send"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: MessageArguments, scene: Scene) -> str:
        try:
            to = address.parse(arguments.to)
            reply_to = await self._followed_up(arguments.reply_to, scene)
            if to == JOBS:
                return await self._hand_over(arguments, scene, reply_to)
            if to.kind not in (AddressKind.PERSON, AddressKind.CHANNEL):
                raise ToolFailed(
                    f"'{arguments.to[:100]}' gets no messages this way",
                    because="this is for people, for rooms, and for agent:background",
                    try_this="person:owner; other agents are asked with agents_message",
                    code="message.not-for",
                )
            attached = [await self._attach(path, scene) for path in arguments.files]
            draft = Draft(
                id=EnvelopeId(derived(scene.run, f"message/{scene.call}")),
                sender=address.agent(scene.agent.name, scene.session),
                recipient=to,
                text=arguments.text,
                source="run",
                key=f"{scene.run}/{scene.call}/message",
                attachments=tuple(attachment for attachment, _ in attached),
                reply_to=reply_to,
                trust=least((Trust.AGENT, scene.trust, *(trust for _, trust in attached))),
                silent=arguments.silent,
            )
            receipt = await self.post.post(draft)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if receipt.outcome is not None and receipt.because:
            return f"Not delivered: {receipt.because}."
        return f"Sent to {to} (envelope {short(receipt.envelope)})."

    async def _followed_up(self, text: str, scene: Scene) -> EnvelopeId | None:
        """Resolve the id of an envelope that the agent can see: its own, or one in its sessions."""
        if not text:
            return None
        agent = Principal(address=address.agent(scene.agent.name), level=PermissionLevel.RESTRICTED, trust=Trust.AGENT)
        return await self.ground.store.read(partial(envelopes.resolve, text=text, seen_by=agent))

    async def _hand_over(self, arguments: MessageArguments, scene: Scene, reply_to: EnvelopeId | None) -> str:
        attached = [await self._attach(path, scene) for path in arguments.files]
        handing = Handing(
            kind=DelegationKind.BACKGROUND,
            run=scene.run,
            call=scene.call,
            target=scene.agent.name,
            text=arguments.text,
            trust=least((scene.trust, *(trust for _, trust in attached))),
            notify=Notify.NOTE if arguments.silent else Notify.WAKE,
            attachments=tuple(attachment for attachment, _ in attached),
            reply_to=reply_to,
        )
        handed = await self.hand_over(handing)
        return (
            f"Taken as a job in the background (envelope {short(handed.delegation.id)}). Its result comes as a message."
        )

    async def _attach(self, path: str, scene: Scene) -> tuple[Attachment, Trust]:
        place = await asyncio.to_thread(locate, path, scene, Access.READ, self.ground.withheld)
        async with self.ground.alone_with(place.real):
            found = await asyncio.to_thread(partial(look, place.real, text=path, bytes_max=SENT_BYTES_MAX))
            trust = await self.ground.trust_of(place.real, found)
        keep = partial(
            self.ground.files.keep,
            [found.data],
            name=place.real.rpartition("/")[2],
            media_type="application/octet-stream",
        )
        return await asyncio.to_thread(keep), trust
