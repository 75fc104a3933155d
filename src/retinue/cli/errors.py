"""Errors of the command line, and their exit codes."""

from __future__ import annotations

OK = 0
FAILED = 1  # an error response, or no answer
USAGE = 2
CLOSED = 3  # no server is running
AMBIGUOUS = 4  # a short id that matches several objects
INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT, as in shells
UNHEARD = 141  # the reader of our output closed the pipe: 128 + SIGPIPE, as in shells


class CliError(Exception):
    """An error with a sentence, a code, a reason and a next step, in the same form as the server's errors."""

    def __init__(self, sentence: str, *, code: str, because: str = "", try_this: str = "", exits: int = FAILED) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.code = code
        self.because = because
        self.try_this = try_this
        self.exits = exits

    def lines(self) -> list[str]:
        shown = [f"error: {self.sentence} [{self.code}]"]
        if self.because:
            shown.append(f"because: {self.because}")
        if self.try_this:
            shown.append(f"try: {self.try_this}")
        return shown

    def form(self) -> dict[str, object]:
        """Return the error as an API response has it."""
        return {"code": self.code, "sentence": self.sentence, "because": self.because, "try": self.try_this}


class UsageError(CliError):
    """The command line is invalid."""

    def __init__(self, sentence: str, *, because: str = "", try_this: str = "", code: str = "usage.invalid") -> None:
        super().__init__(sentence, code=code, because=because, try_this=try_this, exits=USAGE)


class HouseClosed(CliError):
    """The server does not answer. `may_have_arrived`: the connection broke after the request was sent."""

    def __init__(self, because: str, *, asked: bool = False) -> None:
        sentence = "the house stopped answering" if asked else "no house is open here"
        super().__init__(sentence, code="house.closed", because=because, try_this="retinue up", exits=CLOSED)
        self.asked = asked


def nearest(word: str, known: list[str]) -> str:
    """Return the closest candidate, or an empty string."""
    import difflib  # imported here because only mistyped input needs it

    found = difflib.get_close_matches(word, known, n=1)
    return found[0] if found else ""
