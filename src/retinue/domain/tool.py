"""Tools: what an agent can do, its request, and what came of it."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.trust import Trust

RESULT_CHARS_MAX = 50_000
TOOL_TIMEOUT_S = 120.0


class Effect(StrEnum):
    READS_PRIVATE = "reads-private"
    READS_UNTRUSTED = "reads-untrusted"
    WRITES = "writes"
    SENDS_OUT = "sends-out"
    SPENDS = "spends"
    RUNS_CODE = "runs-code"


_LOOKING = frozenset({Effect.READS_PRIVATE})


class ToolSpec(Struct, frozen=True, kw_only=True):
    """What a tool declares of itself. `repeatable` means: after a crash it may simply run again.

    `looks`: it only looks, and only at what the house has. Whether it ran at all makes no difference to anyone but the
    one who reads its result, so it may begin before its intent is written (decision 0013).
    `by_name`: an agent has it only where a rule names it, more closely than with a bare `*`. `source` is who brings it:
    `house`, `operation`, `plugin:NAME`, `mcp:NAME`. `capabilities` are words such as `files.read` that rules can name.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    effects: frozenset[Effect] = frozenset()
    repeatable: bool = False
    looks: bool = False
    by_name: bool = False
    capabilities: frozenset[str] = frozenset()
    source: str = "house"
    timeout_s: float = TOOL_TIMEOUT_S

    @property
    def only_looks(self) -> bool:
        """Believed of no tool that names an effect on anything, or may not be repeated."""
        return self.looks and self.repeatable and self.effects <= _LOOKING


class Call(Struct, frozen=True, kw_only=True):
    """One request of a model to use a tool. `id` is unique within its session."""

    id: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


_plain = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def call_hash(call: Call) -> str:
    """The same for the same tool and arguments: an approval of one call is not an approval of another."""
    body = _plain([call.tool, call.arguments])
    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()[:32]


class ToolResult(Struct, frozen=True, kw_only=True):
    """What the model reads of a call. A failure is a result too.

    `whole` names the file that holds an output of which only a part is shown here.
    """

    call: str
    tool: str
    output: str
    failed: bool = False
    trust: Trust = Trust.PRIVATE
    attachments: tuple[Attachment, ...] = ()
    whole: str = ""


def clipped(output: str) -> str:
    """Bounded, and visibly so."""
    if len(output) <= RESULT_CHARS_MAX:
        return output
    notice = f"\n[cut: {len(output) - RESULT_CHARS_MAX} more characters]"
    return output[:RESULT_CHARS_MAX] + notice
