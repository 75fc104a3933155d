"""Every sdist and every wheel has the page in it. One that could not have it is not built."""

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
