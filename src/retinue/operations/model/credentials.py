"""Operations that list, add, remove and order model credentials, and mark them as used or failed.

Responses never contain a key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain.agent import PermissionLevel
from retinue.domain.credential import Credential, CredentialFailureRecord
from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelFailureKind
from retinue.domain.principal import Principal
from retinue.domain.session import SessionOptions
from retinue.domain.shared_errors import AgentNotFound
from retinue.domain.times import to_ms
from retinue.models.credential_order import collect_credentials, is_discovered, order_credentials
from retinue.models.providers import BUILT_IN_PROVIDERS
from retinue.operations.base import Operation, Services
from retinue.operations.model.credential_keys import (
    CredentialAddRequest,
    CredentialOwner,
    build_credential_id,
    canonical_provider_name,
    check_readable,
    keys_directory,
    parse_region,
    provider_settings,
    resolve_key_source,
)
from retinue.operations.model.credential_responses import (
    CredentialDetails,
    CredentialList,
    CredentialRemoved,
    server_environment,
    to_credential_details,
)
from retinue.operations.model.errors import (
    CredentialExists,
    CredentialNotFound,
    CredentialNotRemovable,
    CredentialOrderInvalid,
    TooManyCredentials,
)
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import CredentialCooldowns, apply_failure
from retinue.store.agents import agents, credentials

CREDENTIALS_MAX = 1_000

T = TypeVar("T")

CredentialIdText = Annotated[
    str, msgspec.Meta(description="id of the credential: PROVIDER:NAME, as in `credential list`")
]
CredentialModel = Annotated[str, msgspec.Meta(description="model to which the request applies; default: all models")]


class CredentialFailureReason(StrEnum):
    """Kinds of failures after which the server does not use a credential for a while."""

    AUTH = ModelFailureKind.AUTH.value
    PERMISSION = ModelFailureKind.PERMISSION.value
    QUOTA = ModelFailureKind.QUOTA.value
    RATE_LIMIT = ModelFailureKind.RATE_LIMIT.value
    OVERLOADED = ModelFailureKind.OVERLOADED.value
    TIMEOUT = ModelFailureKind.TIMEOUT.value


class CredentialListRequest(msgspec.Struct, forbid_unknown_fields=True):
    provider: Annotated[str, msgspec.Meta(description="only credentials of this provider")] = ""
    agent: Annotated[str, msgspec.Meta(description="only credentials that this agent may use")] = ""


class CredentialIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: CredentialIdText
    agent: CredentialOwner = ""


class CredentialOrderRequest(msgspec.Struct, forbid_unknown_fields=True):
    provider: Annotated[str, msgspec.Meta(description="provider of the credentials")]
    ids: Annotated[
        list[str],
        msgspec.Meta(description="credential ids in the order to try; without ids, the least recently used is first"),
    ] = []
    agent: CredentialOwner = ""


class CredentialUseRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: CredentialIdText
    agent: CredentialOwner = ""
    model: CredentialModel = ""


class CredentialFailureRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: CredentialIdText
    reason: Annotated[CredentialFailureReason, msgspec.Meta(description="kind of failure")]
    agent: CredentialOwner = ""
    model: CredentialModel = ""


async def _write_and_notify(services: Services, body: Callable[[sa.Connection], T]) -> T:
    done = await services.store.write(body, point="credential")
    if services.on_credentials_changed is not None:
        await services.on_credentials_changed()
    return done


async def list_credentials(services: Services, caller: Principal, request: CredentialListRequest) -> CredentialList:
    now = services.clock.now()
    provider = canonical_provider_name(services, request.provider)

    def body(conn: sa.Connection) -> tuple[str, list[Credential], CredentialCooldowns]:
        return (
            _resolve_owner(conn, request.agent, include_deleted=True),
            _all_credentials(services, conn),
            _read_states(conn, now),
        )

    agent, found, states = await services.store.scan(body)
    mine = [
        each
        for each in found
        if (not request.provider or each.provider == provider) and (not agent or each.agent in ("", agent))
    ]
    groups = dict.fromkeys((each.provider, each.agent) for each in mine)
    details = [
        to_credential_details(services, each, states, now)
        for group in groups
        for each in order_credentials(
            [each for each in mine if (each.provider, each.agent) == group],
            states,
            model="",
            session_options=SessionOptions(),
            now=now,
        )
    ]
    return CredentialList(details)


async def add_credential(services: Services, caller: Principal, request: CredentialAddRequest) -> CredentialDetails:
    """Add a credential. Its key file is written first. If the credential is not stored, the file is deleted again."""
    now = services.clock.now()
    agent = await services.store.read(partial(_resolve_owner, name=request.agent))
    named, region = build_credential_id(services, request), parse_region(request.region)
    source, made = resolve_key_source(services, caller, request, agent=agent, id_=named)
    credential = Credential(
        id=named,
        provider=named.partition(":")[0],
        source=source,
        kind=request.kind,
        agent=agent,
        region=region,
    )

    def body(conn: sa.Connection) -> None:
        if len(credentials.list_all(conn)) >= CREDENTIALS_MAX:
            raise TooManyCredentials(count_max=CREDENTIALS_MAX)
        if not credentials.add(conn, credential, at_ms=to_ms(now)):
            raise CredentialExists(credential.id)

    try:
        check_readable(services, credential)
        await _write_and_notify(services, body)
    except RetinueError:
        if made is not None:
            made.unlink(missing_ok=True)
        raise
    return to_credential_details(services, credential, CredentialCooldowns(), now)


async def remove_credential(services: Services, caller: Principal, request: CredentialIdRequest) -> CredentialRemoved:
    """Remove a credential.

    The key file is deleted before the credential. If the second step fails, the credential has no key,
    which is reported. In the other order, a leftover key file would remain unnoticed.
    """
    credential = await services.store.read(
        partial(_require_credential, services=services, id_=request.id, owner_name=request.agent)
    )
    if is_discovered(credential.id):
        raise CredentialNotRemovable(credential.id, source=credential.source)
    where, _, path = credential.source.partition(":")
    if where == "file" and keys_directory(services, credential.agent) == Path(path).parent:
        Path(path).unlink(missing_ok=True)
    await _write_and_notify(services, partial(credentials.remove, agent=credential.agent, id_=credential.id))
    return CredentialRemoved(credential.id, agent=credential.agent or None, removed=True)


async def set_credential_order(
    services: Services, caller: Principal, request: CredentialOrderRequest
) -> CredentialList:
    now_ms = to_ms(services.clock.now())
    provider = canonical_provider_name(services, request.provider)

    def body(conn: sa.Connection) -> None:
        agent = _resolve_owner(conn, request.agent)
        wanted = [_require_credential(conn, services=services, id_=id_, owner_name=agent) for id_ in request.ids]
        strange = [each.id for each in wanted if each.provider != provider]
        if strange or len({each.id for each in wanted}) < len(wanted):
            raise CredentialOrderInvalid(provider, of_other_providers=strange)
        credentials.set_order(conn, agent, provider, wanted, at_ms=now_ms)

    await _write_and_notify(services, body)
    return await list_credentials(services, caller, CredentialListRequest(provider=provider, agent=request.agent))


async def mark_credential_used(
    services: Services, caller: Principal, request: CredentialUseRequest
) -> CredentialDetails:
    """Mark a credential as used successfully, which clears its failures."""
    now = services.clock.now()

    def body(conn: sa.Connection) -> tuple[Credential, CredentialCooldowns]:
        credential = _require_credential(conn, services=services, id_=request.id, owner_name=request.agent)
        credentials.mark_used(conn, credential, at_ms=to_ms(now), model=request.model or None)
        return replace(credential, used_at=now), _read_states(conn, now)

    credential, states = await _write_and_notify(services, body)
    return to_credential_details(services, credential, states, now)


async def mark_credential_failed(
    services: Services, caller: Principal, request: CredentialFailureRequest
) -> CredentialDetails:
    now = services.clock.now()

    def body(conn: sa.Connection) -> tuple[Credential, CredentialCooldowns]:
        credential = _require_credential(conn, services=services, id_=request.id, owner_name=request.agent)
        mark = cooldowns.build_failure_record(credential, request.model, ModelFailureKind(request.reason.value), at=now)
        assert isinstance(mark, CredentialFailureRecord)  # every `CredentialFailureReason` causes a cooldown
        credentials.mark_failed(conn, mark, apply_failure)
        return credential, _read_states(conn, now)

    credential, states = await _write_and_notify(services, body)
    return to_credential_details(services, credential, states, now)


async def clear_credential_failures(
    services: Services, caller: Principal, request: CredentialUseRequest
) -> CredentialDetails:
    """Clear the failures of a credential, so that it is used again at once."""
    now = services.clock.now()

    def body(conn: sa.Connection) -> tuple[Credential, CredentialCooldowns]:
        credential = _require_credential(conn, services=services, id_=request.id, owner_name=request.agent)
        credentials.clear_cooldowns(conn, credential.agent, credential.id, model=request.model or None)
        return credential, _read_states(conn, now)

    credential, states = await _write_and_notify(services, body)
    return to_credential_details(services, credential, states, now)


# --- lookups ---


def _read_states(conn: sa.Connection, now: datetime) -> CredentialCooldowns:
    return CredentialCooldowns(credentials.list_cooldowns(conn, now_ms=to_ms(now)))


def _all_credentials(services: Services, conn: sa.Connection) -> list[Credential]:
    return list(
        collect_credentials(
            credentials.list_all(conn),
            variables={name: provider.key_variables for name, provider in BUILT_IN_PROVIDERS.items()},
            keys={name: each.key for name, each in provider_settings(services).items() if each.key is not None},
            environment=server_environment(services),
        )
    )


def _resolve_owner(conn: sa.Connection, name: str, *, include_deleted: bool = False) -> str:
    """Return the agent's name as registered, or "" for the instance.

    `include_deleted` also finds deleted agents that still have credentials.
    """
    if not name:
        return ""
    if (agent := agents.find(conn, name)) is not None:
        return agent.name
    owners = {each.agent.casefold(): each.agent for each in credentials.list_all(conn)} if include_deleted else {}
    if (owner := owners.get(name.casefold())) is not None:
        return owner
    raise AgentNotFound(name)


def _require_credential(conn: sa.Connection, *, services: Services, id_: str, owner_name: str) -> Credential:
    agent = _resolve_owner(conn, owner_name, include_deleted=True)
    provider, _, name = id_.partition(":")
    named = f"{canonical_provider_name(services, provider)}:{name.casefold()}"
    for credential in _all_credentials(services, conn):
        if credential.row_key == (agent, named):
            return credential
    raise CredentialNotFound(id_, agent=agent)


OPERATIONS = (
    Operation(
        name="credential.list",
        summary="List model credentials and their failures. Keys are not shown.",
        parameters=CredentialListRequest,
        handler=list_credentials,
        result=CredentialList,
        permission=PermissionLevel.BOSS,
    ),
    Operation(
        name="credential.add",
        summary="Add a credential, for the server or for one agent.",
        parameters=CredentialAddRequest,
        handler=add_credential,
        result=CredentialDetails,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="credential.remove",
        summary="Remove a credential and its stored key.",
        parameters=CredentialIdRequest,
        handler=remove_credential,
        result=CredentialRemoved,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="credential.order",
        summary="Set the order in which a provider's credentials are used.",
        parameters=CredentialOrderRequest,
        handler=set_credential_order,
        result=CredentialList,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="credential.mark_used",
        summary="Record that a credential worked, and clear its failures.",
        parameters=CredentialUseRequest,
        handler=mark_credential_used,
        result=CredentialDetails,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="credential.mark_failed",
        summary="Record that a credential failed, so the server does not use it for a while.",
        parameters=CredentialFailureRequest,
        handler=mark_credential_failed,
        result=CredentialDetails,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="credential.clear",
        summary="Clear a credential's failures, so that the server can use the credential again at once.",
        parameters=CredentialUseRequest,
        handler=clear_credential_failures,
        result=CredentialDetails,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
