"""List, show, approve and revoke skills, and export operations as a skill."""

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

from retinue.agents.agent_directory import home_of
from retinue.agents.skill_discovery import FOLDER, Root, find
from retinue.agents.skill_discovery import Found as FoundSkills
from retinue.agents.skill_loader import KIND, Shelf
from retinue.agents.skill_selection import Standing, State
from retinue.agents.skills import Skill, Source
from retinue.config import Settings, examine
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.principal import Principal
from retinue.domain.times import show as show_time
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Operation
from retinue.operations.doctor_registry import Check, Found, Scene, warning
from retinue.operations.parameter_schema import parameters
from retinue.operations.plugin.plugins import guests_of
from retinue.store.agents import agents, approved_hashes

if TYPE_CHECKING:
    from retinue.agents.skill_bundles import Bundle, Command

DIFFERENCE_LINES_MAX = 2_000
HASH_DIGITS_MIN = 8
HASH_DIGITS_SHOWN = 12

_HIDDEN = frozenset({"Cc", "Cf", "Co", "Cn", "Zl", "Zp"})
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE0F), *range(0xE0100, 0xE01F0))))

Looked = tuple[FoundSkills, tuple[Standing, ...]]

OfAgent = Annotated[str, msgspec.Meta(description="also those in the home of this agent; left out, those of the house")]
InWorkspace = Annotated[str, msgspec.Meta(description="also those in this workspace, by its whole path")]
SkillName = Annotated[str, msgspec.Meta(description="a skill by name")]


class List(msgspec.Struct, forbid_unknown_fields=True):
    agent: OfAgent = ""
    workspace: InWorkspace = ""


class Show(msgspec.Struct, forbid_unknown_fields=True):
    name: SkillName
    agent: OfAgent = ""
    workspace: InWorkspace = ""


class Approve(msgspec.Struct, forbid_unknown_fields=True):
    """Without `hash`, shows what would be approved and changes nothing."""

    name: SkillName
    hash: Annotated[str, msgspec.Meta(description="of what you have read; without it you are shown that")] = ""
    agent: OfAgent = ""
    workspace: InWorkspace = ""


class Export(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(description="what the operations are about: session, envelope, agent, ...")]
    to: Annotated[str, msgspec.Meta(description="the folder to put it in; left out, the house's own skills")] = ""


class SkillShown(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    description: str
    path: str
    source: Source
    state: State
    because: str
    hash: str
    bundle: str


class SkillBroken(msgspec.Struct, frozen=True):
    folder: str
    source: Source
    because: str


class SkillsListed(msgspec.Struct, frozen=True):
    """`shadowed` are overridden by another skill of the same name.

    `broken` are folders without a valid skill.
    """

    skills: list[SkillShown]
    shadowed: list[str]
    broken: list[SkillBroken]


class SkillRead(
    msgspec.Struct, frozen=True, rename={"found_good_by": "found-good-by", "found_good_at": "found-good-at"}
):
    """`content` is the full text. `difference` is what changed since the approval, or everything if
    there was none.

    `lines` is the same as text for people.
    """

    skill: SkillShown
    content: str
    difference: list[str]
    found_good_by: str
    found_good_at: str
    lines: list[str]


class SkillApproved(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """`approved` is false if the skill was only shown. `lines` is the result as text for people."""

    skill: SkillShown
    approved: bool
    difference: list[str]
    try_this: str
    lines: list[str]


class SkillRevoked(msgspec.Struct, frozen=True):
    name: str
    revoked: bool


class SkillExported(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    folder: str
    files: list[str]
    commands: list[str]
    found_good: bool


def shelf(desk: Desk) -> Shelf:
    """Return a skill loader with the current settings."""

    def settings() -> Settings:
        if desk.config is not None:
            return desk.config.current.settings
        return Settings(home=desk.home, store=desk.home / "house.db", zone=desk.zone)

    environment = desk.config.environment if desk.config is not None else os.environ
    guests = guests_of(desk)
    folders = guests.skill_folders if guests is not None else tuple
    return Shelf(desk.home, desk.store, settings=settings, environment=environment, plugins=folders)


async def _look(desk: Desk, asked: List | Show | Approve, *, contents: bool = False) -> Looked:
    workspace = Path(asked.workspace) if asked.workspace else None
    if workspace is not None and not workspace.is_absolute():
        raise Invalid(
            f"'{asked.workspace[:200]}' is no workspace",
            because="a workspace is named by its whole path",
            try_this="for example /home/maria/garden",
            code="skill.workspace-invalid",
        )
    name = asked.agent
    if not name:
        return await shelf(desk).look(workspace=workspace, contents=contents)
    agent = await desk.store.read(lambda conn: agents.find(conn, name))
    if agent is None:
        raise NotFound(
            f"no agent '{name[:64]}'",
            because="nobody of that name is on the staff",
            try_this="look at `agent.list`",
            code="agent.not-found",
        )
    home = home_of(desk.home, agent.name)
    own = desk.defaults.workspace_of(agent, home)
    workspace = workspace or (own if own != home else None)
    return await shelf(desk).look(agent=agent.name, agent_home=home, workspace=workspace, contents=contents)


async def listed(desk: Desk, caller: Principal, asked: List) -> SkillsListed:
    found, stood = await _look(desk, asked)
    return SkillsListed(
        skills=[_shown(each) for each in stood],
        shadowed=[str(skill.folder) for skill in found.shadowed],
        broken=[SkillBroken(str(each.folder), each.source, each.because) for each in found.broken],
    )


async def show(desk: Desk, caller: Principal, asked: Show) -> SkillRead:
    stood = await _one(desk, asked)
    pin = await desk.store.read(partial(approved_hashes.find, kind=KIND, name=stood.skill.key))
    content, difference = _visible(stood.skill.content), _difference(pin.content if pin else "", stood.skill)
    good = f"found good by {pin.decided_by}, {show_time(pin.at, desk.zone)}" if pin else "found good by nobody yet"
    changes = ["", "since then:", *difference] if pin and difference else []
    return SkillRead(
        skill=_shown(stood),
        content=content,
        difference=difference,
        found_good_by=pin.decided_by if pin else "",
        found_good_at=pin.at.isoformat() if pin else "",
        lines=[*_head(stood), good, "", *content.split("\n"), *changes],
    )


async def approve(desk: Desk, caller: Principal, asked: Approve) -> SkillApproved:
    """Approve a skill's current version. Refused if it changed since it was read."""
    stood = await _one(desk, asked)
    skill = stood.skill
    pin = await desk.store.read(partial(approved_hashes.find, kind=KIND, name=skill.key))
    difference = _difference(pin.content if pin else "", skill)
    of = f" --agent {asked.agent}" if asked.agent else ""
    of += f" --workspace {shlex.quote(asked.workspace)}" if asked.workspace else ""
    if not asked.hash:
        again = f"retinue skill approve {skill.name} --hash {skill.hash[:HASH_DIGITS_SHOWN]}{of}"
        shown = difference or ["nothing has changed since it was found good"]
        lines = [*_head(stood), "", *shown, "", "If you have read this and want it used:", f"  {again}"]
        return SkillApproved(_shown(stood), False, difference, again, lines)
    if len(asked.hash) < HASH_DIGITS_MIN or not skill.hash.startswith(asked.hash):
        raise Conflict(
            f"the skill '{skill.name}' is not the one that was read",
            because=f"its hash begins with {skill.hash[:HASH_DIGITS_SHOWN]}; it changed, or the hash was mistyped",
            try_this=f"read it again: retinue skill approve {skill.name}{of}",
            code="skill.changed",
        )
    await desk.store.write(partial(_pin, skill=skill, caller=caller, at_ms=to_ms(desk.clock.now())), point="skill")
    now = await _one(desk, asked)
    return SkillApproved(_shown(now), True, difference, "", [*_head(now), "it was found good as you read it"])


async def revoke(desk: Desk, caller: Principal, asked: Show) -> SkillRevoked:
    """Revoke the approval of a skill. It is not used until it is approved again."""
    skill = (await _one(desk, asked)).skill
    gone = await desk.store.write(partial(approved_hashes.remove, kind=KIND, name=skill.key), point="skill")
    return SkillRevoked(skill.name, gone)


async def export(desk: Desk, caller: Principal, asked: Export) -> SkillExported:
    """Write operations as a skill.

    In the instance's own skill folder it is approved at once, because the server wrote it on the
    owner's request.
    """
    from retinue.agents import skill_bundles

    bundle = bundle_of(asked.name, _operations(desk))
    own = desk.home / FOLDER
    folder = Path(asked.to).expanduser() if asked.to else own
    if not folder.is_absolute():
        raise Invalid(
            f"'{asked.to[:200]}' is no absolute path",
            because="the house does not know which folder you are in",
            try_this=f"{Path('/path/to')}/{asked.to.strip('/.') or 'skills'}, or leave it out",
            code="skill.target-relative",
        )
    files = await asyncio.to_thread(skill_bundles.write, bundle, folder)
    written = await asyncio.to_thread(_written, own, bundle.name) if folder == own else None
    if written is not None:
        keep = partial(_pin, skill=written, caller=caller, at_ms=to_ms(desk.clock.now()))
        await desk.store.write(keep, point="skill")
    return SkillExported(
        name=bundle.name,
        folder=str(folder / bundle.name),
        files=[str(file) for file in files],
        commands=[command.verb for command in bundle.commands],
        found_good=written is not None,
    )


def _written(own: Path, name: str) -> Skill | None:
    """Return the skill that was just written, if it is the one used under that name."""
    skills = find([Root(source=Source.HOUSE, path=own)], contents=True).skills
    return next((skill for skill in skills if skill.folder == own.resolve() / name), None)


def bundle_of(noun: str, operations: Mapping[str, Operation]) -> Bundle:
    """Return all operations of a noun as a bundle."""
    found = [each for each in operations.values() if each.name.partition(".")[0] == noun]
    if not found:
        nouns = sorted({name.partition(".")[0] for name in operations})
        raise NotFound(
            f"there are no operations about '{noun[:64]}'",
            because=f"they are about {', '.join(nouns)}",
            try_this=f"retinue skill export {nouns[0]}" if nouns else "load the plug-in that brings them",
            code="skill.no-operations",
        )
    from retinue.agents.skill_bundles import Bundle  # rarely used: import on first use

    return Bundle(noun=noun, commands=tuple(map(_command, found)))


def bundles_by_tool(operations: Mapping[str, Operation]) -> dict[str, str]:
    """Map each operation's tool name to its bundle, as `operation_exposure` needs it."""
    from retinue.operations.operation_tools import tool_name

    return {tool_name(each): each.name.partition(".")[0] for each in operations.values()}


def _command(operation: Operation) -> Command:
    from retinue.agents.skill_bundles import Command, Option

    return Command(
        verb=operation.name.partition(".")[2],
        summary=operation.summary,
        route=operation.route,
        effect=operation.effect,
        parameters=tuple(
            Option(
                name=each.name,
                option=each.option,
                kind=each.kind.value,
                help=each.help,
                default=each.default,
                choices=each.choices,
                required=each.required,
                repeated=each.repeated,
                nullable=each.nullable,
                place=each.place,
            )
            for each in parameters(operation)
        ),
    )


def _operations(desk: Desk) -> Mapping[str, Operation]:
    from retinue.operations.catalog import OPERATIONS as EVERY  # circular import

    guests = guests_of(desk)
    return {**EVERY, **(guests.operations() if guests is not None else {})}


async def _one(desk: Desk, asked: Show | Approve) -> Standing:
    name = asked.name
    found, stood = await _look(desk, asked, contents=True)
    for each in stood:
        if each.skill.name == name:
            return each
    broken = next((each for each in found.broken if each.folder.name == name), None)
    raise NotFound(
        f"there is no skill '{name[:64]}'",
        because=f"{broken.folder} is not one: {broken.because}"
        if broken
        else "no folder of skills has one of that name",
        try_this="look at `retinue skill list`",
        code="skill.not-found",
    )


def _pin(conn: sa.Connection, *, skill: Skill, caller: Principal, at_ms: int) -> None:
    approved_hashes.put(
        conn,
        KIND,
        skill.key,
        hash_=skill.hash,
        content=skill.content,
        decided_by=str(caller.address),
        at_ms=at_ms,
    )


def _difference(before: str, skill: Skill) -> list[str]:
    if before == skill.content:
        return []
    import difflib  # needed only after a change

    lines = list(
        difflib.unified_diff(
            before.split("\n") if before else [], skill.content.split("\n"), "found good", "now", lineterm="", n=2
        )
    )
    if len(lines) > DIFFERENCE_LINES_MAX:
        left = len(lines) - DIFFERENCE_LINES_MAX
        lines = [*lines[:DIFFERENCE_LINES_MAX], f"[cut: {left} more lines; `retinue skill show` has all of it]"]
    return [_visible(line) for line in lines]


def _visible(text: str) -> str:
    """Escape invisible characters: a person would not see them, but a model would read them."""
    return "".join(char if char in "\n\t" or not _is_hidden(char) else f"<U+{ord(char):04X}>" for char in text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN or char in _SELECTORS


def _head(stood: Standing) -> list[str]:
    skill = stood.skill
    state = f"{stood.state}: {stood.because}" if stood.because else stood.state.value
    return [f"{skill.name}  ({state})", f"  {skill.front.description}", f"  {skill.file}", f"  hash {skill.hash}"]


def _shown(stood: Standing) -> SkillShown:
    skill = stood.skill
    return SkillShown(
        name=skill.name,
        description=skill.front.description,
        path=str(skill.file),
        source=skill.source,
        state=stood.state,
        because=stood.because,
        hash=skill.hash,
        bundle=skill.front.bundle,
    )


# --- doctor check ---


_Unused = tuple[str, str, str]  # name, reason, next step


async def _waiting(scene: Scene) -> Sequence[_Unused] | None:
    """Gather unused skills of the instance, its plugins and each agent.

    Workspaces are not searched, because there is no list of them.
    """
    if scene.store is None:
        return None
    settings = (await asyncio.to_thread(examine, scene.environment)).configuration.settings
    plugins = scene.plugins.skill_folders if scene.plugins is not None else tuple
    here = Shelf(scene.home, scene.store, settings=lambda: settings, environment=scene.environment, plugins=plugins)
    unused: dict[Path, _Unused] = {}  # by folder: the instance's skills appear for every agent
    for agent in ("", *(each.name for each in await scene.store.scan(agents.everyone))):
        home = home_of(scene.home, agent) if agent else None
        if home is None or (home / FOLDER).exists():
            unused = _unused(*await here.look(agent=agent, agent_home=home), agent=agent) | unused
    return list(unused.values())


def _unused(found: FoundSkills, stood: Sequence[Standing], *, agent: str) -> dict[Path, _Unused]:
    of = f" --agent {agent}" if agent else ""
    unread = {
        each.skill.folder: (
            each.skill.name,
            each.because,
            f"retinue skill approve {each.skill.name}{of}: it shows you what it says first",
        )
        for each in stood
        if each.state in (State.NEW, State.CHANGED)
    }
    broken = {
        each.folder: (each.folder.name, each.because, f"mend {each.folder}, or take it away") for each in found.broken
    }
    return {**unread, **broken}


def _judge(waiting: Sequence[_Unused]) -> list[Found]:
    return [
        warning(f"the skill '{name}' is not used", because=because, try_this=try_this)
        for name, because, try_this in waiting
    ]


SKILLS_READ = Check(name="skills", looks_at="every skill of the house can be used", gather=_waiting, judge=_judge)


OPERATIONS = (
    Operation(
        name="skill.list",
        summary="List skills, how they stand, and where they lie.",
        parameters=List,
        handler=listed,
        result=SkillsListed,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="skill.show",
        summary="Show all of a skill, and what changed since it was found good.",
        parameters=Show,
        handler=show,
        result=SkillRead,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="skill.approve",
        summary="Find a skill good, once you have read what it says now.",
        parameters=Approve,
        handler=approve,
        result=SkillApproved,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="skill.revoke",
        summary="Take back that a skill was found good.",
        parameters=Show,
        handler=revoke,
        result=SkillRevoked,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="skill.export",
        summary="Write operations as a skill with a command line of its own.",
        parameters=Export,
        handler=export,
        result=SkillExported,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
