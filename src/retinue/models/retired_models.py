"""Models that their providers have retired or will retire, with the day and the replacement.

The data comes from the providers' deprecation lists, as of `providers.MODELS_KNOWN_ON`. A replacement is the model that
the provider names. If that model is itself retired or old, the replacement is the newest of its series. Only the base
names are listed: dated snapshots (`gpt-5-mini-2025-08-07`, `grok-4-0709`) retire with their model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

from msgspec import Struct

from retinue.domain.model import ModelFailed, ModelRef
from retinue.models.errors import ModelNotOffered, ModelRetired, ProviderAnswer
from retinue.models.providers import BUILT_IN_PROVIDERS


class ModelRetirement(Struct, frozen=True):
    """When a model retires, and which model of the same provider replaces it."""

    retired_on: date
    replacement: ModelRef

    def describe(self, today: date) -> str:
        verb = "retired" if self.retired_on <= today else "retires"
        return f"{verb} {self.retired_on.isoformat()}, use {self.replacement}"


_SNAPSHOT = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|\d{3,4})$")


def _build_retirements(provider: str, ends: Mapping[tuple[str, str], str]) -> dict[ModelRef, ModelRetirement]:
    return {
        ModelRef(provider, model): ModelRetirement(date.fromisoformat(on), ModelRef(provider, instead))
        for (on, instead), models in ends.items()
        for model in models.split()
    }


RETIREMENTS: Mapping[ModelRef, ModelRetirement] = {
    **_build_retirements(
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
    **_build_retirements(
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
    **_build_retirements(
        "google",
        {
            ("2026-03-09", "gemini-3.1-pro-preview"): "gemini-3-pro-preview",
            ("2026-06-01", "gemini-3.5-flash-lite"): "gemini-2.0-flash gemini-2.0-flash-lite",
            ("2026-10-16", "gemini-3.8-flash"): "gemini-2.5-pro",
            ("2026-10-16", "gemini-3.5-flash-lite"): "gemini-2.5-flash gemini-2.5-flash-lite",
        },
    ),
    **_build_retirements("deepseek", {("2026-07-24", "deepseek-flash"): "deepseek-chat deepseek-reasoner"}),
    **_build_retirements(
        "xai",
        {
            ("2026-05-15", "grok-4.3"): "grok-3 grok-4 grok-4-fast grok-4-fast-reasoning grok-4-fast-non-reasoning"
            " grok-4-1-fast grok-4-1-fast-reasoning grok-4-1-fast-non-reasoning grok-code-fast-1"
        },
    ),
}


def find_retirement(ref: ModelRef) -> ModelRetirement | None:
    """Return what is known about the retirement of a model, or None."""
    name = ref.model.casefold()
    found = RETIREMENTS.get(ModelRef(ref.provider, name))
    return found or RETIREMENTS.get(ModelRef(ref.provider, _SNAPSHOT.sub("", name)))


def add_replacement(failed: ModelFailed, ref: ModelRef) -> ModelFailed:
    """Add a replacement, if one is known, to the error of a provider that does not offer a model."""
    answer = ProviderAnswer(
        because=failed.because,
        status=failed.status or 0,
        retry_after_s=failed.retry_after_s,
        begun=failed.may_be_charged,
    )
    retired = find_retirement(ref)
    if retired is not None:
        return ModelRetired(ref, answer, retired_on=retired.retired_on, replacement=retired.replacement)
    default = BUILT_IN_PROVIDERS[ref.provider].default_model if ref.provider in BUILT_IN_PROVIDERS else ""
    if not default or default == ref.model:
        return failed
    return ModelNotOffered(ref.provider, answer, model=ref.model, replacement=ModelRef(ref.provider, default))
