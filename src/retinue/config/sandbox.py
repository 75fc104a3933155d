"""Where commands run, and which secrets they may use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retinue.config.rules import Effect, setting


class SandboxKind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How commands of agents are confined."""

    kind: SandboxKind = setting(
        SandboxKind.BUBBLEWRAP,
        "What confines a command. `off` runs it bare, and only by this choice.",
        effect=Effect.MESSAGE,
    )
