"""Operation that shows the system prompt of an agent as its model gets it, section by section."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.instruction_builder import findings
from retinue.agents.instruction_templates import ENTRY, FOLDER, TemplateBroken
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.domain.times import from_ms, show
from retinue.operations.agent.agents import find_agent
from retinue.operations.base import Desk, Operation
from retinue.operations.doctor_registry import Check, Found, Scene, warning
from retinue.operations.envelope.envelopes import Upload
from retinue.policy.access import permissions
from retinue.store.agents import agents
from retinue.store.sessions import instructions, sessions


class Prompt(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`check` holds template files to try instead of the template in use: the entry file and its includes."""

    name: str
    session: Annotated[str, msgspec.Meta(description="as in this conversation; left out, as in a fresh one")] = ""
    mode: Annotated[
        InstructionMode | None, msgspec.Meta(description="how much is told; left out, as the agent has it")
    ] = None
    check: Annotated[list[Upload], msgspec.Meta(description="a template to try; nothing is changed by it")] = []
    parts: Annotated[bool, msgspec.Meta(description="with the words of each section, and what has changed")] = False


class PromptSection(msgspec.Struct, frozen=True, omit_defaults=True):
    """One section. `text` needs `parts`. The section `template` is the owner's text outside of sections."""

    name: str
    tokens: int
    chars: int
    text: str = ""


class PromptFile(msgspec.Struct, frozen=True):
    name: str
    section: str
    tokens: int
    chars: int


class PromptBefore(msgspec.Struct, frozen=True):
    """The system prompt that the session's last run used, in use since `at`."""

    at: str
    text: str


class TemplateTrouble(msgspec.Struct, frozen=True):
    """Why the owner's template on disk is not in use."""

    sentence: str
    because: str


class AgentPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The system prompt. `tokens` is an estimate.

    `template` is the start of the hash of the owner's template, or `built-in`. With `parts`, the answer
    also has the text of each section, its files, the previous prompt and any error in the template.
    """

    name: str
    session: str | None
    template: str
    tokens: int
    sections: list[PromptSection]
    text: str
    files: list[PromptFile] = []
    before: PromptBefore | None = None
    trouble: TemplateTrouble | None = None


async def prompt(desk: Desk, caller: Principal, asked: Prompt) -> AgentPrompt:
    """Show the system prompt of an agent.

    An agent may see its own. The prompt includes the agent's files, so people need the permission for
    `agent.file`.
    """
    if caller.address.kind is AddressKind.PERSON:
        seen = permissions.decide("agent.file", caller.level, desk.policy)
        if not seen.allowed:
            raise NotAllowed(
                "you may not see what agents are told",
                because=f"it holds what is in their files: {seen.because}",
                try_this="ask the owner of this house",
                code="agent.prompt-withheld",
            )
    if desk.previews is None:
        raise NotFound(
            "nobody here says what agents are told",
            because="this house was furnished by hand",
            try_this="open it with `retinue run`",
            code="agent.prompt-none",
        )
    agent, session = await desk.store.scan(partial(_find, caller=caller, asked=asked))
    files = {_name(each, asked): _text(each) for each in asked.check} if asked.check else None
    if files is not None and ENTRY not in files:
        raise Invalid(
            "this template has no beginning",
            because=f"several files were given, and none is called {ENTRY}",
            try_this=f"give one file alone, or call one of them {ENTRY}",
            code="instructions.no-entry",
        )
    told = await desk.previews.shown(agent, session, mode=asked.mode, files=files)
    words: Mapping[str, str] = told.words if asked.parts else {}
    form = AgentPrompt(
        name=agent.name,
        session=session.id if session is not None else None,
        template=told.template[:16] or "built-in",
        tokens=sum(part.tokens for part in told.parts),
        sections=[PromptSection(part.name, part.tokens, part.chars, words.get(part.name, "")) for part in told.parts],
        text=told.text,
    )
    if not asked.parts:
        return form
    return msgspec.structs.replace(
        form,
        files=[PromptFile(each.name, section, each.tokens, each.chars) for section, each in told.files],
        before=await _before(desk, session) if session is not None else None,
        trouble=await _trouble(desk, agent.name),
    )


async def _before(desk: Desk, session: Session) -> PromptBefore | None:
    kept = await desk.store.scan(partial(instructions.get, session=session.id))
    return PromptBefore(show(from_ms(kept.at_ms), desk.zone), kept.text) if kept is not None else None


async def _trouble(desk: Desk, agent: str) -> TemplateTrouble | None:
    """Return the error in the agent's own template, or in the instance's if the agent has none."""

    def look() -> TemplateBroken | None:
        own = (desk.home / FOLDER / agent).is_dir()
        return findings(desk.home, [agent]).get(agent if own else "house")

    found = await asyncio.to_thread(look)
    return TemplateTrouble(found.sentence, found.because) if found is not None else None


def _find(conn: sa.Connection, *, caller: Principal, asked: Prompt) -> tuple[Agent, Session | None]:
    agent = find_agent(conn, caller, asked.name)
    if not asked.session:
        return agent, None
    session = sessions.resolve(conn, asked.session, seen_by=caller)
    if session.agent != agent.name:
        raise NotFound(
            f"that session is not {agent.name}'s",
            because=f"it belongs to {session.agent}",
            try_this="list them: retinue sessions",
            code="session.not-found",
        )
    return agent, session


def _name(file: Upload, asked: Prompt) -> str:
    """Return the template name of a file. A single file is the entry file, whatever its name."""
    return ENTRY if len(asked.check) == 1 else file.name


def _text(file: Upload) -> str:
    try:
        return file.data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(
            f"'{file.name[:100]}' is no template",
            because=f"it is not UTF-8 at byte {error.start}",
            try_this="write it anew as a text",
            code="file.not-text",
        ) from error


# --- doctor check ---


async def _broken(scene: Scene) -> Mapping[str, TemplateBroken]:
    staff = await scene.store.scan(agents.everyone) if scene.store is not None else []
    return await asyncio.to_thread(findings, scene.home, [agent.name for agent in staff])


def _judge(broken: Mapping[str, TemplateBroken]) -> list[Found]:
    return [
        warning(
            f"the template of {whose} cannot be used: {error.sentence}",
            because=f"{error.because}; the last good one stays in use",
            try_this="correct it, and try it with `retinue agent prompt NAME --check FILE`",
        )
        for whose, error in broken.items()
    ]


TEMPLATES_GOOD = Check(
    name="templates", looks_at="every template for instructions can be used", gather=_broken, judge=_judge
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="agent.prompt",
        summary="Show what an agent is told, section by section.",
        parameters=Prompt,
        handler=prompt,
        permission=PermissionLevel.STANDARD,
        result=AgentPrompt,
    ),
)
