"""The embedded engine, put through the contract of engines. A distributed one brings the same fixtures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

SUITE = (
    "engine_cancel",
    "engine_clock",
    "engine_delegation",
    "engine_failures",
    "engine_house",
    "engine_order",
    "engine_parking",
    "engine_queue",
    "engine_recovery",
    "engine_sleep",
    "engine_subagents",
)
pytest.register_assert_rewrite(*(f"contracts.{part}" for part in SUITE))

from contracts.engine_agent_messages import *  # noqa: E402, F403
from contracts.engine_cancel import *  # noqa: E402, F403
from contracts.engine_delegation import *  # noqa: E402, F403
from contracts.engine_failures import *  # noqa: E402, F403
from contracts.engine_idle import *  # noqa: E402, F403
from contracts.engine_instance import Hands  # noqa: E402
from contracts.engine_order import *  # noqa: E402, F403
from contracts.engine_queue import *  # noqa: E402, F403
from contracts.engine_recovery import *  # noqa: E402, F403
from contracts.engine_schedules import *  # noqa: E402, F403
from contracts.engine_subagents import *  # noqa: E402, F403
from contracts.engine_suspension import *  # noqa: E402, F403

from retinue.engine.embedded_engine import EmbeddedEngine  # noqa: E402
from retinue.testing.local_instance import LocalInstance  # noqa: E402


@pytest.fixture
def hands() -> Iterator[Hands]:
    hands = Hands()
    yield hands
    hands.let_go()


def handled(hands: Hands, *args: Any, **kw: Any) -> EmbeddedEngine:
    """An engine that begins no run with an accept while a test has its hands on claims."""
    engine = EmbeddedEngine(*args, **kw)
    seat = engine.reserve_slot
    engine.reserve_slot = lambda agent, lane: None if hands.on("claim") else seat(agent, lane)
    return engine


@pytest.fixture
def new_household(tmp_path: Path, hands: Hands) -> Callable[[], LocalInstance]:
    numbers = itertools.count()

    def make() -> LocalInstance:
        root = tmp_path / f"house-{next(numbers)}"
        root.mkdir()
        return LocalInstance(root, create_engine=partial(handled, hands), wrap_store=hands.over)

    return make


@pytest.fixture
def household(new_household: Callable[[], LocalInstance]) -> LocalInstance:
    return new_household()


@pytest.fixture(params=["sqlite", "postgres"])
def any_household(request: pytest.FixtureRequest, tmp_path: Path, hands: Hands) -> LocalInstance:
    """For the core of the contract, which is put to every kind of store."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        return LocalInstance(tmp_path, url=url, create_engine=partial(handled, hands), wrap_store=hands.over)
    return request.getfixturevalue("household")
