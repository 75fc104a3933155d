"""Operations on connectors: list, show, test, add, remove, enable and disable, and the available platforms.

The settings file is the source of truth: changes are written there and take effect at once. Each secret
is written to a separate file, never to the settings file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_origin

import msgspec

from retinue.config.connectors import ConnectorSettings, connector_name, named_secrets, secret_stems, settings_from
from retinue.config.errors import BadConfig, Faults
from retinue.config.settings_form import plain
from retinue.config.table_parser import hints_of
from retinue.connectors.base import ConnectorKind, Finding
from retinue.connectors.connector_factory import settled
from retinue.connectors.connector_registry import ABSENT
from retinue.connectors.supervisor.connector_health import LineHealth, LineState
from retinue.connectors.supervisor.connector_supervisor import Switchboard
from retinue.domain.access import DmPolicy
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError
from retinue.domain.principal import Principal
from retinue.domain.times import show as show_time
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store.channels import connector_state
from retinue.store.core.durable_files import put_private

SECRETS = "secrets"
SECRET_LENGTH_MAX = 16 * 1024

Meta = msgspec.Meta
Name = Annotated[str, Meta(description="a connector by name")]


class One(msgspec.Struct, forbid_unknown_fields=True):
    name: Name


class Add(msgspec.Struct, forbid_unknown_fields=True):
    """`secrets` are written to files in the data directory, and the settings refer to these."""

    kind: Annotated[str, Meta(description="what it speaks, such as telegram: see connector kinds")]
    name: Annotated[str, Meta(description="what to call it here; left out, as its kind")] = ""
    settings: Annotated[dict[str, Any], Meta(description="its settings, as they would stand in the file")] = {}
    answers: Annotated[dict[str, str], Meta(description="settings as a person types them, each a text")] = {}
    secrets: Annotated[dict[str, str], Meta(description="its secrets by name, such as token")] = {}
    check: Annotated[bool, Meta(description="ask the place first whether it knows us")] = True


class ConnectorShown(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "try_this": "try",
        "last_heard": "last-heard",
        "last_delivered": "last-delivered",
        "again_at": "again-at",
        "in_groups": "in-groups",
    },
):
    """Status of a connector. `breaks` counts failures in a row; `dm` and `in_groups` are its access rules."""

    name: str
    kind: str
    state: LineState
    since: str
    last_heard: str | None = None
    last_delivered: str | None = None
    breaks: int = 0
    because: str = ""
    try_this: str = ""
    again_at: str | None = None
    dm: str = ""
    in_groups: str = ""


class ConnectorsListed(msgspec.Struct, frozen=True):
    connectors: list[ConnectorShown]


class ConnectorRead(msgspec.Struct, frozen=True):
    """One connector. `settings` contain the locations of secrets, never their values."""

    connector: ConnectorShown
    settings: dict[str, Any]


class QuestionShown(msgspec.Struct, frozen=True):
    key: str
    ask: str
    secret: bool
    default: str
    help: str


class KindShown(msgspec.Struct, frozen=True):
    kind: str
    title: str
    questions: list[QuestionShown]


class KindsListed(msgspec.Struct, frozen=True):
    """`absent` maps known platforms that are not supported to the reason."""

    kinds: list[KindShown]
    absent: dict[str, str]


class ConnectorTested(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """Result of a sign-in test. `account` is our account on the platform."""

    name: str
    ok: bool
    account: str
    sentence: str
    because: str
    try_this: str


class ConnectorAdded(msgspec.Struct, frozen=True, rename={"next_steps": "next"}):
    connector: ConnectorShown
    account: str
    next_steps: list[str]


class ConnectorRemoved(msgspec.Struct, frozen=True):
    name: str
    removed: bool


def board_of(desk: Desk) -> Switchboard:
    if desk.switchboard is None:
        raise NotFound(
            "this house has no connectors",
            because="it was opened without a switchboard",
            try_this="open it with `retinue run`",
            code="connector.none",
        )
    return desk.switchboard


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> ConnectorsListed:
    return ConnectorsListed([shown(desk, each) for each in board_of(desk).health()])


async def kinds(desk: Desk, caller: Principal, asked: Nothing) -> KindsListed:
    known = board_of(desk).kinds
    found: list[KindShown] = []
    for name in known.names:
        try:
            found.append(_kind_form(known.find(name)))
        except RetinueError:
            continue  # cannot be imported, so it cannot be chosen; `connector add` says why
    return KindsListed(found, dict(ABSENT))


async def show(desk: Desk, caller: Principal, asked: One) -> ConnectorRead:
    health = _one(desk, asked.name)
    settings = _all(desk).get(asked.name)
    return ConnectorRead(shown(desk, health), {} if settings is None else _told(_whole(desk, asked.name, settings)))


async def test(desk: Desk, caller: Principal, asked: One) -> ConnectorTested:
    _one(desk, asked.name)
    return _tested(asked.name, await board_of(desk).check(asked.name))


async def add(desk: Desk, caller: Principal, asked: Add) -> ConnectorAdded:
    board, name = board_of(desk), asked.name or asked.kind
    kind = board.kind(asked.kind)
    _refuse(desk, caller, name, kind, asked)
    made: list[Path] = []
    try:
        table = await asyncio.to_thread(_table, desk, name, kind, asked, made)
        settings = read_settings(kind, name, table)
        account = ""
        if asked.check:
            account = _accepted(name, await board.try_out(name, settings)).account
        await _write(desk, {"connectors": {name: table}})
    except BaseException:
        for file in made:
            file.unlink(missing_ok=True)
        raise
    return ConnectorAdded(shown(desk, _one(desk, name)), account, _next_steps(name, kind, settings))


async def remove(desk: Desk, caller: Principal, asked: One) -> ConnectorRemoved:
    """Remove a connector: its settings, the secret files created for it and its stored state."""
    settings = _whole(desk, asked.name, _held(desk, asked.name))
    await _write(desk, {"connectors": {asked.name: None}})
    for file in _own_files(desk, settings):
        await asyncio.to_thread(file.unlink, missing_ok=True)
    await desk.store.write(lambda conn: connector_state.forget(conn, asked.name), point="connector")
    return ConnectorRemoved(asked.name, removed=True)


async def enable(desk: Desk, caller: Principal, asked: One) -> ConnectorShown:
    return await _switch(desk, asked.name, on=True)


async def disable(desk: Desk, caller: Principal, asked: One) -> ConnectorShown:
    return await _switch(desk, asked.name, on=False)


async def _switch(desk: Desk, name: str, *, on: bool) -> ConnectorShown:
    _held(desk, name)
    await _write(desk, {"connectors": {name: {"enabled": on}}})
    return shown(desk, _one(desk, name))


# --- settings ---


def _all(desk: Desk) -> Mapping[str, ConnectorSettings]:
    return desk.settings().connectors if desk.settings is not None else {}


def _whole(desk: Desk, name: str, settings: ConnectorSettings) -> ConnectorSettings:
    """Return the settings with the platform's keys parsed, if the platform is known (its plugin is loaded)."""
    try:
        return settled(board_of(desk).kind(settings.kind), name, settings)
    except RetinueError:
        return settings


def _held(desk: Desk, name: str) -> ConnectorSettings:
    held = desk.keeper().current.settings.connectors.get(name)
    if held is None:
        raise NotFound(
            f"the settings name no connector '{name[:64]}'",
            because="there is no [connectors.NAME] of that name; one that a plug-in brings is the plug-in's to change",
            try_this="look at `retinue connector list`",
            code="connector.not-found",
        )
    return held


def _refuse(desk: Desk, caller: Principal, name: str, kind: ConnectorKind, asked: Add) -> None:
    if wrong := connector_name(name):
        raise Invalid(
            f"'{name[:64]}' cannot be the name of a connector",
            because=f"it {wrong}",
            try_this="for example family-bot",
            code="connector.name-invalid",
        )
    if name in desk.keeper().current.settings.connectors or any(
        each.instance == name for each in board_of(desk).health()
    ):
        raise Conflict(
            f"there is a connector '{name}' already",
            because="each account of ours has a name of its own",
            try_this=f"retinue connector add {kind.name} --name OTHER, or remove that one first",
            code="connector.exists",
        )
    if asked.secrets and caller.address.kind is AddressKind.AGENT:
        raise Invalid(
            "an agent cannot give a secret by value",
            because="what an agent says is kept in its history, and a secret must not be there",
            try_this="name the variable or the file that holds it, in the settings",
            code="connector.secret-by-agent",
        )


def _table(desk: Desk, name: str, kind: ConnectorKind, asked: Add, made: list[Path]) -> dict[str, Any]:
    """Return the settings table of the new connector. Secret files it writes are appended to `created_files`."""
    answers = {key: typed(kind.settings, key, text) for key, text in asked.answers.items()}
    given = {**kind.defaults, **answers, **asked.settings}
    table: dict[str, Any] = {"kind": kind.name, "dm": DmPolicy.PAIRING.value, **given}
    known = set(secret_stems(kind.settings))
    for stem, secret in asked.secrets.items():
        if stem not in known:
            raise Invalid(
                f"a connector of the kind '{kind.name}' has no secret '{stem[:64]}'",
                because=f"it has {', '.join(sorted(known)) or 'none'}",
                try_this="look at `retinue connector kinds`",
                code="connector.secret-unknown",
            )
        if not secret.strip() or len(secret) > SECRET_LENGTH_MAX or not secret.isprintable():
            raise Invalid(
                f"this cannot be the {stem} of a connector",
                because=f"a secret is one line of 1 to {SECRET_LENGTH_MAX:,} characters",
                try_this="copy it again, without what is around it",
                code="connector.secret-invalid",
            )
        folder = desk.home / SECRETS
        folder.mkdir(mode=0o700, exist_ok=True)
        # A unique name: an existing file may be in use, and would be deleted if this connector is rejected.
        file = folder / f"{name}-{stem}-{desk.ids.new()[:8]}"
        put_private(file, secret.strip().encode())
        made.append(file)
        table[f"{stem}_file"] = f"{SECRETS}/{file.name}"
    return table


def typed(group: type[Any], key: str, text: str) -> Any:
    """Convert typed text to the type of the setting. Text that does not fit stays text; validation rejects it."""
    hint = hints_of(group).get(key, str)
    if get_origin(hint) is tuple:
        return [part for each in text.split(",") if (part := each.strip())]
    if hint is bool:
        return {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}.get(text.lower(), text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    return text


def read_settings(kind: ConnectorKind, name: str, table: Mapping[str, Any]) -> ConnectorSettings:
    """Parse the table as the settings file would be parsed. Raises all errors at once."""
    faults = Faults()
    settings = settings_from(kind.settings, dict(table), ("connectors", name), faults)
    if faults.count:
        raise BadConfig(faults.in_order())
    return settings


async def _write(desk: Desk, changes: Mapping[str, Any]) -> None:
    keeper = desk.keeper()
    from retinue.config.file_writer import change_file  # lazy: imports tomlkit, which most servers never need

    await asyncio.to_thread(change_file, keeper.environment, changes, expected_hash=keeper.current.hash)
    keeper.reload()
    await board_of(desk).fit(keeper.current.settings.connectors)


def _own_files(desk: Desk, settings: ConnectorSettings) -> list[Path]:
    """Return the secret files that we created. Files elsewhere belong to the owner and stay."""
    folder = (desk.home / SECRETS).resolve()
    files = [(desk.home / file).resolve() for _, _, file in named_secrets(settings.own) if file]
    return [file for file in files if file.parent == folder]


# --- responses ---


def _one(desk: Desk, name: str) -> LineHealth:
    for each in board_of(desk).health():
        if each.instance == name:
            return each
    raise NotFound(
        f"there is no connector '{name[:64]}'",
        because="no [connectors.NAME] of the settings is called so, and no plug-in brings it",
        try_this="look at `retinue connector list`",
        code="connector.not-found",
    )


def shown(desk: Desk, health: LineHealth) -> ConnectorShown:
    settings = _all(desk).get(health.instance)

    def at(moment: datetime | None) -> str | None:
        return None if moment is None else show_time(moment, desk.zone)

    return ConnectorShown(
        name=health.instance,
        kind=health.kind,
        state=health.state,
        since=show_time(health.since, desk.zone),
        last_heard=at(health.last_heard),
        last_delivered=at(health.last_delivered),
        breaks=health.breaks,
        because=health.because,
        try_this=health.try_this,
        again_at=at(health.again_at),
        dm=settings.door.dm.value if settings is not None else "",
        in_groups=settings.door.group_policy.value if settings is not None else "",
    )


def _told(settings: ConnectorSettings) -> dict[str, Any]:
    own = plain(settings.own)
    rest = {"kind": settings.kind, "enabled": settings.enabled, **plain(settings.door)}
    return {**rest, **own.get("table", own)}


def _kind_form(kind: ConnectorKind) -> KindShown:
    questions = [QuestionShown(q.key, q.ask, q.secret, q.default, q.help) for q in kind.questions]
    return KindShown(kind.name, kind.title, questions)


def _tested(name: str, found: Finding) -> ConnectorTested:
    return ConnectorTested(
        name, found.ok, found.account, found.sentence, because=found.because, try_this=found.try_this
    )


def _accepted(name: str, found: Finding) -> Finding:
    if not found.ok:
        raise Invalid(
            f"the connector '{name}' was not added: {found.sentence}",
            because=found.because or "its place does not let us in",
            try_this=found.try_this or "correct what was asked for, or add it unchecked with --no-check",
            code="connector.not-accepted",
        )
    return found


def _next_steps(name: str, kind: ConnectorKind, settings: ConnectorSettings) -> list[str]:
    steps = list(kind.next_steps)
    steps.append(f"Say who answers there: `retinue binding set AGENT {name}`. Until then it is the default agent.")
    if settings.door.dm is DmPolicy.PAIRING:
        steps.append("Who writes first is shown a code, and you a letter: `retinue pairing accept CODE` lets them in.")
    return steps


def _operation(
    name: str, summary: str, parameters: Any, handler: Any, result: Any, *, effect: bool = False
) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        parameters=parameters,
        handler=handler,
        result=result,
        permission=PermissionLevel.BOSS if effect else PermissionLevel.PRIVILEGED,
        effect=effect,
    )


OPERATIONS = (
    _operation("connector.list", "List connectors, and how their lines fare.", Nothing, listed, ConnectorsListed),
    _operation("connector.kinds", "List what connectors can speak.", Nothing, kinds, KindsListed),
    _operation("connector.show", "Show one connector and its settings.", One, show, ConnectorRead),
    _operation("connector.test", "Ask the place of a connector whether it knows us.", One, test, ConnectorTested),
    _operation("connector.add", "Connect one more account of ours.", Add, add, ConnectorAdded, effect=True),
    _operation("connector.remove", "Take a connector out of the settings.", One, remove, ConnectorRemoved, effect=True),
    _operation("connector.enable", "Have a connector listen.", One, enable, ConnectorShown, effect=True),
    _operation("connector.disable", "Have a connector rest.", One, disable, ConnectorShown, effect=True),
)
