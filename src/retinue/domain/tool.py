"""Tools: what an agent can do, its calls and their results."""

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


class ToolEffect(StrEnum):
    READS_PRIVATE = "reads-private"
    READS_UNTRUSTED = "reads-untrusted"
    WRITES = "writes"
    SENDS_OUT = "sends-out"
    SPENDS = "spends"
    RUNS_CODE = "runs-code"


_READ_ONLY_EFFECTS = frozenset({ToolEffect.READS_PRIVATE})


class ToolSpec(Struct, frozen=True, kw_only=True):
    """The declaration of a tool.

    With `is_repeatable`, a call that a crash interrupted may be performed again. With `is_read_only`, the tool only
    reads, and only the server's own data. Its calls have no effect besides their result, so a call may start before its
    intent is written (decision 0013). With `must_be_named`, an agent has the tool only if a rule names it more
    specifically than a bare `*`. `source` is what provides the tool: `built_in`, `operation`, `plugin:NAME` or
    `mcp:NAME`. `capabilities` are names such as `files.read` that rules can refer to.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    effects: frozenset[ToolEffect] = frozenset()
    is_repeatable: bool = False
    is_read_only: bool = False
    must_be_named: bool = False
    capabilities: frozenset[str] = frozenset()
    source: str = "built_in"
    timeout_s: float = TOOL_TIMEOUT_S

    @property
    def is_safely_read_only(self) -> bool:
        """Whether calls of this tool may be treated as read-only.

        `is_read_only` is ignored if the tool is not repeatable, or declares an effect other than reading private data.
        """
        return self.is_read_only and self.is_repeatable and self.effects <= _READ_ONLY_EFFECTS


class Call(Struct, frozen=True, kw_only=True):
    """A model's request to use a tool. `id` is unique within its session."""

    id: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


_encode_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def call_hash(call: Call) -> str:
    """Return a hash of a call's tool and arguments. An approval is valid only for a call with the same hash."""
    body = _encode_canonical([call.tool, call.arguments])
    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()[:32]


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a tool call, as the model reads it. A failed call has a result too.

    `whole` names the file with the full output if only a part is shown here.
    """

    call: str
    tool: str
    output: str
    failed: bool = False
    trust: Trust = Trust.PRIVATE
    attachments: tuple[Attachment, ...] = ()
    whole: str = ""


def truncate_output(output: str) -> str:
    """Truncate a tool's output to the limit, with a notice of how much was cut."""
    if len(output) <= RESULT_CHARS_MAX:
        return output
    notice = f"\n[cut: {len(output) - RESULT_CHARS_MAX} more characters]"
    return output[:RESULT_CHARS_MAX] + notice
