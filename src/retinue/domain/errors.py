"""Errors a person can meet: a code, a sentence, a because and a next move, the same on every door."""

from __future__ import annotations

from collections.abc import Mapping


class RetinueError(Exception):
    """Something went wrong in a way we can explain.

    `code` is stable and documented; `because` says why; `try_this` is what to do next.
    """

    code = "house.error"

    def __init__(self, sentence: str, *, because: str = "", try_this: str = "", code: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.because = because
        self.try_this = try_this
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        lines = [f"{self.sentence} [{self.code}]"]
        if self.because:
            lines.append(f"because: {self.because}")
        if self.try_this:
            lines.append(f"try: {self.try_this}")
        return "\n".join(lines)


class Invalid(RetinueError):
    """What was asked cannot be understood; nothing was changed."""

    code = "input.invalid"


class Unfit(Invalid):
    """Several things in what was asked are wrong: `fields` says of each, by its name, what."""

    def __init__(
        self,
        sentence: str,
        *,
        fields: Mapping[str, str],
        because: str = "",
        try_this: str = "",
        code: str | None = None,
    ) -> None:
        super().__init__(sentence, because=because, try_this=try_this, code=code)
        self.fields = fields


class NotFound(RetinueError):
    """There is no such thing, or none that the caller may see."""

    code = "thing.not-found"


class NotAllowed(RetinueError):
    """Understood, and refused by policy."""

    code = "policy.denied"


class Conflict(RetinueError):
    """It contradicts something that is already so."""

    code = "state.conflict"


class TooLarge(RetinueError):
    """Beyond a named bound."""

    code = "input.too-large"


class Ambiguous(RetinueError):
    """A short id that names more than one thing: `matches` of them, `candidates` shown so that one can choose."""

    code = "id.ambiguous"

    def __init__(self, prefix: str, candidates: tuple[str, ...], *, matches: int) -> None:
        shown = ", ".join(candidates)
        left_out = f" and {matches - len(candidates)} more" if matches > len(candidates) else ""
        super().__init__(
            f"the id '{prefix}' names {matches} things: {shown}{left_out}",
            because="a short id must fit exactly one thing",
            try_this="use one of these longer ids",
        )
        self.prefix = prefix
        self.candidates = candidates
        self.matches = matches


class StoreError(RetinueError):
    """The store cannot do what was asked; nothing half-written is left behind."""

    code = "store.unusable"


class Stale(RetinueError):
    """Another worker has taken over this session: whatever we meant to write is no longer ours to write."""

    code = "run.stale"

    def __init__(self, session: str, epoch: int) -> None:
        super().__init__(
            f"session {session[:8]} has moved on since epoch {epoch}",
            because="the run was cancelled or taken up by another worker",
        )


class Busy(RetinueError):
    """Another process already serves this house."""

    code = "house.already-open"
