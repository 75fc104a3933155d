"""Security checks with severities, and fixes that are safe without asking.

Each check evaluates facts and performs no I/O. `--fix` only removes other users' file permissions;
everything else is the owner's decision.
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
from retinue.config.skills import Trusted
from retinue.config.tools import Asking, Elevated, Security, Where
from retinue.config.validators import is_loopback
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel, ToolLists
from retinue.domain.person import Role
from retinue.domain.times import to_ms
from retinue.domain.tool import Effect
from retinue.operations.server.security_facts import Abilities, Facts, Ground, Held, gather
from retinue.policy.tools.tools import OUTSIDE_KEY
from retinue.text.glob_match import matches_glob

NAMES_SHOWN_MAX = 10
UNUSED_DAYS = 30
SMALL_BILLIONS_MAX = 70
DAY_MS = 86_400_000
OTHERS = 0o077  # mode bits of group and others
OWNERS_LABEL = "owner-token"
LOCAL_PROVIDERS = frozenset({"local", "ollama", "lmstudio", "vllm", "bridge"})

_SIZE = re.compile(r"(?<![a-z0-9])(\d{1,4}(?:\.\d{1,3})?)b(?![a-z0-9])", re.I)


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Closing(Struct, frozen=True, kw_only=True):
    """File permissions of other users that can be removed safely."""

    path: Path
    was: int
    now: int


class Exposed(Struct, frozen=True, kw_only=True):
    """One finding of a security check."""

    check: str
    severity: Severity
    sentence: str
    because: str
    try_this: str
    fix: Closing | None = None

    def lines(self) -> list[str]:
        return [
            f"{self.severity:<8} {self.check}: {self.sentence}",
            f"         because: {self.because}",
            f"         try: {self.try_this}",
        ]


class _Found(Struct, frozen=True, kw_only=True):
    """A finding without the id of its check."""

    severity: Severity
    sentence: str
    because: str
    try_this: str
    fix: Closing | None = None


def critical(sentence: str, *, because: str, try_this: str, fix: Closing | None = None) -> _Found:
    return _Found(severity=Severity.CRITICAL, sentence=sentence, because=because, try_this=try_this, fix=fix)


def warning(sentence: str, *, because: str, try_this: str, fix: Closing | None = None) -> _Found:
    return _Found(severity=Severity.WARNING, sentence=sentence, because=because, try_this=try_this, fix=fix)


def info(sentence: str, *, because: str, try_this: str) -> _Found:
    return _Found(severity=Severity.INFO, sentence=sentence, because=because, try_this=try_this)


def _few(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - NAMES_SHOWN_MAX} more" if len(every) > NAMES_SHOWN_MAX else ""
    return ", ".join(every[:NAMES_SHOWN_MAX]) + more


# --- network ---


def beyond_loopback(facts: Facts) -> Iterator[_Found]:
    if not facts.listens_on or is_loopback(facts.listens_on):
        return
    behind = (facts.settings.public_url or "").startswith("https://") and bool(facts.settings.trusted_proxies)
    yield (warning if behind else critical)(
        f"the house listens on {facts.listens_on}, beyond this machine",
        because="`house.listen.host` says so" + ("" if behind else ", and no https proxy stands before it"),
        try_this='host = "127.0.0.1", unless a proxy on another machine needs it',
    )


def plain_http(facts: Facts) -> Iterator[_Found]:
    url = facts.settings.public_url or ""
    if url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        yield critical(
            f"people reach the house at {url}, which is not encrypted",
            because="`house.public_url` is http: tokens and words can be read on the way",
            try_this="put a proxy with a certificate before it, and write https",
        )


def any_proxy(facts: Facts) -> Iterator[_Found]:
    wide = [each for each in facts.settings.trusted_proxies if _is_everyone(each)]
    if wide:
        yield critical(
            f"any caller is believed to be a proxy ({_few(wide)})",
            because="`house.trusted_proxies` names every address: anyone can say who they are",
            try_this="name the address of your proxy, and no other",
        )


def _is_everyone(network: str) -> bool:
    try:
        return ipaddress.ip_network(network, strict=False).prefixlen == 0
    except ValueError:
        return False


# --- commands ---


def _is_bare(facts: Facts) -> bool:
    """Whether the settings let commands run outside a sandbox."""
    sandbox = facts.settings.sandbox
    return (
        sandbox.kind is SandboxKind.OFF
        or sandbox.mode is SandboxMode.OFF
        or facts.settings.tools.exec.host is Where.HOST
    )


def _coders(facts: Facts) -> list[Abilities]:
    return [each for each in facts.staff if each.can(Effect.RUNS_CODE)]


def sandbox_off(facts: Facts) -> Iterator[_Found]:
    sandbox = facts.settings.sandbox
    if sandbox.kind is SandboxKind.OFF or sandbox.mode is SandboxMode.OFF:
        coders = _coders(facts)
        key = "sandbox.kind" if sandbox.kind is SandboxKind.OFF else "sandbox.mode"
        who = f", and {_few(each.agent.name for each in coders)} may run some" if coders else ""
        yield (critical if coders else warning)(
            "commands of agents run without a sandbox",
            because=f'`{key} = "off"`{who}',
            try_this='kind = "bubblewrap" and mode = "all" under [sandbox]',
        )


def sandbox_main(facts: Facts) -> Iterator[_Found]:
    sandbox = facts.settings.sandbox
    if sandbox.mode is SandboxMode.NON_MAIN and sandbox.kind is not SandboxKind.OFF:
        yield info(
            "commands run bare where you sit before the session",
            because='`sandbox.mode = "non-main"`: whatever an agent reads there can reach a command',
            try_this='mode = "all" under [sandbox]',
        )


def sandbox_not_possible(facts: Facts) -> Iterator[_Found]:
    if facts.probe is not None and not facts.probe.works:
        yield warning(
            "commands cannot be confined on this machine",
            because=f"{facts.probe.because}; each of them is asked about instead",
            try_this=facts.probe.try_this or "install bubblewrap",
        )


def exec_bare(facts: Facts) -> Iterator[_Found]:
    rules = facts.settings.tools.exec
    if not _is_bare(facts) or rules.security is Security.DENY or not _coders(facts):
        return
    if rules.security is Security.FULL and rules.ask is Asking.OFF:
        yield critical(
            f"any command runs bare and unasked: {_few(each.agent.name for each in _coders(facts))}",
            because='`tools.exec` has security = "full" and ask = "off", and there is no sandbox',
            try_this='security = "allowlist" and ask = "on-miss" under [tools.exec], or a sandbox',
        )
    elif rules.ask is not Asking.ALWAYS:
        yield warning(
            "some commands run bare and unasked",
            because="there is no sandbox, and `tools.exec.allow` names commands that pass",
            try_this='a sandbox, or ask = "always" under [tools.exec]',
        )


def elevated(facts: Facts) -> Iterator[_Found]:
    if facts.settings.tools.exec.elevated is Elevated.FULL:
        yield warning(
            "an agent that works for you leaves the sandbox whenever it asks to",
            because='`tools.exec.elevated = "full"`',
            try_this='elevated = "ask", or "off"',
        )


# --- files ---

_WHAT = {
    "home": "the house",
    "keys": "a key of the house",
    "settings": "the settings",
    "store": "what the house keeps",
    "logs": "the log",
    "agents": "homes of agents",
    "backups": "a backup",
    "mirror": "the mirror of sessions",
}


def _modes(kind: str) -> Callable[[Facts], Iterator[_Found]]:
    """Return a check of the permissions of one kind of path.

    Inside a private data directory only keys and settings must be private themselves. Outside it
    every path must.
    """

    def judge(facts: Facts) -> Iterator[_Found]:
        closed = all(not each.mode & OTHERS for each in facts.held if each.kind == "home")
        for each in facts.held:
            if each.kind != kind:
                continue
            if each.uid != facts.uid:
                yield critical(
                    f"{each.path} belongs to someone else",
                    because=f"its owner is user {each.uid}, and the house is looked at by user {facts.uid}",
                    try_this=f"chown {facts.uid} {each.path}, once you know how that came about",
                )
            elif each.mode & OTHERS and not (closed and _is_inside(each, facts)):
                yield (critical if kind in ("home", "keys", "settings") else warning)(
                    f"others than you can reach {each.path}, {_WHAT[kind]}",
                    because=f"its permissions are {each.mode:04o}",
                    try_this=f"chmod go= {each.path}, or retinue doctor --security --fix",
                    fix=None if each.is_link else Closing(path=each.path, was=each.mode, now=each.mode & ~OTHERS),
                )

    return judge


def _is_inside(each: Held, facts: Facts) -> bool:
    return each.kind not in ("home", "keys", "settings") and each.path.is_relative_to(facts.home) and not each.is_link


def home_link(facts: Facts) -> Iterator[_Found]:
    if any(each.kind == "home" and each.is_link for each in facts.held):
        yield warning(
            f"{facts.home} is a link",
            because=f"it leads to {facts.real_home}: whoever can change the link decides what the house is",
            try_this="set RETINUE_HOME to the folder itself",
        )


def home_synced(facts: Facts) -> Iterator[_Found]:
    if facts.synced_by:
        yield warning(
            "the house lies in a folder that is carried elsewhere",
            because=f"{facts.synced_by} belongs to a program that copies files; keys go with them, and a store that is "
            "copied while it is written is damaged",
            try_this="move RETINUE_HOME to a folder of this machine alone, and back up with `retinue backup`",
        )


# --- settings and secrets ---


def plain_secret(facts: Facts) -> Iterator[_Found]:
    open_files = {str(each.path) for each in facts.held if each.kind == "settings" and each.mode & OTHERS}
    for place in facts.plain:
        exposed = place.partition(": ")[0] in open_files
        yield (critical if exposed else warning)(
            f"{place} holds a secret in plain text",
            because="whoever reads the file, or a copy of it, has it" + ("; others can read it now" if exposed else ""),
            try_this='put it into a file of its own and name that: { file = "/PATH" }, or { env = "NAME" }',
        )


def short_secret(facts: Facts) -> Iterator[_Found]:
    if facts.unmasked:
        yield info(
            f"these secrets are not masked where they come up: {_few(facts.unmasked)}",
            because="they are too short to be told from other words, or too long",
            try_this="use longer ones",
        )


def lowered(facts: Facts) -> Iterator[_Found]:
    for name, (own, now) in sorted(facts.lowered.items()):
        wide = now is PermissionLevel.RESTRICTED or own is PermissionLevel.BOSS
        yield (critical if wide else warning)(
            f"{name} may be asked for by {now} callers",
            because=f"`house.permission_policy` says so; it needs {own} by itself",
            try_this=f"take {name} out of [house.permission_policy]",
        )


def private_hosts(facts: Facts) -> Iterator[_Found]:
    hosts = {*facts.settings.web.private_hosts, *facts.settings.sandbox.private_hosts}
    if hosts:
        yield info(
            f"agents reach hosts of your own network: {_few(hosts)}",
            because="`private_hosts` names them; a page can make an agent ask them anything",
            try_this="name only what agents need, with its port",
        )


def trusted_skills(facts: Facts) -> Iterator[_Found]:
    written = {Trusted.WORKSPACE, Trusted.AGENT} & set(facts.settings.skills.trusted)
    if written:
        yield warning(
            "skills are used that nobody has looked at, from where agents can write",
            because=f"`skills.trusted` names {_few(written)}",
            try_this="trust `house` and `extra` at most, and approve the others",
        )


def trusted_requests(facts: Facts) -> Iterator[_Found]:
    connectors = facts.settings.connectors.items()
    believed = [name for name, each in connectors if each.enabled and getattr(each.own, "trusted", False)]
    if believed:
        yield warning(
            f"what comes in by webhooks is believed: {_few(believed)}",
            because="`trusted` is set for them: whoever can write into what is sent there tells agents what to do",
            try_this="take `trusted` out, unless nobody but you can write into it",
        )


def direct_calls(facts: Facts) -> Iterator[_Found]:
    for name in facts.settings.tools.invoke_allow:
        spec = (facts.specs or {}).get(name)
        if name == "*" or (spec is not None and spec.effects & {Effect.RUNS_CODE, Effect.SENDS_OUT}):
            yield warning(
                f"'{name}' can be called from outside of any run",
                because="`tools.invoke_allow` names it: no record of a conversation stands behind such a call",
                try_this="take it out, unless a program of yours needs it",
            )


# --- people, agents, tokens ---


def unused_tokens(facts: Facts) -> Iterator[_Found]:
    old = [
        each
        for each in facts.tokens
        if each.used_at is None and facts.now_ms - to_ms(each.created_at) > UNUSED_DAYS * DAY_MS
    ]
    if old:
        yield info(
            f"{len(old)} tokens were never used: {_few(each.label or str(each.principal) for each in old)}",
            because=f"they were made over {UNUSED_DAYS} days ago",
            try_this="retinue token revoke, for each that nobody misses",
        )


def wide_tokens(facts: Facts) -> Iterator[_Found]:
    roles = {person.name: person.role for person in facts.people}
    for token in facts.tokens:
        owners = token.principal.kind is AddressKind.PERSON and roles.get(token.principal.name) is Role.OWNER
        if owners and token.expires_at is None and token.label != OWNERS_LABEL:
            yield warning(
                f"the token '{token.label or token.id[:8]}' can do whatever the owner can, for good",
                because="it is the owner's, and has no end",
                try_this="make one for an agent or a member instead, or one that ends: --expires-in-days",
            )


def guests(facts: Facts) -> Iterator[_Found]:
    names = {person.name for person in facts.people if person.role is Role.GUEST}
    shared = {name: facts.shared_with[name] for name in names if facts.shared_with.get(name)}
    if shared:
        yield warning(
            f"guests see sessions that were shared with them: {_few(f'{name} ({n})' for name, n in shared.items())}",
            because="what an agent says there may hold what a guest is not to know",
            try_this="take back what is no longer needed: retinue session unshare",
        )


def outside_senders(facts: Facts) -> Iterator[_Found]:
    """Report settings that give outside senders more tools than the default.

    Outside senders are guests, paired senders, people in groups, and webhooks.
    """
    tools = facts.settings.tools
    guests = [f"person:{person.name}" for person in facts.people if person.role is Role.GUEST]
    looser: list[str] = []
    if _is_looser(tools.outside_senders, without_profile=True):
        looser.append(OUTSIDE_KEY)
    for name, lists in tools.by_sender.items():
        outside = name.casefold().startswith(("*", "channel:")) or any(matches_glob(name, guest) for guest in guests)
        if outside and _is_looser(lists):
            looser.append(f"tools.by_sender.{name}")
    for channel, rules in tools.by_channel.items():
        looser += [f"tools.by_channel.{channel}"] if _is_looser(rules) else []
        senders = rules.by_sender.items()
        looser += [f"tools.by_channel.{channel}.by_sender.{name}" for name, lists in senders if _is_looser(lists)]
    if looser:
        yield warning(
            f"senders who are neither you nor a member have more than the minimal tools: {_few(looser)}",
            because="these settings add tools for guests, paired senders, people in groups or webhooks, and the agent "
            "reads with them whatever it may read itself",
            try_this="remove what they do not need, or make the people members: retinue person role NAME member",
        )


def _is_looser(lists: ToolLists, *, without_profile: bool = False) -> bool:
    """Whether these rules give an outside sender more than the profile `minimal`.

    `without_profile`: a missing profile counts too, because no other rule sets one.
    """
    profiles = ("minimal",) if without_profile else ("minimal", None)
    return lists.profile not in profiles or bool(lists.also_allow or lists.ask)


def bosses(facts: Facts) -> Iterator[_Found]:
    names = [each.agent.name for each in facts.staff if each.agent.permission_level is PermissionLevel.BOSS]
    if names:
        yield warning(
            f"agents may ask for everything that you may: {_few(names)}",
            because="their `permission_level` is boss; whatever they read can ask through them",
            try_this="retinue agent set NAME --permission-level privileged",
        )


def code_for_strangers(facts: Facts) -> Iterator[_Found]:
    for each in facts.staff:
        tools = each.can(Effect.RUNS_CODE)
        if each.strangers and tools:
            yield (critical if _is_bare(facts) else warning)(
                f"{each.agent.name} runs commands, and strangers can write to it",
                because=f"it is in the room {each.strangers}, and may use {_few(tools)} unasked"
                + (", without a sandbox" if _is_bare(facts) else ""),
                try_this="deny those tools for that room under [tools.by_channel], or have them asked about",
            )


def open_rooms(facts: Facts) -> Iterator[_Found]:
    if not _is_looser(facts.settings.tools.outside_senders, without_profile=True):
        return  # senders there have the minimal tools, whatever the agent has
    rules = facts.settings.tools.by_channel
    for agent, rooms in sorted(facts.rooms.items()):
        ruled = [room for room in rooms if room in rules or room.partition(":")[0] in rules or "*" in rules]
        if len(ruled) < len(rooms):
            yield warning(
                f"whoever writes in {_few(set(rooms) - set(ruled))} may have done all that {agent} can",
                because="no rule under [tools.by_channel] is for it",
                try_this='[tools.by_channel."*"] with a `profile` or a `deny`',
            )


def small_models(facts: Facts) -> Iterator[_Found]:
    for each in facts.staff:
        tools = each.can(Effect.READS_UNTRUSTED)
        if tools and _is_bare(facts) and (why := _is_small(each.agent.model, each.agent.provider)):
            yield critical(
                f"{each.agent.name} thinks with a small model, reads the web, and has no sandbox",
                because=f"{each.agent.model} {why}: such models do what a page tells them; it may use {_few(tools)}",
                try_this="a sandbox, a larger model, or no web tools for it",
            )


def _is_small(model: str, provider: str | None) -> str:
    if (provider or model.partition("/")[0]) in LOCAL_PROVIDERS:
        return "runs on a machine of your own"
    sizes = [float(found) for found in _SIZE.findall(model)]
    return f"has {max(sizes):g} billion parameters" if sizes and max(sizes) <= SMALL_BILLIONS_MAX else ""


def unknown_plugins(facts: Facts) -> Iterator[_Found]:
    known = {each.plugin or name for name, each in facts.settings.plugins.items()}
    unknown = [name for name in facts.plugins if name not in known]
    if unknown:
        yield warning(
            f"plug-ins are installed that your settings do not name: {_few(unknown)}",
            because="they came with some package; a plug-in can do whatever the house can, once it is loaded",
            try_this="name those you want under [plugins], and uninstall the others",
        )


def broken_audit(facts: Facts) -> Iterator[_Found]:
    if facts.flaws:
        yield critical(
            "the audit is not as it was written",
            because="; ".join(facts.flaws[:3]),
            try_this="retinue audit verify, and a look at who can write to the store",
        )


class SecurityCheck(Struct, frozen=True, kw_only=True):
    """`ok_message` is shown if there are no findings."""

    id: str
    looks_at: str
    judge: Callable[[Facts], Iterable[_Found]]

    def findings(self, facts: Facts) -> list[Exposed]:
        return [
            Exposed(
                check=self.id,
                severity=each.severity,
                sentence=each.sentence,
                because=each.because,
                try_this=each.try_this,
                fix=each.fix,
            )
            for each in self.judge(facts)
        ]


def _check(id_: str, looks_at: str, judge: Callable[[Facts], Iterable[_Found]]) -> SecurityCheck:
    return SecurityCheck(id=id_, looks_at=looks_at, judge=judge)


CHECKS: tuple[SecurityCheck, ...] = (
    _check("listen.beyond-loopback", "only this machine can reach it", beyond_loopback),
    _check("listen.plain-http", "what goes over the network is encrypted", plain_http),
    _check("listen.any-proxy", "only proxies of yours are believed", any_proxy),
    _check("sandbox.off", "commands are confined", sandbox_off),
    _check("sandbox.main-bare", "commands are confined in every session", sandbox_main),
    _check("sandbox.not-possible", "commands can be confined here", sandbox_not_possible),
    _check("exec.bare", "no command runs bare and unasked", exec_bare),
    _check("exec.elevated", "no command leaves the sandbox unasked", elevated),
    _check("files.home", "the home is the owner's alone", _modes("home")),
    _check("files.keys", "keys are the owner's alone", _modes("keys")),
    _check("files.settings", "settings are the owner's alone", _modes("settings")),
    _check("files.store", "the store is the owner's alone", _modes("store")),
    _check("files.logs", "logs are the owner's alone", _modes("logs")),
    _check("files.agents", "homes of agents are the owner's alone", _modes("agents")),
    _check("files.backups", "backups are the owner's alone", _modes("backups")),
    _check("files.mirror", "the mirror is the owner's alone", _modes("mirror")),
    _check("home.link", "the home is no link", home_link),
    _check("home.synced", "the home is on this machine alone", home_synced),
    _check("settings.plain-secret", "no secret stands in the settings", plain_secret),
    _check("settings.lowered", "operations need what they need", lowered),
    _check("secrets.unmasked", "every secret is masked where it comes up", short_secret),
    _check("web.private-hosts", "agents reach nothing of your own network", private_hosts),
    _check("skills.trusted", "skills of agents are looked at", trusted_skills),
    _check("webhooks.trusted", "requests from elsewhere are words from outside", trusted_requests),
    _check("tools.direct", "tools with effects are used in runs alone", direct_calls),
    _check("tokens.unused", "every token is used", unused_tokens),
    _check("tokens.wide", "no token is the owner's for good", wide_tokens),
    _check("people.guests", "guests have nothing of their own", guests),
    _check("people.outside-senders", "outside senders have the minimal tools", outside_senders),
    _check("agents.boss", "no agent may ask for all", bosses),
    _check("agents.code-for-strangers", "no stranger writes to who runs commands", code_for_strangers),
    _check("agents.open-rooms", "every room has its rules", open_rooms),
    _check("agents.small-model", "small models read the web in a sandbox alone", small_models),
    _check("plugins.unknown", "every plug-in is one you named", unknown_plugins),
    _check("audit.broken", "the audit is as it was written", broken_audit),
)


async def examine(ground: Ground, checks: Sequence[SecurityCheck] = CHECKS) -> list[Exposed]:
    """Return all findings, most severe first."""
    facts = await gather(ground)
    order = list(Severity)
    found = [each for check in checks for each in check.findings(facts)]
    return sorted(found, key=lambda each: (-order.index(each.severity), each.check))


# --- fixing ---


def close(closing: Closing) -> str:
    """Remove other users' permissions and return the change as text; empty if nothing changed.

    Never follows a symbolic link, never changes another user's file, and never adds a permission.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        found = closing.path.lstat()
        if stat.S_ISSOCK(found.st_mode):
            return _close_socket(closing, found)
        descriptor = os.open(closing.path, flags)
    except OSError:
        return ""
    try:
        found = os.fstat(descriptor)
        if not _may_close(found):
            return ""
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~OTHERS)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return _closed(closing.path, found)


def _close_socket(closing: Closing, found: os.stat_result) -> str:
    """Change a socket by its path, because it cannot be opened.

    This is safe: only the owner can replace a file in our folder.
    """
    if not _may_close(found):
        return ""
    os.chmod(closing.path, stat.S_IMODE(found.st_mode) & ~OTHERS)
    return _closed(closing.path, found)


def _may_close(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and bool(found.st_mode & OTHERS)


def _closed(path: Path, found: os.stat_result) -> str:
    was = stat.S_IMODE(found.st_mode)
    return f"{path}: permissions were {was:04o}, and are {was & ~OTHERS:04o}"
