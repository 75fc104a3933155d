"""Every sdist and wheel includes the web app. The build fails if the web app cannot be included."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from scripts import build_web


class BuildTheWeb(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":  # there `make run` and `make web` see to it
            build_web.build()
