"""Declarations in the settings file: agents and templates, people, bindings, schedules. `retinue
apply` applies them.

A template is part of an agent. `extends` names one or several; later ones override earlier ones,
and the agent's own keys override all. Tables are merged key by key, anything else is replaced.
`clear = ["instructions", "tools.ask"]` removes inherited values, because TOML has no null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, cast

from retinue.config import heartbeats, validators
from retinue.config.errors import Faults, KeyPath
from retinue.config.models import ModelChoice
from retinue.config.secret import Secret
from retinue.config.setting_metadata import Rule
from retinue.config.table_parser import NOTHING, hints_of, nearest, table_at, unknown_key, values
from retinue.config.toml_source import Table, merge, shown
from retinue.domain import cron
from retinue.domain.address import NAME_LENGTH_MAX
from retinue.domain.agent import Agent, External
from retinue.domain.binding import PeerKind
from retinue.domain.errors import Invalid
from retinue.domain.person import Person
from retinue.domain.reset_rules import CONTEXT_TOKENS_MOST, IDLE_MINUTES_MAX
from retinue.domain.schedule import GATE_TIMEOUT_MS, Missed, Place

EXTENDS_DEPTH_MAX = 20
DEPTH_MOST = 10  # limit of `delegation.depth_max`
RUNNERS = frozenset({"loop", "claude", "codex", "pi", "external"})
MAIN = "main"

AGENT_RULES: Mapping[str, Rule] = {
    "model": Rule(
        says="The model it thinks with; `default` is the house's.",
        check=validators.model_reference,
        example="anthropic/claude-opus-5-5",
    ),
    "fallbacks": Rule(
        says="Which models to ask, in order, when that one fails.",
        check=validators.model_reference,
        example="openai/gpt-6.1-sol",
    ),
    "effort": Rule(
        says="How hard the model is to think; `default` leaves it to the model.",
        check=validators.effort_or_default,
        example="medium",
    ),
    "verbose": Rule(says="What people are told of its calls as they are made, until they say otherwise."),
    "elevated": Rule(says="Whether its commands ask to leave the sandbox; `off`: they never leave it."),
    "display_name": Rule(
        says="What people call it; not set, its name.", check=validators.display_name, example="Ada of the night"
    ),
    "external.url": Rule(says="Where it is reached.", check=validators.url, example="https://agent.example/in"),
    "external.secret": Rule(
        says="Where the key is that signs our letters to it.", check=validators.secret_reference, example="env:ADA_KEY"
    ),
    "external.timeout_s": Rule(says="How long its answer is waited for.", least=1, most=30 * 86_400),
    "external.retries": Rule(says="How often a letter that did not arrive is sent again.", least=0, most=20),
    "workspace": Rule(
        says="Where it works: a folder, or one below its home. Not set: as [defaults] has it, and else its home.",
        check=validators.folder,
        example="/srv/ada",
    ),
    "context_files": Rule(
        says="Files of its workspace that it is told with its instructions: paths, or patterns with `*`.",
        check=validators.context_file,
        example="docs/*.md",
    ),
    "instructions_mode": Rule(
        says="How much it is told: `full`, `minimal` (no persona, no skills), or `none` (who it is, and nothing else)."
    ),
    "sandbox.mode": Rule(says="Whose commands are confined, where that is stricter than the house."),
    "sandbox.image": Rule(says="The image of its containers.", check=validators.image, example="debian:stable-slim"),
    "sandbox.cpus": Rule(says="How many processors a container of its may use.", least=0.1, most=1024),
    "sandbox.idle_hours": Rule(says="A container not used for so long is removed.", least=0.1, most=8760),
    "sandbox.age_days": Rule(says="A container older than this is removed.", least=0.01, most=3650),
    "concurrency": Rule(least=1, most=1000),
    "queue.cap": Rule(least=1, most=100_000),
    "queue.debounce_s": Rule(says="What waited is taken up once nothing more has come for so long.", least=0, most=60),
    "reset.daily_at": Rule(
        says="When its contexts begin anew each day, in the owner's zone; `never` for not.",
        check=validators.daily_at,
        example="04:00",
    ),
    "reset.idle_minutes": Rule(
        says="After how many minutes without activity its contexts begin anew; 0 is never.",
        least=0,
        most=IDLE_MINUTES_MAX,
    ),
    "reset.context_tokens_max": Rule(
        says="How many tokens a context may have come to for the next run to go on with it; 0 is any number.",
        least=0,
        most=CONTEXT_TOKENS_MOST,
    ),
    "tools.profile": Rule(check=validators.tool_profile, example="coding"),
    "delegation.allow": Rule(says="Which agents it sees and may write to: names, or patterns with `*`."),
    "delegation.deny": Rule(says="Which of these not."),
    "delegation.depth_max": Rule(
        says="How often work may be handed on below the run that a person or the clock began.",
        least=0,
        most=DEPTH_MOST,
    ),
    "delegation.open_max": Rule(
        says="How much of what one session has handed out may be open at once.", least=1, most=1000
    ),
    "delegation.exchanges_max": Rule(says="How often two sessions may answer each other.", least=0, most=100),
    "delegation.circles": Rule(says="Whether work may come back to an agent that it came from."),
    "delegation.histories": Rule(says="Whether it may read and write to sessions of other agents."),
    "subagents.allow": Rule(says="Whom it may send out beside itself: names, or patterns with `*`."),
    "subagents.model": Rule(
        says="The model of those it sends out; not set, their own.",
        check=validators.model_reference,
        example="anthropic/claude-haiku-5-5",
    ),
    "subagents.effort": Rule(says="How hard that model is to think.", check=validators.effort, example="low"),
    "subagents.run_seconds_max": Rule(says="How long their runs may take.", least=1),
    "subagents.archive_after_s": Rule(
        says="How long after its end the session of one that was sent out is put away; 0 is never.", least=0
    ),
    **{f"heartbeat.{name}": rule for name, rule in heartbeats.RULES.items()},
    "turns_max": Rule(least=1, most=100_000),
    "run_seconds_max": Rule(least=1),
    "tokens_max": Rule(least=1),
    "cost_microusd_max": Rule(least=0),
    "tree_microusd_max": Rule(least=0),
    "day_microusd_max": Rule(least=0),
    "month_microusd_max": Rule(least=0),
    "attempts_max": Rule(least=1, most=1000),
    "replay_age_s": Rule(least=0),
    "approval_wait_s": Rule(least=0),
    "icon": Rule(
        says="An emoji or a few letters, by which pages show it.", check=validators.icon, example="\N{FOX FACE}"
    ),
    "colour": Rule(says="The colour in which pages show it.", example="teal"),
    "visible": Rule(says="Whether pages show it, and other agents see it."),
}
_NOT_DECLARED = frozenset({"name", "version"})  # the name is the table's key, and the store counts versions


class ScheduleKind(StrEnum):
    ONCE = "once"
    EVERY = "every"
    CRON = "cron"
    HEARTBEAT = "heartbeat"


_EXTENDS = "it says from which templates to inherit"
_EXTENDS_SO = 'extends = "careful" or extends = ["careful", "german"]'
_CLEAR = "it says what is not to be inherited"
_CLEAR_SO = 'clear = ["instructions", "tools.ask"]'
_ELSEWHERE_SO = 'external = { url = "https://agent.example/in" }'
_WHEN_SO = {"at": 'at = "2027-01-31 09:00"', "every_s": "every_s = 3600", "cron": 'cron = "0 7 * * *"'}
_MISSING_SO = {
    "agent": 'agent = "ada"',
    "connector": 'connector = "telegram"',
    "kind": 'kind = "cron"',
    "role": 'role = "member"',
}

# The key that says when, for each kind.
_WHEN = {
    ScheduleKind.ONCE: "at",
    ScheduleKind.EVERY: "every_s",
    ScheduleKind.CRON: "cron",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Staff:
    """Everything the file declares besides the settings."""

    agents: tuple[Agent, ...] = ()
    people: Mapping[str, Table]
    bindings: Mapping[str, Table]
    schedules: Mapping[str, Table]


def normal_id(text: str) -> str:
    """Return an id as it is compared: lower case, with other characters than letters and digits as
    single hyphens, never empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")[:NAME_LENGTH_MAX].strip("-") or MAIN


def default_agent(named: str | None, names: Iterable[str]) -> str | None:
    """Return the default agent: the one configured, otherwise `main`, otherwise the first. None if
    there are no agents.

    A configured name that is not among `names` is returned unchanged: agents are in the store, not
    in the file.
    """
    spelled: dict[str, str] = {}
    for name in names:
        spelled.setdefault(normal_id(name), name)
    if named is not None:
        return spelled.get(normal_id(named), named)
    return spelled.get(MAIN) or next(iter(spelled.values()), None)


def read_staff(tree: Table, faults: Faults, *, runners: frozenset[str] = RUNNERS, guests: bool = False) -> Staff:
    """Parse the declarations of a settings tree.

    With `allow_unknown`, an unknown runner may come from a plugin: `apply` checks it again.
    """
    known = None if guests else runners
    templates = _Templates(_named(tree, "templates", validators.name, faults), faults, known)
    agents = _agents(_named(tree, "agents", validators.agent_name, faults), templates, faults, known)
    names = [agent.name for agent in agents]
    return Staff(
        agents=agents,
        people=_people(_named(tree, "people", validators.name, faults), faults),
        bindings=_bindings(_named(tree, "bindings", validators.name, faults), names, faults),
        schedules=_schedules(_named(tree, "schedules", validators.name, faults), names, faults),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One named table: its name, path and content."""

    name: str
    path: KeyPath
    table: Table


def _named(tree: Table, section: str, check: Callable[[str], str | None], faults: Faults) -> list[_Entry]:
    """Return the tables of a section. Invalid names are normalized; two equal names are reported."""
    entries: list[_Entry] = []
    seen: dict[str, str] = {}
    for key, value in table_at(tree.get(section, {}), (section,), faults).items():
        path: KeyPath = (section, key)
        name = normal_id(key) if validators.name(key) and re.search(r"[A-Za-z0-9]", key) else key
        if wrong := check(name):
            faults.add(
                path, wrong, because="it is part of addresses and paths", try_this="for example: ada, night-clerk, Ops2"
            )
            continue
        if other := seen.get(name.casefold()):
            faults.add(
                path,
                f"is there already, as {section}.{other}",
                because="capitals and signs do not tell names apart",
                try_this="rename one of them, or make them one",
            )
            continue
        seen[name.casefold()] = key
        entries.append(_Entry(name, path, table_at(value, path, faults)))
    return entries


# --- agents and templates ---


class _Templates:
    """Resolves templates, each once with everything it extends."""

    def __init__(self, entries: list[_Entry], faults: Faults, runners: frozenset[str] | None) -> None:
        self._entries = {entry.name.casefold(): entry for entry in entries}
        self._laid_out: dict[str, Table | None] = {}
        self._faults = faults
        self._sound = {name: _is_sound(entry, faults, runners) for name, entry in self._entries.items()}
        for name, entry in self._entries.items():
            if name not in self._laid_out:
                self._laid_out[name] = self.laid_out(entry, ())

    def laid_out(self, entry: _Entry, chain: tuple[str, ...]) -> Table | None:
        """Return the merged table of an agent or template, with its parents below it. None if one
        cannot be resolved."""
        before = self._faults.count
        inherited: Table = {}
        is_whole = True
        for path, name in self._parents(entry):
            parent = self._template(path, name, (*chain, entry.name))
            is_whole = is_whole and parent is not None
            inherited = merge(inherited, parent or {})
        for cleared in _cleared(entry, self._faults):
            inherited = _without(inherited, cleared)
        if not is_whole or self._faults.count > before:
            return None
        own = {key: value for key, value in entry.table.items() if key not in ("extends", "clear")}
        return merge(inherited, own)

    def _template(self, path: KeyPath, name: str, chain: tuple[str, ...]) -> Table | None:
        key = name.casefold()
        entry = self._entries.get(key)
        if entry is None:
            near = nearest(name, [each.name for each in self._entries.values()])
            self._faults.add(
                path,
                f"names the template {name!r}, which is not there",
                because=f"there are {len(self._entries)} templates, and none of that name",
                try_this=f"did you mean `{near}`?" if near else f"declare it: [templates.{name}]",
            )
            return None
        if path[0] == "templates" and key in [each.casefold() for each in chain]:
            start = [each.casefold() for each in chain].index(key)
            self._faults.add(
                path,
                "goes in a circle",
                because=" -> ".join((*chain[start:], entry.name)),
                try_this="take one of these `extends` out",
            )
            return None
        if len(chain) > EXTENDS_DEPTH_MAX:
            self._faults.add(
                path,
                "goes too deep",
                because=f"templates extend {EXTENDS_DEPTH_MAX} deep at most",
                try_this="make one template of several",
            )
            return None
        if key not in self._laid_out:
            self._laid_out[key] = self.laid_out(entry, chain if path[0] == "templates" else ())
        return self._laid_out[key] if self._sound[key] else None

    def _parents(self, entry: _Entry) -> list[tuple[KeyPath, str]]:
        named = entry.table.get("extends", [])
        path = (*entry.path, "extends")
        if isinstance(named, str):
            return [(path, named)]
        if not isinstance(named, list):
            if named is not None:
                self._faults.add(
                    path,
                    f"must be the name of a template or a list of names, and is {shown(named)}",
                    because=_EXTENDS,
                    try_this=_EXTENDS_SO,
                )
            return []
        parents: list[tuple[KeyPath, str]] = []
        for index, name in enumerate(cast("list[object]", named)):
            if not isinstance(name, str):
                self._faults.add(
                    (*path, index),
                    f"must be the name of a template, and is {shown(name)}",
                    because=_EXTENDS,
                    try_this=_EXTENDS_SO,
                )
            else:
                parents.append(((*path, index), name))
        return parents


def _agents(
    entries: list[_Entry], templates: _Templates, faults: Faults, runners: frozenset[str] | None
) -> tuple[Agent, ...]:
    declared: list[Agent] = []
    for entry in entries:
        sound = _is_sound(entry, faults, runners)
        whole = templates.laid_out(entry, ())
        if whole is None or not sound:
            continue
        agent = Agent(
            name=entry.name, **values(Agent, _in_form(whole, entry.path, faults), entry.path, faults, rules=AGENT_RULES)
        )
        _check_external(agent, entry, faults)
        declared.append(agent)
    return tuple(declared)


def _is_sound(entry: _Entry, faults: Faults, runners: frozenset[str] | None) -> bool:
    """Whether the table's own keys are valid. Errors are reported at its own path, so a template's
    error is reported once."""
    before = faults.count
    own = {key: value for key, value in entry.table.items() if key not in ("extends", "clear")}
    for unknown in [key for key in own if key not in _AGENT_KEYS]:
        unknown_key(unknown, entry.path, [*_AGENT_KEYS, "extends", "clear"], faults)
        del own[unknown]
    own = _in_form(own, entry.path, faults)
    read = values(Agent, own, entry.path, faults, rules=AGENT_RULES, leave_out=_NOT_DECLARED)
    runner = read.get("runner")
    if runner is not None and runners is not None and runner not in runners:
        near = nearest(runner, runners)
        faults.add(
            (*entry.path, "runner"),
            f"is {runner!r}, and there is no such runner",
            because=f"the runners are {', '.join(sorted(runners))}",
            try_this=f"did you mean `{near}`?" if near else 'runner = "loop"',
        )
    return faults.count == before


def _in_form(table: Table, path: KeyPath, faults: Faults) -> Table:
    """Convert the keys of an agent to the fields of `Agent`."""
    own = _with_mind(table, path, faults)
    external = own.get("external")
    if isinstance(external, dict):
        elsewhere = cast(Table, external)
        if isinstance(secret := elsewhere.get("secret"), Secret):
            own["external"] = {**elsewhere, "secret": secret.reference}
    return own


def _with_mind(table: Table, path: KeyPath, faults: Faults) -> Table:
    """Split `model = { primary, fallbacks }` into two keys, and remove values that are `default`."""
    own = {key: value for key, value in table.items() if key not in ("model", "effort") or value != validators.DEFAULT}
    model = own.get("model")
    if not isinstance(model, dict):
        return own
    if "fallbacks" in model and "fallbacks" in own:
        faults.add(
            (*path, "fallbacks"),
            "is said twice",
            because="`model` says it too",
            try_this="say it in one of the two places",
        )
    del own["model"]
    choice = values(ModelChoice, cast(Table, model), (*path, "model"), faults)
    if choice.get("primary", validators.DEFAULT) != validators.DEFAULT:
        own["model"] = choice["primary"]
    if "fallbacks" in choice:
        own["fallbacks"] = list(choice["fallbacks"])
    return own


_AGENT_KEYS = tuple(each.name for each in fields(Agent) if each.name not in _NOT_DECLARED)


def _check_external(agent: Agent, entry: _Entry, faults: Faults) -> None:
    path = (*entry.path, "external")
    if agent.runner == "external" and not agent.external.url:
        faults.add(
            (*path, "url"),
            "is missing",
            because="the agent runs elsewhere, and nothing says where",
            try_this=_ELSEWHERE_SO,
        )
    elif agent.runner != "external" and agent.external != External():
        faults.add(
            path,
            "is set, but the agent's runner is not `external`",
            because="an agent that runs here has no address elsewhere",
            try_this='runner = "external", or clear = ["external"] where a template brought it',
        )


def _cleared(entry: _Entry, faults: Faults) -> list[tuple[str, ...]]:
    named = entry.table.get("clear", [])
    path = (*entry.path, "clear")
    if not isinstance(named, list):
        if named is not None:
            faults.add(path, f"must be a list of keys, and is {shown(named)}", because=_CLEAR, try_this=_CLEAR_SO)
        return []
    cleared: list[tuple[str, ...]] = []
    for index, key in enumerate(cast("list[object]", named)):
        parts = tuple(key.split(".")) if isinstance(key, str) else ()
        if _is_clearable(parts):
            cleared.append(parts)
        else:
            near = nearest(str(key), _AGENT_KEYS)
            faults.add(
                (*path, index),
                f"is {shown(key)}, which is no key of an agent",
                because=_CLEAR,
                try_this=f"did you mean `{near}`?" if near else _CLEAR_SO,
            )
    return cleared


def _is_clearable(parts: tuple[str, ...]) -> bool:
    match parts:
        case ("model", "primary" | "fallbacks"):
            return True
        case (key,):
            return key in _AGENT_KEYS
        case (key, inner):
            hint = hints_of(Agent).get(key)
            return is_dataclass(hint) and inner in [each.name for each in fields(cast(Any, hint))]
        case _:
            return False


def _without(table: Table, parts: tuple[str, ...]) -> Table:
    key, rest = parts[0], parts[1:]
    inner = table.get(key)
    if not rest:
        return {name: value for name, value in table.items() if name != key}
    return {**table, key: _without(cast(Table, inner), rest)} if isinstance(inner, dict) else table


# --- people, bindings, schedules: shape now, nouns when they come ---


def _people(entries: list[_Entry], faults: Faults) -> dict[str, Table]:
    return {
        entry.name: values(Person, entry.table, entry.path, faults, leave_out=("name",))
        for entry in entries
        if _required(entry, ("role",), faults)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binding:
    agent: str
    connector: str
    account: str | None = None
    peer_kind: PeerKind | None = None
    peer: str | None = None
    parent: str | None = None
    guild: str | None = None
    team: str | None = None
    also: tuple[str, ...] = ()


def _bindings(entries: list[_Entry], names: list[str], faults: Faults) -> dict[str, Table]:
    bindings: dict[str, Table] = {}
    matches: dict[tuple[object, ...], str] = {}
    for entry in entries:
        if not _required(entry, ("agent", "connector"), faults):
            continue
        read = values(_Binding, entry.table, entry.path, faults, rules=_AGENT_REFERENCE)
        match_ = tuple(read.get(each.name) for each in fields(_Binding) if each.name not in ("agent", "also"))
        if other := matches.get(match_):
            faults.add(
                entry.path,
                f"is for the same place as bindings.{other}",
                because="one place has one agent",
                try_this="remove one of them, or say more exactly what it is for",
            )
        matches.setdefault(match_, entry.name)
        bindings[entry.name] = _with_agent(read, names)
    return bindings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleGate:
    """The gate of a declared schedule. The domain type `ScheduleGate` defines what is valid."""

    command: str = ""
    cwd: str = ""
    timeout_ms: int = GATE_TIMEOUT_MS
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    permissions: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    agent: str
    kind: ScheduleKind
    text: str = ""
    description: str = ""
    enabled: bool = True
    zone: str = ""
    at: str = ""
    cron: str = ""
    every_s: float = 0.0
    place: Place = Place.FRESH
    deliver: str = ""
    missed: Missed | None = None
    delete_after_run: bool = False
    model: str = ""
    title: str = ""
    gate: ScheduleGate | None = None


def _schedules(entries: list[_Entry], names: list[str], faults: Faults) -> dict[str, Table]:
    schedules: dict[str, Table] = {}
    for entry in entries:
        if not _required(entry, ("agent", "kind"), faults):
            continue
        read = values(_Schedule, entry.table, entry.path, faults, rules=_SCHEDULE_RULES)
        kind = read.get("kind")
        if kind is ScheduleKind.HEARTBEAT:
            faults.add(
                (*entry.path, "kind"),
                "is not declared here",
                because="an agent has one heartbeat, which is part of what it is",
                try_this="write it as [agents.NAME.heartbeat], with every_s = 1800 below",
            )
            continue
        if isinstance(kind, ScheduleKind):
            _check_when(kind, entry, faults)
        schedules[entry.name] = _with_agent(read, names)
    return schedules


def _check_when(kind: ScheduleKind, entry: _Entry, faults: Faults) -> None:
    wanted = _WHEN[kind]
    if wanted not in entry.table:
        faults.add(
            (*entry.path, wanted),
            "is missing",
            because=f"a schedule of the kind `{kind}` says when by it",
            try_this=_WHEN_SO[wanted],
        )
    for other in sorted(set(_WHEN.values()) - {wanted}):
        if other in entry.table:
            faults.add(
                (*entry.path, other),
                f"does not go with the kind `{kind}`",
                because=f"such a schedule says when by `{wanted}`",
                try_this="take it out",
            )


def _required(entry: _Entry, keys: tuple[str, ...], faults: Faults) -> bool:
    missing = [key for key in keys if key not in entry.table]
    for key in missing:
        section = str(entry.path[0])
        faults.add((*entry.path, key), "is missing", because=f"each of [{section}] needs it", try_this=_MISSING_SO[key])
    return not missing


def _agent_reference(text: str) -> str | None:
    return None if text.strip() else "must name an agent"


def _cron_expression(text: str) -> str | None:
    try:
        cron.checked(text)
    except Invalid as error:
        return f"is not a cron expression: {error.because}"
    return None


_AGENT_REFERENCE: Mapping[str, Rule] = {
    "agent": Rule(says="Which agent it is for.", check=_agent_reference, example="ada")
}
_SCHEDULE_RULES: Mapping[str, Rule] = {
    **_AGENT_REFERENCE,
    "every_s": Rule(least=1),
    "cron": Rule(says="When it comes.", check=_cron_expression, example="0 9 * * 1-5"),
}


def _with_agent(read: dict[str, Any], names: list[str]) -> Table:
    agent = read.get("agent", NOTHING)
    return {**read, "agent": default_agent(agent, names)} if isinstance(agent, str) else read
