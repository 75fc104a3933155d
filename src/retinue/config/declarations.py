"""Parses declarations in the settings file: agents and templates, people, bindings and schedules.

`retinue apply` applies the declarations. A template contains keys that agents inherit. `extends` names one template or
a list of templates. Later templates override earlier ones, and the agent's own keys override all templates. Tables are
merged key by key; any other value is replaced. `clear = ["instructions", "tools.ask"]` removes inherited values,
because TOML has no null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, cast

from retinue.config import heartbeats, validators
from retinue.config.errors import FaultCollector, KeyPath
from retinue.config.models import ModelChoice
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingRule
from retinue.config.table_parser import (
    INVALID,
    cached_type_hints,
    closest_match,
    expect_table,
    parse_table,
    report_unknown_key,
)
from retinue.config.toml_source import Table, format_value, merge_tables
from retinue.domain import cron
from retinue.domain.address import NAME_LENGTH_MAX
from retinue.domain.agent import Agent, ExternalAgentEndpoint
from retinue.domain.binding import PeerKind
from retinue.domain.errors import Invalid
from retinue.domain.person import Person
from retinue.domain.reset_rules import CONTEXT_TOKENS_LIMIT, IDLE_MINUTES_MAX
from retinue.domain.schedule import GATE_TIMEOUT_MS, MissedPolicy, ScheduleSession

EXTENDS_DEPTH_MAX = 20
DELEGATION_DEPTH_LIMIT = 10  # limit of `delegation.depth_max`
RUNNERS = frozenset({"loop", "claude", "codex", "pi", "external"})
MAIN_AGENT = "main"

AGENT_SETTING_RULES: Mapping[str, SettingRule] = {
    "description": SettingRule(description="Purpose of the agent, in one sentence. Other agents read it too."),
    "runner": SettingRule(
        description="What runs the agent: the built-in loop (`loop`), a coding agent with a CLI (`claude`, `codex` or "
        "`pi`), or a service that is reached over HTTP (`external`)."
    ),
    "provider": SettingRule(
        description="Provider through which the model is called. Default: the provider that the model belongs to."
    ),
    "model": SettingRule(
        description="Model of the agent: PROVIDER/MODEL or an alias. Not set or `default`: the server's default model.",
        check=validators.check_model_reference,
        example="anthropic/claude-opus-5-5",
    ),
    "fallbacks": SettingRule(
        description="Fallback models, in order. Each is used if the model before it fails. Not set: the server's "
        "fallback models. An empty list: none.",
        check=validators.check_model_reference,
        example="openai/gpt-6.1-sol",
    ),
    "effort": SettingRule(
        description="Reasoning effort of the model. Not set or `default`: the effort in [defaults], otherwise the "
        "default of the model.",
        check=validators.check_effort_or_default,
        example="medium",
    ),
    "verbose": SettingRule(
        description="How much people see of tool calls while the agent works: nothing (`off`), one line for each call "
        "(`on`), or also a short result (`full`). A session can override this setting."
    ),
    "elevated": SettingRule(
        description="Whether the agent's commands run outside the sandbox, if `tools.exec.elevated` permits it: never "
        "(`off`), under the rules for commands on the host (`on` or `ask`), or without approval (`full`). A session "
        "can override this setting. Default: only if the call requests it."
    ),
    "instructions": SettingRule(description="Instructions for the agent. They are part of its system prompt."),
    "display_name": SettingRule(
        description="Name that people see. Default: the agent's name.",
        check=validators.check_display_name,
        example="Ada of the night",
    ),
    "external.url": SettingRule(
        description="URL to which the server sends messages for the external agent.",
        check=validators.check_url,
        example="https://agent.example/in",
    ),
    "external.secret": SettingRule(
        description="Location of the key that signs requests to the external agent.",
        check=validators.check_secret_reference,
        example="env:ADA_KEY",
    ),
    "external.timeout_s": SettingRule(
        description="Maximum time to wait for the external agent's answer, in seconds.", least=1, most=30 * 86_400
    ),
    "external.retries": SettingRule(
        description="Maximum number of retries of a failed request to the external agent.", least=0, most=20
    ),
    "workspace": SettingRule(
        description="Folder in which the agent works: an absolute path, or a path relative to the agent directory. "
        "Default: the agent's folder in `defaults.workspace`, otherwise the agent directory.",
        check=validators.check_folder,
        example="/srv/ada",
    ),
    "context_files": SettingRule(
        description="Files in the workspace that are added to the system prompt: paths, or patterns with `*`.",
        check=validators.check_context_file,
        example="docs/*.md",
    ),
    "instructions_mode": SettingRule(
        description="How much the system prompt contains: everything (`full`), no persona and no skills (`minimal`), "
        "or only the agent's name (`none`)."
    ),
    "sandbox.mode": SettingRule(
        description="Which of the agent's commands run in a sandbox: all (`all`), all except those in the owner's own "
        "sessions (`non-main`), or none (`off`). The server's setting applies if it is stricter."
    ),
    "sandbox.scope": SettingRule(
        description="Which of the agent's commands share a container: those of one `session`, of one `agent`, or all "
        "(`shared`). The server's setting applies if it is stricter."
    ),
    "sandbox.workspace": SettingRule(
        description="How commands in the sandbox can access the workspace: read-write (`rw`), read-only (`ro`), or not "
        "at all (`none`). The server's setting applies if it is stricter."
    ),
    "sandbox.visible_sessions": SettingRule(
        description="Sessions that tools in a sandboxed session can see: those of its subagents (`spawned`), or all "
        "sessions of the agent (`all`). The server's setting applies if it is stricter."
    ),
    "sandbox.browser": SettingRule(
        description="Whether sandboxed sessions of the agent may use the browser, if the server's setting permits it."
    ),
    "sandbox.image": SettingRule(
        description="Image of the agent's containers. Default: the image in [sandbox.docker].",
        check=validators.check_image,
        example="debian:stable-slim",
    ),
    "sandbox.cpus": SettingRule(
        description="Maximum number of CPUs of a container. The server's limit applies if it is lower.",
        least=0.1,
        most=1024,
    ),
    "sandbox.idle_hours": SettingRule(
        description="Time until an unused container is removed, in hours. The server's setting applies if it is lower.",
        least=0.1,
        most=8760,
    ),
    "sandbox.age_days": SettingRule(
        description="Age at which a container is removed, in days. The server's setting applies if it is lower.",
        least=0.01,
        most=3650,
    ),
    "crash_policy": SettingRule(
        description="What happens to a run of the agent that a crash interrupted: it continues (`resume`), or its "
        "envelopes get the outcome `interrupted` (`at-most-once`)."
    ),
    "concurrency": SettingRule(
        description="Maximum number of active runs of the agent. Default: the limit in [defaults].", least=1, most=1000
    ),
    "queue.mode": SettingRule(
        description="What happens to a message that arrives during a run: it waits (`collect`, `followup`), the run "
        "reads it (`steer`, `steer-backlog`), or the run is stopped (`interrupt`)."
    ),
    "queue.cap": SettingRule(
        description="Maximum number of envelopes that wait in the queue of one session.", least=1, most=100_000
    ),
    "queue.overflow": SettingRule(
        description="Which envelope is refused if the queue is full: the new one (`refuse`) or the oldest (`oldest`, "
        "`summarize`). With `summarize`, the agent also gets one line about the refused envelope."
    ),
    "queue.debounce_s": SettingRule(
        description="Time without a new message after which a run starts with the waiting messages, in seconds. 0: "
        "at once.",
        least=0,
        most=60,
    ),
    "reset.daily_at": SettingRule(
        description="Time of day at which the agent's contexts are reset, in the owner's time zone. `never`: no daily "
        "reset. Default: the rules in [sessions.reset].",
        check=validators.check_daily_at,
        example="04:00",
    ),
    "reset.idle_minutes": SettingRule(
        description="Minutes without activity after which a context of the agent is reset. Scheduled runs do not count "
        "as activity. 0: never. Default: the rules in [sessions.reset].",
        least=0,
        most=IDLE_MINUTES_MAX,
    ),
    "reset.context_tokens_max": SettingRule(
        description="Maximum size of a context of the agent, in tokens. A larger context is reset before the next run. "
        "0: no limit. Default: the rules in [sessions.reset].",
        least=0,
        most=CONTEXT_TOKENS_LIMIT,
    ),
    "tools.profile": SettingRule(
        description="Set of tools to start from: `minimal`, `coding`, `messaging` or `full`. Default: the server's "
        "profile.",
        check=validators.check_tool_profile,
        example="coding",
    ),
    "tools.allow": SettingRule(
        description="Tools that the agent may use: names, globs with `*`, or groups such as `group:web`. An empty "
        "list: none."
    ),
    "tools.also_allow": SettingRule(
        description="Tools that the agent may use in addition to those of `tools.profile` and `tools.allow`."
    ),
    "tools.ask": SettingRule(description="Tools that the agent may use, with a person's approval for each call."),
    "tools.deny": SettingRule(description="Tools that the agent may never use, even if another list names them."),
    "tools.capabilities_allow": SettingRule(
        description="Permitted capabilities of tools, as globs such as `network.*`. The agent may not use a tool that "
        "has any other capability."
    ),
    "tools.capabilities_deny": SettingRule(
        description="Forbidden capabilities of tools, as globs such as `network.*`. The agent may not use a tool that "
        "has one of them."
    ),
    "tools.policy": SettingRule(
        description="Name of a policy in [tools.policies.NAME] that applies to the agent, in addition to these rules."
    ),
    "tools.by_provider": SettingRule(
        description="Additional tool rules for one provider or model: for each PROVIDER or PROVIDER/MODEL, a "
        "table with keys such as `allow`."
    ),
    "delegation.allow": SettingRule(
        description="Agents that this agent can see and write to: names, or patterns with `*`. An empty list: none."
    ),
    "delegation.deny": SettingRule(
        description="Agents that this agent cannot see or write to, even if `delegation.allow` matches them."
    ),
    "delegation.depth_max": SettingRule(
        description="Maximum delegation depth below a run that a person or a schedule started. 0: the agent cannot "
        "delegate. 1: the agents to which it delegates cannot delegate further.",
        least=0,
        most=DELEGATION_DEPTH_LIMIT,
    ),
    "delegation.open_max": SettingRule(
        description="Maximum number of unfinished delegations of one session.", least=1, most=1000
    ),
    "delegation.exchanges_max": SettingRule(
        description="Maximum number of replies that two sessions send each other in one exchange.", least=0, most=100
    ),
    "delegation.allow_cycles": SettingRule(
        description="Whether the agent may delegate work back to an agent from which the work came."
    ),
    "delegation.other_sessions": SettingRule(
        description="Whether the agent may read sessions of other agents and write to them."
    ),
    "subagents.allow": SettingRule(
        description="Agents that this agent may start as subagents, besides itself: names, or patterns with `*`."
    ),
    "subagents.model": SettingRule(
        description="Model of the agent's subagents. Default: the model in [defaults.subagents], otherwise that of the "
        "agent that runs as the subagent.",
        check=validators.check_model_reference,
        example="anthropic/claude-haiku-5-5",
    ),
    "subagents.effort": SettingRule(
        description="Reasoning effort of the agent's subagents. Default: the effort in [defaults.subagents], otherwise "
        "that of the agent that runs as the subagent.",
        check=validators.check_effort,
        example="low",
    ),
    "subagents.run_seconds_max": SettingRule(
        description="Maximum duration of a subagent's run, in seconds. Default: the limit in [defaults.subagents], "
        "otherwise that of the agent that runs as the subagent.",
        least=1,
    ),
    "subagents.archive_after_s": SettingRule(
        description="Time until the session of a finished subagent is archived, in seconds. 0: never. Default: the "
        "time in [defaults.subagents].",
        least=0,
    ),
    **{f"heartbeat.{name}": rule for name, rule in heartbeats.HEARTBEAT_SETTING_RULES.items()},
    "turns_max": SettingRule(
        description="Maximum number of turns of a run. A turn is one model reply and the tool calls that it requests.",
        least=1,
        most=100_000,
    ),
    "run_seconds_max": SettingRule(
        description="Maximum duration of a run, in seconds. Default: the limit in [defaults].", least=1
    ),
    "tokens_max": SettingRule(
        description="Maximum number of input and output tokens of a run. Default: no limit.", least=1
    ),
    "cost_microusd_max": SettingRule(
        description="Maximum cost of a run, in millionths of a US dollar. Default: no limit.", least=0
    ),
    "tree_microusd_max": SettingRule(
        description="Maximum cost of a run and all runs that it starts, directly or indirectly, in millionths of a US "
        "dollar. Default: no limit.",
        least=0,
    ),
    "day_microusd_max": SettingRule(
        description="Maximum cost of the agent's runs in a day, in millionths of a US dollar. Default: no limit.",
        least=0,
    ),
    "month_microusd_max": SettingRule(
        description="Maximum cost of the agent's runs in a month, in millionths of a US dollar. Default: no limit.",
        least=0,
    ),
    "attempts_max": SettingRule(
        description="Maximum number of attempts to complete a run that is interrupted by crashes. After the last "
        "attempt, its envelopes become dead letters.",
        least=1,
        most=1000,
    ),
    "replay_age_s": SettingRule(
        description="Maximum age of envelopes that are still processed after a restart of the server, in seconds. "
        "Default: no limit. 0: no envelope from before the restart is processed.",
        least=0,
    ),
    "approval_wait_s": SettingRule(
        description="Time that a run waits for an approval before it continues without the approval, in seconds.",
        least=0,
    ),
    "permission_level": SettingRule(
        description="Permission level of the agent, which decides which operations of the server it may use."
    ),
    "icon": SettingRule(
        description="Emoji or a few letters that represent the agent in the web app. Default: the first letters of its "
        "name.",
        check=validators.check_icon,
        example="\N{FOX FACE}",
    ),
    "color": SettingRule(
        description="Color of the agent in the web app. Default: derived from its name.", example="teal"
    ),
    "visible": SettingRule(description="Whether the web app and other agents can see the agent."),
}
_UNDECLARABLE_FIELDS = frozenset({"name", "version"})  # the name is the table's key, and the store counts versions


class DeclaredScheduleKind(StrEnum):
    ONCE = "once"
    EVERY = "every"
    CRON = "cron"
    HEARTBEAT = "heartbeat"


_EXTENDS_MEANING = "it names the templates to inherit from"
_EXTENDS_EXAMPLE = 'extends = "careful" or extends = ["careful", "german"]'
_CLEAR_MEANING = "it names the keys that are not inherited"
_CLEAR_EXAMPLE = 'clear = ["instructions", "tools.ask"]'
_EXTERNAL_EXAMPLE = 'external = { url = "https://agent.example/in" }'
_TRIGGER_EXAMPLES = {"at": 'at = "2027-01-31 09:00"', "every_s": "every_s = 3600", "cron": 'cron = "0 7 * * *"'}
_REQUIRED_EXAMPLES = {
    "agent": 'agent = "ada"',
    "connector": 'connector = "telegram"',
    "kind": 'kind = "cron"',
    "role": 'role = "member"',
}

# The key that sets the time of each kind of schedule.
_TRIGGER_KEYS = {
    DeclaredScheduleKind.ONCE: "at",
    DeclaredScheduleKind.EVERY: "every_s",
    DeclaredScheduleKind.CRON: "cron",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The declarations in the settings file."""

    agents: tuple[Agent, ...] = ()
    people: Mapping[str, Table]
    bindings: Mapping[str, Table]
    schedules: Mapping[str, Table]


def normalize_id(text: str) -> str:
    """Normalize an id for comparisons: lower case, with only letters, digits and single hyphens.

    Each sequence of other characters becomes one hyphen. The result is never empty.
    """
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")[:NAME_LENGTH_MAX].strip("-") or MAIN_AGENT


def choose_default_agent(configured: str | None, names: Iterable[str]) -> str | None:
    """Return the default agent: the configured agent, otherwise `main`, otherwise the first.

    Returns None if there are no agents. A configured name that is not among `names` is returned too, because the store
    may contain an agent of that name.
    """
    spelled: dict[str, str] = {}
    for name in names:
        spelled.setdefault(normalize_id(name), name)
    if configured is not None:
        return spelled.get(normalize_id(configured), configured)
    return spelled.get(MAIN_AGENT) or next(iter(spelled.values()), None)


def parse_declarations(
    tree: Table, faults: FaultCollector, *, runners: frozenset[str] = RUNNERS, allow_unknown: bool = False
) -> Declarations:
    """Parse the declarations in the content of the settings files.

    With `allow_unknown`, an unknown runner is not an error, because a plugin may provide the runner. `retinue apply`
    checks the runner again.
    """
    known = None if allow_unknown else runners
    templates = _TemplateResolver(_named_tables(tree, "templates", validators.check_name, faults), faults, known)
    agents = _parse_agents(_named_tables(tree, "agents", validators.check_agent_name, faults), templates, faults, known)
    names = [agent.name for agent in agents]
    return Declarations(
        agents=agents,
        people=_parse_people(_named_tables(tree, "people", validators.check_name, faults), faults),
        bindings=_parse_bindings(_named_tables(tree, "bindings", validators.check_name, faults), names, faults),
        schedules=_parse_schedules(_named_tables(tree, "schedules", validators.check_name, faults), names, faults),
    )


@dataclass(frozen=True, slots=True)
class _NamedTable:
    """A table with a name that a person chose, such as `[agents.ada]`: its name, path and content."""

    name: str
    path: KeyPath
    table: Table


def _named_tables(
    tree: Table, section: str, check: Callable[[str], str | None], faults: FaultCollector
) -> list[_NamedTable]:
    """Return the named tables in a section of the file, such as all `[agents.NAME]`.

    A name is normalized if that makes it valid. Invalid and duplicate names are reported.
    """
    entries: list[_NamedTable] = []
    seen: dict[str, str] = {}
    for key, value in expect_table(tree.get(section, {}), (section,), faults).items():
        path: KeyPath = (section, key)
        name = normalize_id(key) if validators.check_name(key) and re.search(r"[A-Za-z0-9]", key) else key
        if wrong := check(name):
            faults.add(
                path,
                wrong,
                because="it is part of addresses and paths",
                try_this="choose a name such as ada, night-clerk or Ops2",
            )
            continue
        if other := seen.get(name.casefold()):
            faults.add(
                path,
                f"already exists, as {section}.{other}",
                because="names are case-insensitive, and `-` and `_` are the same",
                try_this="rename one of them, or merge them",
            )
            continue
        seen[name.casefold()] = key
        entries.append(_NamedTable(name, path, expect_table(value, path, faults)))
    return entries


# --- agents and templates ---


class _TemplateResolver:
    """Merges each template with all templates that it extends. Each template is merged only once."""

    def __init__(self, entries: list[_NamedTable], faults: FaultCollector, runners: frozenset[str] | None) -> None:
        self._entries = {entry.name.casefold(): entry for entry in entries}
        self._resolved: dict[str, Table | None] = {}
        self._faults = faults
        self._is_valid = {name: _check_agent_table(entry, faults, runners) for name, entry in self._entries.items()}
        for name, entry in self._entries.items():
            if name not in self._resolved:
                self._resolved[name] = self.resolve(entry, ())

    def resolve(self, entry: _NamedTable, chain: tuple[str, ...]) -> Table | None:
        """Return the table of an agent or template, merged with all templates that it extends.

        Returns None if one of these templates is missing or invalid.
        """
        before = self._faults.count
        inherited: Table = {}
        is_whole = True
        for path, name in self._parents(entry):
            parent = self._resolve_template(path, name, (*chain, entry.name))
            is_whole = is_whole and parent is not None
            inherited = merge_tables(inherited, parent or {})
        for cleared in _parse_cleared_keys(entry, self._faults):
            inherited = _remove_key(inherited, cleared)
        if not is_whole or self._faults.count > before:
            return None
        own = {key: value for key, value in entry.table.items() if key not in ("extends", "clear")}
        return merge_tables(inherited, own)

    def _resolve_template(self, path: KeyPath, name: str, chain: tuple[str, ...]) -> Table | None:
        key = name.casefold()
        entry = self._entries.get(key)
        if entry is None:
            near = closest_match(name, [each.name for each in self._entries.values()])
            self._faults.add(
                path,
                f"names the template {name!r}, which does not exist",
                because=f"none of the {len(self._entries)} templates has that name",
                try_this=f"did you mean `{near}`?" if near else f"declare it: [templates.{name}]",
            )
            return None
        if path[0] == "templates" and key in [each.casefold() for each in chain]:
            start = [each.casefold() for each in chain].index(key)
            self._faults.add(
                path,
                "is circular",
                because=" -> ".join((*chain[start:], entry.name)),
                try_this="remove one of these `extends`",
            )
            return None
        if len(chain) > EXTENDS_DEPTH_MAX:
            self._faults.add(
                path,
                "is too deep",
                because=f"the limit is {EXTENDS_DEPTH_MAX} levels of templates",
                try_this="merge several templates into one",
            )
            return None
        if key not in self._resolved:
            self._resolved[key] = self.resolve(entry, chain if path[0] == "templates" else ())
        return self._resolved[key] if self._is_valid[key] else None

    def _parents(self, entry: _NamedTable) -> list[tuple[KeyPath, str]]:
        named = entry.table.get("extends", [])
        path = (*entry.path, "extends")
        if isinstance(named, str):
            return [(path, named)]
        if not isinstance(named, list):
            if named is not None:
                self._faults.add(
                    path,
                    f"must be the name of a template or a list of names, not {format_value(named)}",
                    because=_EXTENDS_MEANING,
                    try_this=_EXTENDS_EXAMPLE,
                )
            return []
        parents: list[tuple[KeyPath, str]] = []
        for index, name in enumerate(cast("list[object]", named)):
            if not isinstance(name, str):
                self._faults.add(
                    (*path, index),
                    f"must be the name of a template, not {format_value(name)}",
                    because=_EXTENDS_MEANING,
                    try_this=_EXTENDS_EXAMPLE,
                )
            else:
                parents.append(((*path, index), name))
        return parents


def _parse_agents(
    entries: list[_NamedTable], templates: _TemplateResolver, faults: FaultCollector, runners: frozenset[str] | None
) -> tuple[Agent, ...]:
    declared: list[Agent] = []
    for entry in entries:
        sound = _check_agent_table(entry, faults, runners)
        whole = templates.resolve(entry, ())
        if whole is None or not sound:
            continue
        agent = Agent(
            name=entry.name,
            **parse_table(
                Agent, _to_agent_fields(whole, entry.path, faults), entry.path, faults, rules=AGENT_SETTING_RULES
            ),
        )
        _check_external(agent, entry, faults)
        declared.append(agent)
    return tuple(declared)


def _check_agent_table(entry: _NamedTable, faults: FaultCollector, runners: frozenset[str] | None) -> bool:
    """Report errors in the agent's own keys, and return whether there were none.

    Inherited keys are not checked here, so that an error in a template is reported only once.
    """
    before = faults.count
    own = {key: value for key, value in entry.table.items() if key not in ("extends", "clear")}
    for unknown in [key for key in own if key not in _AGENT_KEYS]:
        report_unknown_key(unknown, entry.path, [*_AGENT_KEYS, "extends", "clear"], faults)
        del own[unknown]
    own = _to_agent_fields(own, entry.path, faults)
    read = parse_table(Agent, own, entry.path, faults, rules=AGENT_SETTING_RULES, leave_out=_UNDECLARABLE_FIELDS)
    runner = read.get("runner")
    if runner is not None and runners is not None and runner not in runners:
        near = closest_match(runner, runners)
        faults.add(
            (*entry.path, "runner"),
            f"is {runner!r}, which is not a known runner",
            because=f"the runners are {', '.join(sorted(runners))}",
            try_this=f"did you mean `{near}`?" if near else 'set runner = "loop"',
        )
    return faults.count == before


def _to_agent_fields(table: Table, path: KeyPath, faults: FaultCollector) -> Table:
    """Convert the keys of an agent's table to the fields of `Agent`."""
    own = _split_model(table, path, faults)
    external = own.get("external")
    if isinstance(external, dict):
        elsewhere = cast(Table, external)
        if isinstance(secret := elsewhere.get("secret"), SecretReference):
            own["external"] = {**elsewhere, "secret": secret.as_text}
    return own


def _split_model(table: Table, path: KeyPath, faults: FaultCollector) -> Table:
    """Split `model = { primary, fallbacks }` into two keys, and remove a model or effort that is `"default"`."""
    own = {
        key: value
        for key, value in table.items()
        if key not in ("model", "effort") or value != validators.DEFAULT_VALUE
    }
    model = own.get("model")
    if not isinstance(model, dict):
        return own
    if "fallbacks" in model and "fallbacks" in own:
        faults.add(
            (*path, "fallbacks"),
            "is set twice",
            because="`model` sets the fallback models too",
            try_this="set them in `model` or in `fallbacks`, not in both",
        )
    del own["model"]
    choice = parse_table(ModelChoice, cast(Table, model), (*path, "model"), faults)
    if choice.get("primary", validators.DEFAULT_VALUE) != validators.DEFAULT_VALUE:
        own["model"] = choice["primary"]
    if "fallbacks" in choice:
        own["fallbacks"] = list(choice["fallbacks"])
    return own


_AGENT_KEYS = tuple(each.name for each in fields(Agent) if each.name not in _UNDECLARABLE_FIELDS)


def _check_external(agent: Agent, entry: _NamedTable, faults: FaultCollector) -> None:
    path = (*entry.path, "external")
    if agent.runner == "external" and not agent.external.url:
        faults.add(
            (*path, "url"),
            "is missing",
            because="the agent is external, so it needs a URL",
            try_this=_EXTERNAL_EXAMPLE,
        )
    elif agent.runner != "external" and agent.external != ExternalAgentEndpoint():
        faults.add(
            path,
            "is set, but the agent's runner is not `external`",
            because="only an external agent has a URL",
            try_this='set runner = "external", or clear = ["external"] if it comes from a template',
        )


def _parse_cleared_keys(entry: _NamedTable, faults: FaultCollector) -> list[tuple[str, ...]]:
    named = entry.table.get("clear", [])
    path = (*entry.path, "clear")
    if not isinstance(named, list):
        if named is not None:
            faults.add(
                path,
                f"must be a list of keys, not {format_value(named)}",
                because=_CLEAR_MEANING,
                try_this=_CLEAR_EXAMPLE,
            )
        return []
    cleared: list[tuple[str, ...]] = []
    for index, key in enumerate(cast("list[object]", named)):
        parts = tuple(key.split(".")) if isinstance(key, str) else ()
        if _is_clearable(parts):
            cleared.append(parts)
        else:
            near = closest_match(str(key), _AGENT_KEYS)
            faults.add(
                (*path, index),
                f"is {format_value(key)}, which is not a key of an agent",
                because=_CLEAR_MEANING,
                try_this=f"did you mean `{near}`?" if near else _CLEAR_EXAMPLE,
            )
    return cleared


def _is_clearable(parts: tuple[str, ...]) -> bool:
    match parts:
        case ("model", "primary" | "fallbacks"):
            return True
        case (key,):
            return key in _AGENT_KEYS
        case (key, inner):
            hint = cached_type_hints(Agent).get(key)
            return is_dataclass(hint) and inner in [each.name for each in fields(cast(Any, hint))]
        case _:
            return False


def _remove_key(table: Table, parts: tuple[str, ...]) -> Table:
    key, rest = parts[0], parts[1:]
    inner = table.get(key)
    if not rest:
        return {name: value for name, value in table.items() if name != key}
    return {**table, key: _remove_key(cast(Table, inner), rest)} if isinstance(inner, dict) else table


# --- people, bindings, schedules ---


def _parse_people(entries: list[_NamedTable], faults: FaultCollector) -> dict[str, Table]:
    return {
        entry.name: parse_table(Person, entry.table, entry.path, faults, leave_out=("name",))
        for entry in entries
        if _has_required_keys(entry, ("role",), faults)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _BindingTable:
    agent: str
    connector: str
    account: str | None = None
    peer_kind: PeerKind | None = None
    peer: str | None = None
    parent: str | None = None
    guild: str | None = None
    team: str | None = None
    extra_agents: tuple[str, ...] = ()


def _parse_bindings(entries: list[_NamedTable], names: list[str], faults: FaultCollector) -> dict[str, Table]:
    bindings: dict[str, Table] = {}
    matches: dict[tuple[object, ...], str] = {}
    for entry in entries:
        if not _has_required_keys(entry, ("agent", "connector"), faults):
            continue
        read = parse_table(_BindingTable, entry.table, entry.path, faults, rules=_AGENT_REFERENCE)
        match_ = tuple(
            read.get(each.name) for each in fields(_BindingTable) if each.name not in ("agent", "extra_agents")
        )
        if other := matches.get(match_):
            faults.add(
                entry.path,
                f"matches the same channel as bindings.{other}",
                because="two bindings cannot apply to exactly the same channels",
                try_this="remove one of them, or make one more specific",
            )
        matches.setdefault(match_, entry.name)
        bindings[entry.name] = _resolve_agent(read, names)
    return bindings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredGate:
    """The gate of a declared schedule, as written in the file.

    The domain type `ScheduleGate` defines which gates are valid.
    """

    command: str = ""
    cwd: str = ""
    timeout_ms: int = GATE_TIMEOUT_MS
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    permissions: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScheduleTable:
    agent: str
    kind: DeclaredScheduleKind
    text: str = ""
    description: str = ""
    enabled: bool = True
    zone: str = ""
    at: str = ""
    cron: str = ""
    every_s: float = 0.0
    session: ScheduleSession = ScheduleSession.FRESH
    deliver_to: str = ""
    missed: MissedPolicy | None = None
    delete_after_run: bool = False
    model: str = ""
    title: str = ""
    gate: DeclaredGate | None = None


def _parse_schedules(entries: list[_NamedTable], names: list[str], faults: FaultCollector) -> dict[str, Table]:
    schedules: dict[str, Table] = {}
    for entry in entries:
        if not _has_required_keys(entry, ("agent", "kind"), faults):
            continue
        read = parse_table(_ScheduleTable, entry.table, entry.path, faults, rules=_SCHEDULE_RULES)
        kind = read.get("kind")
        if kind is DeclaredScheduleKind.HEARTBEAT:
            faults.add(
                (*entry.path, "kind"),
                "is not valid here",
                because="an agent has one heartbeat, which is declared with the agent",
                try_this="write it as [agents.NAME.heartbeat], with a key such as every_s = 1800",
            )
            continue
        if isinstance(kind, DeclaredScheduleKind):
            _check_trigger(kind, entry, faults)
        schedules[entry.name] = _resolve_agent(read, names)
    return schedules


def _check_trigger(kind: DeclaredScheduleKind, entry: _NamedTable, faults: FaultCollector) -> None:
    wanted = _TRIGGER_KEYS[kind]
    if wanted not in entry.table:
        faults.add(
            (*entry.path, wanted),
            "is missing",
            because=f"a schedule of the kind `{kind}` needs this key",
            try_this=_TRIGGER_EXAMPLES[wanted],
        )
    for other in sorted(set(_TRIGGER_KEYS.values()) - {wanted}):
        if other in entry.table:
            faults.add(
                (*entry.path, other),
                f"is not valid for the kind `{kind}`",
                because=f"`{wanted}` sets the times of a schedule of this kind",
                try_this="remove it",
            )


def _has_required_keys(entry: _NamedTable, keys: tuple[str, ...], faults: FaultCollector) -> bool:
    missing = [key for key in keys if key not in entry.table]
    for key in missing:
        section = str(entry.path[0])
        faults.add(
            (*entry.path, key),
            "is missing",
            because=f"every section [{section}.NAME] needs this key",
            try_this=_REQUIRED_EXAMPLES[key],
        )
    return not missing


def _check_agent_reference(text: str) -> str | None:
    return None if text.strip() else "must name an agent"


def _check_cron_expression(text: str) -> str | None:
    try:
        cron.normalize_cron(text)
    except Invalid as error:
        return f"is not a cron expression: {error.because}"
    return None


_AGENT_REFERENCE: Mapping[str, SettingRule] = {
    "agent": SettingRule(description="Agent that receives the message.", check=_check_agent_reference, example="ada")
}
_SCHEDULE_RULES: Mapping[str, SettingRule] = {
    **_AGENT_REFERENCE,
    "every_s": SettingRule(least=1),
    "cron": SettingRule(
        description="Cron expression for the times at which the schedule runs.",
        check=_check_cron_expression,
        example="0 9 * * 1-5",
    ),
}


def _resolve_agent(read: dict[str, Any], names: list[str]) -> Table:
    agent = read.get("agent", INVALID)
    return {**read, "agent": choose_default_agent(agent, names)} if isinstance(agent, str) else read
