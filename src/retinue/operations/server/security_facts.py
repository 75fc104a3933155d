"""Gather the facts that `operations/server/security` evaluates."""

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
from retinue.config import examine as examine_settings
from retinue.config.sandbox import SandboxKind
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.decision import Verdict
from retinue.domain.errors import RetinueError
from retinue.domain.person import Person, Requester
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind
from retinue.domain.tool import Effect, ToolSpec
from retinue.operations.known_secrets import TELLING, known_secrets
from retinue.operations.known_secrets import gather as secrets_in
from retinue.policy.tools.tools import Circumstances
from retinue.sandbox.base import Probe
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.store.agents import agents, audit
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.people import people
from retinue.store.people.tokens import VALID, token_of
from retinue.text.redaction import Masks, by_shape
from retinue.tools.toolbox import Toolbox

PLUGIN_GROUP = "retinue.plugins"
FILES_MAX = 2_000  # per kind
TOKENS_MAX = 10_000
SETTINGS_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 20

# Folder names of file synchronization programs, and the marker files that they leave in a folder.
SYNCED_NAMES = re.compile(
    r"dropbox.*|onedrive.*|google ?drive.*|my drive|icloud ?drive|mobile documents|nextcloud|owncloud|syncthing"
    r"|pcloud.*|seafile|mega|box sync|creative cloud files",
    re.I,
)
SYNCED_MARKS = (".dropbox", ".dropbox.cache", ".stfolder", ".sync", ".nextcloudsync.log", ".owncloudsync.log")


class Ground(Struct, frozen=True, kw_only=True):
    """What the security checks can access.

    Without a running server there is no toolbox. A damaged instance may have no store.
    """

    home: Path
    environment: Mapping[str, str]
    now: datetime
    store: Store | None = None
    trouble: RetinueError | None = None  # why the store could not be opened
    toolbox: Toolbox | None = None
    quick: bool = False  # skip reading the whole audit, and starting processes


class Held(Struct, frozen=True, kw_only=True):
    """A file or folder that must be private to the owner. `kind` selects its check."""

    kind: str
    path: Path
    mode: int
    uid: int
    is_folder: bool = False
    is_link: bool = False


class Abilities(Struct, frozen=True, kw_only=True):
    """One agent, and the tools that it may use without approval, with their effects."""

    agent: Agent
    free: Mapping[str, frozenset[Effect]]
    strangers: str = ""  # channel through which unknown senders reach it; empty: none

    def can(self, effect: Effect) -> tuple[str, ...]:
        return tuple(sorted(name for name, effects in self.free.items() if effect in effects))


class Facts(Struct, frozen=True, kw_only=True):
    """None or an empty value where a fact could not be gathered."""

    home: Path
    real_home: Path
    uid: int
    now_ms: int
    settings: Settings
    listens_on: str  # empty: no TCP port
    held: tuple[Held, ...]
    synced_by: str
    plain: tuple[str, ...]  # settings with a secret in plain text, as FILE: KEY
    unmasked: frozenset[str]
    probe: Probe | None
    staff: tuple[Abilities, ...]
    people: tuple[Person, ...]
    shared_with: Mapping[str, int]
    tokens: tuple[Token, ...]
    rooms: Mapping[str, tuple[str, ...]]  # by agent: the channels in which others write to it
    plugins: tuple[str, ...]
    lowered: Mapping[str, tuple[PermissionLevel, PermissionLevel]]  # by operation: default and lowered level
    flaws: tuple[str, ...]
    specs: Mapping[str, ToolSpec] | None


async def gather(ground: Ground) -> Facts:
    examined = await asyncio.to_thread(examine_settings, ground.environment)
    settings = examined.configuration.settings
    stored = _Stored()
    if ground.store is not None:
        stored = await ground.store.scan(partial(_look, now_ms=to_ms(ground.now), deep=not ground.quick))
        secrets = await known_secrets(ground.store, settings, ground.environment)
    else:
        secrets = await asyncio.to_thread(secrets_in, settings, [], ground.environment)
    unmasked = (await asyncio.to_thread(Masks, secrets)).unmasked
    toolbox = ground.toolbox
    files = examined.configuration.files
    held, plain = await asyncio.to_thread(lambda: (tuple(_held(ground.home, settings, files)), tuple(_plain(files))))
    return Facts(
        home=ground.home,
        real_home=Path(os.path.realpath(ground.home)),
        uid=os.getuid(),
        now_ms=to_ms(ground.now),
        settings=settings,
        listens_on=_listens_on(settings, ground.environment),
        held=held,
        synced_by=_synced_by(ground.home),
        plain=plain,
        unmasked=unmasked,
        probe=await _probe(settings, ground),
        staff=tuple(_abilities(each, toolbox, stored) for each in stored.staff),
        people=stored.people,
        shared_with=stored.shared_with,
        tokens=stored.tokens,
        rooms=stored.rooms,
        plugins=tuple(sorted({each.name for each in entry_points(group=PLUGIN_GROUP)})),
        lowered=_lowered(settings),
        flaws=stored.flaws,
        specs={spec.name: spec for spec in toolbox.specs} if toolbox is not None else None,
    )


# --- store ---


class _Stored(Struct, frozen=True, kw_only=True):
    staff: tuple[Agent, ...] = ()
    people: tuple[Person, ...] = ()
    shared_with: Mapping[str, int] = field(default_factory=dict[str, int])
    tokens: tuple[Token, ...] = ()
    rooms: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    flaws: tuple[str, ...] = ()


_shares = sa.select(t.shares.c.person, sa.func.count().label("n")).group_by(t.shares.c.person)
_tokens = (
    sa.select(t.tokens).where(VALID, t.tokens.c.kind == TokenKind.TOKEN.value).order_by(t.tokens.c.id).limit(TOKENS_MAX)
)
_rooms = (
    sa.select(t.sessions.c.agent, t.sessions.c.origin_key)
    .where(t.sessions.c.origin_kind == "chat", t.sessions.c.deleted_ms.is_(None))
    .order_by(t.sessions.c.agent, t.sessions.c.origin_key)
    .limit(FILES_MAX)
)


def _look(conn: sa.Connection, *, now_ms: int, deep: bool) -> _Stored:
    rooms: dict[str, list[str]] = {}
    for row in conn.execute(_rooms):
        rooms.setdefault(row.agent, []).append(row.origin_key)
    found = audit.verify(conn).flaws if deep else ()
    return _Stored(
        staff=tuple(agents.everyone(conn)),
        people=tuple(people.everyone(conn)),
        shared_with={row.person: row.n for row in conn.execute(_shares)},
        tokens=tuple(token_of(row) for row in conn.execute(_tokens, {"now": now_ms})),
        rooms={agent: tuple(every) for agent, every in rooms.items()},
        flaws=tuple(f"{flaw.chain[:8] or 'house'} line {flaw.position}: {flaw.sentence}" for flaw in found),
    )


# --- agents ---


def _abilities(agent: Agent, toolbox: Toolbox | None, stored: _Stored) -> Abilities:
    """Return the tools of an agent, for unknown senders if it has channels, else for the terminal.

    Without a toolbox the tools are unknown.
    """
    rooms = stored.rooms.get(agent.name, ())
    if toolbox is None:
        return Abilities(agent=agent, free={}, strangers=rooms[0] if rooms else "")
    where = Circumstances()
    if rooms:
        stranger = Address(AddressKind.CHANNEL, *rooms[0].removeprefix("channel:").split(":", 1))
        where = Circumstances(sender=stranger, requesters=(Requester(stranger),), channel=stranger.room)
    chain = toolbox.chain(agent, where)
    free = {spec.name: spec.effects for spec in toolbox.specs if chain.decide(spec).verdict is Verdict.ALLOW}
    return Abilities(agent=agent, free=free, strangers=rooms[0] if rooms else "")


def _lowered(settings: Settings) -> dict[str, tuple[PermissionLevel, PermissionLevel]]:
    from retinue.operations.catalog import OPERATIONS  # circular import: the catalog contains the doctor

    order = list(PermissionLevel)
    own = {name: operation.permission for name, operation in OPERATIONS.items()}
    return {
        name: (own[name], level)
        for name, level in settings.permission_policy.items()
        if name in own and order.index(level) < order.index(own[name])
    }


# --- machine ---


async def _probe(settings: Settings, ground: Ground) -> Probe | None:
    """Return whether commands can run in bubblewrap. Containers are probed at startup, not here."""
    if ground.quick or settings.sandbox.kind is not SandboxKind.BUBBLEWRAP:
        return None
    with tempfile.TemporaryDirectory(prefix="retinue-probe-") as folder:
        return await Bubblewrap(folder=Path(folder)).probe()


def _listens_on(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the listen address. `RETINUE_LISTEN` overrides the settings, as it does at startup."""
    listen = environment.get("RETINUE_LISTEN", "")
    if listen:
        return "" if listen == "off" else listen.rpartition(":")[0].strip("[]")
    return settings.listen.host if settings.listen.enabled else ""


def _synced_by(home: Path) -> str:
    real = Path(os.path.realpath(home))
    for place in (real, *real.parents):
        if SYNCED_NAMES.fullmatch(place.name):
            return str(place)
        found = next((mark for mark in SYNCED_MARKS if (place / mark).exists()), None)
        if found is not None:
            return str(place / found)
    return ""


# --- files ---


def _held(home: Path, settings: Settings, files: Sequence[Path]) -> Iterator[Held]:
    yield from _look_at("home", home)
    for name in ("owner-token", "lock", "retinue.sock"):
        yield from _look_at("keys", home / name)
    yield from _within("keys", home / "keys")
    for path in files:
        yield from _look_at("settings", path)
    for name in ("house.db", "house.db-wal", "house.db-shm"):
        yield from _look_at("store", home / name)
    yield from _within("logs", home / "logs")
    yield from _look_at("store", home / "files")
    yield from _look_at("agents", home / "agents")
    yield from _look_at("agents", home / "processes")
    yield from _look_at("backups", home / "backups")
    yield from _children("backups", home / "backups")
    if settings.mirror.enabled:
        yield from _look_at("mirror", settings.mirror.folder or home / "mirror")


def _look_at(kind: str, path: Path) -> Iterator[Held]:
    try:
        found = path.lstat()
        is_link = stat.S_ISLNK(found.st_mode)
        if is_link:
            found = path.stat()
    except OSError:
        return
    yield Held(
        kind=kind,
        path=path,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        is_folder=stat.S_ISDIR(found.st_mode),
        is_link=is_link,
    )


def _children(kind: str, folder: Path) -> Iterator[Held]:
    try:
        every = sorted(folder.iterdir())[:FILES_MAX]
    except OSError:
        return
    for path in every:
        yield from _look_at(kind, path)


def _within(kind: str, folder: Path, depth: int = 3) -> Iterator[Held]:
    yield from _look_at(kind, folder)
    for each in _children(kind, folder):
        if each.is_folder and not each.is_link and depth:
            yield from _within(kind, each.path, depth - 1)
        else:
            yield each


# --- secrets in plain text ---


def _plain(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        try:
            with path.open("rb") as file:
                table = tomllib.loads(file.read(SETTINGS_BYTES_MAX).decode())
        except (OSError, ValueError):  # the doctor's settings check reports it
            continue
        yield from (f"{path}: {key}" for key in plain_in(table))


def plain_in(value: Any, key: str = "", depth: int = DEPTH_MAX) -> Iterator[str]:
    """Yield the keys of a settings file whose values are, or look like, secrets."""
    if depth == 0:
        return
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            yield from plain_in(each, f"{key}.{name}" if key else name, depth - 1)
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[Any]", value)):
            yield from plain_in(each, f"{key}.{number}", depth - 1)
    elif isinstance(value, str) and value and _is_secret(key, value):
        yield key


_PASSWORD_IN_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^\s/@:]{0,200}:[^\s/@]{1,200}@", re.I)
_SAYS_WHERE = frozenset({"env", "file"})  # last part of a key that names where a secret is stored


def _is_secret(key: str, value: str) -> bool:
    last = key.rpartition(".")[2]
    if last in _SAYS_WHERE:
        return by_shape(value) != value
    return by_shape(value) != value or bool(_PASSWORD_IN_URL.match(value)) or TELLING.fullmatch(last) is not None
