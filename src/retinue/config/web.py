"""How agents reach the web."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.rules import Effect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Pages, searches and the browser."""

    timeout_s: float = setting(30.0, "How long a page may take.", effect=Effect.MESSAGE, least=1, most=600)
