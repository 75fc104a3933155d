"""What providers say when they do not reply, read into one of our reasons and into words a person understands.

A status is looked at first, then the typed parts of a body, and its words last: words change, and lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.domain.model import Failure, ModelFailed


def refused(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelFailed:
    """An answer that is not 200."""
    raise NotImplementedError


def in_stream(provider: str, error: Any, *, status: int = 200) -> ModelFailed:
    """An error that came where a reply should be: in the stream, or as the body of a 200."""
    raise NotImplementedError


def too_slow(provider: str, *, begun: bool, patience_s: float) -> ModelFailed:
    raise NotImplementedError


def unreachable(provider: str, error: Exception, *, begun: bool) -> ModelFailed:
    raise NotImplementedError


def too_long(provider: str, bytes_max: int) -> ModelFailed:
    raise NotImplementedError


def broke_off(provider: str) -> ModelFailed:
    """The stream ended in the middle of a reply."""
    return ModelFailed(
        f"{provider} broke off in the middle of its reply",
        because="its stream ended without an end",
        try_this="ask again",
        code="model.broke-off",
        failure=Failure.CONNECTION,
        begun=True,
    )
