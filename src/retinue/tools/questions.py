"""The tool `ask_questions`: sends a questionnaire to the person an agent works for.

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
from retinue.domain.envelope import EnvelopeContext, EnvelopeDraft
from retinue.domain.errors import RetinueError
from retinue.domain.ids import EnvelopeId, QuestionnaireId, derive_id, short_id
from retinue.domain.ports import Clock, EnvelopeAcceptor
from retinue.domain.questionnaire import Questionnaire, QuestionnaireField, QuestionnaireFieldKind
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust, least_trust
from retinue.policy.questionnaires import (
    FIELDS_MAX,
    OPTIONS_MAX,
    check_questions,
    format_questionnaire,
    list_button_choices,
)
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.people import people
from retinue.store.runs import questionnaires, runs
from retinue.store.runs.message_authors import get_author
from retinue.store.sessions import sessions
from retinue.tools.base import ToolContext, as_tool_failed, schema_of
from retinue.tools.errors import QuestionnairePersonMissing, QuestionnaireSessionMissing, TooManyQuestionnaires
from retinue.tools.notify import person_of

QUESTIONNAIRE_TTL_S = 7 * 86_400.0  # time in which a questionnaire can be answered
OPEN_IN_SESSION_MAX = 10

Meta = msgspec.Meta


class QuestionFieldArguments(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="Name of the answer that you get: lowercase letters, digits, hyphens")]
    label: Annotated[str, Meta(description="The question as the person reads it")]
    kind: QuestionnaireFieldKind = QuestionnaireFieldKind.TEXT
    required: bool = False
    options: Annotated[list[str], Meta(max_length=OPTIONS_MAX, description="For choice and several: the options")] = []
    least: Annotated[
        float | None,
        Meta(description="Minimum: of a number, of the length of a text, or of the number of chosen options"),
    ] = None
    most: Annotated[
        float | None,
        Meta(description="Maximum: of a number, of the length of a text, or of the number of chosen options"),
    ] = None


class AskQuestionsArguments(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[str, Meta(description="Title of the questionnaire in one line")]
    fields: Annotated[list[QuestionFieldArguments], Meta(min_length=1, max_length=FIELDS_MAX)]


def _build_schema() -> dict[str, Any]:
    """Return the schema of the arguments with the fields inlined, because not every provider follows references."""
    schema = schema_of(AskQuestionsArguments)
    item = schema_of(QuestionFieldArguments)
    item["properties"]["kind"] = {
        "type": "string",
        "enum": [kind.value for kind in QuestionnaireFieldKind],
        "default": QuestionnaireFieldKind.TEXT.value,
    }
    schema["properties"]["fields"]["items"] = item
    return schema


class AskQuestionsTool(Struct, frozen=True):
    """The tool `ask_questions`: creates one questionnaire per call. The questionnaire's id derives
    from the call, so a repeated call asks once."""

    store: Store
    clock: Clock
    redact: Callable[[str], str] = str
    post: EnvelopeAcceptor | None = None  # sends the questions into a channel, for people who are asked there
    arguments: type[msgspec.Struct] = AskQuestionsArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="ask_questions",
            description=(
                "Send a questionnaire to the person you work for. Returns at once: end your turn, or continue with "
                "what does not depend on it. You get the answers as a message."
            ),
            parameters=_build_schema(),
            effects=frozenset({ToolEffect.WRITES}),
            capabilities=frozenset({"questions.ask"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: AskQuestionsArguments, context: ToolContext) -> str:
        channel = context.sender if context.sender is not None and context.sender.kind is AddressKind.CHANNEL else None
        person, reply_to = person_of(context), None
        if channel is not None and self.post is not None:
            person, reply_to = await self._find_author(context)
        if person is None:
            raise QuestionnairePersonMissing
        now = self.clock.now()
        fields = tuple(_build_field(each, self.redact) for each in arguments.fields)
        title = " ".join(self.redact(arguments.title).split())
        try:
            check_questions(title, fields)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        made = Questionnaire(
            id=QuestionnaireId(derive_id(context.run, f"questions/{context.call}")),
            person=person,
            agent=context.agent.name,
            session=context.session,
            run=context.run,
            title=title,
            fields=fields,
            trust=context.trust,
            asked_at=now,
            expires_at=now + timedelta(seconds=QUESTIONNAIRE_TTL_S),
            answers={},
        )
        await self.store.write(partial(_store_questionnaire, made=made), point="questionnaire")
        if channel is not None and self.post is not None:
            await self._post_to_channel(channel, made, reply_to)
        return (
            f"Asked {person} (questionnaire {short_id(made.id)}). You will get the answers as a message. "
            f"It can be answered until {made.expires_at:%Y-%m-%d %H:%M} UTC."
        )

    async def _find_author(self, context: ToolContext) -> tuple[str | None, EnvelopeId | None]:
        """Return the person who wrote in the channel, and the envelope they wrote."""

        def read(conn: sa.Connection) -> tuple[str | None, EnvelopeId | None]:
            run = runs.get(conn, context.run)
            wrote = get_author(conn, run) if run is not None else None
            return (wrote.name, run.envelopes[-1]) if run is not None and wrote is not None else (None, None)

        return await self.store.read(read)

    async def _post_to_channel(
        self, channel: Address, questionnaire: Questionnaire, reply_to: EnvelopeId | None
    ) -> None:
        assert self.post is not None
        try:
            await self.post.accept(_build_draft(questionnaire, channel, reply_to))
        except RetinueError as error:
            raise as_tool_failed(error) from error


def _build_draft(questionnaire: Questionnaire, channel: Address, reply_to: EnvelopeId | None) -> EnvelopeDraft:
    """Build the envelope that shows the questions in the person's channel. Its key derives from the
    questionnaire.
    """
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(questionnaire.id, "room")),
        sender=address.agent_address(questionnaire.agent, questionnaire.session),
        recipient=channel,
        text=format_questionnaire(questionnaire.title, questionnaire.fields),
        source="run",
        idempotency_key=f"{questionnaire.run}/questions/{questionnaire.id}",
        context=EnvelopeContext(questionnaire=questionnaire.id, choices=list_button_choices(questionnaire.fields)),
        reply_to=reply_to,
        trust=least_trust((Trust.AGENT, questionnaire.trust)),
    )


def _build_field(arguments: QuestionFieldArguments, redact: Callable[[str], str]) -> QuestionnaireField:
    return QuestionnaireField(
        name=arguments.name,
        label=redact(arguments.label),
        kind=arguments.kind,
        required=arguments.required,
        options=tuple(redact(option) for option in arguments.options),
        least=arguments.least,
        most=arguments.most,
    )


def _store_questionnaire(conn: sa.Connection, *, made: Questionnaire) -> None:
    transaction = Transaction(conn, to_ms(made.asked_at))
    if people.find(conn, made.person) is None or sessions.get(conn, made.session) is None:
        raise QuestionnaireSessionMissing
    if questionnaires.get(conn, made.id) is None:
        if questionnaires.count_open(conn, made.session, now_ms=transaction.at_ms) >= OPEN_IN_SESSION_MAX:
            raise TooManyQuestionnaires(count_max=OPEN_IN_SESSION_MAX)
        questionnaires.add(transaction, made)
    transaction.close()
