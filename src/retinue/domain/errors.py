"""Errors for people: a code, a sentence, a reason and a next step, the same in every client."""

from __future__ import annotations

from collections.abc import Mapping


class RetinueError(Exception):
    """An error that can be explained to a person.

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
    """The input is invalid; nothing was changed."""

    code = "input.invalid"


class Unfit(Invalid):
    """Several input fields are invalid: `fields` maps each field name to what is wrong."""

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
    """It does not exist, or the caller may not see it."""

    code = "thing.not-found"


class NotAllowed(RetinueError):
    """The request is valid, but a policy denies it."""

    code = "policy.denied"


class Conflict(RetinueError):
    """The request conflicts with the current state."""

    code = "state.conflict"


class TooLarge(RetinueError):
    """The input exceeds a named limit."""

    code = "input.too-large"


class Ambiguous(RetinueError):
    """A short id matches several things: `matches` of them, of which `candidates` are listed."""

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
    """The store cannot perform the operation; nothing is left half-written."""

    code = "store.unusable"


class Stale(RetinueError):
    """Another worker has claimed this session, so this run may no longer write."""

    code = "run.stale"

    def __init__(self, session: str, epoch: int) -> None:
        super().__init__(
            f"session {session[:8]} has moved on since epoch {epoch}",
            because="the run was cancelled or taken up by another worker",
        )


class Busy(RetinueError):
    """Another process already serves this data directory."""

    code = "house.already-open"
