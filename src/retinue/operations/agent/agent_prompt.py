"""Operation that shows the system prompt of an agent as the model receives it, and the size of each section."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.instruction_builder import SHARED_TEMPLATE, find_invalid_templates, find_renamed_template_names
from retinue.agents.instruction_templates import ENTRY_FILE, TEMPLATES_FOLDER, InvalidTemplate, RenamedName
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.instruction_mode import InstructionMode
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.domain.shared_errors import SessionNotFound
from retinue.domain.times import format_time, from_ms
from retinue.operations.agent.agents import require_visible_agent
from retinue.operations.agent.errors import (
    PromptNotAllowed,
    PromptPreviewUnavailable,
    TemplateEntryMissing,
    TemplateNotText,
)
from retinue.operations.base import Operation, Services
from retinue.operations.doctor_registry import DoctorCheck, DoctorContext, DoctorFinding, build_warning
from retinue.operations.envelope.envelopes import AttachmentUpload
from retinue.policy.access import operation_permissions
from retinue.store.agents import agents
from retinue.store.sessions import instructions, sessions


class AgentPromptRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Show the system prompt of an agent.

    `check` contains template files to use instead of the current template, for this request only. They
    are the entry file and the files that it includes.
    """

    name: str
    session: Annotated[
        str, msgspec.Meta(description="id of the session whose prompt is shown; default: a new session")
    ] = ""
    mode: Annotated[
        InstructionMode | None, msgspec.Meta(description="how much the prompt includes; default: the agent's setting")
    ] = None
    check: Annotated[
        list[AttachmentUpload],
        msgspec.Meta(description="template file to try instead of the current template; nothing is changed"),
    ] = []
    parts: Annotated[
        bool,
        msgspec.Meta(
            description="also return the text of each section of the prompt, and the previous prompt of the session"
        ),
    ] = False


class PromptSection(msgspec.Struct, frozen=True, omit_defaults=True):
    """One section of a system prompt.

    `text` is set only if the request set `parts`. The section named `template` contains the remaining text
    of the owner's template, which belongs to no other section.
    """

    name: str
    tokens: int
    chars: int
    text: str = ""


class PromptFile(msgspec.Struct, frozen=True):
    name: str
    section: str
    tokens: int
    chars: int


class PreviousPrompt(msgspec.Struct, frozen=True):
    """The system prompt of the session's last run. `at` is the time at which it was stored."""

    at: str
    text: str


class TemplateError(msgspec.Struct, frozen=True):
    """The reason why the owner's template on disk is not in use."""

    sentence: str
    because: str


class AgentPromptDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The system prompt of an agent. `tokens` is an estimate.

    `template` is the start of the hash of the owner's template, or `built_in` if there is no such
    template. If the request set `parts`, the response also has the text of each section, the files in
    the prompt and the session's previous prompt. `template_error` is the error in the owner's template.
    """

    name: str
    session: str | None
    template: str
    tokens: int
    sections: list[PromptSection]
    text: str
    files: list[PromptFile] = []
    previous: PreviousPrompt | None = None
    template_error: TemplateError | None = None


async def show_prompt(services: Services, caller: Principal, request: AgentPromptRequest) -> AgentPromptDetails:
    """Show the system prompt of an agent.

    An agent may see its own prompt. People need the permission for the operation `agent.file`, because
    the prompt includes files of the agent.
    """
    if caller.address.kind is AddressKind.PERSON:
        seen = operation_permissions.decide_operation("agent.file", caller.level, services.permission_policy)
        if not seen.is_allowed:
            raise PromptNotAllowed(because=seen.because)
    if services.prompt_previews is None:
        raise PromptPreviewUnavailable
    agent, session = await services.store.scan(partial(_find_agent_and_session, caller=caller, request=request))
    files = {_template_name(each, request): _decode_text(each) for each in request.check} if request.check else None
    if files is not None and ENTRY_FILE not in files:
        raise TemplateEntryMissing(ENTRY_FILE)
    prompt = await services.prompt_previews.preview(agent, session, mode=request.mode, files=files)
    texts: Mapping[str, str] = prompt.section_texts if request.parts else {}
    details = AgentPromptDetails(
        name=agent.name,
        session=session.id if session is not None else None,
        template=prompt.template_hash[:16] or "built_in",
        tokens=sum(part.tokens for part in prompt.section_sizes),
        sections=[
            PromptSection(part.name, part.tokens, part.chars, texts.get(part.name, "")) for part in prompt.section_sizes
        ],
        text=prompt.text,
    )
    if not request.parts:
        return details
    return msgspec.structs.replace(
        details,
        files=[PromptFile(each.name, section, each.tokens, each.chars) for section, each in prompt.file_sizes],
        previous=await _read_previous_prompt(services, session) if session is not None else None,
        template_error=await _find_template_error(services, agent.name),
    )


async def _read_previous_prompt(services: Services, session: Session) -> PreviousPrompt | None:
    kept = await services.store.scan(partial(instructions.get, session=session.id))
    return PreviousPrompt(format_time(from_ms(kept.at_ms), services.zone), kept.text) if kept is not None else None


async def _find_template_error(services: Services, agent: str) -> TemplateError | None:
    """Return the error in the agent's own template, or in the template of the instance if the agent has none."""

    def find_error() -> InvalidTemplate | None:
        own = (services.data_dir / TEMPLATES_FOLDER / agent).is_dir()
        return find_invalid_templates(services.data_dir, [agent]).get(agent if own else SHARED_TEMPLATE)

    found = await asyncio.to_thread(find_error)
    return TemplateError(found.sentence, found.because) if found is not None else None


def _find_agent_and_session(
    conn: sa.Connection, *, caller: Principal, request: AgentPromptRequest
) -> tuple[Agent, Session | None]:
    agent = require_visible_agent(conn, caller, request.name)
    if not request.session:
        return agent, None
    session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
    if session.agent != agent.name:
        raise SessionNotFound(request.session, agent=agent.name, because=f"it belongs to {session.agent}")
    return agent, session


def _template_name(file: AttachmentUpload, request: AgentPromptRequest) -> str:
    """Return the template name of a given file. A file that is given alone is the entry file, whatever its name is."""
    return ENTRY_FILE if len(request.check) == 1 else file.name


def _decode_text(file: AttachmentUpload) -> str:
    try:
        return file.data.decode()
    except UnicodeDecodeError as error:
        raise TemplateNotText(file.name, position=error.start) from error


# --- doctor check ---


class _TemplateFacts(msgspec.Struct, frozen=True):
    """Invalid templates, and old names that templates use, by agent, or by `SHARED_TEMPLATE` for the shared one."""

    invalid: Mapping[str, InvalidTemplate]
    renamed: Mapping[str, list[RenamedName]]


async def _gather_templates(context: DoctorContext) -> _TemplateFacts:
    registered = await context.store.scan(agents.list_all) if context.store is not None else []

    def read() -> _TemplateFacts:
        names = [agent.name for agent in registered]
        return _TemplateFacts(
            find_invalid_templates(context.data_dir, names), find_renamed_template_names(context.data_dir, names)
        )

    return await asyncio.to_thread(read)


def _evaluate_templates(facts: _TemplateFacts) -> Iterator[DoctorFinding]:
    for owner, names in facts.renamed.items():
        first = names[0]
        more = "; ".join(f"`{each.old}` is now `{each.new}`" for each in names)
        yield build_warning(
            f"{_describe_template(owner)} uses old names, first on line {first.line} of {first.file}",
            because=f"{more}; the old names still work",
            try_this="use the new names: docs/reference/instructions.md",
        )
    for owner, error in facts.invalid.items():
        yield build_warning(
            f"{_describe_template(owner)} is invalid: {error.sentence}",
            because=f"{error.because}; the last valid template stays in use",
            try_this="fix it, and test it: retinue agent prompt NAME --check FILE",
        )


def _describe_template(owner: str) -> str:
    return "the shared template" if owner == SHARED_TEMPLATE else f"the template of {owner}"


TEMPLATES_CHECK = DoctorCheck(
    name="templates",
    ok_message="all instruction templates are valid",
    gather=_gather_templates,
    evaluate=_evaluate_templates,
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="agent.prompt",
        summary="Show the system prompt of an agent, section by section.",
        parameters=AgentPromptRequest,
        handler=show_prompt,
        permission=PermissionLevel.STANDARD,
        result=AgentPromptDetails,
    ),
)
