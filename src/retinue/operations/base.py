"""Operations: one declaration per API call, and how a request to one is performed.

HTTP, CLI, tools and docs take parameters, permissions and errors from the declaration.
"""

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

NUMBER_MAX = 2**63  # exclusive limit: databases store signed 64-bit integers

_encode = msgspec.json.Encoder().encode


def _not_claimed() -> None:
    """Do nothing: the default for a request that has not claimed an idempotency key."""


WhyNow = Callable[[Agent, Mind, Sequence[ModelRef]], Awaitable[Sequence[str]]]


class Desk(Struct, frozen=True, kw_only=True):
    """The services that operation handlers use."""

    store: Store
    post: Post
    engine: Engine
    live: Live
    clock: Clock
    ids: Ids
    secrets: Callable[[], str]  # returns 256 random bits as text
    home: Path  # data directory of the instance; contains the agent directories
    files: Files
    zone: ZoneInfo
    version: str
    policy: Mapping[str, PermissionLevel]
    config: Keeper | None = None  # None if the server was built without a settings file
    settings: Callable[[], Settings] | None = None  # returns the current settings; None as above
    runners: frozenset[str] | None = None  # the built-in ones
    catalog: Callable[[], Catalog] | None = None  # current models; None if they were passed in
    credentials_changed: Callable[[], Awaitable[None]] | None = None  # call after a change of credentials
    toolbox: Toolbox | None = None  # None if the server has no tools
    ground: Ground | None = None  # shared by the file tools
    plugins: Guests | None = None
    mcp: Servers | None = None
    schedule_files: ScheduleFiles | None = None  # None if schedules have no files
    heartbeats: Heartbeats | None = None  # None if heartbeats were passed in directly
    windows: Windows | None = None  # None if the server has no web app
    previews: Previews | None = None  # previews of system prompts
    mask: Callable[[str], str] = str  # redacts secrets in answers and errors
    session_ended: Callable[[SessionId, str], Awaitable[None]] | None = None  # ends what still runs for a session
    why_now: WhyNow | None = None  # explains which model and key are used now
    callbacks: Callbacks | None = None  # receives the answers of external agents
    requests: Callable[[], Requests] | None = None  # receives inbound webhook requests
    hooks: Hooks | None = None  # local programs run after events
    switchboard: Switchboard | None = None  # None if there are no connectors
    uploads: Uploads = field(default_factory=Uploads)  # files uploaded before their envelopes
    in_progress: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # (principal, key)
    effect_begins: Callable[[], None] = _not_claimed  # call right before an effect

    @property
    def defaults(self) -> Defaults:
        """Settings for agents that do not set them themselves."""
        return self.settings().defaults if self.settings is not None else PLAIN

    @property
    def runners_here(self) -> frozenset[str] | None:
        """Names of the available runners, built-in and from plugins. None if they are not known."""
        guests = self.plugins.runners() if self.plugins is not None else ()
        return None if self.runners is None else self.runners.union(guests)

    def default_agent(self, conn: sa.Connection) -> str:
        """Return the agent that answers when none is named. Raise if there are no agents."""
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
    """One API call. `name` is `noun.verb`, from which the HTTP route and the CLI command are derived.

    `permission` is the minimum level of the caller, unless the setting `permission_policy` overrides
    it. Handlers look rows up with `store/core/lookup` and list them with `store/core/row_visibility`:
    a row that the caller may not see is reported as missing.

    `claims_key`: the request's idempotency key is claimed in a separate commit before the handler
    starts. An interrupted request is then not performed again under the same key. A handler that may
    fail before its effect calls `services.mark_effect_started()` right before the effect: an earlier
    error releases the key.
    """

    name: str
    summary: str
    parameters: type[msgspec.Struct]
    handler: Callable[[Desk, Principal, Any], Awaitable[Any]]
    permission: PermissionLevel
    effect: bool = False
    result: Any = dict[str, Any]
    claims_key: bool = False
    shown_once: frozenset[str] = frozenset()  # secret answer fields, not stored for replay

    @property
    def route(self) -> str:
        return "/api/" + self.name.replace(".", "/")


def for_everyone(
    name: str, summary: str, parameters: Any, handler: Any, result: Any, *, effect: bool = True
) -> Operation:
    """Return an operation for every permission level. Its handler limits answers to what the caller may see."""
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
    """Perform one request: check the permission, parse, check the idempotency key and call the handler."""
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
    """Answer a request that has an idempotency key.

    A repeated request gets the stored answer and has no second effect. Secrets are left out of the
    stored answer, and errors are not stored.

    An operation with `claims_key` is never performed twice, even if the server is killed. The key is
    claimed in a commit before the handler starts, and the answer replaces the claim. A claim without a
    request in progress was interrupted by a server stop or a cancellation, so its effect is unknown.
    Every further request with that key fails with `key.interrupted` until the claim is purged, as
    answers are. An error before the effect releases the claim.

    For other operations, a second commit after the operation's own stores the answer. If the server is
    killed between the two, a repeated request is performed again. `envelope.send` stores the key in its
    own commit, which closes this gap.
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
    """Call `_call_handler`. An error before the effect releases the key; in every other case the claim stays."""
    effect = _Effect()
    try:
        return await _handle(replace(desk, effect_begins=effect.begin), caller, operation, asked)
    except RetinueError:
        if not effect.begun:
            with suppress(StoreError):  # the claim stays; the caller needs the first error
                release = partial(idempotency.release, principal=str(caller.address), key=key)
                await desk.store.write(release, point="key-release")
        raise


class _Effect:
    """Tracks whether a request may have had an effect."""

    def __init__(self) -> None:
        self.begun = False

    def begin(self) -> None:
        self.begun = True


def without_secrets(answer: bytes, operation: Operation) -> bytes:
    """Return the answer without its secret fields, for storage or for a model. `shown-once` lists their names."""
    secrets = operation.shown_once
    if not secrets:
        return answer
    told: dict[str, Any] = msgspec.json.decode(answer)
    return _encode({key: value for key, value in told.items() if key not in secrets} | {"shown-once": sorted(secrets)})
