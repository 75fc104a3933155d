"""Errors of the agent operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from retinue.domain.errors import Conflict, Invalid, InvalidFields, NotAllowed, NotFound, TooLarge
from retinue.domain.shared_errors import shorten_name
from retinue.tools.files.path_access import format_path

# --- definitions ---


class AgentVersionNotFound(NotFound):
    """The agent has no version with this number."""

    code = "agent.version_not_found"

    def __init__(self, name: str, number: int, *, newest: int) -> None:
        super().__init__(
            f"{name} has no version {number}",
            because=f"its newest version is {newest}",
            try_this=f"list the versions: retinue agent versions {name}",
        )


class AgentExists(Conflict):
    """Another agent already has this name."""

    code = "agent.exists"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"an agent named '{name}' already exists",
            because="names are case-insensitive",
            try_this=f"choose another name, or change that agent: retinue agent set {name}",
        )


class AgentNameReserved(Invalid):
    """The name is reserved for the server."""

    code = "agent.name_reserved"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"an agent cannot be named '{name}'",
            because="the server uses the address agent:background for background jobs",
            try_this="choose another name",
        )


class AgentDisplayNameInvalid(Invalid):
    """The display name of an agent is empty, is too long or contains invisible characters. `because` says which."""

    code = "agent.display_name_invalid"

    def __init__(self, *, because: str) -> None:
        super().__init__("invalid name for an agent", because=because, try_this="use a name of one or two words")


class AgentFieldsInvalid(InvalidFields):
    """One or more fields of an agent have invalid values. `fields` maps each to the reason."""

    code = "agent.field_invalid"

    def __init__(self, fields: Mapping[str, str]) -> None:
        reasons = list(fields.values()) if len(fields) == 1 else [f"{name}: {why}" for name, why in fields.items()]
        super().__init__(
            f"invalid value for {', '.join(fields)}",
            fields=fields,
            because="; ".join(reasons),
            try_this="choose another value",
        )


class AgentFallbacksTwice(Invalid):
    """The fallback models are given both in `model` and in `fallbacks`."""

    code = "agent.fallbacks_twice"

    def __init__(self) -> None:
        super().__init__(
            "the fallback models are given twice",
            because="both `model` and `fallbacks` contain them",
            try_this="give them in `model` or in `fallbacks`, not in both",
        )


class AgentChangesInvalid(Invalid):
    """The changes are not valid fields of `agent.set`."""

    code = "agent.changes_invalid"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "invalid changes for an agent",
            because=because,
            try_this="use the fields and types of: retinue agent set --help",
        )


class ExternalUrlMissing(InvalidFields):
    """An external agent has no URL."""

    code = "agent.external_url_missing"

    def __init__(self, name: str) -> None:
        super().__init__(
            "external_url is missing",
            fields={"external_url": "an agent with the runner `external` needs it"},
            because=f"the runner of {name} is `external`, so the server sends the agent's messages to this URL",
            try_this="set external_url, for example https://agent.example/in",
        )


class ExternalSettingsUnused(InvalidFields):
    """An agent has settings for external agents, but its runner is not `external`."""

    code = "agent.external_unused"

    def __init__(self, name: str, *, runner: str) -> None:
        super().__init__(
            f"{name} has settings for external agents, but is not external",
            fields={"external_url": "only the runner `external` uses it"},
            because=f"the runner of {name} is `{runner}`",
            try_this="set `runner` to `external`, or clear the fields that begin with external_",
        )


class AgentTextTooLarge(TooLarge):
    """A text field of an agent exceeds the limit."""

    code = "agent.text_too_large"

    def __init__(self, field: str, *, bytes_max: int) -> None:
        super().__init__(
            f"{field} is too long",
            because=f"the limit is {bytes_max:,} bytes",
            try_this="move a part of it to files in the agent directory",
        )


class AgentFieldsNotAllowed(NotAllowed):
    """The caller may not change these fields of an agent, because they set its limits and permissions."""

    code = "agent.fields_not_allowed"

    def __init__(self, name: str, fields: Iterable[str], *, level: str, allowed: Iterable[str]) -> None:
        super().__init__(
            f"you cannot change {', '.join(fields)} of {name}",
            because=f"you need the level boss to change limits and permissions; you have {level}",
            try_this=f"change only {', '.join(allowed)}, or ask the owner of this server",
        )


# --- agents created by agents ---


class AgentCallerRequired(NotAllowed):
    """Only an agent can create an agent inside its own workspace."""

    code = "agent.caller_not_agent"

    def __init__(self) -> None:
        super().__init__(
            "only agents can use this operation",
            because="the new agent works inside the workspace of the agent that creates it",
            try_this="retinue agent register NAME",
        )


class AgentCreatedByOther(NotAllowed):
    """The calling agent did not create this agent, or another caller has changed the agent since."""

    code = "agent.created_by_other"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"you cannot change {name}",
            because="you can change only agents that you created and that have not been changed by others since",
            try_this="choose another name, or ask the owner of this server",
        )


class AgentWorkspaceOutside(Invalid):
    """The workspace of a new agent is not inside the folder where its creator may create workspaces."""

    code = "agent.workspace_outside"

    def __init__(self, path: str, *, parent: str, example: str) -> None:
        super().__init__(
            f"invalid workspace: '{path[:200]}'",
            because=f"it must be inside {parent}, even after links are followed",
            try_this=f"use {example}, or leave out the workspace",
        )


# --- files ---


class AgentFilesUnavailable(NotFound):
    """This server has no file tools, so it cannot show the files of agents."""

    code = "agent_file.unavailable"

    def __init__(self) -> None:
        super().__init__(
            "this server has no access to agent files",
            because="it was started without the file tools",
            try_this="start it with: retinue run",
        )


class AgentFilesPeopleOnly(NotAllowed):
    """An agent called an operation on agent files that only people can use."""

    code = "agent_file.people_only"

    def __init__(self) -> None:
        super().__init__(
            "only people can use this operation on agent files",
            because="the file tools record how far an agent can trust what it reads, and this operation does not",
            try_this="use the tools read, write and ls in your own agent directory",
        )


class AgentFileNotShown(Invalid):
    """The path does not belong to a file that defines an agent."""

    code = "agent_file.not_shown"

    def __init__(self, path: str, *, memory_folder: str, skills_folder: str) -> None:
        super().__init__(
            f"'{format_path(path)}' does not define the agent",
            because=f"only *.md files in the agent directory or {memory_folder} and files in {skills_folder} define it",
            try_this="list these files: retinue agent files NAME",
        )


class AgentFileTooLarge(TooLarge):
    """The new text of an agent file exceeds the limit."""

    code = "agent_file.too_large"

    def __init__(self, path: str, *, size_bytes: int, bytes_max: int) -> None:
        super().__init__(
            f"'{format_path(path)}' would be too large",
            because=f"it would be {size_bytes:,} bytes, and the limit is {bytes_max:,} bytes",
            try_this="split it into several files",
        )


class AgentFileChanged(Conflict):
    """The file has changed since the caller read it, or exists although the caller wanted to create it."""

    code = "agent_file.changed"

    def __init__(self, path: str, *, expected: bool) -> None:
        super().__init__(
            f"'{format_path(path)}' has changed since you read it",
            because=f"someone else has {'saved' if expected else 'created'} it; nothing was written",
            try_this="read it again, and merge your changes",
        )


class AgentFileNotText(Invalid):
    """The file is not text, so it cannot be shown."""

    code = "agent_file.not_text"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"'{format_path(path)}' is not a text file",
            because="it is not UTF-8, or has NUL bytes",
            try_this="open it in the agent directory with another program",
        )


# --- system prompt ---


class PromptNotAllowed(NotAllowed):
    """The caller may not see system prompts. `because` is the rule that decided."""

    code = "agent.prompt_not_allowed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "you cannot see the system prompts of agents",
            because=f"system prompts contain the agents' files: {because}",
            try_this="ask the owner of this server",
        )


class PromptPreviewUnavailable(NotFound):
    """This server cannot show previews of system prompts."""

    code = "agent.prompt_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "this server cannot show system prompts",
            because="it was started without prompt previews",
            try_this="start it with: retinue run",
        )


class TemplateEntryMissing(Invalid):
    """None of the given template files is the entry file."""

    code = "instructions.entry_missing"

    def __init__(self, entry_file: str) -> None:
        super().__init__(
            "the template has no entry file",
            because=f"several files were given, and none is named {entry_file}",
            try_this=f"give a single file, or rename one of the files to {entry_file}",
        )


class TemplateNotText(Invalid):
    """A given template file is not text."""

    code = "instructions.template_not_text"

    def __init__(self, name: str, *, position: int) -> None:
        super().__init__(
            f"'{shorten_name(name)}' is not a text file",
            because=f"byte {position} is not valid UTF-8",
            try_this="save it as UTF-8 text",
        )
