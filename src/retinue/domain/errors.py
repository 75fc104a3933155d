"""Errors for people: a code, a sentence, a reason and a next step, the same in every client."""

from __future__ import annotations

from collections.abc import Mapping


class RetinueError(Exception):
    """Base class of all errors that people read: each has a code, a sentence, a reason and a next step.

    `code` is stable and documented. `because` is the reason, and `try_this` is what to do next.
    """

    code = "server.error"

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


class InvalidFields(Invalid):
    """Several input fields are invalid. `fields` maps each field name to what is wrong."""

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
    """The requested object does not exist, or the caller may not see it."""

    code = "resource.not_found"


class NotAllowed(RetinueError):
    """The request is valid, but a policy denies it."""

    code = "policy.denied"


class Conflict(RetinueError):
    """The request conflicts with the current state."""

    code = "state.conflict"


class TooLarge(RetinueError):
    """The input exceeds a limit, which the error names."""

    code = "input.too_large"


class AmbiguousId(RetinueError):
    """A short id matches several objects.

    `matches` is the number of these objects. `candidates` are longer ids that the error shows.
    """

    code = "id.ambiguous"

    def __init__(self, prefix: str, candidates: tuple[str, ...], *, matches: int) -> None:
        shown = ", ".join(candidates)
        left_out = f" and {matches - len(candidates)} more" if matches > len(candidates) else ""
        super().__init__(
            f"the id '{prefix}' is ambiguous: it matches {shown}{left_out}",
            because=f"a short id must match exactly one object, and this id matches {matches}",
            try_this="use one of these longer ids",
        )
        self.prefix = prefix
        self.candidates = candidates
        self.matches = matches


class StoreError(RetinueError):
    """The store cannot perform an operation. The changes of the operation are stored completely or not at all."""

    code = "store.unusable"


class StaleEpoch(RetinueError):
    """A run tried to write after it was cancelled, or after another worker claimed its session."""

    code = "run.stale"

    def __init__(self, session: str, epoch: int) -> None:
        super().__init__(
            f"this run can no longer write to session {session[:8]}: its claim with epoch {epoch} has ended",
            because="the run was cancelled, or another worker has claimed the session",
            try_this="list the runs of the session: retinue run list",
        )
