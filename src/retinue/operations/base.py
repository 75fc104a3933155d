"""Defines how an operation (one API call) is declared, and performs requests.

HTTP, the CLI, the tools of agents and the reference pages are derived from the declarations.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.agents.hook_runner import HookRunner
from retinue.config import Settings, choose_default_agent
from retinue.config.agent_defaults import BUILT_IN_AGENT_DEFAULTS, AgentDefaults
from retinue.config.renamed_settings import find_new_parameter
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.envelope import IDEMPOTENCY_KEY_LENGTH_MAX
from retinue.domain.errors import RetinueError, StoreError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelRef
from retinue.domain.ports import Clock, EnvelopeAcceptor, IdSource
from retinue.domain.principal import Principal
from retinue.domain.renamed_names import PARAMETERS
from retinue.domain.session import SessionOptions
from retinue.domain.shared_errors import KeyInvalid, KeyReused, PermissionDenied
from retinue.domain.storable_text import is_storable
from retinue.domain.structs import replace
from retinue.domain.times import format_time, from_ms, to_ms
from retinue.engine.embedded_engine import Engine
from retinue.engine.event_broadcast import EventBroadcast
from retinue.intake.external_callbacks import CallbackIntake
from retinue.models.model_selection import ModelSelector
from retinue.operations.audited_store import AuditedStore, build_audit_entry
from retinue.operations.config_holder import ConfigHolder
from retinue.operations.envelope.uploads import Uploads
from retinue.operations.errors import KeyInProgress, KeyInterrupted, NoAgents, RequestInvalid, SettingsFileUnavailable
from retinue.policy.access import operation_permissions
from retinue.store.agents import agents
from retinue.store.core import idempotency
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.text.redaction import redact_error
from retinue.tools.files.file_services import FileServices
from retinue.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from retinue.agents.instruction_builder import PromptPreviews
    from retinue.connectors.supervisor.connector_supervisor import ConnectorSupervisor
    from retinue.intake.inbound_webhooks import WebhookIntake
    from retinue.operations.plugin.plugins import PluginManager
    from retinue.schedules.heartbeats import HeartbeatSync
    from retinue.schedules.schedule_files import ScheduleFileSync
    from retinue.tools.mcp.server_pool import McpServerPool
    from retinue.tools.ui_windows import WindowRegistry

NUMBER_MAX = 2**63  # exclusive limit: databases store signed 64-bit integers

_encode = msgspec.json.Encoder().encode
_UNKNOWN_FIELD = re.compile(r"unknown field `(\w+)`")


def _ignore_effect_start() -> None:
    """Do nothing. Default of `Services.mark_effect_started`, for requests that have claimed no idempotency key."""


ExplainModelChain = Callable[[Agent, SessionOptions, Sequence[ModelRef]], Awaitable[Sequence[str]]]


class Services(Struct, frozen=True, kw_only=True):
    """The parts of the server that operation handlers use, such as the store, the clock and the current settings."""

    store: Store
    intake: EnvelopeAcceptor
    engine: Engine
    event_broadcast: EventBroadcast
    clock: Clock
    ids: IdSource
    new_secret: Callable[[], str]  # returns 256 random bits as text
    data_dir: Path  # data directory of the instance; contains the agent directories
    attachment_files: AttachmentFiles
    zone: ZoneInfo
    version: str
    permission_policy: Mapping[str, PermissionLevel]
    config_holder: ConfigHolder | None = None  # None if the server was built without a settings file
    settings: Callable[[], Settings] | None = None  # returns the current settings; None without a settings file
    builtin_runners: frozenset[str] | None = None  # names of the built-in runners
    catalog: Callable[[], ModelSelector] | None = None  # returns the current models; None if they were passed in
    on_credentials_changed: Callable[[], Awaitable[None]] | None = None  # call after a change of credentials
    toolbox: Toolbox | None = None  # None if the server has no tools
    file_services: FileServices | None = None  # shared by the file tools
    plugins: PluginManager | None = None
    mcp: McpServerPool | None = None
    schedule_files: ScheduleFileSync | None = None  # None if schedules have no files
    heartbeats: HeartbeatSync | None = None  # None if heartbeats were passed in directly
    ui_windows: WindowRegistry | None = None  # None if the server has no web app
    prompt_previews: PromptPreviews | None = None  # previews of system prompts
    redact: Callable[[str], str] = str  # redacts secrets in responses and errors
    end_session_work: Callable[[SessionId, str], Awaitable[None]] | None = None  # stops the work for a session
    explain_model_chain: ExplainModelChain | None = None  # explains which model and key are used now
    external_callbacks: CallbackIntake | None = None  # receives the answers of external agents
    inbound_webhooks: Callable[[], WebhookIntake] | None = None  # receives inbound webhook requests
    hooks: HookRunner | None = None  # local programs run after events
    connector_supervisor: ConnectorSupervisor | None = None  # None if there are no connectors
    uploads: Uploads = field(default_factory=Uploads)  # files uploaded before their envelopes
    keys_in_progress: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # (principal, key)
    mark_effect_started: Callable[[], None] = _ignore_effect_start  # call right before an effect

    @property
    def defaults(self) -> AgentDefaults:
        """The default settings of the instance, for agents without their own values."""
        return self.settings().defaults if self.settings is not None else BUILT_IN_AGENT_DEFAULTS

    @property
    def available_runners(self) -> frozenset[str] | None:
        """Names of the available runners, built-in and from plugins. None if they are not known."""
        from_plugins = self.plugins.runners() if self.plugins is not None else ()
        return None if self.builtin_runners is None else self.builtin_runners.union(from_plugins)

    def default_agent(self, conn: sa.Connection) -> str:
        """Return the name of the agent to use if a request names no agent. Raise if there are no agents."""
        named = self.settings().default_agent if self.settings is not None else None
        found = choose_default_agent(named, [agent.name for agent in agents.list_all(conn)])
        if found is None:
            raise NoAgents()
        return found

    def require_config_holder(self) -> ConfigHolder:
        if self.config_holder is None:
            raise SettingsFileUnavailable()
        return self.config_holder


class Operation(Struct, frozen=True, kw_only=True):
    """One API call. `name` has the form `noun.verb`: the HTTP route and the CLI command are derived from it.

    `permission` is the minimum permission level of the caller, unless the setting `permission_policy`
    overrides it. Handlers look rows up with `store/core/lookup` and list them with
    `store/core/row_visibility`: a row that the caller may not see is reported as missing.

    `claims_key` says whether the request's idempotency key is claimed in a separate commit before the
    handler starts. If it is, an interrupted request is not performed again under the same key. A
    handler that may fail before its effect calls `services.mark_effect_started()` right before the
    effect. An error before this call releases the key.
    """

    name: str
    summary: str
    parameters: type[msgspec.Struct]
    handler: Callable[[Services, Principal, Any], Awaitable[Any]]
    permission: PermissionLevel
    has_effect: bool = False
    result: Any = dict[str, Any]
    claims_key: bool = False
    secret_fields: frozenset[str] = frozenset()  # response fields that are secret, so they are not stored for replay

    @property
    def route(self) -> str:
        return "/api/" + self.name.replace(".", "/")

    @property
    def command(self) -> tuple[str, str]:
        """The noun and the verb of the CLI command, in kebab-case."""
        noun, _, verb = self.name.replace("_", "-").partition(".")
        return noun, verb


def unrestricted_operation(
    name: str, summary: str, parameters: Any, handler: Any, result: Any, *, has_effect: bool = True
) -> Operation:
    """Return an operation that every caller may use. Its handler returns only what the caller may see."""
    return Operation(
        name=name,
        summary=summary,
        parameters=parameters,
        handler=handler,
        permission=PermissionLevel.RESTRICTED,
        has_effect=has_effect,
        result=result,
    )


class EmptyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The request type of operations that take no parameters."""


async def perform_operation(
    services: Services, caller: Principal, operation: Operation, body: bytes, *, key: str = ""
) -> bytes:
    """Perform one request and return its response as JSON.

    Checks the caller's permission, the parameters and the idempotency key, then calls the handler.
    """
    permission = operation_permissions.decide_operation(operation.name, caller.level, services.permission_policy)
    if not permission.is_allowed:
        raise PermissionDenied(f"call {operation.name}", because=permission.because)
    parsed = parse_request(body, operation.parameters, operation=operation.name)
    try:
        if not key or not operation.has_effect:
            answer = await _call_handler(services, caller, operation, parsed)
        else:
            answer = await perform_with_key(services, caller, operation, body, parsed, key)
    except RetinueError as error:
        raise redact_error(error, services.redact) from error
    return answer


async def _call_handler(services: Services, caller: Principal, operation: Operation, request: msgspec.Struct) -> bytes:
    line = build_audit_entry(operation.name, request, by=str(caller.address)) if operation.has_effect else None
    if line is None:
        return _encode(await operation.handler(services, caller, request))
    audited = AuditedStore(services.store, line, services.clock)
    answer = _encode(await operation.handler(replace(services, store=audited), caller, request))
    await audited.ensure_entry_written()
    return answer


def parse_request(body: bytes, parameters: type[msgspec.Struct], *, operation: str = "") -> Any:
    """Decode the parameters of a request. The error for a renamed parameter contains its new name."""
    try:
        parsed = msgspec.json.decode(body or b"{}", type=parameters)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(because=_explain_renamed_parameter(operation, parameters, str(error))) from error
    for name in parameters.__struct_fields__:
        value = getattr(parsed, name)
        if isinstance(value, int) and not -NUMBER_MAX <= value < NUMBER_MAX:
            raise RequestInvalid(because=f"the number does not fit into 64 bits - at `$.{name}`")
    return parsed


def _explain_renamed_parameter(operation: str, parameters: type[msgspec.Struct], because: str) -> str:
    """Return the decoder's error message, with the new name of the parameter if the message names a renamed one."""
    found = _UNKNOWN_FIELD.search(because)
    if found is None:
        return because
    old = found[1]
    new = PARAMETERS.get(f"{operation}.{old}") or find_new_parameter(old, parameters.__struct_encode_fields__)
    return f"{because}: `{old}` is now `{new}`" if new else because


async def perform_with_key(
    services: Services, caller: Principal, operation: Operation, body: bytes, request: msgspec.Struct, key: str
) -> bytes:
    """Perform a request that has an idempotency key.

    A repeated request gets the stored response and has no second effect. Secrets are left out of the
    stored response, and errors are not stored.

    An operation with `claims_key` is never performed twice, even if the server is killed. The key is
    claimed in a commit before the handler starts, and the response replaces the claim. If a claim exists
    but its request is not in progress, the request was interrupted by a server stop or a cancellation.
    Its effect is unknown. Every further request with that key then fails with `key.interrupted`, until
    the claim is purged like a stored response. An error before the effect releases the claim.

    For other operations, the response is stored in a second commit, after the operation's own commit.
    If the server is killed between the two commits, a repeated request is performed again. For
    `envelope.send` this cannot happen, because it stores the key in the same commit as the envelope.
    """
    if len(key) > IDEMPOTENCY_KEY_LENGTH_MAX or not is_storable(key):
        raise KeyInvalid(chars_max=IDEMPOTENCY_KEY_LENGTH_MAX)
    who = str(caller.address)
    request_hash = hashlib.sha256(operation.name.encode() + b"\0" + body).hexdigest()
    if (who, key) in services.keys_in_progress:
        raise KeyInProgress()
    services.keys_in_progress.add((who, key))
    try:
        earlier = await services.store.read(partial(idempotency.get, principal=who, key=key))
        if earlier is not None:
            return _replay_answer(services, earlier, key, request_hash)
        if operation.claims_key:
            claim = idempotency.StoredResponse(
                operation.name, request_hash, idempotency.CLAIMED, to_ms(services.clock.now())
            )
            await services.store.write(
                partial(idempotency.insert, principal=who, key=key, response=claim), point="key-claim"
            )
            answer, keep = (
                await _call_handler_with_claim(services, caller, operation, request, key),
                idempotency.replace_claim,
            )
        else:
            answer, keep = await _call_handler(services, caller, operation, request), idempotency.insert
        kept = remove_secret_fields(answer, operation).decode()
        made = idempotency.StoredResponse(operation.name, request_hash, kept, to_ms(services.clock.now()))
        await services.store.write(partial(keep, principal=who, key=key, response=made), point="answer")
        return answer
    finally:
        services.keys_in_progress.discard((who, key))


def _replay_answer(services: Services, earlier: idempotency.StoredResponse, key: str, request_hash: str) -> bytes:
    if earlier.request_hash != request_hash:
        raise KeyReused(key, because=f"an earlier, different call of {earlier.operation} used it")
    if earlier.is_claim:
        raise KeyInterrupted(started_at=format_time(from_ms(earlier.at_ms), services.zone))
    return earlier.body.encode()


async def _call_handler_with_claim(
    services: Services, caller: Principal, operation: Operation, request: msgspec.Struct, key: str
) -> bytes:
    """Call the handler of an operation that claims its idempotency key.

    An error before the effect releases the key. In every other case the claim stays.
    """
    effect = _EffectTracker()
    try:
        return await _call_handler(replace(services, mark_effect_started=effect.start), caller, operation, request)
    except RetinueError:
        if not effect.has_started:
            with suppress(StoreError):  # the claim stays; the caller needs the first error
                release = partial(idempotency.release_claim, principal=str(caller.address), key=key)
                await services.store.write(release, point="key-release")
        raise


class _EffectTracker:
    """Tracks whether a request may have had an effect, which decides if its idempotency key can be released."""

    def __init__(self) -> None:
        self.has_started = False

    def start(self) -> None:
        self.has_started = True


def remove_secret_fields(answer: bytes, operation: Operation) -> bytes:
    """Return a response without its secret fields, for storage or for a model.

    The field `shown_once` of the new response lists the names of the removed fields.
    """
    secrets = operation.secret_fields
    if not secrets:
        return answer
    fields: dict[str, Any] = msgspec.json.decode(answer)
    public = {key: value for key, value in fields.items() if key not in secrets}
    return _encode(public | {"shown_once": sorted(secrets)})
