"""Names in JSON and texts that are not in snake_case, because a requirement or an external protocol prescribes them.

All other JSON keys, error codes and event kinds are in snake_case. `tests/test_json_casing.py` fails for a name that is
neither in snake_case nor in this list, and for an entry of the list that no file uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Casing(StrEnum):
    CAMEL = "camelCase"
    KEBAB = "kebab-case"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSurface:
    """The names that one interface prescribes, such as a file format or a protocol.

    `fixed_by` is the requirement (such as A77, see "Checklist lines" in CONTRIBUTING.md) or the
    protocol that prescribes the names. `files` are the files below `src/retinue` that write or read
    the names. An entry that ends with `/` is a folder.
    """

    surface: str
    fixed_by: str
    casing: Casing
    files: tuple[str, ...]
    names: frozenset[str]


def _surface(surface: str, fixed_by: str, casing: Casing, *, files: tuple[str, ...], names: str) -> FixedSurface:
    return FixedSurface(surface=surface, fixed_by=fixed_by, casing=casing, files=files, names=frozenset(names.split()))


FIXED_SURFACES: tuple[FixedSurface, ...] = (
    # --- checklist lines ---
    _surface(
        "arguments and results of agents_message and agents_switch, arguments of send_agent_message",
        "A77 A78 D79",
        Casing.CAMEL,
        files=(
            "tools/delegate/agent_message_tools.py",
            "tools/delegate/agent_tools.py",
            "tools/delegate/delegation_result.py",
        ),
        names="agentId durationMs responseId sessionId sessionName thinkingText timeoutSeconds toolCallCount toolCalls",
    ),
    _surface(
        "arguments and results of sessions_spawn and start_background_agent",
        "C50 C121",
        Casing.CAMEL,
        files=("tools/delegate/spawn_tools.py",),
        names="agentId childSessionKey modelApplied runId runTimeoutSeconds sessionId sessionKey timeoutSeconds",
    ),
    _surface(
        "arguments and results of sessions_list, sessions_history and sessions_send",
        "C53 C54",
        Casing.CAMEL,
        files=("tools/delegate/session_tools.py",),
        names="""activeMinutes agentId includeTools messageLimit runId sessionId sessionKey spawnedBy timeoutSeconds
            updatedAt""",
    ),
    _surface(
        "session summary, and responses of operations that extend it",
        "A89",
        Casing.CAMEL,
        files=("operations/session/",),
        names="""agentId archivedAt createdAt deletedAt externalId forkedFrom lastSnippet pinnedAt restorableUntil
            runStatus sessionId updatedAt""",
    ),
    _surface(
        "names below `core` in the attributes of a session",
        "A9",
        Casing.CAMEL,
        files=("domain/session.py", "agents/daycare_format.py", "operations/session/session_fork.py"),
        names="forkedFrom workingDir",
    ),
    _surface(
        "POST to an external agent",
        "A33",
        Casing.CAMEL,
        files=("outbox/external_agent_delivery.py",),
        names="agentId callbackUrl createdAt mediaType sessionId sizeBytes",
    ),
    _surface(
        "POST to the webhook of an envelope: the fields of a result of agents_message",
        "A73 A77",
        Casing.CAMEL,
        files=("outbox/completion_webhooks.py",),
        names="agentId sessionId",
    ),
    _surface(
        "body of POST /hooks/CONNECTOR/agent",
        "C87",
        Casing.CAMEL,
        files=("connectors/webhook/inbound_request.py",),
        names="agentId sessionKey timeoutSeconds wakeMode",
    ),
    _surface(
        "files of Daycare: descriptor.json, state.json, history.jsonl",
        "D74",
        Casing.CAMEL,
        files=("agents/daycare_format.py",),
        names="""cacheRead cacheWrite channelId createdAt isError parentAgentId readDirs toolCallId toolCalls
            toolMessage toolName updatedAt userId workingDir writeDirs""",
    ),
    _surface(
        "front matter of Daycare's task files, read only",
        "D38 D41",
        Casing.CAMEL,
        files=("schedules/schedule_front_matter.py",),
        names="allowedDomains deleteAfterRun oneOff taskId timeoutMs",
    ),
    _surface(
        "arguments of edit that models know from other agents, accepted besides `old`, `new` and `replace_all`",
        "D52",
        Casing.CAMEL,
        files=("tools/files/edit_tool.py",),
        names="newText oldText replaceAll",
    ),
    _surface(
        "text of a turn",
        "H79",
        Casing.KEBAB,
        files=("runners/turn_input.py",),
        names="created-at envelope-id pending-envelopes",
    ),
    # --- foreign protocols ---
    _surface(
        "JSON schema",
        "JSON Schema",
        Casing.CAMEL,
        files=("tools/base.py", "tools/files/edit_tool.py", "tools/mcp/schemas.py", "api/openapi.py"),
        names="additionalProperties maxItems maxLength",
    ),
    _surface(
        "OpenAPI document",
        "OpenAPI 3.1",
        Casing.CAMEL,
        files=("api/openapi.py",),
        names="operationId requestBody securitySchemes",
    ),
    _surface(
        "own fields in the OpenAPI document, which must begin with `x-`",
        "OpenAPI 3.1",
        Casing.KEBAB,
        files=("api/openapi.py",),
        names="x-effect x-permission",
    ),
    _surface(
        "messages of the Model Context Protocol",
        "Model Context Protocol",
        Casing.CAMEL,
        files=("api/mcp.py",),
        names="""inputSchema isError listChanged openWorldHint protocolVersion readOnlyHint serverInfo
            structuredContent""",
    ),
    _surface(
        "requests and replies of the Gemini API",
        "Google Gemini API",
        Casing.CAMEL,
        files=("models/formats/google.py", "models/formats/google_reader.py"),
        names="""blockReason cachedContentTokenCount candidatesTokenCount finishMessage finishReason functionCall
            functionDeclarations functionResponse generationConfig includeThoughts inlineData maxOutputTokens mimeType
            parametersJsonSchema promptFeedback promptTokenCount systemInstruction thinkingBudget thinkingConfig
            thinkingLevel thoughtSignature thoughtsTokenCount toolUsePromptTokenCount usageMetadata""",
    ),
    _surface(
        "messages to the browser",
        "Chrome DevTools Protocol",
        Casing.CAMEL,
        files=("tools/web/browser_page.py", "tools/web/cdp.py"),
        names="""backendNodeId entryId eventsEnabled frameId functionDeclaration objectId pointerType returnByValue
            sessionId targetId windowsVirtualKeyCode""",
    ),
)


def is_fixed(name: str, file: str) -> bool:
    """Whether an interface prescribes this name in this file. The path of the file is relative to `src/retinue`."""
    return any(name in each.names and _belongs(file, each) for each in FIXED_SURFACES)


def _belongs(file: str, surface: FixedSurface) -> bool:
    return any(file == each or (each.endswith("/") and file.startswith(each)) for each in surface.files)
