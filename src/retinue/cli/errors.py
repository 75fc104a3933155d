"""What can go wrong in front of a person at a terminal, and the exit code that says so to a program."""

from __future__ import annotations

OK = 0
FAILED = 1  # refused, or not answered
USAGE = 2
CLOSED = 3  # no house is open
AMBIGUOUS = 4  # a short id that names more than one thing
INTERRUPTED = 130  # Ctrl-C, as shells count it
UNHEARD = 141  # whoever read our output went away, as shells count it


class CliError(Exception):
    """A sentence, a reason and a next move, with a code; the same shape as every error of the house."""

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
        """As the API would say it."""
        return {"code": self.code, "sentence": self.sentence, "because": self.because, "try": self.try_this}


class UsageError(CliError):
    """What was typed is no command of ours."""

    def __init__(self, sentence: str, *, because: str = "", try_this: str = "", code: str = "usage.invalid") -> None:
        super().__init__(sentence, code=code, because=because, try_this=try_this, exits=USAGE)


class HouseClosed(CliError):
    """Nobody answers at the socket. `asked` says that our words may have arrived before the line broke."""

    def __init__(self, because: str, *, asked: bool = False) -> None:
        sentence = "the house stopped answering" if asked else "no house is open here"
        super().__init__(sentence, code="house.closed", because=because, try_this="retinue up", exits=CLOSED)
        self.asked = asked


def nearest(word: str, known: list[str]) -> str:
    """What was probably meant, or nothing."""
    import difflib  # only when something was mistyped

    found = difflib.get_close_matches(word, known, n=1)
    return found[0] if found else ""
