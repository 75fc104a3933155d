"""Operations that list, show, approve and revoke skills, and export operations as a skill."""

from __future__ import annotations

import asyncio
import os
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_directory import agent_directory_of
from retinue.agents.skill_discovery import SKILLS_FOLDER, SkillRoot, find_skills
from retinue.agents.skill_discovery import FoundSkills as FoundSkills
from retinue.agents.skill_loader import APPROVAL_KIND, SkillLoader
from retinue.agents.skill_selection import EvaluatedSkill, SkillState
from retinue.agents.skills import Skill, SkillSource
from retinue.config import Settings, examine_configuration
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import AgentNotFound
from retinue.domain.times import format_time as show_time
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.doctor_registry import DoctorCheck, DoctorContext, DoctorFinding, build_warning
from retinue.operations.parameter_schema import describe_parameters
from retinue.operations.plugin.plugins import get_plugin_manager
from retinue.operations.skill.errors import (
    SkillChanged,
    SkillNotFound,
    SkillOperationsNotFound,
    SkillTargetRelative,
    SkillWorkspaceInvalid,
)
from retinue.store.agents import agents, content_approvals
from retinue.store.core.database_rename import STORE_NAME
from retinue.text.quantity import format_quantity

if TYPE_CHECKING:
    from retinue.agents.skill_bundles import BundleCommand, SkillBundle

DIFF_LINES_MAX = 2_000
HASH_DIGITS_MIN = 8
HASH_DIGITS_SHOWN = 12

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cn", "Zl", "Zp"})
_VARIATION_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE0F), *range(0xE0100, 0xE01F0))))

SkillLookup = tuple[FoundSkills, tuple[EvaluatedSkill, ...]]

SkillAgentName = Annotated[
    str, msgspec.Meta(description="agent whose own skills are included; default: only the server's skills")
]
SkillWorkspacePath = Annotated[str, msgspec.Meta(description="absolute path of a workspace whose skills are included")]
SkillName = Annotated[str, msgspec.Meta(description="name of a skill")]


class SkillListRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: SkillAgentName = ""
    workspace: SkillWorkspacePath = ""


class SkillNameRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: SkillName
    agent: SkillAgentName = ""
    workspace: SkillWorkspacePath = ""


class SkillApproveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Approve a skill. Without `hash`, show what would be approved and change nothing."""

    name: SkillName
    hash: Annotated[
        str,
        msgspec.Meta(description="hash of the version that you read; without it, the skill is shown but not approved"),
    ] = ""
    agent: SkillAgentName = ""
    workspace: SkillWorkspacePath = ""


class SkillExportRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(description="noun of the operations: session, envelope, agent, ...")]
    to: Annotated[
        str, msgspec.Meta(description="absolute path of the folder to write to; default: the server's own skill folder")
    ] = ""


class SkillRow(msgspec.Struct, frozen=True):
    name: str
    description: str
    path: str
    source: SkillSource
    state: SkillState
    because: str
    hash: str
    bundle: str


class BrokenSkillRow(msgspec.Struct, frozen=True):
    folder: str
    source: SkillSource
    because: str


class SkillList(msgspec.Struct, frozen=True):
    """All skills. `shadowed` lists the skills that another skill with the same name overrides.

    `broken` lists the folders that do not contain a valid skill.
    """

    skills: list[SkillRow]
    shadowed: list[str]
    broken: list[BrokenSkillRow]


class SkillDetails(msgspec.Struct, frozen=True):
    """One skill. `content` is its full text.

    `diff` shows what has changed since the approval; without an approval, the whole skill is new.
    `lines` is the same information as text for people.
    """

    skill: SkillRow
    content: str
    diff: list[str]
    approved_by: str
    approved_at: str
    lines: list[str]


class SkillApproved(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """Result of an approval.

    `approved` is false if the skill was only shown. `lines` is the result as text for people.
    """

    skill: SkillRow
    approved: bool
    diff: list[str]
    try_this: str
    lines: list[str]


class SkillRevoked(msgspec.Struct, frozen=True):
    name: str
    revoked: bool


class SkillExported(msgspec.Struct, frozen=True):
    name: str
    folder: str
    files: list[str]
    commands: list[str]
    approved: bool


def build_skill_loader(services: Services) -> SkillLoader:
    """Return a skill loader with the current settings."""

    def settings() -> Settings:
        if services.config_holder is not None:
            return services.config_holder.current.settings
        return Settings(home=services.data_dir, store=services.data_dir / STORE_NAME, zone=services.zone)

    environment = services.config_holder.environment if services.config_holder is not None else os.environ
    plugins = get_plugin_manager(services)
    folders = plugins.skill_folders if plugins is not None else tuple
    return SkillLoader(
        services.data_dir, services.store, settings=settings, environment=environment, plugin_folders=folders
    )


async def _find_skills(
    services: Services,
    request: SkillListRequest | SkillNameRequest | SkillApproveRequest,
    *,
    with_contents: bool = False,
) -> SkillLookup:
    workspace = Path(request.workspace) if request.workspace else None
    if workspace is not None and not workspace.is_absolute():
        raise SkillWorkspaceInvalid(request.workspace)
    name = request.agent
    if not name:
        return await build_skill_loader(services).find_skills(workspace=workspace, with_contents=with_contents)
    agent = await services.store.read(lambda conn: agents.find(conn, name))
    if agent is None:
        raise AgentNotFound(name)
    home = agent_directory_of(services.data_dir, agent.name)
    own = services.defaults.workspace_of(agent, home)
    workspace = workspace or (own if own != home else None)
    return await build_skill_loader(services).find_skills(
        agent=agent.name, agent_directory=home, workspace=workspace, with_contents=with_contents
    )


async def list_skills(services: Services, caller: Principal, request: SkillListRequest) -> SkillList:
    found, stood = await _find_skills(services, request)
    return SkillList(
        skills=[_to_skill_row(each) for each in stood],
        shadowed=[str(skill.folder) for skill in found.shadowed],
        broken=[BrokenSkillRow(str(each.folder), each.source, each.because) for each in found.invalid],
    )


async def show_skill(services: Services, caller: Principal, request: SkillNameRequest) -> SkillDetails:
    stood = await _require_skill(services, request)
    pin = await services.store.read(partial(content_approvals.find, kind=APPROVAL_KIND, name=stood.skill.key))
    content, difference = (
        _escape_hidden_characters(stood.skill.content),
        _diff_content(pin.content if pin else "", stood.skill),
    )
    good = f"approved by {pin.decided_by}, {show_time(pin.at, services.zone)}" if pin else "not approved yet"
    changes = ["", "changes since then:", *difference] if pin and difference else []
    return SkillDetails(
        skill=_to_skill_row(stood),
        content=content,
        diff=difference,
        approved_by=pin.decided_by if pin else "",
        approved_at=pin.at.isoformat() if pin else "",
        lines=[*_format_heading(stood), good, "", *content.split("\n"), *changes],
    )


async def approve_skill(services: Services, caller: Principal, request: SkillApproveRequest) -> SkillApproved:
    """Approve a skill's current version. Raise if it has changed since the caller read it."""
    stood = await _require_skill(services, request)
    skill = stood.skill
    pin = await services.store.read(partial(content_approvals.find, kind=APPROVAL_KIND, name=skill.key))
    difference = _diff_content(pin.content if pin else "", skill)
    of = f" --agent {request.agent}" if request.agent else ""
    of += f" --workspace {shlex.quote(request.workspace)}" if request.workspace else ""
    if not request.hash:
        again = f"retinue skill approve {skill.name} --hash {skill.hash[:HASH_DIGITS_SHOWN]}{of}"
        shown = difference or ["nothing has changed since the approval"]
        lines = [*_format_heading(stood), "", *shown, "", "To approve this version:", f"  {again}"]
        return SkillApproved(_to_skill_row(stood), False, difference, again, lines)
    if len(request.hash) < HASH_DIGITS_MIN or not skill.hash.startswith(request.hash):
        raise SkillChanged(skill.name, hash_shown=skill.hash[:HASH_DIGITS_SHOWN], arguments=f"{skill.name}{of}")
    await services.store.write(
        partial(_store_approved_hash, skill=skill, caller=caller, at_ms=to_ms(services.clock.now())), point="skill"
    )
    now = await _require_skill(services, request)
    return SkillApproved(_to_skill_row(now), True, difference, "", [*_format_heading(now), "it is approved"])


async def revoke_skill(services: Services, caller: Principal, request: SkillNameRequest) -> SkillRevoked:
    """Revoke the approval of a skill. It is not used until it is approved again."""
    skill = (await _require_skill(services, request)).skill
    gone = await services.store.write(
        partial(content_approvals.remove, kind=APPROVAL_KIND, name=skill.key), point="skill"
    )
    return SkillRevoked(skill.name, gone)


async def export_skill(services: Services, caller: Principal, request: SkillExportRequest) -> SkillExported:
    """Write all operations of a noun to a folder, as a skill.

    If the folder is the server's own skill folder, the skill is approved at once, because the server
    wrote it at the owner's request.
    """
    from retinue.agents import skill_bundles

    bundle = build_bundle(request.name, _list_operations(services))
    own = services.data_dir / SKILLS_FOLDER
    folder = Path(request.to).expanduser() if request.to else own
    if not folder.is_absolute():
        raise SkillTargetRelative(request.to)
    files = await asyncio.to_thread(skill_bundles.write_bundle, bundle, folder)
    written = await asyncio.to_thread(_find_written_skill, own, bundle.name) if folder == own else None
    if written is not None:
        keep = partial(_store_approved_hash, skill=written, caller=caller, at_ms=to_ms(services.clock.now()))
        await services.store.write(keep, point="skill")
    return SkillExported(
        name=bundle.name,
        folder=str(folder / bundle.name),
        files=[str(file) for file in files],
        commands=[command.verb for command in bundle.commands],
        approved=written is not None,
    )


def _find_written_skill(skills_folder: Path, name: str) -> Skill | None:
    """Return the skill that was just written, or None if another skill with its name overrides it."""
    skills = find_skills([SkillRoot(source=SkillSource.INSTANCE, path=skills_folder)], with_contents=True).skills
    return next((skill for skill in skills if skill.folder == skills_folder.resolve() / name), None)


def build_bundle(noun: str, operations: Mapping[str, Operation]) -> SkillBundle:
    """Return all operations of a noun as a bundle, which can be written as a skill."""
    found = [each for each in operations.values() if each.command[0] == noun]
    if not found:
        nouns = sorted({each.command[0] for each in operations.values()})
        raise SkillOperationsNotFound(noun, nouns=nouns)
    from retinue.agents.skill_bundles import SkillBundle  # rarely used: import on first use

    return SkillBundle(noun=noun, commands=tuple(map(_build_command, found)))


def map_tools_to_bundles(operations: Mapping[str, Operation]) -> dict[str, str]:
    """Return the bundle of each operation, by the operation's tool name."""
    from retinue.operations.operation_tools import tool_name

    return {tool_name(each): each.command[0] for each in operations.values()}


def _build_command(operation: Operation) -> BundleCommand:
    from retinue.agents.skill_bundles import BundleCommand, BundleOption

    return BundleCommand(
        verb=operation.command[1],
        summary=operation.summary,
        route=operation.route,
        effect=operation.has_effect,
        parameters=tuple(
            BundleOption(
                name=each.name,
                option=each.option,
                kind=each.kind.value,
                help=each.help,
                default=each.default,
                choices=each.choices,
                required=each.required,
                repeated=each.repeated,
                nullable=each.nullable,
                positional=each.positional,
            )
            for each in describe_parameters(operation)
        ),
    )


def _list_operations(services: Services) -> Mapping[str, Operation]:
    from retinue.operations.catalog import OPERATIONS as EVERY  # circular import

    plugins = get_plugin_manager(services)
    return {**EVERY, **(plugins.operations() if plugins is not None else {})}


async def _require_skill(services: Services, request: SkillNameRequest | SkillApproveRequest) -> EvaluatedSkill:
    name = request.name
    found, stood = await _find_skills(services, request, with_contents=True)
    for each in stood:
        if each.skill.name == name:
            return each
    broken = next((each for each in found.invalid if each.folder.name == name), None)
    raise SkillNotFound(
        name,
        broken_folder=str(broken.folder) if broken else "",
        broken_because=broken.because if broken else "",
    )


def _store_approved_hash(conn: sa.Connection, *, skill: Skill, caller: Principal, at_ms: int) -> None:
    content_approvals.upsert(
        conn,
        APPROVAL_KIND,
        skill.key,
        hash_=skill.hash,
        content=skill.content,
        decided_by=str(caller.address),
        at_ms=at_ms,
    )


def _diff_content(before: str, skill: Skill) -> list[str]:
    if before == skill.content:
        return []
    import difflib  # needed only after a change

    lines = list(
        difflib.unified_diff(
            before.split("\n") if before else [], skill.content.split("\n"), "approved", "now", lineterm="", n=2
        )
    )
    if len(lines) > DIFF_LINES_MAX:
        left = len(lines) - DIFF_LINES_MAX
        lines = [*lines[:DIFF_LINES_MAX], f"[{format_quantity(left, 'more line')}; see all with `retinue skill show`]"]
    return [_escape_hidden_characters(line) for line in lines]


def _escape_hidden_characters(text: str) -> str:
    """Escape invisible characters in text. A person would not see them, but a model would read them."""
    return "".join(char if char in "\n\t" or not _is_hidden(char) else f"<U+{ord(char):04X}>" for char in text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN_CATEGORIES or char in _VARIATION_SELECTORS


def _format_heading(status: EvaluatedSkill) -> list[str]:
    skill = status.skill
    state = f"{status.state}: {status.because}" if status.because else status.state.value
    return [
        f"{skill.name}  ({state})",
        f"  {skill.front_matter.description}",
        f"  {skill.file}",
        f"  hash {skill.hash}",
    ]


def _to_skill_row(status: EvaluatedSkill) -> SkillRow:
    skill = status.skill
    return SkillRow(
        name=skill.name,
        description=skill.front_matter.description,
        path=str(skill.file),
        source=skill.source,
        state=status.state,
        because=status.because,
        hash=skill.hash,
        bundle=skill.front_matter.bundle,
    )


# --- doctor check ---


_UnusedSkill = tuple[str, str, str]  # name, reason, next step


async def _gather_unused_skills(context: DoctorContext) -> Sequence[_UnusedSkill] | None:
    """Return the unused skills of the instance, of its plugins and of each agent.

    Skills in workspaces are not checked, because there is no list of workspaces.
    """
    if context.store is None:
        return None
    settings = (await asyncio.to_thread(examine_configuration, context.environment)).configuration.settings
    plugins = context.plugins.skill_folders if context.plugins is not None else tuple
    here = SkillLoader(
        context.data_dir,
        context.store,
        settings=lambda: settings,
        environment=context.environment,
        plugin_folders=plugins,
    )
    unused: dict[Path, _UnusedSkill] = {}  # by folder: the instance's skills appear for every agent
    for agent in ("", *(each.name for each in await context.store.scan(agents.list_all))):
        home = agent_directory_of(context.data_dir, agent) if agent else None
        if home is None or (home / SKILLS_FOLDER).exists():
            unused = (
                _find_unused_skills(*await here.find_skills(agent=agent, agent_directory=home), agent=agent) | unused
            )
    return list(unused.values())


def _find_unused_skills(
    found_skills: FoundSkills, status: Sequence[EvaluatedSkill], *, agent: str
) -> dict[Path, _UnusedSkill]:
    of = f" --agent {agent}" if agent else ""
    unread = {
        each.skill.folder: (
            each.skill.name,
            each.because,
            f"retinue skill approve {each.skill.name}{of} (it shows the skill first)",
        )
        for each in status
        if each.state in (SkillState.NEW, SkillState.CHANGED)
    }
    broken = {
        each.folder: (each.folder.name, each.because, f"correct {each.folder}, or delete it")
        for each in found_skills.invalid
    }
    return {**unread, **broken}


def _evaluate_unused_skills(unused_skills: Sequence[_UnusedSkill]) -> list[DoctorFinding]:
    return [
        build_warning(f"the skill '{name}' is not used", because=because, try_this=try_this)
        for name, because, try_this in unused_skills
    ]


SKILLS_CHECK = DoctorCheck(
    name="skills",
    ok_message="every skill can be used",
    gather=_gather_unused_skills,
    evaluate=_evaluate_unused_skills,
)


OPERATIONS = (
    Operation(
        name="skill.list",
        summary="List skills, their status and folders.",
        parameters=SkillListRequest,
        handler=list_skills,
        result=SkillList,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="skill.show",
        summary="Show a skill, and what changed since it was approved.",
        parameters=SkillNameRequest,
        handler=show_skill,
        result=SkillDetails,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="skill.approve",
        summary="Approve a skill's current version after reading it.",
        parameters=SkillApproveRequest,
        handler=approve_skill,
        result=SkillApproved,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="skill.revoke",
        summary="Revoke the approval of a skill.",
        parameters=SkillNameRequest,
        handler=revoke_skill,
        result=SkillRevoked,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="skill.export",
        summary="Export all operations of a noun, such as session, as a skill with commands.",
        parameters=SkillExportRequest,
        handler=export_skill,
        result=SkillExported,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
