"""Models that their providers have retired or will: since when, and the replacement.

As of `providers.MODELS_KNOWN_ON`, from the providers' deprecation lists. A replacement is the one
the provider names, or the newest of the same line if that one is retired or old. Only the base
names are listed: dated snapshots (`gpt-5-mini-2025-08-07`, `grok-4-0709`) retire with their model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

from msgspec import Struct

from retinue.domain.model import ModelFailed, ModelRef
from retinue.models.providers import BUILT_IN


class Retired(Struct, frozen=True):
    """When a model retires, and its replacement by the same provider."""

    on: date
    instead: ModelRef

    def words(self, today: date) -> str:
        return f"{'retired' if self.on <= today else 'retires'} {self.on.isoformat()}, use {self.instead}"


class ModelGone(ModelFailed):
    """The provider does not offer the model. `replacement` is one that it offers."""

    def __init__(self, sentence: str, *, because: str, code: str, instead: ModelRef, after: ModelFailed) -> None:
        super().__init__(
            sentence,
            because=because,
            try_this=f"retinue agent set NAME --model {instead}, or set `models.default`; "
            "`retinue models` shows who asks which",
            code=code,
            failure=after.failure,
            status=after.status,
            retry_after_s=after.retry_after_s,
            begun=after.begun,
        )
        self.instead = instead

    @property
    def in_short(self) -> str:
        return f"{self.sentence}, use {self.instead}"


_SNAPSHOT = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|\d{3,4})$")


def _of(provider: str, ends: Mapping[tuple[str, str], str]) -> dict[ModelRef, Retired]:
    return {
        ModelRef(provider, model): Retired(date.fromisoformat(on), ModelRef(provider, instead))
        for (on, instead), models in ends.items()
        for model in models.split()
    }


RETIRED: Mapping[ModelRef, Retired] = {
    **_of(
        "anthropic",
        {
            ("2025-07-21", "claude-sonnet-5-5"): "claude-2.0 claude-2.1 claude-3-sonnet",
            ("2026-01-05", "claude-opus-5-5"): "claude-3-opus",
            ("2026-06-15", "claude-opus-5-5"): "claude-opus-4 claude-opus-4-0",
            ("2026-06-15", "claude-sonnet-5-5"): "claude-sonnet-4 claude-sonnet-4-0",
            ("2026-08-05", "claude-opus-5-5"): "claude-opus-4-1",
            ("2026-11-24", "claude-opus-5-5"): "claude-opus-4-5",  # not before that day
        },
    ),
    **_of(
        "openai",
        {
            ("2026-10-23", "gpt-5.6-sol"): "gpt-4 gpt-4-turbo gpt-4-1106-preview o1 o1-pro o3-mini",
            ("2026-10-23", "gpt-5.6-terra"): "gpt-3.5-turbo o4-mini",
            ("2026-10-23", "gpt-5.6-luna"): "gpt-4.1-nano",
            ("2026-12-11", "gpt-5.6-sol"): "gpt-5 gpt-5-pro o3 o3-pro",
            ("2026-12-11", "gpt-5.6-terra"): "gpt-5-mini",
            ("2026-12-11", "gpt-5.6-luna"): "gpt-5-nano",
            ("2027-01-14", "gpt-6-luna"): "gpt-4o gpt-4o-mini gpt-4.1 gpt-4.1-mini",
            ("2027-04-01", "gpt-6.1-sol"): "gpt-5.1",
        },
    ),
    **_of(
        "google",
        {
            ("2026-03-09", "gemini-3.1-pro-preview"): "gemini-3-pro-preview",
            ("2026-06-01", "gemini-3.5-flash-lite"): "gemini-2.0-flash gemini-2.0-flash-lite",
            ("2026-10-16", "gemini-3.8-flash"): "gemini-2.5-pro",
            ("2026-10-16", "gemini-3.5-flash-lite"): "gemini-2.5-flash gemini-2.5-flash-lite",
        },
    ),
    **_of("deepseek", {("2026-07-24", "deepseek-flash"): "deepseek-chat deepseek-reasoner"}),
    **_of(
        "xai",
        {
            ("2026-05-15", "grok-4.3"): "grok-3 grok-4 grok-4-fast grok-4-fast-reasoning grok-4-fast-non-reasoning"
            " grok-4-1-fast grok-4-1-fast-reasoning grok-4-1-fast-non-reasoning grok-code-fast-1"
        },
    ),
}


def retirement(ref: ModelRef) -> Retired | None:
    """Return what is known about the retirement of a model; None if nothing."""
    name = ref.model.casefold()
    found = RETIRED.get(ModelRef(ref.provider, name))
    return found or RETIRED.get(ModelRef(ref.provider, _SNAPSHOT.sub("", name)))


def gone(failed: ModelFailed, ref: ModelRef) -> ModelFailed:
    """Add a replacement, if one is known, to the error of a provider that does not offer a model."""
    retired = retirement(ref)
    if retired is not None:
        return ModelGone(
            f"{ref.provider} no longer offers {ref.model}",
            because=f"{ref.provider} names {retired.on.isoformat()} as its end; {failed.because}",
            code="model.retired",
            instead=retired.instead,
            after=failed,
        )
    default = BUILT_IN[ref.provider].default_model if ref.provider in BUILT_IN else ""
    if not default or default == ref.model:
        return failed
    return ModelGone(
        f"{ref.provider} does not have the model {ref.model}",
        because=failed.because,
        code="model.not-found",
        instead=ModelRef(ref.provider, default),
        after=failed,
    )
