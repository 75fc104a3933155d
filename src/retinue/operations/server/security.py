"""Security checks of `retinue doctor --security`, and the fixes that `--fix` makes without asking.

Each check evaluates facts and performs no I/O. The fixes in this module only remove the file permissions
of other users. All other findings need a decision by the owner.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from retinue.config.sandbox import SandboxKind, SandboxMode
from retinue.config.skills import TrustedSkillSource
from retinue.config.tools import CommandAsk, CommandLocation, CommandSecurity, ElevatedPolicy
from retinue.config.validators import is_loopback
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel, ToolLists
from retinue.domain.person import Role
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolEffect
from retinue.operations.server.security_facts import (
    AgentAbilities,
    ProtectedPath,
    SecurityContext,
    SecurityFacts,
    gather_security_facts,
)
from retinue.policy.tools.tool_policy import OUTSIDE_SENDERS_KEY
from retinue.text.glob_match import matches_glob
from retinue.text.quantity import format_quantity

NAMES_LISTED_MAX = 10
UNUSED_TOKEN_DAYS = 30
SMALL_MODEL_BILLIONS_MAX = 70
DAY_MS = 86_400_000
GROUP_AND_OTHERS_BITS = 0o077  # mode bits of group and others
OWNER_TOKEN_LABEL = "owner-token"
LOCAL_PROVIDERS = frozenset({"local", "ollama", "lmstudio", "vllm", "bridge"})

_MODEL_SIZE = re.compile(r"(?<![a-z0-9])(\d{1,4}(?:\.\d{1,3})?)b(?![a-z0-9])", re.I)


class SecuritySeverity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class PermissionFix(Struct, frozen=True, kw_only=True):
    """A file and its permissions before and after other users' access is removed."""

    path: Path
    mode_before: int
    mode_after: int


class SecurityFinding(Struct, frozen=True, kw_only=True):
    """One finding of a security check."""

    check: str
    severity: SecuritySeverity
    sentence: str
    because: str
    try_this: str
    fix: PermissionFix | None = None

    def format_lines(self) -> list[str]:
        return [
            f"{self.severity:<8} {self.check}: {self.sentence}",
            f"         because: {self.because}",
            f"         try: {self.try_this}",
        ]


class _Finding(Struct, frozen=True, kw_only=True):
    """A finding as a check returns it, without the id of the check. The id is added later."""

    severity: SecuritySeverity
    sentence: str
    because: str
    try_this: str
    fix: PermissionFix | None = None


def build_critical(sentence: str, *, because: str, try_this: str, fix: PermissionFix | None = None) -> _Finding:
    return _Finding(severity=SecuritySeverity.CRITICAL, sentence=sentence, because=because, try_this=try_this, fix=fix)


def build_warning(sentence: str, *, because: str, try_this: str, fix: PermissionFix | None = None) -> _Finding:
    return _Finding(severity=SecuritySeverity.WARNING, sentence=sentence, because=because, try_this=try_this, fix=fix)


def build_info(sentence: str, *, because: str, try_this: str) -> _Finding:
    return _Finding(severity=SecuritySeverity.INFO, sentence=sentence, because=because, try_this=try_this)


def _join_names(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - NAMES_LISTED_MAX} more" if len(every) > NAMES_LISTED_MAX else ""
    return ", ".join(every[:NAMES_LISTED_MAX]) + more


# --- network ---


def check_listen_address(facts: SecurityFacts) -> Iterator[_Finding]:
    if not facts.listens_on or is_loopback(facts.listens_on):
        return
    behind = (facts.settings.public_url or "").startswith("https://") and bool(facts.settings.trusted_proxies)
    yield (build_warning if behind else build_critical)(
        f"the server listens on {facts.listens_on}, which other machines can reach",
        because="`server.listen.host` is set to this address"
        + ("" if behind else ", without an https proxy in front of it"),
        try_this='set host = "127.0.0.1", unless a proxy on another machine needs it',
    )


def check_public_url(facts: SecurityFacts) -> Iterator[_Finding]:
    url = facts.settings.public_url or ""
    if url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        yield build_critical(
            f"people reach the server at {url}, which is not encrypted",
            because="`server.public_url` is http: others on the network can read tokens and messages",
            try_this="put an https proxy in front of it, and set the URL to https",
        )


def check_trusted_proxies(facts: SecurityFacts) -> Iterator[_Finding]:
    wide = [each for each in facts.settings.trusted_proxies if _covers_all_addresses(each)]
    if wide:
        yield build_critical(
            f"every caller is trusted as a proxy ({_join_names(wide)})",
            because="`server.trusted_proxies` covers every address, so any caller can forge its own address",
            try_this="set it to the address of your proxy only",
        )


def _covers_all_addresses(network: str) -> bool:
    try:
        return ipaddress.ip_network(network, strict=False).prefixlen == 0
    except ValueError:
        return False


# --- commands ---


def _runs_without_sandbox(facts: SecurityFacts) -> bool:
    """Return whether the settings allow commands to run outside a sandbox."""
    sandbox = facts.settings.sandbox
    return (
        sandbox.kind is SandboxKind.OFF
        or sandbox.mode is SandboxMode.OFF
        or facts.settings.tools.exec.host is CommandLocation.HOST
    )


def _agents_that_run_code(facts: SecurityFacts) -> list[AgentAbilities]:
    return [each for each in facts.agents if each.tools_with_effect(ToolEffect.RUNS_CODE)]


def check_sandbox_on(facts: SecurityFacts) -> Iterator[_Finding]:
    sandbox = facts.settings.sandbox
    if sandbox.kind is SandboxKind.OFF or sandbox.mode is SandboxMode.OFF:
        coders = _agents_that_run_code(facts)
        key = "sandbox.kind" if sandbox.kind is SandboxKind.OFF else "sandbox.mode"
        who = f", and {_join_names(each.agent.name for each in coders)} may run them" if coders else ""
        yield (build_critical if coders else build_warning)(
            "commands of agents run without a sandbox",
            because=f'`{key} = "off"`{who}',
            try_this='set kind = "bubblewrap" and mode = "all" in [sandbox]',
        )


def check_sandbox_mode(facts: SecurityFacts) -> Iterator[_Finding]:
    sandbox = facts.settings.sandbox
    if sandbox.mode is SandboxMode.NON_MAIN and sandbox.kind is not SandboxKind.OFF:
        yield build_info(
            "commands in your own sessions run without a sandbox",
            because='`sandbox.mode = "non-main"`: untrusted text that an agent reads there can lead to a command',
            try_this='set mode = "all" in [sandbox]',
        )


def check_sandbox_available(facts: SecurityFacts) -> Iterator[_Finding]:
    if facts.probe is not None and not facts.probe.works:
        yield build_warning(
            "the sandbox does not work on this machine",
            because=f"{facts.probe.because}; each command needs an approval instead",
            try_this=facts.probe.try_this or "install bubblewrap",
        )


def check_exec_rules(facts: SecurityFacts) -> Iterator[_Finding]:
    rules = facts.settings.tools.exec
    if not _runs_without_sandbox(facts) or rules.security is CommandSecurity.DENY or not _agents_that_run_code(facts):
        return
    names = [each.agent.name for each in _agents_that_run_code(facts)]
    if rules.security is CommandSecurity.FULL and rules.ask is CommandAsk.OFF:
        yield build_critical(
            f"any command of these agents runs without a sandbox and without approval: {_join_names(names)}",
            because='`tools.exec` has security = "full" and ask = "off", and there is no sandbox',
            try_this='set security = "allowlist" and ask = "on-miss" in [tools.exec], or use a sandbox',
        )
    elif rules.ask is not CommandAsk.ALWAYS:
        yield build_warning(
            "some commands run without a sandbox and without approval",
            because="there is no sandbox, and `tools.exec.allow` allows some commands",
            try_this='use a sandbox, or set ask = "always" in [tools.exec]',
        )


def check_elevated_exec(facts: SecurityFacts) -> Iterator[_Finding]:
    if facts.settings.tools.exec.elevated is ElevatedPolicy.FULL:
        yield build_warning(
            "in runs on your behalf, commands can leave the sandbox without an approval",
            because='`tools.exec.elevated = "full"`',
            try_this='set elevated = "ask" or "off" in [tools.exec]',
        )


# --- files ---

_KIND_LABELS = {
    "home": "the data directory",
    "keys": "a key of the server",
    "settings": "the settings",
    "store": "the database",
    "logs": "the log",
    "agents": "agent directories",
    "backups": "a backup",
    "mirror": "the mirror of sessions",
}


def _build_mode_check(kind: str) -> Callable[[SecurityFacts], Iterator[_Finding]]:
    """Return a function that checks who can access the paths of one kind.

    Paths outside the data directory must be private. Paths inside it must be private if other users
    can access the data directory. Keys and settings must always be private.
    """

    def judge(facts: SecurityFacts) -> Iterator[_Finding]:
        closed = all(not each.mode & GROUP_AND_OTHERS_BITS for each in facts.protected_paths if each.kind == "home")
        for each in facts.protected_paths:
            if each.kind != kind:
                continue
            if each.uid != facts.uid:
                yield build_critical(
                    f"{each.path} belongs to another user",
                    because=f"its owner is user {each.uid}, and this check runs as user {facts.uid}",
                    try_this=f"find out why, then: chown {facts.uid} {each.path}",
                )
            elif each.mode & GROUP_AND_OTHERS_BITS and not (closed and _is_inside(each, facts)):
                yield (build_critical if kind in ("home", "keys", "settings") else build_warning)(
                    f"other users can access {each.path} ({_KIND_LABELS[kind]})",
                    because=f"its permissions are {each.mode:04o}",
                    try_this=f"chmod go= {each.path}, or retinue doctor --security --fix",
                    fix=None
                    if each.is_link
                    else PermissionFix(
                        path=each.path, mode_before=each.mode, mode_after=each.mode & ~GROUP_AND_OTHERS_BITS
                    ),
                )

    return judge


def _is_inside(path: ProtectedPath, facts: SecurityFacts) -> bool:
    return (
        path.kind not in ("home", "keys", "settings") and path.path.is_relative_to(facts.data_dir) and not path.is_link
    )


def check_data_dir_link(facts: SecurityFacts) -> Iterator[_Finding]:
    if any(each.kind == "home" and each.is_link for each in facts.protected_paths):
        yield build_warning(
            f"{facts.data_dir} is a link",
            because=f"it leads to {facts.real_data_dir}: anyone who can change the link controls the data directory",
            try_this="set RETINUE_HOME to the folder itself",
        )


def check_data_dir_synced(facts: SecurityFacts) -> Iterator[_Finding]:
    if facts.synced_by:
        yield build_warning(
            "the data directory is in a folder that another program synchronizes",
            because=f"{facts.synced_by} belongs to a program that copies files: it copies keys too, and a database "
            "that is copied while it is being written is damaged",
            try_this="move RETINUE_HOME to a local folder, and back up with `retinue backup`",
        )


# --- settings and secrets ---


def check_plaintext_secrets(facts: SecurityFacts) -> Iterator[_Finding]:
    open_files = {
        str(each.path)
        for each in facts.protected_paths
        if each.kind == "settings" and each.mode & GROUP_AND_OTHERS_BITS
    }
    for place in facts.plaintext_secrets:
        exposed = place.partition(": ")[0] in open_files
        yield (build_critical if exposed else build_warning)(
            f"{place} has a secret in plain text",
            because="anyone who reads the file or a copy of it gets the secret"
            + ("; other users can read it now" if exposed else ""),
            try_this='move it to a separate file and refer to it: { file = "/PATH" }, or { env = "NAME" }',
        )


def check_unredacted_secrets(facts: SecurityFacts) -> Iterator[_Finding]:
    if facts.unredacted_secrets:
        yield build_info(
            f"these secrets are not redacted: {_join_names(facts.unredacted_secrets)}",
            because="they are too short to be distinguished from other words, or too long",
            try_this="use longer secrets",
        )


def check_lowered_permissions(facts: SecurityFacts) -> Iterator[_Finding]:
    for name, (own, now) in sorted(facts.lowered_operations.items()):
        wide = now is PermissionLevel.RESTRICTED or own is PermissionLevel.BOSS
        yield (build_critical if wide else build_warning)(
            f"{name} is allowed for level {now}",
            because=f"`server.permission_policy` lowers it from {own}",
            try_this=f"remove {name} from [server.permission_policy]",
        )


def check_private_hosts(facts: SecurityFacts) -> Iterator[_Finding]:
    hosts = {*facts.settings.web.private_hosts, *facts.settings.sandbox.private_hosts}
    if hosts:
        yield build_info(
            f"agents can reach hosts in your own network: {_join_names(hosts)}",
            because="`private_hosts` lists them; a web page can make an agent send requests to them",
            try_this="list only the hosts that agents need, with their ports",
        )


def check_trusted_skills(facts: SecurityFacts) -> Iterator[_Finding]:
    written = {TrustedSkillSource.WORKSPACE, TrustedSkillSource.AGENT} & set(facts.settings.skills.trusted)
    if written:
        yield build_warning(
            "unapproved skills are used from folders that agents can write to",
            because=f"`skills.trusted` contains {_join_names(written)}",
            try_this="trust at most `instance` and `extra`, and approve the others",
        )


def check_trusted_webhooks(facts: SecurityFacts) -> Iterator[_Finding]:
    connectors = facts.settings.connectors.items()
    believed = [name for name, each in connectors if each.enabled and getattr(each.platform_settings, "trusted", False)]
    if believed:
        yield build_warning(
            f"content from webhooks is trusted: {_join_names(believed)}",
            because="`trusted` is set for them, so anyone who can influence their content can instruct agents",
            try_this="remove `trusted`, unless only you can influence their content",
        )


def check_direct_tool_calls(facts: SecurityFacts) -> Iterator[_Finding]:
    for name in facts.settings.tools.invoke_allow:
        spec = (facts.specs or {}).get(name)
        if name == "*" or (spec is not None and spec.effects & {ToolEffect.RUNS_CODE, ToolEffect.SENDS_OUT}):
            yield build_warning(
                f"'{name}' can be called outside any run",
                because="`tools.invoke_allow` contains it, and no conversation records such a call",
                try_this="remove it, unless a program of yours needs it",
            )


# --- people, agents, tokens ---


def check_unused_tokens(facts: SecurityFacts) -> Iterator[_Finding]:
    old = [
        each
        for each in facts.tokens
        if each.used_at is None and facts.now_ms - to_ms(each.created_at) > UNUSED_TOKEN_DAYS * DAY_MS
    ]
    if old:
        yield build_info(
            f"{format_quantity(len(old), 'token')} never used: "
            f"{_join_names(each.label or str(each.principal) for each in old)}",
            because=f"created over {UNUSED_TOKEN_DAYS} days ago",
            try_this="revoke those that are not needed: retinue token revoke ID",
        )


def check_owner_tokens(facts: SecurityFacts) -> Iterator[_Finding]:
    roles = {person.name: person.role for person in facts.people}
    for token in facts.tokens:
        owners = token.principal.kind is AddressKind.PERSON and roles.get(token.principal.name) is Role.OWNER
        if owners and token.expires_at is None and token.label != OWNER_TOKEN_LABEL:
            yield build_warning(
                f"the token '{token.label or token.id[:8]}' has the owner's rights and never expires",
                because="anyone who gets a copy of it has the owner's rights until it is revoked",
                try_this="create one for an agent or a member instead, or one that expires: --expires-in-days",
            )


def check_guests(facts: SecurityFacts) -> Iterator[_Finding]:
    names = {person.name for person in facts.people if person.role is Role.GUEST}
    shared = {name: facts.shared_with[name] for name in names if facts.shared_with.get(name)}
    if shared:
        yield build_warning(
            f"guests see shared sessions: {_join_names(f'{name} ({n})' for name, n in shared.items())}",
            because="what an agent writes in these sessions may contain information that guests should not have",
            try_this="stop sharing what is no longer needed: retinue session unshare",
        )


def check_outside_senders(facts: SecurityFacts) -> Iterator[_Finding]:
    """Yield a finding if settings give outside senders more tools than the default.

    Outside senders are guests, paired senders, people in groups, and webhooks.
    """
    tools = facts.settings.tools
    guests = [f"person:{person.name}" for person in facts.people if person.role is Role.GUEST]
    looser: list[str] = []
    if _exceeds_minimal(tools.outside_senders, without_profile=True):
        looser.append(OUTSIDE_SENDERS_KEY)
    for name, lists in tools.by_sender.items():
        outside = name.casefold().startswith(("*", "channel:")) or any(matches_glob(name, guest) for guest in guests)
        if outside and _exceeds_minimal(lists):
            looser.append(f"tools.by_sender.{name}")
    for channel, rules in tools.by_channel.items():
        looser += [f"tools.by_channel.{channel}"] if _exceeds_minimal(rules) else []
        senders = rules.by_sender.items()
        looser += [f"tools.by_channel.{channel}.by_sender.{name}" for name, lists in senders if _exceeds_minimal(lists)]
    if looser:
        yield build_warning(
            f"senders who are neither you nor a member have more than the minimal tools: {_join_names(looser)}",
            because="these settings add tools for guests, paired senders, people in groups or webhooks, who can then "
            "use the agent to read everything that the agent may read",
            try_this="remove what they do not need, or make the people members: retinue person role NAME member",
        )


def _exceeds_minimal(lists: ToolLists, *, without_profile: bool = False) -> bool:
    """Return whether these rules give an outside sender more tools than the profile `minimal`.

    Set `without_profile` if no other rule sets a profile. Rules without a profile then give more tools too.
    """
    profiles = ("minimal",) if without_profile else ("minimal", None)
    return lists.profile not in profiles or bool(lists.also_allow or lists.ask)


def check_boss_agents(facts: SecurityFacts) -> Iterator[_Finding]:
    names = [each.agent.name for each in facts.agents if each.agent.permission_level is PermissionLevel.BOSS]
    if names:
        yield build_warning(
            f"agents have your permission level: {_join_names(names)}",
            because="their `permission_level` is boss, so untrusted text that they read can lead to any operation",
            try_this="retinue agent set NAME --permission-level privileged",
        )


def check_code_for_unknown_senders(facts: SecurityFacts) -> Iterator[_Finding]:
    for each in facts.agents:
        tools = each.tools_with_effect(ToolEffect.RUNS_CODE)
        if each.public_channel and tools:
            yield (build_critical if _runs_without_sandbox(facts) else build_warning)(
                f"{each.agent.name} runs commands, and unknown senders can write to it",
                because=f"it is in the channel {each.public_channel}, and may use {_join_names(tools)} without approval"
                + (", without a sandbox" if _runs_without_sandbox(facts) else ""),
                try_this="deny these tools for the channel in [tools.by_channel], or require an approval",
            )


def check_channel_rules(facts: SecurityFacts) -> Iterator[_Finding]:
    if not _exceeds_minimal(facts.settings.tools.outside_senders, without_profile=True):
        return  # senders there have the minimal tools, whatever the agent has
    rules = facts.settings.tools.by_channel
    for agent, channels in sorted(facts.channels.items()):
        ruled = [each for each in channels if each in rules or each.partition(":")[0] in rules or "*" in rules]
        if len(ruled) < len(channels):
            yield build_warning(
                f"everyone who writes in {_join_names(set(channels) - set(ruled))} can use all tools of {agent}",
                because="no rule in [tools.by_channel] applies to these channels",
                try_this='add [tools.by_channel."*"] with a `profile` or a `deny`',
            )


def check_small_models(facts: SecurityFacts) -> Iterator[_Finding]:
    for each in facts.agents:
        tools = each.tools_with_effect(ToolEffect.READS_UNTRUSTED)
        if (
            tools
            and _runs_without_sandbox(facts)
            and (why := _explain_small_model(each.agent.model, each.agent.provider))
        ):
            yield build_critical(
                f"{each.agent.name} has a small model, reads the web, and has no sandbox",
                because=f"{each.agent.model} {why}: such models follow instructions in web pages; "
                f"the agent may use {_join_names(tools)}",
                try_this="use a sandbox, a larger model, or no web tools for this agent",
            )


def _explain_small_model(model: str, provider: str | None) -> str:
    if (provider or model.partition("/")[0]) in LOCAL_PROVIDERS:
        return "runs locally"
    sizes = [float(found) for found in _MODEL_SIZE.findall(model)]
    return f"has {max(sizes):g} billion parameters" if sizes and max(sizes) <= SMALL_MODEL_BILLIONS_MAX else ""


def check_unknown_plugins(facts: SecurityFacts) -> Iterator[_Finding]:
    known = {each.plugin or name for name, each in facts.settings.plugins.items()}
    unknown = [name for name in facts.plugins if name not in known]
    if unknown:
        yield build_warning(
            f"installed plugins that the settings do not name: {_join_names(unknown)}",
            because="they came with a package; a loaded plugin can do everything that the server can",
            try_this="name those you want in [plugins], and uninstall the others",
        )


def check_audit(facts: SecurityFacts) -> Iterator[_Finding]:
    if facts.audit_flaws:
        yield build_critical(
            "the audit log was changed",
            because="; ".join(facts.audit_flaws[:3]),
            try_this="run `retinue audit verify`, and check who can write to the database",
        )


class SecurityCheck(Struct, frozen=True, kw_only=True):
    """One security check. `ok_message` is shown if the check has no findings."""

    id: str
    ok_message: str
    evaluate: Callable[[SecurityFacts], Iterable[_Finding]]

    def findings(self, facts: SecurityFacts) -> list[SecurityFinding]:
        return [
            SecurityFinding(
                check=self.id,
                severity=each.severity,
                sentence=each.sentence,
                because=each.because,
                try_this=each.try_this,
                fix=each.fix,
            )
            for each in self.evaluate(facts)
        ]


def _build_check(id_: str, ok_message: str, evaluate: Callable[[SecurityFacts], Iterable[_Finding]]) -> SecurityCheck:
    return SecurityCheck(id=id_, ok_message=ok_message, evaluate=evaluate)


SECURITY_CHECKS: tuple[SecurityCheck, ...] = (
    _build_check("listen.beyond_loopback", "only this machine can reach the server", check_listen_address),
    _build_check("listen.plain_http", "network traffic is encrypted", check_public_url),
    _build_check("listen.any_proxy", "only your own proxies are trusted", check_trusted_proxies),
    _build_check("sandbox.off", "commands run in a sandbox", check_sandbox_on),
    _build_check("sandbox.main_off", "commands run in a sandbox in every session", check_sandbox_mode),
    _build_check("sandbox.unavailable", "the sandbox works on this machine", check_sandbox_available),
    _build_check("exec.unsandboxed", "every command runs in a sandbox or needs an approval", check_exec_rules),
    _build_check("exec.elevated", "no command leaves the sandbox without approval", check_elevated_exec),
    _build_check("files.data_directory", "only you can access the data directory", _build_mode_check("home")),
    _build_check("files.keys", "only you can access the keys", _build_mode_check("keys")),
    _build_check("files.settings", "only you can access the settings", _build_mode_check("settings")),
    _build_check("files.store", "only you can access the database", _build_mode_check("store")),
    _build_check("files.logs", "only you can access the logs", _build_mode_check("logs")),
    _build_check("files.agents", "only you can access the agent directories", _build_mode_check("agents")),
    _build_check("files.backups", "only you can access the backups", _build_mode_check("backups")),
    _build_check("files.mirror", "only you can access the mirror", _build_mode_check("mirror")),
    _build_check("data_directory.link", "the data directory is not a link", check_data_dir_link),
    _build_check("data_directory.synced", "the data directory is not synchronized", check_data_dir_synced),
    _build_check("settings.plain_secret", "no secret is in the settings", check_plaintext_secrets),
    _build_check("settings.lowered_level", "no operation has a lowered permission level", check_lowered_permissions),
    _build_check("secrets.unredacted", "every secret is redacted", check_unredacted_secrets),
    _build_check("web.private_hosts", "agents cannot reach your own network", check_private_hosts),
    _build_check("skills.trusted", "skills that agents can write need an approval", check_trusted_skills),
    _build_check("webhooks.trusted", "content from webhooks is untrusted", check_trusted_webhooks),
    _build_check("tools.direct", "tools with effects are called only in runs", check_direct_tool_calls),
    _build_check("tokens.unused", "every token is used", check_unused_tokens),
    _build_check("tokens.no_expiry", "every token of the owner expires", check_owner_tokens),
    _build_check("people.guests", "no session is shared with guests", check_guests),
    _build_check("people.outside_senders", "outside senders have the minimal tools", check_outside_senders),
    _build_check("agents.boss", "no agent has level boss", check_boss_agents),
    _build_check(
        "agents.code_for_unknown_senders",
        "unknown senders cannot write to agents that run commands",
        check_code_for_unknown_senders,
    ),
    _build_check("agents.channel_rules", "every channel has tool rules", check_channel_rules),
    _build_check("agents.small_model", "small models read the web only in a sandbox", check_small_models),
    _build_check("plugins.unknown", "the settings name every installed plugin", check_unknown_plugins),
    _build_check("audit.broken", "the audit log is unchanged", check_audit),
)


async def run_security_checks(
    context: SecurityContext, checks: Sequence[SecurityCheck] = SECURITY_CHECKS
) -> list[SecurityFinding]:
    """Perform the security checks and return all findings, the most severe first."""
    facts = await gather_security_facts(context)
    order = list(SecuritySeverity)
    found = [each for check in checks for each in check.findings(facts)]
    return sorted(found, key=lambda each: (-order.index(each.severity), each.check))


# --- fixing ---


def fix_permissions(fix: PermissionFix) -> str:
    """Remove other users' permissions on a file. Return the change as text, or "" if nothing was changed.

    Never follows a symbolic link, never changes another user's file, and never adds a permission.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        found = fix.path.lstat()
        if stat.S_ISSOCK(found.st_mode):
            return _fix_socket_permissions(fix, found)
        descriptor = os.open(fix.path, flags)
    except OSError:
        return ""
    try:
        found = os.fstat(descriptor)
        if not _can_fix(found):
            return ""
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~GROUP_AND_OTHERS_BITS)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return _describe_fix(fix.path, found)


def _fix_socket_permissions(fix: PermissionFix, status: os.stat_result) -> str:
    """Remove other users' permissions on a socket. They are changed by path, because a socket cannot be opened.

    This is safe, because only the owner can replace a file in this folder.
    """
    if not _can_fix(status):
        return ""
    os.chmod(fix.path, stat.S_IMODE(status.st_mode) & ~GROUP_AND_OTHERS_BITS)
    return _describe_fix(fix.path, status)


def _can_fix(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and bool(status.st_mode & GROUP_AND_OTHERS_BITS)


def _describe_fix(path: Path, status: os.stat_result) -> str:
    was = stat.S_IMODE(status.st_mode)
    return f"{path}: permissions changed from {was:04o} to {was & ~GROUP_AND_OTHERS_BITS:04o}"
