"""Decides where a command runs and whether it needs approval, from the settings and a tool call's request.

If settings and request differ, the stricter applies. Only elevation (running outside the sandbox) can make the result
less strict than the settings. It requires that every condition in `ElevationGates` is met.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from retinue.config.tools import CommandAsk, CommandLocation, CommandSecurity, ElevatedPolicy
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.display_options import Elevation
from retinue.policy.tools.exec_allowlist import CommandRule

EXEC_KEY = "tools.exec"
ELEVATED_KEY = "tools.exec.elevated"


class ExecPolicy(Struct, frozen=True, kw_only=True):
    """The owner's settings for commands.

    `security` and `ask` apply on the host. `sandbox_security` and `sandbox_ask` apply in the sandbox.
    """

    host: CommandLocation = CommandLocation.SANDBOX
    security: CommandSecurity = CommandSecurity.ALLOWLIST
    ask: CommandAsk = CommandAsk.ON_MISS
    sandbox_security: CommandSecurity = CommandSecurity.FULL
    sandbox_ask: CommandAsk = CommandAsk.OFF
    elevated: ElevatedPolicy = ElevatedPolicy.OFF
    allow: tuple[CommandRule, ...] = ()


class ExecRequest(Struct, frozen=True, kw_only=True):
    """What a tool call requests for its command.

    It can be stricter than the settings. It can be less strict only with elevation.
    """

    host: CommandLocation | None = None
    security: CommandSecurity | None = None
    ask: CommandAsk | None = None
    elevated: bool = False


class ElevationGates(Struct, frozen=True, kw_only=True):
    """Conditions under which a command may leave the sandbox, in addition to the owner's setting.

    Each condition is a gate. If one is not met, its gate is closed, and the command stays in the
    sandbox.

    `level` is the conversation's setting. If it is None, only calls that request elevation are elevated. If it is
    `off`, no call is elevated. With any other value, all calls are elevated.
    """

    is_for_owner: bool = False  # the run acts for the owner
    is_foreground: bool = False  # a person takes part in the session: no subagent, no schedule
    is_agent_permitted: bool = True  # the agent's settings do not forbid it
    level: Elevation | None = None


class ExecPlacement(Struct, frozen=True, kw_only=True):
    """Where a command runs, the rules that apply there, and the reason."""

    where: CommandLocation
    security: CommandSecurity
    ask: CommandAsk
    because: str
    key: str = EXEC_KEY  # the setting to change for another result
    is_refused: bool = False
    denies_misses: bool = False  # commands missing from the allowlist are denied without asking


def resolve_placement(
    policy: ExecPolicy, request: ExecRequest, gates: ElevationGates, *, sandbox_works: bool
) -> ExecPlacement:
    """Return where a command runs. If settings and request differ, the stricter applies.

    Only elevation, if all its gates are open, makes the result less strict than the settings.
    """
    if policy.host is CommandLocation.SANDBOX:
        # If a gate is closed, a call that did not request elevation stays in the sandbox instead of being refused.
        by_level = gates.level not in (None, Elevation.OFF) and request.host is not CommandLocation.SANDBOX
        if request.elevated or (by_level and not find_closed_gate(policy.elevated, gates)):
            return _resolve_elevated(policy, request, gates)
    if request.host is CommandLocation.HOST and policy.host is CommandLocation.SANDBOX:
        return ExecPlacement(
            where=CommandLocation.SANDBOX,
            security=CommandSecurity.DENY,
            ask=CommandAsk.ALWAYS,
            because="commands run in the sandbox here; only `elevated` can request the host",
            is_refused=True,
        )
    where = _strictest(CommandLocation, policy.host, request.host)
    if where is CommandLocation.SANDBOX and not sandbox_works:
        return ExecPlacement(
            where=CommandLocation.HOST,
            security=_strictest(
                CommandSecurity, _strictest(CommandSecurity, policy.security, policy.sandbox_security), request.security
            ),
            ask=CommandAsk.ALWAYS,
            key="sandbox.kind",
            because="no sandbox works on this machine, so a command without one needs approval",
            denies_misses=_denies_misses(policy.security, policy.ask),
        )
    security, ask = (
        (policy.sandbox_security, policy.sandbox_ask)
        if where is CommandLocation.SANDBOX
        else (policy.security, policy.ask)
    )
    return ExecPlacement(
        where=where,
        security=_strictest(CommandSecurity, security, request.security),
        ask=_strictest(CommandAsk, ask, request.ask),
        because="commands run in the sandbox" if where is CommandLocation.SANDBOX else "commands run on the host",
        denies_misses=_denies_misses(security, ask),
    )


def decide_exec(placement: ExecPlacement, listed: Decision) -> Decision:
    """Decide whether a command may run where it was placed. `listed` is the decision of `decide_by_allowlist`."""
    if placement.is_refused or placement.security is CommandSecurity.DENY:
        because = placement.because if placement.is_refused else f"`{EXEC_KEY}` denies every command"
        return Decision(DecisionKind.DENY, because, setting_key=placement.key)
    if placement.security is CommandSecurity.ALLOWLIST and not listed.is_allowed:
        denied = placement.denies_misses or placement.ask is CommandAsk.OFF
        return Decision(
            DecisionKind.DENY if denied else DecisionKind.ASK, listed.because, setting_key=listed.setting_key
        )
    if placement.ask is CommandAsk.ALWAYS:
        return Decision(DecisionKind.ASK, placement.because, setting_key=placement.key)
    if placement.security is CommandSecurity.ALLOWLIST:
        return listed
    return Decision(DecisionKind.ALLOW, placement.because, setting_key=placement.key)


def find_closed_gate(setting: ElevatedPolicy, gates: ElevationGates) -> str:
    """Return why a command must stay in the sandbox, or an empty string if all gates are open."""
    if setting is ElevatedPolicy.OFF:
        return f"`{ELEVATED_KEY}` is off"
    if not gates.is_for_owner:
        return "this run does not act on behalf of the owner"
    if not gates.is_foreground:
        return "no person takes part in this session"
    if not gates.is_agent_permitted:
        return "this agent may not leave the sandbox"
    if gates.level is Elevation.OFF:
        return "it is disabled in this conversation (/elevated)"
    return ""


def _resolve_elevated(policy: ExecPolicy, request: ExecRequest, gates: ElevationGates) -> ExecPlacement:
    if closed := find_closed_gate(policy.elevated, gates):
        return ExecPlacement(
            where=CommandLocation.SANDBOX,
            security=CommandSecurity.DENY,
            ask=CommandAsk.ALWAYS,
            because=f"not elevated: {closed}",
            key=ELEVATED_KEY,
            is_refused=True,
        )
    full = policy.elevated is ElevatedPolicy.FULL and gates.level in (None, Elevation.FULL)
    security = CommandSecurity.FULL if full else _strictest(CommandSecurity, policy.security, CommandSecurity.ALLOWLIST)
    ask = CommandAsk.OFF if full else _strictest(CommandAsk, policy.ask, CommandAsk.ON_MISS)
    return ExecPlacement(
        where=CommandLocation.HOST,
        security=_strictest(CommandSecurity, security, request.security),
        ask=_strictest(CommandAsk, ask, request.ask),
        because="elevated: it runs outside the sandbox",
        key=ELEVATED_KEY,
        denies_misses=not full and _denies_misses(policy.security, policy.ask),
    )


def _denies_misses(security: CommandSecurity, ask: CommandAsk) -> bool:
    """Whether commands that are not on the allowlist are denied without asking.

    If the owner has set this, a call cannot request approval instead.
    """
    return security is CommandSecurity.ALLOWLIST and ask is CommandAsk.OFF


Level = TypeVar("Level", CommandLocation, CommandSecurity, CommandAsk)


def _strictest(levels: type[Level], configured: Level, requested: Level | None) -> Level:
    order = list(levels)
    return configured if requested is None or order.index(configured) <= order.index(requested) else requested
