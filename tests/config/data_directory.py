"""A data directory on disk with settings files in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config import Configuration, InvalidSettings, SettingFault, load_configuration


class SettingsDirectory:
    """Writes files, then reads the settings as the server would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"RETINUE_HOME": str(folder)}

    @property
    def file(self) -> Path:
        return self.folder / "retinue.toml"

    def write(self, text: str, *, name: str = "retinue.toml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def load(self, text: str | None = None, **environment: str) -> Configuration:
        if text is not None:
            self.write(text)
        return load_configuration(self.environment | environment)

    def faults(self, text: str, **environment: str) -> dict[str, SettingFault]:
        """Return the faults of this text by path. The test fails if there are none."""
        self.write(text)
        with pytest.raises(InvalidSettings) as refused:
            load_configuration(self.environment | environment)
        return {fault.path: fault for fault in refused.value.faults}

    def fault(self, text: str, **environment: str) -> SettingFault:
        """Return the only fault of this text."""
        faults = self.faults(text, **environment)
        assert len(faults) == 1, faults
        return next(iter(faults.values()))
