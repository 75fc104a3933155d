"""Errors for command lines that cannot be parsed, and for text that cannot be wrapped."""

from __future__ import annotations

from retinue.domain.errors import Invalid


class CommandLineInvalid(Invalid):
    """A command is empty, too long, or has invisible characters."""

    code = "command.invalid"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "invalid command", because=because, try_this="write the command on one line, or put it into a script"
        )


class ShellSyntaxRefused(Invalid):
    """A command line cannot be parsed, or uses shell syntax, such as a redirection, that is not accepted here."""

    code = "command.shell_syntax"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the command uses shell syntax",
            because=because,
            try_this="put literal text into single quotes, and run one command at a time",
        )


class WrapperIdInvalid(Invalid):
    """The id of an untrusted-content wrapper could be guessed, or has the wrong form."""

    code = "wrapper.id_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid id for a wrapper",
            because="it must have 16 to 64 random hex digits",
            try_this="pass a new random id",
        )
