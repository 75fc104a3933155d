"""Envelopes go round; imports go down. And nothing is taken from the air."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from import_rules import Module, read_modules, taken_from_the_air, wrong_imports

import retinue

SOURCE = Path(retinue.__file__).parent.parent


def module(name: str, source: str) -> Module:
    return Module(name, ast.parse(source))


class Seen(NamedTuple):
    names: set[str]
    wrong_imports: list[str]
    from_the_air: list[str]


@cache
def every_module() -> Seen:
    """What there is to say about all of them: each is parsed once, and no tree is kept."""
    seen = Seen(set(), [], [])
    for each in read_modules(SOURCE):
        seen.names.add(each.name)
        seen.wrong_imports.extend(wrong_imports(each))
        seen.from_the_air.extend(taken_from_the_air(each))
    return seen


def test_every_import_goes_down() -> None:
    complaints = every_module().wrong_imports

    assert not complaints, "\n".join(complaints)


def test_no_time_id_or_chance_is_taken_from_the_air() -> None:
    complaints = every_module().from_the_air

    assert not complaints, "\n".join(complaints)


def test_every_module_is_read() -> None:
    assert {"retinue", "retinue.testing.postgres"} <= every_module().names


@pytest.mark.parametrize(
    ("name", "source", "because"),
    [
        ("retinue.engine.lanes", "import retinue.api.app", "imports go down"),
        ("retinue.engine.lanes", "from retinue import api", "imports go down"),
        ("retinue.store.sqlite", "from retinue.policy.sight import may_see", "neighbours do not know each other"),
        ("retinue.domain.run", "from retinue.config import Config", "neighbours do not know each other"),
        ("retinue.daemon", "import retinue.testing", "neighbours do not know each other"),
        ("retinue.domain.run", "import msgspec", "domain has only the standard library"),
        ("retinue.domain.run", "from msgspec import json", "domain has only the standard library"),
        ("retinue.policy.sight", "from msgspec import json", "policy has only the standard library"),
        ("retinue.policy.sight", "from sqlalchemy import select", "policy has only the standard library"),
        ("retinue.cli.main", "import httptools", "cli has only the standard library"),
        ("retinue.cli.main", "from retinue.domain import ids", "the command line stands apart"),
        ("retinue.api.app", "from retinue.cli.output import table", "the command line stands apart"),
        ("retinue.cli.main", "from ..api import app", "the command line stands apart"),
        ("retinue.store.rows", "def late():\n    from retinue.engine import lanes", "imports go down"),
        ("retinue.store.rows", "if TYPE_CHECKING:\n    from retinue.engine import lanes", "imports go down"),
        ("retinue.cli.main", "importlib.import_module('retinue.daemon')", "the command line stands apart"),
        ("retinue.store.rows", "import retinue.cellar", "no row for it"),
        ("retinue.cellar", "", "`cellar` has no row"),
        ("retinue", "from retinue.domain import run", "the root imports nothing"),
    ],
)
def test_an_import_against_the_plan_is_caught(name: str, source: str, because: str) -> None:
    [complaint] = wrong_imports(module(name, source))

    assert because in complaint


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("retinue.engine.lanes", "import asyncio, sqlalchemy\nfrom retinue.store import sqlite\nfrom . import runs"),
        ("retinue.config", "from retinue.domain.errors import Invalid\nimport msgspec"),
        ("retinue.domain.run", "from msgspec import Struct"),
        ("retinue.daemon", "from retinue import __version__, plugins, real\nimport retinue.api.app"),
        ("retinue.testing.household", "import retinue.daemon, pytest"),
        ("retinue.cli.main", "import argparse\nfrom retinue import __version__\nfrom retinue.cli import client"),
        ("retinue.__main__", "from retinue.cli.main import main"),
    ],
)
def test_an_import_by_the_plan_is_allowed(name: str, source: str) -> None:
    assert wrong_imports(module(name, source)) == []


def test_a_relative_import_is_followed_from_a_package_and_from_a_module() -> None:
    package = Module("retinue.store", ast.parse("from .. import engine\nfrom . import sqlite"), is_package=True)

    assert wrong_imports(package) == ["retinue.store:1 imports retinue.engine: imports go down"]
    assert wrong_imports(module("retinue.store.migrations.one", "from ...engine import runs")) == [
        "retinue.store.migrations.one:1 imports retinue.engine: imports go down"
    ]


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime\ndatetime.now(UTC)",
        "import datetime as dt\ndt.datetime.utcnow()",
        "from datetime import date\ndate.today()",
        "import time\ntime.time()",
        "from time import time as wall\nwall()",
        "import uuid\nfield(default_factory=uuid.uuid4)",
        "import random\nrandom.shuffle(lanes)",
        "import random\nrandom.Random()",
        "def late():\n    from secrets import token_hex\n    return token_hex(8)",
        "import os\nos.urandom(8)",
    ],
)
def test_a_time_an_id_or_chance_from_the_air_is_caught(source: str) -> None:
    assert len(taken_from_the_air(module("retinue.engine.lanes", source))) == 1
    assert taken_from_the_air(module("retinue.real", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "def drain(clock):\n    return clock.now()",
        "import random\ndef shuffle(chance: random.Random): chance.random()",
        "import random\nrandom.Random(seed)",
        "import time\ntime.monotonic()",
        "from datetime import datetime\ndatetime.fromisoformat(text)",
        "class Slot:\n    time: int\ndef late(slot): return slot.time",
    ],
)
def test_what_was_handed_in_may_be_used(source: str) -> None:
    assert taken_from_the_air(module("retinue.engine.lanes", source)) == []
