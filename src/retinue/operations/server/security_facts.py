"""Gathers the facts about the server that the security checks evaluate."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from msgspec import Struct, field

from retinue.config import Settings
from retinue.config import examine_configuration as examine_settings
from retinue.config.sandbox import SandboxKind
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.decision import DecisionKind
from retinue.domain.errors import RetinueError
from retinue.domain.person import Person, Requester
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.operations.known_secrets import SECRET_NAME, collect_secrets
from retinue.operations.known_secrets import collect_secret_values as secrets_in
from retinue.policy.access.operation_permissions import override_levels
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.sandbox.base import SandboxProbe
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.store.agents import agents, audit
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.core.database_rename import FORMER_NAME, STORE_NAME
from retinue.store.people import people
from retinue.store.people.tokens import IS_VALID, token_from_row
from retinue.text.redaction import Redactor, redact_patterns
from retinue.tools.toolbox import Toolbox

PLUGIN_ENTRY_POINT_GROUP = "retinue.plugins"
PATHS_PER_KIND_MAX = 2_000  # per kind
TOKENS_MAX = 10_000
SETTINGS_BYTES_MAX = 1024 * 1024
SETTINGS_DEPTH_MAX = 20

# Folder names of file synchronization programs, and the marker files that they leave in a folder.
SYNC_FOLDER_NAMES = re.compile(
    r"dropbox.*|onedrive.*|google ?drive.*|my drive|icloud ?drive|mobile documents|nextcloud|owncloud|syncthing"
    r"|pcloud.*|seafile|mega|box sync|creative cloud files",
    re.I,
)
SYNC_MARKER_FILES = (".dropbox", ".dropbox.cache", ".stfolder", ".sync", ".nextcloudsync.log", ".owncloudsync.log")


class SecurityContext(Struct, frozen=True, kw_only=True):
    """The parts of the server that the security checks can examine.

    Without a running server, `toolbox` is None. If the store cannot be opened, `store` is None.
    """

    data_dir: Path
    environment: Mapping[str, str]
    now: datetime
    store: Store | None = None
    store_error: RetinueError | None = None  # why the store could not be opened
    toolbox: Toolbox | None = None
    is_quick: bool = False  # skip reading the whole audit log, and starting processes


class ProtectedPath(Struct, frozen=True, kw_only=True):
    """A file or folder that only the owner may access. `kind` selects the check for it."""

    kind: str
    path: Path
    mode: int
    uid: int
    is_folder: bool = False
    is_link: bool = False


class AgentAbilities(Struct, frozen=True, kw_only=True):
    """One agent, and the tools that it may use without approval, with their effects."""

    agent: Agent
    allowed_tools: Mapping[str, frozenset[ToolEffect]]
    public_channel: str = ""  # channel through which unknown senders reach the agent, or ""

    def tools_with_effect(self, effect: ToolEffect) -> tuple[str, ...]:
        return tuple(sorted(name for name, effects in self.allowed_tools.items() if effect in effects))


class SecurityFacts(Struct, frozen=True, kw_only=True):
    """Facts for the security checks. A fact that could not be gathered is None or empty."""

    data_dir: Path
    real_data_dir: Path
    uid: int
    now_ms: int
    settings: Settings
    listens_on: str  # empty: no TCP port
    protected_paths: tuple[ProtectedPath, ...]
    synced_by: str
    plaintext_secrets: tuple[str, ...]  # settings with a secret in plain text, as FILE: KEY
    unredacted_secrets: frozenset[str]
    probe: SandboxProbe | None
    agents: tuple[AgentAbilities, ...]
    people: tuple[Person, ...]
    shared_with: Mapping[str, int]
    tokens: tuple[Token, ...]
    channels: Mapping[str, tuple[str, ...]]  # by agent: the channels in which other people write to the agent
    plugins: tuple[str, ...]
    lowered_operations: Mapping[str, tuple[PermissionLevel, PermissionLevel]]  # by operation: default and lowered level
    audit_flaws: tuple[str, ...]
    specs: Mapping[str, ToolSpec] | None


async def gather_security_facts(context: SecurityContext) -> SecurityFacts:
    examined = await asyncio.to_thread(examine_settings, context.environment)
    settings = examined.configuration.settings
    stored = _StoredFacts()
    if context.store is not None:
        stored = await context.store.scan(
            partial(_read_stored_facts, now_ms=to_ms(context.now), with_audit=not context.is_quick)
        )
        secrets = await collect_secrets(context.store, settings, context.environment)
    else:
        secrets = await asyncio.to_thread(secrets_in, settings, [], context.environment)
    unmasked = (await asyncio.to_thread(Redactor, secrets)).unredacted_names
    toolbox = context.toolbox
    files = examined.configuration.files
    held, plain = await asyncio.to_thread(
        lambda: (tuple(_find_protected_paths(context.data_dir, settings, files)), tuple(_find_plaintext_secrets(files)))
    )
    return SecurityFacts(
        data_dir=context.data_dir,
        real_data_dir=Path(os.path.realpath(context.data_dir)),
        uid=os.getuid(),
        now_ms=to_ms(context.now),
        settings=settings,
        listens_on=_listen_host(settings, context.environment),
        protected_paths=held,
        synced_by=_find_sync_folder(context.data_dir),
        plaintext_secrets=plain,
        unredacted_secrets=unmasked,
        probe=await _probe_sandbox(settings, context),
        agents=tuple(_find_abilities(each, toolbox, stored) for each in stored.agents),
        people=stored.people,
        shared_with=stored.shared_with,
        tokens=stored.tokens,
        channels=stored.channels,
        plugins=tuple(sorted({each.name for each in entry_points(group=PLUGIN_ENTRY_POINT_GROUP)})),
        lowered_operations=_find_lowered_operations(settings),
        audit_flaws=stored.audit_flaws,
        specs={spec.name: spec for spec in toolbox.specs} if toolbox is not None else None,
    )


# --- store ---


class _StoredFacts(Struct, frozen=True, kw_only=True):
    agents: tuple[Agent, ...] = ()
    people: tuple[Person, ...] = ()
    shared_with: Mapping[str, int] = field(default_factory=dict[str, int])
    tokens: tuple[Token, ...] = ()
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    audit_flaws: tuple[str, ...] = ()


_select_shares = sa.select(t.session_shares.c.person, sa.func.count().label("n")).group_by(t.session_shares.c.person)
_select_tokens = (
    sa.select(t.tokens)
    .where(IS_VALID, t.tokens.c.kind == TokenKind.TOKEN.value)
    .order_by(t.tokens.c.id)
    .limit(TOKENS_MAX)
)
_select_channels = (
    sa.select(t.sessions.c.agent, t.sessions.c.origin_key)
    .where(t.sessions.c.origin_kind == "chat", t.sessions.c.deleted_ms.is_(None))
    .order_by(t.sessions.c.agent, t.sessions.c.origin_key)
    .limit(PATHS_PER_KIND_MAX)
)


def _read_stored_facts(conn: sa.Connection, *, now_ms: int, with_audit: bool) -> _StoredFacts:
    rooms: dict[str, list[str]] = {}
    for row in conn.execute(_select_channels):
        rooms.setdefault(row.agent, []).append(row.origin_key)
    found = audit.verify(conn).flaws if with_audit else ()
    return _StoredFacts(
        agents=tuple(agents.list_all(conn)),
        people=tuple(people.list_all(conn)),
        shared_with={row.person: row.n for row in conn.execute(_select_shares)},
        tokens=tuple(token_from_row(row) for row in conn.execute(_select_tokens, {"now": now_ms})),
        channels={agent: tuple(every) for agent, every in rooms.items()},
        audit_flaws=tuple(f"{flaw.chain[:8] or 'server'} entry {flaw.position}: {flaw.sentence}" for flaw in found),
    )


# --- agents ---


def _find_abilities(agent: Agent, toolbox: Toolbox | None, stored_facts: _StoredFacts) -> AgentAbilities:
    """Return the tools that an agent may use for an unknown sender in its first channel.

    If the agent has no channel, return the tools that it may use in a terminal. Without a toolbox, the
    tools are unknown.
    """
    channels = stored_facts.channels.get(agent.name, ())
    if toolbox is None:
        return AgentAbilities(agent=agent, allowed_tools={}, public_channel=channels[0] if channels else "")
    where = ToolPolicyContext()
    if channels:
        stranger = Address(AddressKind.CHANNEL, *channels[0].removeprefix("channel:").split(":", 1))
        where = ToolPolicyContext(sender=stranger, requesters=(Requester(stranger),), channel=stranger.channel)
    chain = toolbox.rule_chain(agent, where)
    free = {spec.name: spec.effects for spec in toolbox.specs if chain.decide(spec).kind is DecisionKind.ALLOW}
    return AgentAbilities(agent=agent, allowed_tools=free, public_channel=channels[0] if channels else "")


def _find_lowered_operations(settings: Settings) -> dict[str, tuple[PermissionLevel, PermissionLevel]]:
    from retinue.operations.catalog import OPERATIONS  # circular import: the catalog contains the doctor

    order = list(PermissionLevel)
    own = {name: operation.permission for name, operation in OPERATIONS.items()}
    return {
        name: (own[name], level)
        for name, level in override_levels({}, settings.permission_policy).items()
        if name in own and order.index(level) < order.index(own[name])
    }


# --- machine ---


async def _probe_sandbox(settings: Settings, context: SecurityContext) -> SandboxProbe | None:
    """Return whether commands can run in bubblewrap. Containers are not checked here, but when the server starts."""
    if context.is_quick or settings.sandbox.kind is not SandboxKind.BUBBLEWRAP:
        return None
    with tempfile.TemporaryDirectory(prefix="retinue-probe-") as folder:
        return await BubblewrapSandbox(folder=Path(folder)).probe()


def _listen_host(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the listen address. `RETINUE_LISTEN` overrides the settings, as it does at startup."""
    listen = environment.get("RETINUE_LISTEN", "")
    if listen:
        return "" if listen == "off" else listen.rpartition(":")[0].strip("[]")
    return settings.listen.host if settings.listen.enabled else ""


def _find_sync_folder(data_dir: Path) -> str:
    real = Path(os.path.realpath(data_dir))
    for place in (real, *real.parents):
        if SYNC_FOLDER_NAMES.fullmatch(place.name):
            return str(place)
        found = next((mark for mark in SYNC_MARKER_FILES if (place / mark).exists()), None)
        if found is not None:
            return str(place / found)
    return ""


# --- files ---


def _find_protected_paths(data_dir: Path, settings: Settings, files: Sequence[Path]) -> Iterator[ProtectedPath]:
    yield from _stat_path("home", data_dir)
    for name in ("owner-token", "lock", "retinue.sock"):
        yield from _stat_path("keys", data_dir / name)
    yield from _stat_tree("keys", data_dir / "keys")
    for path in files:
        yield from _stat_path("settings", path)
    for name in (STORE_NAME, FORMER_NAME):
        for suffix in ("", "-wal", "-shm"):
            yield from _stat_path("store", data_dir / f"{name}{suffix}")
    yield from _stat_tree("logs", data_dir / "logs")
    yield from _stat_path("store", data_dir / "files")
    yield from _stat_path("agents", data_dir / "agents")
    yield from _stat_path("agents", data_dir / "processes")
    yield from _stat_path("backups", data_dir / "backups")
    yield from _stat_children("backups", data_dir / "backups")
    if settings.mirror.enabled:
        yield from _stat_path("mirror", settings.mirror.folder or data_dir / "mirror")


def _stat_path(kind: str, path: Path) -> Iterator[ProtectedPath]:
    try:
        found = path.lstat()
        is_link = stat.S_ISLNK(found.st_mode)
        if is_link:
            found = path.stat()
    except OSError:
        return
    yield ProtectedPath(
        kind=kind,
        path=path,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        is_folder=stat.S_ISDIR(found.st_mode),
        is_link=is_link,
    )


def _stat_children(kind: str, folder: Path) -> Iterator[ProtectedPath]:
    try:
        every = sorted(folder.iterdir())[:PATHS_PER_KIND_MAX]
    except OSError:
        return
    for path in every:
        yield from _stat_path(kind, path)


def _stat_tree(kind: str, folder: Path, depth: int = 3) -> Iterator[ProtectedPath]:
    yield from _stat_path(kind, folder)
    for each in _stat_children(kind, folder):
        if each.is_folder and not each.is_link and depth:
            yield from _stat_tree(kind, each.path, depth - 1)
        else:
            yield each


# --- secrets in plain text ---


def _find_plaintext_secrets(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        try:
            with path.open("rb") as file:
                table = tomllib.loads(file.read(SETTINGS_BYTES_MAX).decode())
        except (OSError, ValueError):  # the doctor's settings check reports it
            continue
        yield from (f"{path}: {key}" for key in find_secret_keys(table))


def find_secret_keys(value: Any, key: str = "", depth: int = SETTINGS_DEPTH_MAX) -> Iterator[str]:
    """Yield the keys of a settings file whose values are, or look like, secrets."""
    if depth == 0:
        return
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            yield from find_secret_keys(each, f"{key}.{name}" if key else name, depth - 1)
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[Any]", value)):
            yield from find_secret_keys(each, f"{key}.{number}", depth - 1)
    elif isinstance(value, str) and value and _is_secret(key, value):
        yield key


_PASSWORD_IN_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^\s/@:]{0,200}:[^\s/@]{1,200}@", re.I)
_LOCATION_KEYS = frozenset({"env", "file"})  # last part of a key that names where a secret is stored


def _is_secret(key: str, value: str) -> bool:
    last = key.rpartition(".")[2]
    if last in _LOCATION_KEYS:
        return redact_patterns(value) != value
    return (
        redact_patterns(value) != value
        or bool(_PASSWORD_IN_URL.match(value))
        or SECRET_NAME.fullmatch(last) is not None
    )
