"""Decides where a command runs, and whether a person is asked: the settings against what a call requests.

The stricter of the two wins. The only way to something looser is elevation, which has gates.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from retinue.config.tools import Asking, Elevated, Security, Where
from retinue.domain.decision import Decision, Verdict
from retinue.domain.display_options import Elevation
from retinue.policy.tools.exec_allowlist import Rule

KEY = "tools.exec"
KEY_ELEVATED = "tools.exec.elevated"


class ExecPolicy(Struct, frozen=True, kw_only=True):
    """The owner's settings for commands. `security` and `ask` apply on the host; the sandbox has its own pair."""

    host: Where = Where.SANDBOX
    security: Security = Security.ALLOWLIST
    ask: Asking = Asking.ON_MISS
    sandbox_security: Security = Security.FULL
    sandbox_ask: Asking = Asking.OFF
    elevated: Elevated = Elevated.OFF
    allow: tuple[Rule, ...] = ()


class Wish(Struct, frozen=True, kw_only=True):
    """What a call requests. It can be stricter than the settings; looser only through the gates."""

    host: Where | None = None
    security: Security | None = None
    ask: Asking | None = None
    elevated: bool = False


class Gates(Struct, frozen=True, kw_only=True):
    """What a command needs to leave the sandbox besides the owner's setting.

    One closed gate keeps it inside.

    `level` is the conversation's setting. None: each call must ask for elevation. Anything but
    `off`: all calls are elevated.
    """

    owner: bool = False  # the run acts for the owner
    foreground: bool = False  # a person takes part in the session: no subagent, no schedule
    agent: bool = True  # the agent's settings do not forbid it
    level: Elevation | None = None


class Resolved(Struct, frozen=True, kw_only=True):
    """Where a command runs, by which rules, and why."""

    where: Where
    security: Security
    ask: Asking
    because: str
    key: str = KEY  # the setting to change for another result
    refused: bool = False
    misses_denied: bool = False  # commands missing from the allowlist are denied without asking


def resolve(policy: ExecPolicy, wish: Wish, gates: Gates, *, sandbox_works: bool) -> Resolved:
    """Return the stricter of settings and request. Only elevation loosens, and only through open gates."""
    if policy.host is Where.SANDBOX:
        # If a gate is closed, a call that did not request elevation stays in the sandbox instead of being refused.
        by_level = gates.level not in (None, Elevation.OFF) and wish.host is not Where.SANDBOX
        if wish.elevated or (by_level and not closed_gate(policy.elevated, gates)):
            return _elevated(policy, wish, gates)
    if wish.host is Where.HOST and policy.host is Where.SANDBOX:
        return Resolved(
            where=Where.SANDBOX,
            security=Security.DENY,
            ask=Asking.ALWAYS,
            because="commands run in the sandbox here; only `elevated` can ask for the host",
            refused=True,
        )
    where = _strictest(Where, policy.host, wish.host)
    if where is Where.SANDBOX and not sandbox_works:
        return Resolved(
            where=Where.HOST,
            security=_strictest(
                Security, _strictest(Security, policy.security, policy.sandbox_security), wish.security
            ),
            ask=Asking.ALWAYS,
            key="sandbox.kind",
            because="no sandbox works on this machine, so a person is asked before anything runs bare",
            misses_denied=_denies_misses(policy.security, policy.ask),
        )
    security, ask = (
        (policy.sandbox_security, policy.sandbox_ask) if where is Where.SANDBOX else (policy.security, policy.ask)
    )
    return Resolved(
        where=where,
        security=_strictest(Security, security, wish.security),
        ask=_strictest(Asking, ask, wish.ask),
        because="commands run in the sandbox" if where is Where.SANDBOX else "commands run on the host",
        misses_denied=_denies_misses(security, ask),
    )


def decide(resolved: Resolved, listed: Decision) -> Decision:
    """Decide about a command. `listed` is the decision of `decide_by_allowlist`."""
    if resolved.refused or resolved.security is Security.DENY:
        because = resolved.because if resolved.refused else f"`{KEY}` denies every command"
        return Decision(Verdict.DENY, because, key=resolved.key)
    if resolved.security is Security.ALLOWLIST and not listed.allowed:
        denied = resolved.misses_denied or resolved.ask is Asking.OFF
        return Decision(Verdict.DENY if denied else Verdict.ASK, listed.because, key=listed.key)
    if resolved.ask is Asking.ALWAYS:
        return Decision(Verdict.ASK, resolved.because, key=resolved.key)
    if resolved.security is Security.ALLOWLIST:
        return listed
    return Decision(Verdict.ALLOW, resolved.because, key=resolved.key)


def closed_gate(setting: Elevated, gates: Gates) -> str:
    """Return the gate that keeps commands in the sandbox; empty if all are open."""
    if setting is Elevated.OFF:
        return f"`{KEY_ELEVATED}` is off"
    if not gates.owner:
        return "this run does not work for the owner"
    if not gates.foreground:
        return "nobody sits behind this session"
    if not gates.agent:
        return "this agent may not leave the sandbox"
    if gates.level is Elevation.OFF:
        return "this conversation has it turned off (/elevated)"
    return ""


def _elevated(policy: ExecPolicy, wish: Wish, gates: Gates) -> Resolved:
    if closed := closed_gate(policy.elevated, gates):
        return Resolved(
            where=Where.SANDBOX,
            security=Security.DENY,
            ask=Asking.ALWAYS,
            because=f"not elevated: {closed}",
            key=KEY_ELEVATED,
            refused=True,
        )
    full = policy.elevated is Elevated.FULL and gates.level in (None, Elevation.FULL)
    security = Security.FULL if full else _strictest(Security, policy.security, Security.ALLOWLIST)
    ask = Asking.OFF if full else _strictest(Asking, policy.ask, Asking.ON_MISS)
    return Resolved(
        where=Where.HOST,
        security=_strictest(Security, security, wish.security),
        ask=_strictest(Asking, ask, wish.ask),
        because="elevated: it leaves the sandbox",
        key=KEY_ELEVATED,
        misses_denied=not full and _denies_misses(policy.security, policy.ask),
    )


def _denies_misses(security: Security, ask: Asking) -> bool:
    """Whether misses are denied. To ask where the owner has denied would be looser, although it asks more."""
    return security is Security.ALLOWLIST and ask is Asking.OFF


Level = TypeVar("Level", Where, Security, Asking)


def _strictest(levels: type[Level], configured: Level, wished: Level | None) -> Level:
    order = list(levels)
    return configured if wished is None or order.index(configured) <= order.index(wished) else wished
