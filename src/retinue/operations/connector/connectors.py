"""Operations that list, show, test, add, remove, enable and disable connectors, and list the platforms.

Connectors are declared in the settings file. The operations write changes to this file, and the changes
take effect at once. Each secret is written to a separate file, never to the settings file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from retinue.config.connectors import ConnectorSettings, check_connector_name, iterate_secrets
from retinue.connectors.base import ConnectorCheckResult, Platform
from retinue.connectors.connector_factory import parse_platform_settings
from retinue.connectors.connector_registry import UNSUPPORTED_PLATFORMS
from retinue.connectors.supervisor.connector_health import ConnectionStatus, ConnectorHealth
from retinue.connectors.supervisor.connector_supervisor import ConnectorSupervisor
from retinue.domain.access import DmPolicy
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import RetinueError
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import ConnectorNotFound
from retinue.domain.times import format_time as show_time
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.connector.connector_settings import (
    SECRETS_DIRECTORY,
    ConnectorAddRequest,
    build_settings_table,
    read_connector_settings,
    to_settings_table,
)
from retinue.operations.connector.errors import (
    ConnectorExists,
    ConnectorNameInvalid,
    ConnectorRejected,
    ConnectorSecretByAgent,
    ConnectorsUnavailable,
)
from retinue.store.channels import connector_state

Meta = msgspec.Meta
ConnectorName = Annotated[str, Meta(description="name of a connector")]


class ConnectorNameRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: ConnectorName


class ConnectorStatus(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"try_this": "try"},
):
    """Status of a connector. `dm_policy` and `in_groups` are its access rules."""

    name: str
    platform: str
    state: ConnectionStatus
    since: str
    last_received_at: str | None = None
    last_delivered_at: str | None = None
    failures_in_a_row: int = 0
    because: str = ""
    try_this: str = ""
    retry_at: str | None = None
    dm_policy: str = ""
    in_groups: str = ""


class ConnectorList(msgspec.Struct, frozen=True):
    connectors: list[ConnectorStatus]


class ConnectorDetails(msgspec.Struct, frozen=True):
    """One connector. `settings` contains the locations of secrets, never their values."""

    connector: ConnectorStatus
    settings: dict[str, Any]


class SetupQuestion(msgspec.Struct, frozen=True):
    key: str
    question: str
    secret: bool
    default: str
    help: str


class PlatformDetails(msgspec.Struct, frozen=True):
    platform: str
    title: str
    questions: list[SetupQuestion]


class PlatformList(msgspec.Struct, frozen=True):
    """The platforms to which a connector can connect.

    `unavailable` has the known platforms that this server does not support, each with the reason.
    """

    platforms: list[PlatformDetails]
    unavailable: dict[str, str]


class ConnectorTestResult(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """Result of a sign-in test. `account` is the account that the connector uses on the platform."""

    name: str
    ok: bool
    account: str
    sentence: str
    because: str
    try_this: str


class ConnectorAdded(msgspec.Struct, frozen=True, rename={"next_steps": "next"}):
    connector: ConnectorStatus
    account: str
    next_steps: list[str]


class ConnectorRemoved(msgspec.Struct, frozen=True):
    name: str
    removed: bool


def require_supervisor(services: Services) -> ConnectorSupervisor:
    if services.connector_supervisor is None:
        raise ConnectorsUnavailable
    return services.connector_supervisor


async def list_connectors(services: Services, caller: Principal, request: EmptyRequest) -> ConnectorList:
    return ConnectorList([to_connector_status(services, each) for each in require_supervisor(services).health()])


async def list_platforms(services: Services, caller: Principal, request: EmptyRequest) -> PlatformList:
    known = require_supervisor(services).platforms
    found: list[PlatformDetails] = []
    for name in known.names:
        try:
            found.append(_to_platform_details(known.find(name)))
        except RetinueError:
            continue  # the platform cannot be imported; `connector add` reports why
    return PlatformList(found, dict(UNSUPPORTED_PLATFORMS))


async def show_connector(services: Services, caller: Principal, request: ConnectorNameRequest) -> ConnectorDetails:
    health = _require_health(services, request.name)
    settings = _connector_settings(services).get(request.name)
    return ConnectorDetails(
        to_connector_status(services, health),
        {} if settings is None else to_settings_table(_parse_platform_settings(services, request.name, settings)),
    )


async def test_connector(services: Services, caller: Principal, request: ConnectorNameRequest) -> ConnectorTestResult:
    _require_health(services, request.name)
    return _to_test_result(request.name, await require_supervisor(services).check(request.name))


async def add_connector(services: Services, caller: Principal, request: ConnectorAddRequest) -> ConnectorAdded:
    supervisor, name = require_supervisor(services), request.name or request.platform
    kind = supervisor.get_platform(request.platform)
    _check_addable(services, caller, name, kind, request)
    made: list[Path] = []
    try:
        table = await asyncio.to_thread(build_settings_table, services, name, kind, request, made)
        settings = read_connector_settings(kind, name, table)
        account = ""
        if request.check:
            account = _require_accepted(name, await supervisor.check_settings(name, settings)).account
    except BaseException:
        _delete_files(made)
        raise
    try:
        await _write_settings(services, {"connectors": {name: table}})
    except Exception:  # not for a cancellation: a thread may still be writing settings that refer to these files
        _delete_files(made)
        raise
    await _apply_settings(services)
    return ConnectorAdded(
        to_connector_status(services, _require_health(services, name)), account, _next_steps(name, kind, settings)
    )


def _delete_files(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


async def remove_connector(services: Services, caller: Principal, request: ConnectorNameRequest) -> ConnectorRemoved:
    """Remove a connector's settings, its stored state and the secret files that were created for it."""
    settings = _parse_platform_settings(services, request.name, _require_in_settings(services, request.name))
    await _change_settings(services, {"connectors": {request.name: None}})
    for file in _created_secret_files(services, settings):
        await asyncio.to_thread(file.unlink, missing_ok=True)
    await services.store.write(lambda conn: connector_state.delete_all(conn, request.name), point="connector")
    return ConnectorRemoved(request.name, removed=True)


async def enable_connector(services: Services, caller: Principal, request: ConnectorNameRequest) -> ConnectorStatus:
    return await _set_enabled(services, request.name, enabled=True)


async def disable_connector(services: Services, caller: Principal, request: ConnectorNameRequest) -> ConnectorStatus:
    return await _set_enabled(services, request.name, enabled=False)


async def _set_enabled(services: Services, name: str, *, enabled: bool) -> ConnectorStatus:
    _require_in_settings(services, name)
    await _change_settings(services, {"connectors": {name: {"enabled": enabled}}})
    return to_connector_status(services, _require_health(services, name))


# --- settings ---


def _require_in_settings(services: Services, name: str) -> ConnectorSettings:
    held = services.require_config_holder().current.settings.connectors.get(name)
    if held is None:
        raise ConnectorNotFound(
            name,
            because="no section [connectors.NAME] has this name; a connector of a plugin is changed with its plugin",
        )
    return held


def _check_addable(
    services: Services, caller: Principal, name: str, kind: Platform, request: ConnectorAddRequest
) -> None:
    if wrong := check_connector_name(name):
        raise ConnectorNameInvalid(name, because=f"it {wrong}")
    if name in services.require_config_holder().current.settings.connectors or any(
        each.name == name for each in require_supervisor(services).health()
    ):
        raise ConnectorExists(name, platform=kind.name)
    if request.secrets and caller.address.kind is AddressKind.AGENT:
        raise ConnectorSecretByAgent


async def _change_settings(services: Services, changes: Mapping[str, Any]) -> None:
    await _write_settings(services, changes)
    await _apply_settings(services)


async def _write_settings(services: Services, changes: Mapping[str, Any]) -> None:
    holder = services.require_config_holder()
    from retinue.config.file_writer import patch_settings_file  # lazy: imports tomlkit, which most servers never need

    await asyncio.to_thread(patch_settings_file, holder.environment, changes, expected_hash=holder.current.hash)


async def _apply_settings(services: Services) -> None:
    holder = services.require_config_holder()
    holder.reload()
    await require_supervisor(services).sync(holder.current.settings.connectors)


def _created_secret_files(services: Services, settings: ConnectorSettings) -> list[Path]:
    """Return the secret files that `connector.add` created for this connector.

    Secret files in other directories were created by the owner, and are not returned.
    """
    folder = (services.data_dir / SECRETS_DIRECTORY).resolve()
    files = [(services.data_dir / file).resolve() for _, _, file in iterate_secrets(settings.platform_settings) if file]
    return [file for file in files if file.parent == folder]


# --- responses ---


def _require_health(services: Services, name: str) -> ConnectorHealth:
    for each in require_supervisor(services).health():
        if each.name == name:
            return each
    raise ConnectorNotFound(name)


def to_connector_status(services: Services, health: ConnectorHealth) -> ConnectorStatus:
    settings = _connector_settings(services).get(health.name)

    def at(moment: datetime | None) -> str | None:
        return None if moment is None else show_time(moment, services.zone)

    return ConnectorStatus(
        name=health.name,
        platform=health.platform,
        state=health.status,
        since=show_time(health.since, services.zone),
        last_received_at=at(health.last_received_at),
        last_delivered_at=at(health.last_delivered_at),
        failures_in_a_row=health.failures,
        because=health.because,
        try_this=health.try_this,
        retry_at=at(health.retry_at),
        dm_policy=settings.access.dm_policy.value if settings is not None else "",
        in_groups=settings.access.group_policy.value if settings is not None else "",
    )


def _to_platform_details(kind: Platform) -> PlatformDetails:
    questions = [SetupQuestion(q.key, q.ask, q.secret, q.default, q.help) for q in kind.questions]
    return PlatformDetails(kind.name, kind.title, questions)


def _to_test_result(name: str, finding: ConnectorCheckResult) -> ConnectorTestResult:
    return ConnectorTestResult(
        name, finding.ok, finding.account, finding.sentence, because=finding.because, try_this=finding.try_this
    )


def _require_accepted(name: str, finding: ConnectorCheckResult) -> ConnectorCheckResult:
    if not finding.ok:
        raise ConnectorRejected(name, finding.sentence, because=finding.because, try_this=finding.try_this)
    return finding


def _next_steps(name: str, kind: Platform, settings: ConnectorSettings) -> list[str]:
    steps = list(kind.next_steps)
    steps.append(
        f"Choose the agent that answers: `retinue binding set AGENT {name}`. Until then, the default agent answers."
    )
    if settings.access.dm_policy is DmPolicy.PAIRING:
        steps.append(
            "An unknown sender gets a code, and you get a message. To admit the sender: `retinue pairing accept CODE`."
        )
    return steps


def _connector_operation(
    name: str, summary: str, parameters: Any, handler: Any, result: Any, *, has_effect: bool = False
) -> Operation:
    return Operation(
        name=name,
        summary=summary,
        parameters=parameters,
        handler=handler,
        result=result,
        permission=PermissionLevel.BOSS if has_effect else PermissionLevel.PRIVILEGED,
        has_effect=has_effect,
    )


OPERATIONS = (
    _connector_operation(
        "connector.list", "List connectors and their status.", EmptyRequest, list_connectors, ConnectorList
    ),
    _connector_operation(
        "connector.platforms", "List the supported platforms.", EmptyRequest, list_platforms, PlatformList
    ),
    _connector_operation(
        "connector.show", "Show a connector and its settings.", ConnectorNameRequest, show_connector, ConnectorDetails
    ),
    _connector_operation(
        "connector.test",
        "Test the connection of a connector.",
        ConnectorNameRequest,
        test_connector,
        ConnectorTestResult,
    ),
    _connector_operation(
        "connector.add",
        "Add a connector.",
        ConnectorAddRequest,
        add_connector,
        ConnectorAdded,
        has_effect=True,
    ),
    _connector_operation(
        "connector.remove",
        "Remove a connector.",
        ConnectorNameRequest,
        remove_connector,
        ConnectorRemoved,
        has_effect=True,
    ),
    _connector_operation(
        "connector.enable",
        "Enable a connector.",
        ConnectorNameRequest,
        enable_connector,
        ConnectorStatus,
        has_effect=True,
    ),
    _connector_operation(
        "connector.disable",
        "Disable a connector.",
        ConnectorNameRequest,
        disable_connector,
        ConnectorStatus,
        has_effect=True,
    ),
)


def _connector_settings(services: Services) -> Mapping[str, ConnectorSettings]:
    return services.settings().connectors if services.settings is not None else {}


def _parse_platform_settings(services: Services, name: str, settings: ConnectorSettings) -> ConnectorSettings:
    """Return a connector's settings. If its platform is available, the settings that the platform defines are parsed.

    The platform of a plugin is available only while the plugin is loaded.
    """
    try:
        return parse_platform_settings(require_supervisor(services).get_platform(settings.platform), name, settings)
    except RetinueError:
        return settings
