"""Selects the skills of a run: those that are approved, usable on this machine and allowed by the agent's lists.

A selection is made when a run starts and applies until the run ends, even if files change. The next
run of the session makes a new selection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

from msgspec import Struct

from retinue.agents.errors import SkillSubsetInvalid
from retinue.agents.skills import HostFacts, Skill, SkillSource, unmet_requirement
from retinue.config.skills import SkillEntry, SkillLists, SkillSettings
from retinue.domain.errors import Invalid
from retinue.domain.storable_text import escape_markup
from retinue.text.glob_match import matches_glob

LISTED_SKILLS_MAX = 150  # skills listed in one prompt
INLINE_CHARS_MAX = 20_000  # per skill that is included in full
INLINE_CHARS_TOTAL_MAX = 60_000
SUBSET_MAX = 200


class SkillState(StrEnum):
    """Whether a skill can be used, and if not, why."""

    READY = "ready"
    NEW = "new"  # not approved yet
    CHANGED = "changed"  # changed since its approval
    OFF = "off"  # disabled in the settings
    UNAVAILABLE = "unavailable"  # a requirement is not met


class EvaluatedSkill(Struct, frozen=True):
    """A skill, its state and the reason."""

    skill: Skill
    state: SkillState
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSkillLists:
    """The allow and deny lists for one agent: the instance's and the agent's own. Both must allow a skill."""

    instance: SkillLists
    own: SkillLists | None = None

    def denied_because(self, name: str) -> str:
        """Return why the lists exclude a skill, or an empty string if they allow it."""
        for lists, whose in ((self.instance, "the server's"), (self.own, "the agent's")):
            if lists is None:
                continue
            if any(matches_glob(glob, name) for glob in lists.deny):
                return f"{whose} list denies it"
            if not any(matches_glob(glob, name) for glob in lists.allow):
                return f"{whose} list does not allow it"
        return ""

    @property
    def display_lists(self) -> SkillLists:
        """Return the lists that decide how the prompt shows skills: the agent's own, or else the instance's."""
        return self.own or self.instance


def skill_lists_for(settings: SkillSettings, agent: str) -> AgentSkillLists:
    return AgentSkillLists(instance=settings, own=settings.agents.get(agent))


def evaluate_skills(
    skills: Sequence[Skill],
    approved: Mapping[str, str],
    host_facts: HostFacts,
    *,
    settings: SkillSettings,
    agent: str = "",
) -> tuple[EvaluatedSkill, ...]:
    """Return the state of each skill. `approved` maps the key of a skill to its approved hash."""
    lists = skill_lists_for(settings, agent)
    return tuple(_evaluate_skill(skill, approved, host_facts, settings, lists) for skill in skills)


def _evaluate_skill(
    skill: Skill, approved: Mapping[str, str], host_facts: HostFacts, settings: SkillSettings, lists: AgentSkillLists
) -> EvaluatedSkill:
    if not settings.entries.get(skill.name, SkillEntry()).enabled:
        return EvaluatedSkill(skill, SkillState.OFF, "it is disabled in the settings")
    if why := lists.denied_because(skill.name):
        return EvaluatedSkill(skill, SkillState.OFF, why)
    if why := unmet_requirement(skill.front_matter.requirements, _with_skill_env(host_facts, settings, skill.name)):
        return EvaluatedSkill(skill, SkillState.UNAVAILABLE, why)
    pinned = approved.get(skill.key)
    # The owner has installed and enabled the plugin's code, so its skills need no further approval.
    if pinned == skill.hash or skill.source is SkillSource.PLUGIN or skill.source.value in settings.trusted:
        return EvaluatedSkill(skill, SkillState.READY)
    if pinned is None:
        return EvaluatedSkill(skill, SkillState.NEW, "it is not approved yet")
    return EvaluatedSkill(skill, SkillState.CHANGED, "it has changed since it was approved")


def _with_skill_env(host_facts: HostFacts, settings: SkillSettings, name: str) -> HostFacts:
    given = settings.entries.get(name, SkillEntry()).env
    return HostFacts(
        os=host_facts.os,
        has_bin=host_facts.has_bin,
        has_env=lambda variable: variable in given or host_facts.has_env(variable),
        has_config=host_facts.has_config,
    )


class SkillSelection(Struct, frozen=True, kw_only=True):
    """The skills of one run.

    The prompt shows the skills in `listed` by name, description and path, and those in `inline` in
    full.
    """

    listed: tuple[Skill, ...] = ()
    inline: tuple[Skill, ...] = ()
    left_out: tuple[str, ...] = ()  # selected for the session, but not available

    @property
    def skills(self) -> tuple[Skill, ...]:
        return (*self.listed, *self.inline)

    @property
    def version(self) -> str:
        """A hash of the skills and their content, to record which version of the skills a run used."""
        named = "\n".join(f"{skill.key} {skill.hash}" for skill in self.skills)
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the selected skills, which the run must be able to read."""
        return tuple(skill.folder for skill in self.skills)


EMPTY_SELECTION = SkillSelection()


def select_skills(
    evaluated: Sequence[EvaluatedSkill],
    *,
    lists: AgentSkillLists,
    subset: Sequence[str] | None = None,
    bundles: Sequence[str] | None = None,
    requested_skill: str = "",
) -> SkillSelection:
    """Select the skills of a run.

    `subset` contains the skills selected for the session: None means all, and an empty list means none.
    A skill bundle is selected only if it is in `bundles`, or if `bundles` is None.
    `requested_skill` is the skill that a person called. It is included in full, even if models may
    not choose it.
    """
    ready = [
        each.skill
        for each in evaluated
        if each.state is SkillState.READY
        and (each.skill.front_matter.is_for_models or each.skill.name == requested_skill)
    ]
    if bundles is not None:
        ready = [skill for skill in ready if not skill.front_matter.bundle or skill.front_matter.bundle in bundles]
    if subset is not None:
        ready = [skill for skill in ready if skill.name in subset]
    telling = lists.display_lists
    inline = [
        skill
        for skill in ready
        if skill.name == requested_skill or any(matches_glob(glob, skill.name) for glob in telling.inline)
    ]
    listed = [
        skill
        for skill in ready
        if skill not in inline and any(matches_glob(glob, skill.name) for glob in telling.available)
    ]
    had = {skill.name for skill in (*listed[:LISTED_SKILLS_MAX], *inline)}
    return SkillSelection(
        listed=tuple(listed[:LISTED_SKILLS_MAX]),
        inline=tuple(inline),
        left_out=tuple(name for name in subset or () if name not in had),
    )


def parse_subset(value: object) -> tuple[str, ...] | None:
    """Return the skills that the session's attributes select. None means all skills that the agent may use."""
    if value is None:
        return None
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    if len(names) > SUBSET_MAX or not all(isinstance(name, str) for name in names):
        raise SkillSubsetInvalid(names_max=SUBSET_MAX)
    return tuple(map(str, names))


def render_skills_section(selection: SkillSelection) -> str:
    """Return the text about skills for the system prompt, or an empty string.

    The same skills always give the same text.
    """
    parts: list[str] = []
    if selection.listed:
        parts.append("Before you start a task that one of these skills is for, read its file and follow it.")
        parts += ["<available_skills>", *map(_render_listed, selection.listed), "</available_skills>"]
    parts += [words for _, words in _render_inline(selection)]
    return "\n".join(parts)


def render_each_skill(selection: SkillSelection) -> list[tuple[str, str]]:
    """Return the prompt text about each skill, by the skill's name."""
    return [*((skill.name, _render_listed(skill)) for skill in selection.listed), *_render_inline(selection)]


def _render_inline(selection: SkillSelection) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    left = INLINE_CHARS_TOTAL_MAX
    for skill in selection.inline:
        body = skill.front_matter.body
        bound = min(INLINE_CHARS_MAX, left)
        if len(body) > bound:
            body = f"{body[:bound]}\n[truncated: {len(body) - bound} more characters in {skill.file}]"
        left -= min(len(skill.front_matter.body), bound)
        name, path = f'"{escape_markup(skill.name)}"', f'"{escape_markup(str(skill.file))}"'
        words = f"<skill name={name} location={path}>\n{body.replace('</skill>', '&lt;/skill>')}\n</skill>"
        told.append((skill.name, words))
    return told


def _render_listed(skill: Skill) -> str:
    return (
        f"<skill><name>{escape_markup(skill.name)}</name><description>{escape_markup(skill.front_matter.description)}</description>"
        f"<location>{escape_markup(str(skill.file))}</location></skill>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEnvironment:
    """Environment variables for the commands of one run, and the reason for each variable that is missing."""

    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    missing: Mapping[str, str] = field(default_factory=dict[str, str])


def build_environment(
    selection: SkillSelection, settings: SkillSettings, environment: Mapping[str, str]
) -> SkillEnvironment:
    """Return the environment variables for the commands of a run with these skills.

    The variables are passed only to child processes of the run. Only the secrets of the run's skills are read. If two
    skills set the same variable, the skill whose name sorts first wins.
    """
    if not selection.skills:
        return SkillEnvironment()
    found = {"PYTHONDONTWRITEBYTECODE": "1"}  # running a script must not change the approved folder
    missing: dict[str, str] = {}
    for skill in sorted(selection.skills, key=lambda each: each.name):
        for name, value in settings.entries.get(skill.name, SkillEntry()).env.items():
            try:
                found.setdefault(name, value.read(environment))
            except Invalid as error:
                missing.setdefault(name, f"{skill.name}: {error.sentence}")
    return SkillEnvironment(variables=found, missing=missing)
