"""List, show, enable and disable hooks, and send a hook's output to a person."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.hook_runner import Happened, Hooks
from retinue.agents.hooks import KIND, Hook, HookSource, HookState, Standing
from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import Draft, Kind
from retinue.domain.errors import Conflict, NotFound
from retinue.domain.ids import EnvelopeId, SessionId, derived
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER, who_listens
from retinue.operations.base import Desk, Operation
from retinue.store.agents import approved_hashes
from retinue.store.sessions import sessions

HASH_DIGITS_MIN = 8

HookName = Annotated[str, msgspec.Meta(description="a hook by name")]


class List(msgspec.Struct, forbid_unknown_fields=True):
    pass


class One(msgspec.Struct, forbid_unknown_fields=True):
    name: HookName


class Enable(msgspec.Struct, forbid_unknown_fields=True):
    """With `hash`, the hook is enabled only if it still has that hash."""

    name: HookName
    hash: Annotated[str, msgspec.Meta(description="of what you have read; left out, as it stands now")] = ""


class HookShown(msgspec.Struct, frozen=True):
    name: str
    description: str
    events: list[str]
    source: HookSource
    state: HookState
    because: str
    path: str
    hash: str


class HookBroken(msgspec.Struct, frozen=True):
    folder: str
    because: str


class HooksListed(msgspec.Struct, frozen=True):
    """`shadowed` are overridden by another hook of the same name.

    `broken` are folders without a valid hook.
    """

    hooks: list[HookShown]
    shadowed: list[str]
    broken: list[HookBroken]


class HookRead(msgspec.Struct, frozen=True):
    """`content` is the current HOOK.md and handler."""

    hook: HookShown
    content: str


class HookDisabled(msgspec.Struct, frozen=True):
    name: str
    was_enabled: bool


async def listed(desk: Desk, caller: Principal, asked: List) -> HooksListed:
    found, stood = await _hooks(desk).look()
    return HooksListed(
        hooks=[_shown(each) for each in stood],
        shadowed=[str(each.folder) for each in found.shadowed],
        broken=[HookBroken(str(each.folder), each.because) for each in found.broken],
    )


async def show(desk: Desk, caller: Principal, asked: One) -> HookRead:
    stood = await _one(desk, asked.name)
    return HookRead(_shown(stood), stood.hook.content)


async def enable(desk: Desk, caller: Principal, asked: Enable) -> HookShown:
    """Enable a hook by approving its current hash.

    After a change of its files it does not run until approved again.
    """
    hook = (await _one(desk, asked.name)).hook
    if asked.hash and (len(asked.hash) < HASH_DIGITS_MIN or not hook.hash.startswith(asked.hash.lower())):
        raise Conflict(
            f"the hook '{hook.name}' is not what you have read",
            because=f"its hash is {hook.hash[:12]} now",
            try_this=f"read it again: retinue hook show {hook.name}",
            code="hook.changed",
        )
    keep = partial(_pin, hook=hook, caller=caller, at_ms=to_ms(desk.clock.now()))
    await desk.store.write(keep, point="hook")
    return _shown(await _one(desk, hook.name))


async def disable(desk: Desk, caller: Principal, asked: One) -> HookDisabled:
    hook = (await _one(desk, asked.name)).hook
    gone = await desk.store.write(partial(approved_hashes.remove, kind=KIND, name=hook.key), point="hook")
    return HookDisabled(hook.name, gone)


async def say(desk: Desk, event: Happened, hook: Hook, text: str) -> None:
    """Send a hook's output as a notification to the person of the event's session.

    No model reads it.
    """

    def find(conn: sa.Connection) -> address.Address:
        session = sessions.get(conn, SessionId(event.session)) if event.session else None
        return who_listens(session.origin) if session is not None else OWNER

    to = await desk.store.read(find)
    key = f"{event.key}/{hook.name}/{derived(event.key, text)}"
    draft = Draft(
        id=EnvelopeId(derived(key, "hook")),
        sender=address.HOUSE,
        recipient=to,
        text=desk.mask(text),
        source="hook",
        key=derived(key, "key"),
        kind=Kind.NOTICE,
        trust=Trust.PRIVATE,
    )
    await desk.post.post(draft)


def _pin(conn: sa.Connection, *, hook: Hook, caller: Principal, at_ms: int) -> None:
    approved_hashes.put(
        conn, KIND, hook.key, hash_=hook.hash, content=hook.content, decided_by=str(caller.address), at_ms=at_ms
    )


async def _one(desk: Desk, name: str) -> Standing:
    found, stood = await _hooks(desk).look()
    for each in stood:
        if each.hook.name == name:
            return each
    broken = next((each for each in found.broken if each.folder.name == name), None)
    raise NotFound(
        f"there is no hook '{name[:64]}'",
        because=f"{broken.folder} is none: {broken.because}" if broken else "no folder of hooks has one of that name",
        try_this="look at `retinue hook list`",
        code="hook.not-found",
    )


def _hooks(desk: Desk) -> Hooks:
    if desk.hooks is None:
        raise NotFound(
            "this house has no hooks",
            because="it was furnished by hand",
            try_this="open it with `retinue run`",
            code="hook.not-found",
        )
    return desk.hooks


def _shown(stood: Standing) -> HookShown:
    hook = stood.hook
    return HookShown(
        name=hook.name,
        description=hook.description,
        events=list(hook.events),
        source=hook.source,
        state=stood.state,
        because=stood.because,
        path=str(hook.folder),
        hash=hook.hash,
    )


OPERATIONS = (
    Operation(
        name="hook.list",
        summary="List hooks, how they stand, and where they lie.",
        parameters=List,
        handler=listed,
        result=HooksListed,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="hook.show",
        summary="Show all of a hook: what it says of itself, and what it runs.",
        parameters=One,
        handler=show,
        result=HookRead,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="hook.enable",
        summary="Have a hook run from now on, as it stands.",
        parameters=Enable,
        handler=enable,
        result=HookShown,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="hook.disable",
        summary="Have a hook not run any more.",
        parameters=One,
        handler=disable,
        result=HookDisabled,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
