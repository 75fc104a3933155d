"""Errors of the command line, and their exit codes."""

from __future__ import annotations

import os

EXIT_OK = 0
EXIT_FAILED = 1  # an error response, or no answer
EXIT_USAGE = 2
EXIT_NOT_RUNNING = 3  # no server is running
EXIT_AMBIGUOUS = 4  # a short id that matches several objects
EXIT_INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT, as in shells
EXIT_BROKEN_PIPE = 141  # the reader of our output closed the pipe: 128 + SIGPIPE, as in shells


class CliError(Exception):
    """An error with a sentence, a code, a reason and a next step, in the same form as the server's errors."""

    def __init__(
        self, sentence: str, *, code: str, because: str = "", try_this: str = "", exit_code: int = EXIT_FAILED
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.code = code
        self.because = because
        self.try_this = try_this
        self.exit_code = exit_code

    def to_lines(self) -> list[str]:
        shown = [f"error: {self.sentence} [{self.code}]"]
        if self.because:
            shown.append(f"because: {self.because}")
        if self.try_this:
            shown.append(f"try: {self.try_this}")
        return shown

    def to_dict(self) -> dict[str, object]:
        """Return the error in the form that API responses have."""
        return {"code": self.code, "sentence": self.sentence, "because": self.because, "try": self.try_this}


class UsageError(CliError):
    """The command line is invalid."""

    code = "usage.invalid"

    def __init__(self, sentence: str, *, because: str = "", try_this: str = "", code: str | None = None) -> None:
        super().__init__(sentence, code=code or self.code, because=because, try_this=try_this, exit_code=EXIT_USAGE)


class ServerNotAnswering(CliError):
    """No server is running, or the connection to the server was lost.

    `may_have_arrived` is true if the connection was lost after the request was sent. The server may then have executed
    the request.
    """

    def __init__(self, because: str, *, may_have_arrived: bool = False) -> None:
        if may_have_arrived:
            sentence, code = "the server stopped answering", "server.connection_lost"
        else:
            sentence, code = f"no server is running {_get_server_place()}", "server.not_running"
        super().__init__(sentence, code=code, because=because, try_this="retinue up", exit_code=EXIT_NOT_RUNNING)
        self.may_have_arrived = may_have_arrived


def _get_server_place() -> str:
    if url := os.environ.get("RETINUE_URL"):
        return f"at {url}"
    return f"in {os.path.expanduser(os.environ.get('RETINUE_HOME') or '~/.retinue')}"


def find_nearest(word: str, candidates: list[str]) -> str:
    """Return the candidate that is most similar to a mistyped word, or an empty string."""
    import difflib  # imported here because only mistyped input needs it

    found = difflib.get_close_matches(word, candidates, n=1)
    return found[0] if found else ""
