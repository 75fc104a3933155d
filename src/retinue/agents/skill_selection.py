"""Which skills a run has: found good, of use here, on its lists. Pure: what was found and is known in, a choice out.

A choice is taken once, when a run begins, and holds until it ends, whatever changes on disk meanwhile. The next run of
the session takes its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

from msgspec import Struct

from retinue.agents.skills import Skill, Source, Surroundings, gated
from retinue.config.skills import SkillEntry, SkillLists, SkillSettings
from retinue.domain.errors import Invalid
from retinue.domain.storable_text import escaped
from retinue.text.glob_match import matches_glob

LISTED_MAX = 150  # skills that a model is told of at once
INLINE_CHARS_MAX = 20_000  # of one skill that is told in full
INLINE_CHARS_TOTAL_MAX = 60_000
SUBSET_MAX = 200


class State(StrEnum):
    """How a skill stands."""

    READY = "ready"
    NEW = "new"  # nobody has looked at it yet
    CHANGED = "changed"  # since someone has
    OFF = "off"  # by the settings
    UNFIT = "unfit"  # something it requires is not there


class Standing(Struct, frozen=True):
    """One skill, how it stands and why."""

    skill: Skill
    state: State
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """The lists that hold for one agent: the house's and its own. Each can only take away from the other."""

    house: SkillLists
    own: SkillLists | None = None

    def permits(self, name: str) -> str:
        """Why a skill may not be used; empty where it may."""
        for lists, whose in ((self.house, "the house's"), (self.own, "the agent's")):
            if lists is None:
                continue
            if any(matches_glob(glob, name) for glob in lists.deny):
                return f"{whose} list denies it"
            if not any(matches_glob(glob, name) for glob in lists.allow):
                return f"{whose} list does not allow it"
        return ""

    @property
    def telling(self) -> SkillLists:
        """Whose word counts on how skills are told: the agent's, if it has any."""
        return self.own or self.house


def lists_for(settings: SkillSettings, agent: str) -> Lists:
    return Lists(house=settings, own=settings.agents.get(agent))


def standing(
    skills: Sequence[Skill], pins: Mapping[str, str], here: Surroundings, *, settings: SkillSettings, agent: str = ""
) -> tuple[Standing, ...]:
    """How each stands. `pins` has the hash of what was found good, by the key of the skill."""
    lists = lists_for(settings, agent)
    return tuple(_standing(skill, pins, here, settings, lists) for skill in skills)


def _standing(
    skill: Skill, pins: Mapping[str, str], here: Surroundings, settings: SkillSettings, lists: Lists
) -> Standing:
    if not settings.entries.get(skill.name, SkillEntry()).enabled:
        return Standing(skill, State.OFF, "the settings turn it off")
    if why := lists.permits(skill.name):
        return Standing(skill, State.OFF, why)
    if why := gated(skill.front.gates, _with_its_env(here, settings, skill.name)):
        return Standing(skill, State.UNFIT, why)
    pinned = pins.get(skill.key)
    # A plug-in is code that the owner installed and turned on: its words are no more than it is.
    if pinned == skill.hash or skill.source is Source.PLUGIN or skill.source.value in settings.trusted:
        return Standing(skill, State.READY)
    if pinned is None:
        return Standing(skill, State.NEW, "nobody has looked at it yet")
    return Standing(skill, State.CHANGED, "it has changed since it was found good")


def _with_its_env(here: Surroundings, settings: SkillSettings, name: str) -> Surroundings:
    given = settings.entries.get(name, SkillEntry()).env
    return Surroundings(
        os=here.os,
        has_bin=here.has_bin,
        has_env=lambda variable: variable in given or here.has_env(variable),
        has_config=here.has_config,
    )


class Choice(Struct, frozen=True, kw_only=True):
    """The skills of one run. `listed` are told by name and path, `inline` in full."""

    listed: tuple[Skill, ...] = ()
    inline: tuple[Skill, ...] = ()
    left_out: tuple[str, ...] = ()  # asked for by the session, and not to be had

    @property
    def skills(self) -> tuple[Skill, ...]:
        return (*self.listed, *self.inline)

    @property
    def version(self) -> str:
        """The same for the same skills with the same content: what a run went by."""
        named = "\n".join(f"{skill.key} {skill.hash}" for skill in self.skills)
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @property
    def folders(self) -> tuple[Path, ...]:
        """What a run must be able to read."""
        return tuple(skill.folder for skill in self.skills)


NOTHING = Choice()


def choose(
    stood: Sequence[Standing],
    *,
    lists: Lists,
    subset: Sequence[str] | None = None,
    bundles: Sequence[str] | None = None,
    called: str = "",
) -> Choice:
    """What a run is told. `subset` is the session's own pick: None is all, empty is none.

    `bundles` are the names of those command lines that are told of (see `skills_exposure`); None leaves out none.
    `called` is the one that a person has called for: told in full, also where models are not told of it by themselves.
    """
    ready = [
        each.skill
        for each in stood
        if each.state is State.READY and (each.skill.front.for_models or each.skill.name == called)
    ]
    if bundles is not None:
        ready = [skill for skill in ready if not skill.front.bundle or skill.front.bundle in bundles]
    if subset is not None:
        ready = [skill for skill in ready if skill.name in subset]
    telling = lists.telling
    inline = [
        skill
        for skill in ready
        if skill.name == called or any(matches_glob(glob, skill.name) for glob in telling.inline)
    ]
    listed = [
        skill
        for skill in ready
        if skill not in inline and any(matches_glob(glob, skill.name) for glob in telling.available)
    ]
    had = {skill.name for skill in (*listed[:LISTED_MAX], *inline)}
    return Choice(
        listed=tuple(listed[:LISTED_MAX]),
        inline=tuple(inline),
        left_out=tuple(name for name in subset or () if name not in had),
    )


def parse_subset(value: object) -> tuple[str, ...] | None:
    """A session's own pick as its attributes hold it. None is no pick: all that the agent may use."""
    if value is None:
        return None
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    if len(names) > SUBSET_MAX or not all(isinstance(name, str) for name in names):
        raise Invalid(
            "these are no skills of a session",
            because=f"they are a list of at most {SUBSET_MAX} names",
            try_this='for example ["weather"], [] for none, or null for all',
            code="skill.subset-invalid",
        )
    return tuple(map(str, names))


def section(choice: Choice) -> str:
    """What instructions say about skills; empty where there are none. The same choice gives the same bytes."""
    parts: list[str] = []
    if choice.listed:
        parts.append("Before a task that one of these is about, read its file and follow it.")
        parts += ["<available_skills>", *map(_listed, choice.listed), "</available_skills>"]
    parts += [words for _, words in _inlined(choice)]
    return "\n".join(parts)


def told_of_each(choice: Choice) -> list[tuple[str, str]]:
    """What is said there about each, by its name."""
    return [*((skill.name, _listed(skill)) for skill in choice.listed), *_inlined(choice)]


def _inlined(choice: Choice) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    left = INLINE_CHARS_TOTAL_MAX
    for skill in choice.inline:
        body = skill.front.body
        bound = min(INLINE_CHARS_MAX, left)
        if len(body) > bound:
            body = f"{body[:bound]}\n[cut: {len(body) - bound} more characters in {skill.file}]"
        left -= min(len(skill.front.body), bound)
        name, path = f'"{escaped(skill.name)}"', f'"{escaped(str(skill.file))}"'
        words = f"<skill name={name} location={path}>\n{body.replace('</skill>', '&lt;/skill>')}\n</skill>"
        told.append((skill.name, words))
    return told


def _listed(skill: Skill) -> str:
    return (
        f"<skill><name>{escaped(skill.name)}</name><description>{escaped(skill.front.description)}</description>"
        f"<location>{escaped(str(skill.file))}</location></skill>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped:
    """Variables for the commands of one run, and those that could not be had, with the reason."""

    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    missing: Mapping[str, str] = field(default_factory=dict[str, str])


def environment_of(choice: Choice, settings: SkillSettings, environment: Mapping[str, str]) -> Scoped:
    """Variables for the commands of the run that has these skills: handed to its children, and put nowhere else.

    Secrets are read now, and only those of skills that the run has. Where two skills set one variable, the one whose
    name comes first counts.
    """
    if not choice.skills:
        return Scoped()
    found = {"PYTHONDONTWRITEBYTECODE": "1"}  # a script that runs must not change the folder that was found good
    missing: dict[str, str] = {}
    for skill in sorted(choice.skills, key=lambda each: each.name):
        for name, value in settings.entries.get(skill.name, SkillEntry()).env.items():
            try:
                found.setdefault(name, value.read(environment))
            except Invalid as error:
                missing.setdefault(name, f"{skill.name}: {error.sentence}")
    return Scoped(variables=found, missing=missing)
