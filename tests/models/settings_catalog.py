"""A catalog as a house would make it, from the text of a settings file and an environment."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from retinue.config import load
from retinue.domain.model import FREE, ModelFacts, ModelRef
from retinue.models.model_selection import Catalog

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GUIDE = ModelFacts(ref=ModelRef("", "guide"), price=FREE)
LOCAL = ModelFacts(ref=ModelRef("", "local"), price=FREE, window_tokens=8_192)


def catalog_of(home: Path, text: str = "", **environment: str) -> Catalog:
    settings = load({"RETINUE_HOME": str(home), **environment}, text=text).settings
    return Catalog(settings, environment, now=lambda: NOW, house=(GUIDE, LOCAL))
