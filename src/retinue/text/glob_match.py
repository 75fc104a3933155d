"""Matches names against globs."""

from __future__ import annotations

import re
from functools import lru_cache


def matches_glob(glob: str, text: str) -> bool:
    """Whether a glob matches the whole text, regardless of case. Only `*` is special."""
    return _compile_glob(glob.casefold()).fullmatch(text.casefold()) is not None


@lru_cache(maxsize=4_096)
def _compile_glob(glob: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in glob.split("*")), re.DOTALL)
