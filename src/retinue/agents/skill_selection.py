"""Selects the skills of a run: approved, usable here and on its lists. Pure.

A selection is made once, when a run starts, and holds until the run ends, whatever changes on disk
meanwhile. The next run of the session makes its own.
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

LISTED_MAX = 150  # skills listed in one prompt
INLINE_CHARS_MAX = 20_000  # per skill that is included in full
INLINE_CHARS_TOTAL_MAX = 60_000
SUBSET_MAX = 200


class State(StrEnum):
    """Whether a skill can be used."""

    READY = "ready"
    NEW = "new"  # not approved yet
    CHANGED = "changed"  # changed since its approval
    OFF = "off"  # disabled in the settings
    UNFIT = "unfit"  # a requirement is not met


class Standing(Struct, frozen=True):
    """A skill, its state and the reason."""

    skill: Skill
    state: State
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """The allow and deny lists for one agent: the instance's and its own. A skill must pass both."""

    house: SkillLists
    own: SkillLists | None = None

    def permits(self, name: str) -> str:
        """Return why a skill may not be used; an empty string if it may."""
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
        """The lists that decide how skills are shown: the agent's if it has any, or else the instance's."""
        return self.own or self.house


def lists_for(settings: SkillSettings, agent: str) -> Lists:
    return Lists(house=settings, own=settings.agents.get(agent))


def standing(
    skills: Sequence[Skill], pins: Mapping[str, str], here: Surroundings, *, settings: SkillSettings, agent: str = ""
) -> tuple[Standing, ...]:
    """Return the state of each skill. `approved` has the approved hash by the key of the skill."""
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
    # The owner has installed and enabled the plugin's code, so its skills need no further approval.
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
    """The skills of one run. `listed` are shown by name and path, `inline` in full."""

    listed: tuple[Skill, ...] = ()
    inline: tuple[Skill, ...] = ()
    left_out: tuple[str, ...] = ()  # selected for the session, and not available

    @property
    def skills(self) -> tuple[Skill, ...]:
        return (*self.listed, *self.inline)

    @property
    def version(self) -> str:
        """A hash of the skills and their content, to record which a run used."""
        named = "\n".join(f"{skill.key} {skill.hash}" for skill in self.skills)
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that a run must be able to read."""
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
    """Select the skills of a run. `subset` has the skills selected for the session: None is all, empty is none.

    `bundles` are the bundles whose command line is listed (see `operation_exposure`); None excludes
    none. `requested_skill` is the skill that a person called: it is included in full, even if
    models may not use it by themselves.
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
    """Parse the skills selected for a session, from its attributes. None: all that the agent may use."""
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
    """Return the text about skills for the system prompt, or an empty string. Deterministic."""
    parts: list[str] = []
    if choice.listed:
        parts.append("Before a task that one of these is about, read its file and follow it.")
        parts += ["<available_skills>", *map(_listed, choice.listed), "</available_skills>"]
    parts += [words for _, words in _inlined(choice)]
    return "\n".join(parts)


def told_of_each(choice: Choice) -> list[tuple[str, str]]:
    """Return the text about each skill by its name."""
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
    """Environment variables for the commands of one run, and the missing ones with the reason."""

    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    missing: Mapping[str, str] = field(default_factory=dict[str, str])


def environment_of(choice: Choice, settings: SkillSettings, environment: Mapping[str, str]) -> Scoped:
    """Return the variables for the commands of a run with these skills. They are passed to its
    child processes only.

    Secrets are read now, and only those of the run's skills. If two skills set the same variable,
    the one whose name sorts first wins.
    """
    if not choice.skills:
        return Scoped()
    found = {"PYTHONDONTWRITEBYTECODE": "1"}  # running a script must not change the approved folder
    missing: dict[str, str] = {}
    for skill in sorted(choice.skills, key=lambda each: each.name):
        for name, value in settings.entries.get(skill.name, SkillEntry()).env.items():
            try:
                found.setdefault(name, value.read(environment))
            except Invalid as error:
                missing.setdefault(name, f"{skill.name}: {error.sentence}")
    return Scoped(variables=found, missing=missing)
