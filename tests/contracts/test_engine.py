"""Run the engine's contract with the embedded engine. A distributed engine would define the same fixtures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_agent_messages import *  # noqa: F403
from contracts.engine_cancel import *  # noqa: F403
from contracts.engine_delegation import *  # noqa: F403
from contracts.engine_failures import *  # noqa: F403
from contracts.engine_idle import *  # noqa: F403
from contracts.engine_instance import StoreControl
from contracts.engine_order import *  # noqa: F403
from contracts.engine_queue import *  # noqa: F403
from contracts.engine_recovery import *  # noqa: F403
from contracts.engine_schedules import *  # noqa: F403
from contracts.engine_subagents import *  # noqa: F403
from contracts.engine_suspension import *  # noqa: F403

from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.testing.local_instance import LocalInstance


@pytest.fixture
def store_control() -> Iterator[StoreControl]:
    store_control = StoreControl()
    yield store_control
    store_control.cancel_pending_writes()


def make_controlled_engine(store_control: StoreControl, *args: Any, **kw: Any) -> EmbeddedEngine:
    """Make an engine that starts no run directly after an accept while a test controls claims."""
    engine = EmbeddedEngine(*args, **kw)
    reserve = engine.reserve_slot
    engine.reserve_slot = lambda agent, lane: None if store_control.is_controlled("claim") else reserve(agent, lane)
    return engine


@pytest.fixture
def new_instance(tmp_path: Path, store_control: StoreControl) -> Callable[[], LocalInstance]:
    numbers = itertools.count()

    def make() -> LocalInstance:
        root = tmp_path / f"instance-{next(numbers)}"
        root.mkdir()
        return LocalInstance(
            root, create_engine=partial(make_controlled_engine, store_control), wrap_store=store_control.wrap
        )

    return make


@pytest.fixture
def instance(new_instance: Callable[[], LocalInstance]) -> LocalInstance:
    return new_instance()


@pytest.fixture(params=["sqlite", "postgres"])
def any_instance(request: pytest.FixtureRequest, tmp_path: Path, store_control: StoreControl) -> LocalInstance:
    """An instance on each kind of store, for the core of the contract."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        return LocalInstance(
            tmp_path,
            url=url,
            create_engine=partial(make_controlled_engine, store_control),
            wrap_store=store_control.wrap,
        )
    return request.getfixturevalue("instance")
