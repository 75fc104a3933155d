"""Settings of the house, read once into types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from retinue.domain.errors import Invalid
from retinue.domain.times import zone

DRAIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`store` is a file in the home unless it names a PostgreSQL database."""

    home: Path
    store: str | Path
    zone: ZoneInfo
    drain_s: float = DRAIN_S


def from_environment(environment: Mapping[str, str]) -> Settings:
    """RETINUE_HOME, RETINUE_STORE, RETINUE_ZONE; everything has a default."""
    named = environment.get("RETINUE_HOME")
    home = Path(named).expanduser() if named else Path("~/.retinue").expanduser()
    if not home.is_absolute():
        raise Invalid(
            f"RETINUE_HOME is '{named}'",
            because="it must be an absolute path, or one from ~",
            try_this="RETINUE_HOME=~/.retinue",
            code="config.invalid",
        )
    store = environment.get("RETINUE_STORE")
    if store and not store.startswith("postgresql"):
        raise Invalid(
            "RETINUE_STORE is not an address we know",
            because="it names a PostgreSQL database (postgresql://USER@HOST/NAME); without it the store is a file",
            try_this="unset RETINUE_STORE",
            code="config.invalid",
        )
    return Settings(home=home, store=store or home / "house.db", zone=zone(environment.get("RETINUE_ZONE") or "UTC"))
