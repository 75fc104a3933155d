"""Errors of commands: one class for each error code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from retinue.sandbox.base import SandboxFailed
from retinue.tools.base import ToolFailed

HOSTS_SHOWN_MAX = 200  # characters


# --- starting a command ---


class ProgramNotFound(ToolFailed):
    """The program of a command is not on the PATH."""

    code = "command.not_found"

    def __init__(self, program: str) -> None:
        super().__init__(
            f"no program named '{program[:100]}'",
            because="it is not on the PATH of the server",
            try_this="use its absolute path",
        )


class CommandNeedsShell(ToolFailed):
    """The command needs a shell, which may run only inside a sandbox."""

    code = "command.needs_shell"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "this command needs a shell, which may run only inside a sandbox",
            because=because,
            try_this="run one plain command at a time, with literal text in single quotes",
        )


class TooManyVariables(ToolFailed):
    """The call sets more environment variables than the limit."""

    code = "command.too_many_variables"

    def __init__(self, *, variables_max: int) -> None:
        super().__init__(
            "too many variables in `env`", because=f"the limit is {variables_max}", try_this="set fewer variables"
        )


class VariableNameInvalid(ToolFailed):
    """The name of an environment variable is invalid."""

    code = "command.variable_name_invalid"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"invalid variable name: {name[:100]!r}",
            because="it must consist of letters, digits and underscores, and must not begin with a digit",
            try_this="use a name such as BUILD_MODE",
        )


class VariableValueInvalid(ToolFailed):
    """The value of an environment variable is too long, or has NUL characters."""

    code = "command.variable_value_invalid"

    def __init__(self, name: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid value for the variable {name}",
            because=f"it must have at most {chars_max:,} characters, without NUL",
            try_this="pass the text in a file",
        )


class VariableDenied(ToolFailed):
    """A command without a sandbox may not set this variable, which controls what a program loads or runs."""

    code = "command.variable_denied"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"you cannot set the variable {name}",
            because="it controls which code a program loads or runs, so it can be set only inside a sandbox",
            try_this="leave it out, or pass the value as an argument",
        )


class CommandDenied(ToolFailed):
    """The rules deny the command."""

    code = "command.denied"

    def __init__(self, *, because: str) -> None:
        super().__init__("you cannot run this command", because=because, try_this="use another tool, or ask the owner")


class CommandNotApproved(ToolFailed):
    """The command needs an approval, and no approval was requested for it."""

    code = "command.not_approved"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "this command was not approved", because=because, try_this="call exec again to request an approval"
        )


class CommandRulesChanged(ToolFailed):
    """The rules for commands changed between the decision on a command and its start."""

    code = "command.rules_changed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the rules for commands have changed since the decision on this command",
            because=because,
            try_this="call exec again",
        )


class CommandWebDenied(ToolFailed):
    """The command needs the network, and its agent lacks the permission `web`."""

    code = "command.no_web"

    def __init__(self) -> None:
        super().__init__(
            "this command cannot access the web",
            because="you do not have the permission `web`",
            try_this="request it with request_permission, or leave `hosts` out",
        )


class CommandHostInvalid(ToolFailed):
    """A host that the command wants to reach is invalid."""

    code = "command.host_invalid"

    def __init__(self, host: str, *, because: str) -> None:
        super().__init__(f"invalid host: {host[:100]!r}", because=because, try_this="use HOST, *.HOST or HOST:PORT")


class SandboxRequired(SandboxFailed):
    """The command must run in a sandbox, and none is available."""

    code = "sandbox.required"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the command was not started", because=because, try_this="ask the owner to run `retinue doctor`"
        )


class WorkspaceMoved(SandboxFailed):
    """A workspace inside another agent's workspace was replaced by a link."""

    code = "sandbox.workspace_moved"

    def __init__(self, workspace: Path) -> None:
        super().__init__(
            "the command was not started",
            because=f"the workspace {workspace} was replaced by a link to another folder",
            try_this="tell the owner of this server",
        )


class SandboxHostsDenied(SandboxFailed):
    """The settings of the sandbox do not allow a host that the command wants to reach."""

    code = "sandbox.host_not_allowed"

    def __init__(self, hosts: Sequence[str]) -> None:
        super().__init__(
            f"commands cannot reach {', '.join(hosts)[:HOSTS_SHOWN_MAX]}",
            because="`sandbox.hosts` does not include every host that the command wants to reach",
            try_this="ask the owner to add the host to `sandbox.hosts`, or leave it out of `hosts`",
        )


# --- running commands ---


class CommandNotEnded(ToolFailed):
    """A command was killed at its time limit, but is still running."""

    code = "command.not_ended"

    def __init__(self) -> None:
        super().__init__(
            "this command has not ended",
            because="it exceeded its time limit and was killed, but is still running",
            try_this="continue without it, and tell the person you work for",
        )


class JobNotFound(ToolFailed):
    """This session has no command with this id."""

    code = "process.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no command '{id_[:40]}' in this session",
            because="it was not started in this session, or it has ended and been deleted",
            try_this="use `process` with the action `list`",
        )


class TooManyJobs(ToolFailed):
    """The session or the server is running as many commands as the limit allows."""

    code = "process.too_many"

    def __init__(self, *, scope: str, count_max: int) -> None:
        super().__init__(
            f"too many commands are running in this {scope}",
            because=f"the limit is {count_max}",
            try_this="wait for one to end, or end one: use `process` with the action `kill`",
        )


class JobServerStopping(ToolFailed):
    """The server is stopping, so it starts no commands."""

    code = "process.server_stopping"

    def __init__(self) -> None:
        super().__init__(
            "the command was not started",
            because="the server is stopping",
            try_this="run it again after the server has restarted",
        )


class JobKillPending(ToolFailed):
    """A command was killed, but has not ended yet."""

    code = "process.kill_pending"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"the command {id_} was killed, but has not ended yet",
            because="its processes did not end in time",
            try_this="in a moment, use `process` with the action `poll`",
        )


class JobRunning(ToolFailed):
    """The command is still running, so it cannot be cleared."""

    code = "process.running"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"the command {id_} is still running",
            because="only commands that have ended can be cleared",
            try_this="use the action `remove`, which ends it and deletes its log",
        )


class JobEnded(ToolFailed):
    """The command has ended, so it accepts no input and cannot be killed."""

    code = "process.ended"

    def __init__(self, id_: str, *, end: str) -> None:
        super().__init__(
            f"the command {id_} has ended", because=end, try_this="use the action `log` to read its output"
        )


class JobInputEmpty(ToolFailed):
    """The call to `process` contains no input for the command."""

    code = "process.input_empty"

    def __init__(self) -> None:
        super().__init__(
            "nothing to send",
            because="the call has no text and no keys",
            try_this="set `data` for `write` and `paste`, or `keys`, `hex` or `literal` for `send_keys`",
        )


class JobLogDeleted(ToolFailed):
    """The log of the command was deleted."""

    code = "process.log_deleted"

    def __init__(self) -> None:
        super().__init__(
            "the log of this command was deleted",
            because="logs are deleted some time after a command has ended",
            try_this="run the command again",
        )


class TooManyKeys(ToolFailed):
    """The call sends more keys than the limit."""

    code = "process.too_many_keys"

    def __init__(self, *, keys_max: int) -> None:
        super().__init__(
            "too many keys", because=f"the limit is {keys_max} in one call", try_this="send them in several calls"
        )


class TerminalKeyUnknown(ToolFailed):
    """No terminal key has this name."""

    code = "process.key_unknown"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no key named {name[:40]!r}",
            because="a key is one character, a name such as Enter, Up or F5, or one of these after C- or M-",
            try_this="send text as `literal`",
        )


class HexByteInvalid(ToolFailed):
    """A byte is not written as two hex digits."""

    code = "process.hex_invalid"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"invalid hex byte: {text[:40]!r}",
            because="each byte must have two hex digits",
            try_this="use a value such as 1b",
        )
