"""One thing that can be asked of the house, declared once: every door takes parameters, rights and errors from it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.agents.hook_runner import Hooks
from retinue.config import Settings, default_agent
from retinue.config.agent_defaults import PLAIN, Defaults
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.envelope import KEY_LENGTH_MAX
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError, StoreError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelRef
from retinue.domain.ports import Clock, Ids, Post
from retinue.domain.principal import Principal
from retinue.domain.session import Mind
from retinue.domain.storable_text import is_storable
from retinue.domain.structs import replace
from retinue.domain.times import from_ms, show, to_ms
from retinue.engine.embedded_engine import Engine
from retinue.engine.event_broadcast import Live
from retinue.intake.external_callbacks import Callbacks
from retinue.models.model_selection import Catalog
from retinue.operations.audited_store import AuditedStore, line_of
from retinue.operations.config_holder import Keeper
from retinue.operations.envelope.uploads import Uploads
from retinue.policy.access import permissions
from retinue.store.agents import agents
from retinue.store.core import idempotency
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import Files
from retinue.text.redaction import masked_error
from retinue.tools.files.file_access import Ground
from retinue.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from retinue.agents.instruction_builder import Previews
    from retinue.connectors.supervisor.connector_supervisor import Switchboard
    from retinue.intake.inbound_webhooks import Requests
    from retinue.operations.plugin.plugins import Guests
    from retinue.schedules.heartbeats import Heartbeats
    from retinue.schedules.schedule_files import ScheduleFiles
    from retinue.tools.mcp.server_pool import Servers
    from retinue.tools.ui_windows import Windows

NUMBER_MAX = 2**63  # what every store can keep

_encode = msgspec.json.Encoder().encode


def _not_claimed() -> None:
    """For a request that has claimed no key."""


WhyNow = Callable[[Agent, Mind, Sequence[ModelRef]], Awaitable[Sequence[str]]]


class Desk(Struct, frozen=True, kw_only=True):
    """What operations work with."""

    store: Store
    post: Post
    engine: Engine
    live: Live
    clock: Clock
    ids: Ids
    secrets: Callable[[], str]  # 256 random bits, as text
    home: Path  # of the house: agents have theirs in it
    files: Files
    zone: ZoneInfo
    version: str
    policy: Mapping[str, PermissionLevel]
    config: Keeper | None = None  # None in a house that was furnished by hand
    settings: Callable[[], Settings] | None = None  # as they are now; None likewise
    runners: frozenset[str] | None = None  # the house's own
    catalog: Callable[[], Catalog] | None = None  # as it is now; None in a house whose models were put there by hand
    credentials_changed: Callable[[], Awaitable[None]] | None = None  # told when keys came, went or were forgiven
    toolbox: Toolbox | None = None  # None in a house without one
    ground: Ground | None = None  # what the file tools stand on
    plugins: Guests | None = None
    mcp: Servers | None = None
    schedule_files: ScheduleFiles | None = None  # None in a house whose schedules have no files
    heartbeats: Heartbeats | None = None  # None in a house whose heartbeats were put there by hand
    windows: Windows | None = None  # None in a house that nobody looks into by a page
    previews: Previews | None = None  # what agents would be told
    mask: Callable[[str], str] = str  # takes secrets out of what is told
    session_ended: Callable[[SessionId, str], Awaitable[None]] | None = None  # what still runs for it is ended
    why_now: WhyNow | None = None  # how the models of a chain stand: which is asked now, and with which key
    callbacks: Callbacks | None = None  # where agents that run elsewhere are heard
    requests: Callable[[], Requests] | None = None  # where those of programs elsewhere are taken, once there is one
    hooks: Hooks | None = None  # programs of the owner's that are run when something happens
    switchboard: Switchboard | None = None  # the lines of the house; None where it has no connectors at all
    uploads: Uploads = field(default_factory=Uploads)  # files that were sent ahead of their envelopes
    in_progress: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # keys being answered right now
    effect_begins: Callable[[], None] = _not_claimed  # called right before an effect: an error after it keeps the claim

    @property
    def defaults(self) -> Defaults:
        """What the house has for every agent that does not say it itself."""
        return self.settings().defaults if self.settings is not None else PLAIN

    @property
    def runners_here(self) -> frozenset[str] | None:
        """By which an agent can take its turns here: the house's own, and those of plug-ins. None: nobody said so."""
        guests = self.plugins.runners() if self.plugins is not None else ()
        return None if self.runners is None else self.runners.union(guests)

    def default_agent(self, conn: sa.Connection) -> str:
        """Who answers where nobody is named."""
        named = self.settings().default_agent if self.settings is not None else None
        found = default_agent(named, [agent.name for agent in agents.everyone(conn)])
        if found is None:
            raise NotFound(
                "nobody is named, and nobody works here",
                because="the staff is empty",
                try_this="take someone on: retinue agent register NAME",
                code="agent.none-here",
            )
        return found

    def keeper(self) -> Keeper:
        if self.config is None:
            raise NotFound(
                "this house has no settings file",
                because="it was opened with settings of its own",
                try_this="open it with `retinue run`",
                code="config.not-kept",
            )
        return self.config


class Operation(Struct, frozen=True, kw_only=True):
    """`name` is `noun.verb`; the noun and verb make the route and the command.

    `permission` is the least level that may ask, unless the house's `permission_policy` says otherwise. What is asked
    about is found by `store/core/lookup` and listed through `store/core/row_visibility`: what the caller does not see
    is not there.

    `claims_key`: a key that came with the request is claimed in a commit of its own before the handler begins, so that
    a request which was cut off is not done again under the same key. A handler that can be refused before its effect
    calls `desk.effect_begins()` right before it: an error that comes earlier releases the key.
    """

    name: str
    summary: str
    parameters: type[msgspec.Struct]
    handler: Callable[[Desk, Principal, Any], Awaitable[Any]]
    permission: PermissionLevel
    effect: bool = False
    result: Any = dict[str, Any]
    claims_key: bool = False
    shown_once: frozenset[str] = frozenset()  # what is secret in its answer, and not kept for one who asks again

    @property
    def route(self) -> str:
        return "/api/" + self.name.replace(".", "/")


def for_everyone(
    name: str, summary: str, parameters: Any, handler: Any, result: Any, *, effect: bool = True
) -> Operation:
    """One that anybody may ask for: what they see of it is theirs."""
    return Operation(
        name=name,
        summary=summary,
        parameters=parameters,
        handler=handler,
        permission=PermissionLevel.RESTRICTED,
        effect=effect,
        result=result,
    )


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


async def perform(desk: Desk, caller: Principal, operation: Operation, body: bytes, *, key: str = "") -> bytes:
    """What every door does with a request: rights, validation, the key, the handler, in this order."""
    permission = permissions.decide(operation.name, caller.level, desk.policy)
    if not permission.allowed:
        raise NotAllowed(
            f"you may not ask for {operation.name}",
            because=permission.because,
            try_this="ask the owner of this house",
            code="permission.denied",
        )
    asked = parse(body, operation.parameters)
    try:
        if not key or not operation.effect:
            answer = await _handle(desk, caller, operation, asked)
        else:
            answer = await once(desk, caller, operation, body, asked, key)
    except RetinueError as error:
        raise masked_error(error, desk.mask) from error
    return answer


async def _handle(desk: Desk, caller: Principal, operation: Operation, asked: msgspec.Struct) -> bytes:
    line = line_of(operation.name, asked, by=str(caller.address)) if operation.effect else None
    if line is None:
        return _encode(await operation.handler(desk, caller, asked))
    audited = AuditedStore(desk.store, line, desk.clock)
    answer = _encode(await operation.handler(replace(desk, store=audited), caller, asked))
    await audited.settle()
    return answer


def parse(body: bytes, parameters: type[msgspec.Struct]) -> Any:
    try:
        asked = msgspec.json.decode(body or b"{}", type=parameters)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(
            "these parameters do not fit",
            because=str(error),
            try_this="look at the operation's reference page",
            code="request.invalid",
        ) from error
    for name in parameters.__struct_fields__:
        value = getattr(asked, name)
        if isinstance(value, int) and not -NUMBER_MAX <= value < NUMBER_MAX:
            raise Invalid(
                "these parameters do not fit",
                because=f"a number has at most 63 bits - at `$.{name}`",
                try_this="use a smaller number",
                code="request.invalid",
            )
    return asked


async def once(
    desk: Desk, caller: Principal, operation: Operation, body: bytes, asked: msgspec.Struct, key: str
) -> bytes:
    """Answer a request with a key. The same request with the same key gets the same answer, and nothing is done again.

    Only a secret is not repeated, and an error is not remembered.

    An operation that `claims_key` is never done twice, also if the server is killed. The key is claimed in a commit
    before the handler begins, and the answer replaces the claim. A claim on which no request is at work was cut off, by
    the end of the server or by a cancellation: whether it took effect is not known, and each further request with that
    key is told so (`key.interrupted`) until the claim is purged like an answer. An error before the effect releases it.

    The answer of any other operation is kept in a commit after the operation's own. A server that is killed between
    the two does it again when asked again. Sending takes the key into its own commit, so that nothing can come in
    between.
    """
    if len(key) > KEY_LENGTH_MAX or not is_storable(key):
        raise Invalid(
            "this key cannot be used",
            because=f"a key has 1 to {KEY_LENGTH_MAX} characters, and no NUL or lone surrogate among them",
            try_this="send a random one, and the same one when you send again",
            code="key.invalid",
        )
    who = str(caller.address)
    request_hash = hashlib.sha256(operation.name.encode() + b"\0" + body).hexdigest()
    if (who, key) in desk.in_progress:
        raise Conflict(
            "a request with this key is being answered",
            because="it came in a moment ago and is not done yet",
            try_this="wait a moment and ask again with the same key",
            code="key.in-progress",
        )
    desk.in_progress.add((who, key))
    try:
        earlier = await desk.store.read(partial(idempotency.get, principal=who, key=key))
        if earlier is not None:
            return _earlier_answer(desk, earlier, key, request_hash)
        if operation.claims_key:
            claim = idempotency.Answer(operation.name, request_hash, idempotency.CLAIMED, to_ms(desk.clock.now()))
            await desk.store.write(partial(idempotency.keep, principal=who, key=key, answer=claim), point="key-claim")
            answer, keep = await _handle_claimed(desk, caller, operation, asked, key), idempotency.settle
        else:
            answer, keep = await _handle(desk, caller, operation, asked), idempotency.keep
        kept = without_secrets(answer, operation).decode()
        made = idempotency.Answer(operation.name, request_hash, kept, to_ms(desk.clock.now()))
        await desk.store.write(partial(keep, principal=who, key=key, answer=made), point="answer")
        return answer
    finally:
        desk.in_progress.discard((who, key))


def _earlier_answer(desk: Desk, earlier: idempotency.Answer, key: str, request_hash: str) -> bytes:
    if earlier.request_hash != request_hash:
        raise Conflict(
            f"the key '{key[:64]}' was already used for something else",
            because=f"it was used for {earlier.operation}, with other parameters or another operation",
            try_this="use a new key for a new request",
            code="key.reused",
        )
    if earlier.is_claim:
        raise Conflict(
            "this request was interrupted: it may or may not have been done",
            because="the server ended, or the request was cancelled, while it was being worked on; it began at "
            f"{show(from_ms(earlier.at_ms), desk.zone)}",
            try_this="check whether its effect is there; to do it again, use a new key",
            code="key.interrupted",
        )
    return earlier.body.encode()


async def _handle_claimed(
    desk: Desk, caller: Principal, operation: Operation, asked: msgspec.Struct, key: str
) -> bytes:
    """As `_handle`. An error before the effect releases the key; whatever else happens, the claim stays."""
    effect = _Effect()
    try:
        return await _handle(replace(desk, effect_begins=effect.begin), caller, operation, asked)
    except RetinueError:
        if not effect.begun:
            with suppress(StoreError):  # then the claim stays, and the caller needs to know the first error
                release = partial(idempotency.release, principal=str(caller.address), key=key)
                await desk.store.write(release, point="key-release")
        raise


class _Effect:
    """Whether a request may have had an effect."""

    def __init__(self) -> None:
        self.begun = False

    def begin(self) -> None:
        self.begun = True


def without_secrets(answer: bytes, operation: Operation) -> bytes:
    """The answer for whoever keeps it, or lets a model read it: it names what is secret, and does not tell it."""
    secrets = operation.shown_once
    if not secrets:
        return answer
    told: dict[str, Any] = msgspec.json.decode(answer)
    return _encode({key: value for key, value in told.items() if key not in secrets} | {"shown-once": sorted(secrets)})
