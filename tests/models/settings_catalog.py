"""A model catalog as the server makes it, from the text of a settings file and an environment."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from retinue.config import load_configuration
from retinue.domain.model import FREE_PRICE, ModelFacts, ModelRef
from retinue.models.model_selection import ModelSelector

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GUIDE = ModelFacts(ref=ModelRef("", "guide"), price=FREE_PRICE)
LOCAL = ModelFacts(ref=ModelRef("", "local"), price=FREE_PRICE, window_tokens=8_192)


def make_catalog(home: Path, text: str = "", **environment: str) -> ModelSelector:
    settings = load_configuration({"RETINUE_HOME": str(home), **environment}, text=text).settings
    return ModelSelector(settings, environment, now=lambda: NOW, built_in=(GUIDE, LOCAL))
