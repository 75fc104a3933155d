"""Operations that list, show, enable and disable hooks, and the code that sends a hook's output to a person."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.hook_runner import HookEvent, HookRunner
from retinue.agents.hooks import APPROVAL_KIND, EvaluatedHook, Hook, HookSource, HookState
from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind
from retinue.domain.ids import EnvelopeId, SessionId, derive_id
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER, get_session_address
from retinue.operations.base import Operation, Services
from retinue.operations.skill.errors import HookChanged, HookNotFound, HooksUnavailable
from retinue.store.agents import content_approvals
from retinue.store.sessions import sessions

HASH_DIGITS_MIN = 8

HookName = Annotated[str, msgspec.Meta(description="name of a hook")]


class HookListRequest(msgspec.Struct, forbid_unknown_fields=True):
    pass


class HookNameRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: HookName


class HookEnableRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Enable a hook. With `hash`, the hook is enabled only if its current version has this hash."""

    name: HookName
    hash: Annotated[
        str, msgspec.Meta(description="hash of the version that you read; default: the current version")
    ] = ""


class HookDetails(msgspec.Struct, frozen=True):
    name: str
    description: str
    events: list[str]
    source: HookSource
    state: HookState
    because: str
    path: str
    hash: str


class BrokenHookRow(msgspec.Struct, frozen=True):
    folder: str
    because: str


class HookList(msgspec.Struct, frozen=True):
    """All hooks. `shadowed` lists the hooks that another hook with the same name overrides.

    `broken` lists the folders that do not contain a valid hook.
    """

    hooks: list[HookDetails]
    shadowed: list[str]
    broken: list[BrokenHookRow]


class HookContent(msgspec.Struct, frozen=True):
    """The files of a hook. `content` is the current text of HOOK.md and of the handler."""

    hook: HookDetails
    content: str


class HookDisabled(msgspec.Struct, frozen=True):
    name: str
    was_enabled: bool


async def list_hooks(services: Services, caller: Principal, request: HookListRequest) -> HookList:
    found, stood = await _require_hooks(services).find_hooks()
    return HookList(
        hooks=[_to_hook_details(each) for each in stood],
        shadowed=[str(each.folder) for each in found.shadowed],
        broken=[BrokenHookRow(str(each.folder), each.because) for each in found.invalid],
    )


async def show_hook(services: Services, caller: Principal, request: HookNameRequest) -> HookContent:
    stood = await _require_hook(services, request.name)
    return HookContent(_to_hook_details(stood), stood.hook.content)


async def enable_hook(services: Services, caller: Principal, request: HookEnableRequest) -> HookDetails:
    """Enable a hook by approving its current hash.

    If its files change, the hook does not run until it is enabled again.
    """
    hook = (await _require_hook(services, request.name)).hook
    if request.hash and (len(request.hash) < HASH_DIGITS_MIN or not hook.hash.startswith(request.hash.lower())):
        raise HookChanged(hook.name, hash_shown=hook.hash[:12])
    keep = partial(_store_approved_hash, hook=hook, caller=caller, at_ms=to_ms(services.clock.now()))
    await services.store.write(keep, point="hook")
    return _to_hook_details(await _require_hook(services, hook.name))


async def disable_hook(services: Services, caller: Principal, request: HookNameRequest) -> HookDisabled:
    hook = (await _require_hook(services, request.name)).hook
    gone = await services.store.write(
        partial(content_approvals.remove, kind=APPROVAL_KIND, name=hook.key), point="hook"
    )
    return HookDisabled(hook.name, gone)


async def send_hook_output(services: Services, event: HookEvent, hook: Hook, text: str) -> None:
    """Send a hook's output as a notification to the person to whom the event's session belongs.

    No model reads the output.
    """

    def find(conn: sa.Connection) -> address.Address:
        session = sessions.get(conn, SessionId(event.session)) if event.session else None
        return get_session_address(session.origin) if session is not None else OWNER

    to = await services.store.read(find)
    key = f"{event.key}/{hook.name}/{derive_id(event.key, text)}"
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(key, "hook")),
        sender=address.SERVER_ADDRESS,
        recipient=to,
        text=services.redact(text),
        source="hook",
        idempotency_key=derive_id(key, "key"),
        kind=EnvelopeKind.NOTICE,
        trust=Trust.PRIVATE,
    )
    await services.intake.accept(draft)


def _store_approved_hash(conn: sa.Connection, *, hook: Hook, caller: Principal, at_ms: int) -> None:
    content_approvals.upsert(
        conn,
        APPROVAL_KIND,
        hook.key,
        hash_=hook.hash,
        content=hook.content,
        decided_by=str(caller.address),
        at_ms=at_ms,
    )


async def _require_hook(services: Services, name: str) -> EvaluatedHook:
    found, stood = await _require_hooks(services).find_hooks()
    for each in stood:
        if each.hook.name == name:
            return each
    broken = next((each for each in found.invalid if each.folder.name == name), None)
    raise HookNotFound(
        name,
        broken_folder=str(broken.folder) if broken else "",
        broken_because=broken.because if broken else "",
    )


def _require_hooks(services: Services) -> HookRunner:
    if services.hooks is None:
        raise HooksUnavailable()
    return services.hooks


def _to_hook_details(status: EvaluatedHook) -> HookDetails:
    hook = status.hook
    return HookDetails(
        name=hook.name,
        description=hook.description,
        events=list(hook.events),
        source=hook.source,
        state=status.state,
        because=status.because,
        path=str(hook.folder),
        hash=hook.hash,
    )


OPERATIONS = (
    Operation(
        name="hook.list",
        summary="List hooks, their status and folders.",
        parameters=HookListRequest,
        handler=list_hooks,
        result=HookList,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="hook.show",
        summary="Show a hook: its description and its program.",
        parameters=HookNameRequest,
        handler=show_hook,
        result=HookContent,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="hook.enable",
        summary="Enable a hook's current version.",
        parameters=HookEnableRequest,
        handler=enable_hook,
        result=HookDetails,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="hook.disable",
        summary="Disable a hook.",
        parameters=HookNameRequest,
        handler=disable_hook,
        result=HookDisabled,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
