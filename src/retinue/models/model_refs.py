"""Parses model references: PROVIDER/MODEL, optionally with @CREDENTIAL, and patterns that match several models."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from retinue.config.validators import check_model_reference
from retinue.domain.model import ModelRef
from retinue.models.errors import ModelRefInvalid

DEFAULT = "default"  # as a model or effort: use the default
LISTED_MAX = 8
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[A-Za-z0-9._@+-]+)?")


def parse_model_ref(text: str) -> tuple[str, str]:
    """Split a model reference into provider and model, at the first slash.

    Without a slash, the whole text is the model and the provider is "". With a slash, neither
    part may be empty.
    """
    name = text.strip()
    if wrong := check_model_reference(name):
        raise ModelRefInvalid(name, because=f"it {wrong}")
    provider, slash, model = name.partition("/")
    return (provider, model) if slash else ("", name)


def split_credential(text: str) -> tuple[str, str | None]:
    """Split off the credential after the last @ of a model reference. The credential is None if there is none.

    A number after the @ is part of the model: some providers write versions this way.
    """
    model, at, credential = text.rpartition("@")
    if not at or not model or credential.isdecimal() or not _CREDENTIAL.fullmatch(credential):
        return text, None
    return model, credential


class ModelAllowlist:
    """The list of models that may be used: references, aliases and patterns. An empty list allows all."""

    def __init__(self, listed: Sequence[str], resolve: Callable[[str], ModelRef]) -> None:
        self._listed = listed
        self._patterns = [text.casefold() for text in listed if is_pattern(text)]
        self._refs = frozenset(resolve(text) for text in listed if not is_pattern(text))

    def allows(self, ref: ModelRef) -> bool:
        name = str(ref).casefold()
        return not self._listed or ref in self._refs or any(fnmatchcase(name, each) for each in self._patterns)

    def describe(self) -> str:
        more = f" and {len(self._listed) - LISTED_MAX} more" if len(self._listed) > LISTED_MAX else ""
        return ", ".join(self._listed[:LISTED_MAX]) + more


def is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")
