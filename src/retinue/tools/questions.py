"""`ask_questions`: sends a questionnaire to the person an agent works for.

The call does not wait. The answers arrive as the person's next envelope in the same session.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import Context, Draft
from retinue.domain.errors import RetinueError
from retinue.domain.ids import EnvelopeId, QuestionnaireId, derived, short
from retinue.domain.ports import Clock, Post
from retinue.domain.questionnaire import Field, FieldKind, Questionnaire
from retinue.domain.times import to_ms
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust, least
from retinue.policy.questionnaires import FIELDS_MAX, OPTIONS_MAX, as_shown, check_questions, choices_of
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.people import people
from retinue.store.runs import questionnaires, runs
from retinue.store.runs.message_authors import who_wrote
from retinue.store.sessions import sessions
from retinue.tools.base import Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.notify import person_of

QUESTIONNAIRE_GOOD_S = 7 * 86_400.0  # time in which a questionnaire can be answered
OPEN_IN_SESSION_MAX = 10

Meta = msgspec.Meta


class FieldArguments(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="How you will know the answer: lower-case letters, digits, hyphens")]
    label: Annotated[str, Meta(description="The question as they read it")]
    kind: FieldKind = FieldKind.TEXT
    required: bool = False
    options: Annotated[
        list[str], Meta(max_length=OPTIONS_MAX, description="For choice and several: what can be picked")
    ] = []
    least: Annotated[float | None, Meta(description="Of a number, a text's length, or how many are picked")] = None
    most: float | None = None


class AskArguments(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[str, Meta(description="What it is about, in a line")]
    fields: Annotated[list[FieldArguments], Meta(min_length=1, max_length=FIELDS_MAX)]


def _schema() -> dict[str, Any]:
    """Inline the field schema, because not every provider follows references."""
    schema = schema_of(AskArguments)
    item = schema_of(FieldArguments)
    item["properties"]["kind"] = {
        "type": "string",
        "enum": [kind.value for kind in FieldKind],
        "default": FieldKind.TEXT.value,
    }
    schema["properties"]["fields"]["items"] = item
    return schema


class AskQuestions(Struct, frozen=True):
    """Creates one questionnaire per call. Its id derives from the call, so a repeated call asks
    once.
    """

    store: Store
    clock: Clock
    mask: Callable[[str], str] = str
    post: Post | None = None  # sends the questions into a channel, for people who are asked there
    arguments: type[msgspec.Struct] = AskArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="ask_questions",
            description=(
                "Put several questions to the person you work for, as a form. Returns at once: finish your turn, or go "
                "on with what does not depend on it. Their answers come as a message when they have filled it in."
            ),
            parameters=_schema(),
            effects=frozenset({Effect.WRITES}),
            capabilities=frozenset({"questions.ask"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: AskArguments, scene: Scene) -> str:
        room = scene.sender if scene.sender is not None and scene.sender.kind is AddressKind.CHANNEL else None
        person, reply_to = person_of(scene), None
        if room is not None and self.post is not None:
            person, reply_to = await self._who_wrote(scene)
        if person is None:
            raise _nobody("no person's words are being worked on")
        now = self.clock.now()
        fields = tuple(_field(each, self.mask) for each in arguments.fields)
        title = " ".join(self.mask(arguments.title).split())
        try:
            check_questions(title, fields)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        made = Questionnaire(
            id=QuestionnaireId(derived(scene.run, f"questions/{scene.call}")),
            person=person,
            agent=scene.agent.name,
            session=scene.session,
            run=scene.run,
            title=title,
            fields=fields,
            trust=scene.trust,
            asked_at=now,
            expires_at=now + timedelta(seconds=QUESTIONNAIRE_GOOD_S),
            answers={},
        )
        await self.store.write(partial(_keep, made=made), point="questionnaire")
        if room is not None and self.post is not None:
            await self._put_to(room, made, reply_to)
        return (
            f"Asked {person} (questionnaire {short(made.id)}). The answers will come as a message, "
            f"if they come by {made.expires_at:%Y-%m-%d %H:%M} UTC."
        )

    async def _who_wrote(self, scene: Scene) -> tuple[str | None, EnvelopeId | None]:
        """Return the person who wrote in the channel, and the envelope they wrote."""

        def look(conn: sa.Connection) -> tuple[str | None, EnvelopeId | None]:
            run = runs.get(conn, scene.run)
            wrote = who_wrote(conn, run) if run is not None else None
            return (wrote.name, run.envelopes[-1]) if run is not None and wrote is not None else (None, None)

        return await self.store.read(look)

    async def _put_to(self, room: Address, made: Questionnaire, reply_to: EnvelopeId | None) -> None:
        assert self.post is not None
        try:
            await self.post.post(_form(made, room, reply_to))
        except RetinueError as error:
            raise as_tool_failed(error) from error


def _form(made: Questionnaire, room: Address, reply_to: EnvelopeId | None) -> Draft:
    """Build the envelope that shows the questions in the person's channel. Its key derives from the
    questionnaire.
    """
    return Draft(
        id=EnvelopeId(derived(made.id, "room")),
        sender=address.agent(made.agent, made.session),
        recipient=room,
        text=as_shown(made.title, made.fields),
        source="run",
        key=f"{made.run}/questions/{made.id}",
        context=Context(questionnaire=made.id, choices=choices_of(made.fields)),
        reply_to=reply_to,
        trust=least((Trust.AGENT, made.trust)),
    )


def _field(asked: FieldArguments, mask: Callable[[str], str]) -> Field:
    return Field(
        name=asked.name,
        label=mask(asked.label),
        kind=asked.kind,
        required=asked.required,
        options=tuple(mask(option) for option in asked.options),
        least=asked.least,
        most=asked.most,
    )


def _keep(conn: sa.Connection, *, made: Questionnaire) -> None:
    page = Page(conn, to_ms(made.asked_at))
    if people.find(conn, made.person) is None or sessions.get(conn, made.session) is None:
        raise _nobody("this call is part of no conversation, and the answers would come as mail")
    if questionnaires.get(conn, made.id) is None:
        open_ones = questionnaires.count_open(conn, made.session, now_ms=page.at_ms)
        if open_ones >= OPEN_IN_SESSION_MAX:
            raise ToolFailed(
                f"{open_ones} questionnaires of this conversation are open",
                because=f"there may be {OPEN_IN_SESSION_MAX} at a time",
                try_this="wait until some are answered",
                code="questionnaire.too-many",
            )
        questionnaires.add(page, made)
    page.close()


def _nobody(because: str) -> ToolFailed:
    return ToolFailed(
        "nobody can be asked here",
        because=because,
        try_this="ask in your answer instead",
        code="questionnaire.nobody-to-ask",
    )
