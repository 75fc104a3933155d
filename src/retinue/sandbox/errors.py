"""Errors of the sandbox, which say why a command was not started."""

from __future__ import annotations

from retinue.sandbox.base import SandboxFailed

TRY_DOCTOR = "find the cause: retinue doctor"


class SandboxUnavailable(SandboxFailed):
    """The configured sandbox does not work on this machine."""

    code = "sandbox.unavailable"

    def __init__(self, *, because: str, try_this: str) -> None:
        super().__init__("the sandbox does not work on this machine", because=because, try_this=try_this or TRY_DOCTOR)


class CommandNotStarted(SandboxFailed):
    """A command was not started, for example because the launcher of the sandbox failed."""

    code = "sandbox.not_started"

    def __init__(self, *, because: str, try_this: str) -> None:
        super().__init__("the command was not started", because=because, try_this=try_this)


class SandboxPathRefused(SandboxFailed):
    """A command must not have access to this path."""

    code = "sandbox.folder_refused"

    def __init__(self, path: str, *, because: str, try_this: str) -> None:
        super().__init__(f"a command cannot use {path}", because=because, try_this=try_this)


class TooManySharedFolders(SandboxFailed):
    """A command would have access to more folders than the limit."""

    code = "sandbox.too_many_folders"

    def __init__(self, count: int, *, count_max: int) -> None:
        super().__init__(
            f"too many folders for one command: {count}",
            because=f"the limit is {count_max}",
            try_this="grant access to a parent folder instead of several folders",
        )


class SandboxVariableInvalid(SandboxFailed):
    """An environment variable of a command has an invalid name or value."""

    code = "sandbox.environment_invalid"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"invalid environment variable: {name[:100]!r}",
            because="its name must not be empty or contain =, and neither name nor value may contain NUL",
            try_this="rename the variable, or change its value",
        )


class ContainerVariableMultiline(SandboxFailed):
    """An environment variable of a command in a container has several lines."""

    code = "sandbox.environment_multiline"

    def __init__(self) -> None:
        super().__init__(
            "the command was not started",
            because="an environment variable has several lines, which docker does not accept",
            try_this="write its value to a file in the workspace",
        )


class ContainerEngineFailed(SandboxFailed):
    """A `docker` command failed."""

    code = "sandbox.engine_failed"

    def __init__(self, action: str, *, because: str) -> None:
        super().__init__(f"docker {action} failed", because=because, try_this=TRY_DOCTOR)


class ContainerReplyInvalid(SandboxFailed):
    """Docker returned an invalid description of a container."""

    code = "sandbox.engine_reply_invalid"

    def __init__(self, container: str, *, because: str) -> None:
        super().__init__(
            f"docker returned an invalid description of container {container}", because=because, try_this=TRY_DOCTOR
        )


class SandboxSecretUnusable(SandboxFailed):
    """The value of a secret for commands is not one line of printable ASCII."""

    code = "sandbox.secret_unusable"

    def __init__(self, name: str, *, location: str) -> None:
        super().__init__(
            f"cannot use the secret {name!r}",
            because="it is not one line of printable ASCII",
            try_this=f"replace {location}",
        )


class CommandInputClosed(SandboxFailed):
    """A command accepts no more input."""

    code = "sandbox.input_closed"

    def __init__(self, *, because: str = "it has ended, or its input was closed") -> None:
        super().__init__(
            "the command accepts no more input", because=because, try_this="read its output, and start it again"
        )
