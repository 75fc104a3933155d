"""Operations on model credentials: list, add, remove, order, and mark as used or failed. No answer has a key."""

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
from retinue.domain.credential import Credential, Mark
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError
from retinue.domain.model import Failure
from retinue.domain.principal import Principal
from retinue.domain.session import Mind
from retinue.domain.times import to_ms
from retinue.models.credential_order import gather, is_found, order
from retinue.models.providers import BUILT_IN
from retinue.operations.base import Desk, Operation
from retinue.operations.model.credential_keys import (
    Add,
    Whose,
    keys_folder,
    new_id,
    provider_name,
    refuse_unreadable,
    settings_of,
    source_of,
    valid_region,
)
from retinue.operations.model.credential_responses import (
    CredentialRemoved,
    CredentialShown,
    CredentialsListed,
    environment_of,
    shown,
)
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import States, cooled
from retinue.store.agents import agents, credentials

CREDENTIALS_MAX = 1_000

T = TypeVar("T")

Id = Annotated[str, msgspec.Meta(description="PROVIDER:NAME, as `credential list` shows it")]
OfModel = Annotated[str, msgspec.Meta(description="only with this model; left out, with all of them")]


class Reason(StrEnum):
    """Failures that put a credential into a cooldown."""

    AUTH = Failure.AUTH.value
    PERMISSION = Failure.PERMISSION.value
    QUOTA = Failure.QUOTA.value
    RATE_LIMIT = Failure.RATE_LIMIT.value
    OVERLOADED = Failure.OVERLOADED.value
    TIMEOUT = Failure.TIMEOUT.value


class Which(msgspec.Struct, forbid_unknown_fields=True):
    provider: Annotated[str, msgspec.Meta(description="only of this provider")] = ""
    agent: Annotated[str, msgspec.Meta(description="only what this agent may use")] = ""


class ById(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    agent: Whose = ""


class SetOrder(msgspec.Struct, forbid_unknown_fields=True):
    provider: Annotated[str, msgspec.Meta(description="whose credentials")]
    ids: Annotated[list[str], msgspec.Meta(description="which comes first, and so on; none: by their last use")] = []
    agent: Whose = ""


class Used(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    agent: Whose = ""
    model: OfModel = ""


class Failed(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    reason: Annotated[Reason, msgspec.Meta(description="what was wrong")]
    agent: Whose = ""
    model: OfModel = ""


async def _write(desk: Desk, body: Callable[[sa.Connection], T]) -> T:
    done = await desk.store.write(body, point="credential")
    if desk.credentials_changed is not None:
        await desk.credentials_changed()
    return done


async def listed(desk: Desk, caller: Principal, asked: Which) -> CredentialsListed:
    now = desk.clock.now()
    provider = provider_name(desk, asked.provider)

    def body(conn: sa.Connection) -> tuple[str, list[Credential], States]:
        return _whose(conn, asked.agent, gone_too=True), _all(desk, conn), _states(conn, now)

    agent, found, states = await desk.store.scan(body)
    mine = [
        each
        for each in found
        if (not asked.provider or each.provider == provider) and (not agent or each.agent in ("", agent))
    ]
    groups = dict.fromkeys((each.provider, each.agent) for each in mine)
    told = [
        shown(desk, each, states, now)
        for group in groups
        for each in order(
            [each for each in mine if (each.provider, each.agent) == group], states, model="", mind=Mind(), now=now
        )
    ]
    return CredentialsListed(told)


async def add(desk: Desk, caller: Principal, asked: Add) -> CredentialShown:
    """Add a credential. Its key file is written first, and deleted again if the credential is not stored."""
    now = desk.clock.now()
    agent = await desk.store.read(partial(_whose, name=asked.agent))
    named, region = new_id(desk, asked), valid_region(asked.region)
    source, made = source_of(desk, caller, asked, agent=agent, id_=named)
    credential = Credential(
        id=named,
        provider=named.partition(":")[0],
        source=source,
        kind=asked.kind,
        agent=agent,
        region=region,
    )

    def body(conn: sa.Connection) -> None:
        if len(credentials.everyone(conn)) >= CREDENTIALS_MAX:
            raise Conflict(
                f"this house has {CREDENTIALS_MAX:,} credentials",
                because="that is the most it keeps",
                try_this="remove those that are no longer used",
                code="credential.too-many",
            )
        if not credentials.add(conn, credential, at_ms=to_ms(now)):
            raise Conflict(
                f"there is a credential {credential.id} already",
                because="each has a name of its own, for each agent and for the house",
                try_this=f"choose another name, or `retinue credential remove {credential.id}` first",
                code="credential.taken",
            )

    try:
        refuse_unreadable(desk, credential)
        await _write(desk, body)
    except RetinueError:
        if made is not None:
            made.unlink(missing_ok=True)
        raise
    return shown(desk, credential, States(), now)


async def remove(desk: Desk, caller: Principal, asked: ById) -> CredentialRemoved:
    """Remove a credential. Its key file is deleted first: a credential without a key is noticed, a stray key is not."""
    credential = await desk.store.read(partial(_find, desk=desk, id_=asked.id, whose=asked.agent))
    if is_found(credential.id):
        raise Conflict(
            f"{credential.id} cannot be removed",
            because=f"nobody added it: its key was found in {credential.source}",
            try_this="take the key away there, and start the house anew or reload its settings",
            code="credential.is-found",
        )
    where, _, path = credential.source.partition(":")
    if where == "file" and keys_folder(desk, credential.agent) == Path(path).parent:
        Path(path).unlink(missing_ok=True)
    await _write(desk, partial(credentials.remove, agent=credential.agent, id_=credential.id))
    return CredentialRemoved(credential.id, agent=credential.agent or None, removed=True)


async def set_order(desk: Desk, caller: Principal, asked: SetOrder) -> CredentialsListed:
    now_ms = to_ms(desk.clock.now())
    provider = provider_name(desk, asked.provider)

    def body(conn: sa.Connection) -> None:
        agent = _whose(conn, asked.agent)
        wanted = [_find(conn, desk=desk, id_=id_, whose=agent) for id_ in asked.ids]
        strange = [each.id for each in wanted if each.provider != provider]
        if strange or len({each.id for each in wanted}) < len(wanted):
            raise Invalid(
                "this is no order of credentials",
                because=f"{', '.join(strange)} is not of {provider}" if strange else "one of them is there twice",
                try_this=f"name each credential of {provider} once, or none",
                code="credential.order-invalid",
            )
        credentials.set_order(conn, agent, provider, wanted, at_ms=now_ms)

    await _write(desk, body)
    return await listed(desk, caller, Which(provider=provider, agent=asked.agent))


async def mark_used(desk: Desk, caller: Principal, asked: Used) -> CredentialShown:
    """Mark a credential as used successfully, which clears its failures."""
    now = desk.clock.now()

    def body(conn: sa.Connection) -> tuple[Credential, States]:
        credential = _find(conn, desk=desk, id_=asked.id, whose=asked.agent)
        credentials.mark_used(conn, credential, at_ms=to_ms(now), model=asked.model or None)
        return replace(credential, used_at=now), _states(conn, now)

    credential, states = await _write(desk, body)
    return shown(desk, credential, states, now)


async def mark_failed(desk: Desk, caller: Principal, asked: Failed) -> CredentialShown:
    now = desk.clock.now()

    def body(conn: sa.Connection) -> tuple[Credential, States]:
        credential = _find(conn, desk=desk, id_=asked.id, whose=asked.agent)
        mark = cooldowns.mark(credential, asked.model, Failure(asked.reason.value), at=now)
        assert isinstance(mark, Mark)  # every `CredentialFailureReason` causes a cooldown
        credentials.mark_failed(conn, mark, cooled)
        return credential, _states(conn, now)

    credential, states = await _write(desk, body)
    return shown(desk, credential, states, now)


async def clear(desk: Desk, caller: Principal, asked: Used) -> CredentialShown:
    """Clear the failures of a credential, so that it is used again at once."""
    now = desk.clock.now()

    def body(conn: sa.Connection) -> tuple[Credential, States]:
        credential = _find(conn, desk=desk, id_=asked.id, whose=asked.agent)
        credentials.clear(conn, credential.agent, credential.id, model=asked.model or None)
        return credential, _states(conn, now)

    credential, states = await _write(desk, body)
    return shown(desk, credential, states, now)


# --- lookups ---


def _states(conn: sa.Connection, now: datetime) -> States:
    return States(credentials.states(conn, now_ms=to_ms(now)))


def _all(desk: Desk, conn: sa.Connection) -> list[Credential]:
    return list(
        gather(
            credentials.everyone(conn),
            variables={name: provider.variables for name, provider in BUILT_IN.items()},
            keys={name: each.key for name, each in settings_of(desk).items() if each.key is not None},
            environment=environment_of(desk),
        )
    )


def _whose(conn: sa.Connection, name: str, *, gone_too: bool = False) -> str:
    """Return the agent's name as registered, or "" for the instance.

    `include_deleted` also finds deleted agents that still have credentials.
    """
    if not name:
        return ""
    if (agent := agents.find(conn, name)) is not None:
        return agent.name
    owners = {each.agent.casefold(): each.agent for each in credentials.everyone(conn)} if gone_too else {}
    if (owner := owners.get(name.casefold())) is not None:
        return owner
    raise NotFound(
        f"there is no agent '{name[:80]}' in this house",
        because="nobody of that name is registered",
        try_this="look at `retinue agent list`",
        code="agent.not-found",
    )


def _find(conn: sa.Connection, *, desk: Desk, id_: str, whose: str) -> Credential:
    agent = _whose(conn, whose, gone_too=True)
    provider, _, name = id_.partition(":")
    named = f"{provider_name(desk, provider)}:{name.casefold()}"
    for credential in _all(desk, conn):
        if credential.key == (agent, named):
            return credential
    owner = f"agent {agent}" if agent else "the house"
    raise NotFound(
        f"{owner} has no credential '{id_[:130]}'",
        because="none of that id was added or found; what belongs to an agent is named with its --agent",
        try_this="look at `retinue credential list`",
        code="credential.not-found",
    )


OPERATIONS = (
    Operation(
        name="credential.list",
        summary="Which credentials there are for models, and how they fared. Keys are not shown.",
        parameters=Which,
        handler=listed,
        result=CredentialsListed,
        permission=PermissionLevel.BOSS,
    ),
    Operation(
        name="credential.add",
        summary="Add a credential, for the house or for one agent.",
        parameters=Add,
        handler=add,
        result=CredentialShown,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="credential.remove",
        summary="Remove a credential, and the key that was put away for it.",
        parameters=ById,
        handler=remove,
        result=CredentialRemoved,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="credential.order",
        summary="Say in which order a provider's credentials are asked.",
        parameters=SetOrder,
        handler=set_order,
        result=CredentialsListed,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="credential.mark-used",
        summary="Say that a credential served: its failures are forgiven.",
        parameters=Used,
        handler=mark_used,
        result=CredentialShown,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="credential.mark-failed",
        summary="Say that a credential failed: it is left alone for a while.",
        parameters=Failed,
        handler=mark_failed,
        result=CredentialShown,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="credential.clear",
        summary="Forget a credential's failures: it is asked again at once.",
        parameters=Used,
        handler=clear,
        result=CredentialShown,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
