"""The import rules hold in `src/retinue`, and the checks find what they should."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from import_rules import KNOWN_IMPORT_CYCLES, Module, import_cycles, read_modules, system_calls, wrong_imports

import retinue

SOURCE = Path(retinue.__file__).parent.parent


def module(name: str, source: str) -> Module:
    return Module(name, ast.parse(source))


class Findings(NamedTuple):
    names: set[str]
    wrong_imports: list[str]
    system_calls: list[str]
    import_cycles: dict[str, set[frozenset[str]]]


@cache
def check_all_modules() -> Findings:
    """The findings in all modules. The syntax trees are freed: they take 300 MB."""
    modules = list(read_modules(SOURCE))
    return Findings(
        {each.name for each in modules},
        [complaint for each in modules for complaint in wrong_imports(each)],
        [complaint for each in modules for complaint in system_calls(each)],
        import_cycles(modules),
    )


def test_every_import_goes_down_to_a_lower_layer() -> None:
    complaints = check_all_modules().wrong_imports

    assert not complaints, "\n".join(complaints)


def test_the_import_rules_find_no_time_id_or_random_number_taken_from_the_system() -> None:
    complaints = check_all_modules().system_calls

    assert not complaints, "\n".join(complaints)


def test_packages_have_no_import_cycles_except_the_known_ones() -> None:
    assert check_all_modules().import_cycles == KNOWN_IMPORT_CYCLES


def test_every_module_is_checked() -> None:
    assert {"retinue", "retinue.testing.postgres"} <= check_all_modules().names


@pytest.mark.parametrize(
    ("name", "source", "because"),
    [
        ("retinue.engine.lanes", "import retinue.api.app", "imports go down"),
        ("retinue.engine.lanes", "from retinue import api", "imports go down"),
        (
            "retinue.store.core.sqlite",
            "from retinue.policy.access import access",
            "packages of one row do not import each other",
        ),
        (
            "retinue.text.chunking",
            "from retinue.config import Settings",
            "packages of one row do not import each other",
        ),
        ("retinue.app.server", "import retinue.testing", "imports go down"),
        ("retinue.domain.run", "import msgspec", "domain has only the standard library"),
        ("retinue.domain.run", "from msgspec import json", "domain has only the standard library"),
        ("retinue.policy.access.access", "from msgspec import json", "policy has only the standard library"),
        ("retinue.policy.access.access", "from sqlalchemy import select", "policy has only the standard library"),
        ("retinue.cli.main", "import httptools", "cli has only the standard library"),
        ("retinue.cli.main", "from retinue.domain import ids", "the command line imports only itself"),
        ("retinue.api.app", "from retinue.cli.output import table", "the command line imports only itself"),
        ("retinue.cli.main", "from ..api import app", "the command line imports only itself"),
        ("retinue.store.rows", "def late():\n    from retinue.engine import lanes", "imports go down"),
        ("retinue.store.rows", "if TYPE_CHECKING:\n    from retinue.engine import lanes", "imports go down"),
        ("retinue.cli.main", "importlib.import_module('retinue.app.server')", "the command line imports only itself"),
        ("retinue.store.rows", "import retinue.unknown", "no row for it"),
        ("retinue.unknown", "", "`unknown` has no row"),
        ("retinue", "from retinue.domain import run", "the root imports nothing"),
    ],
)
def test_an_import_against_the_rules_is_detected(name: str, source: str, because: str) -> None:
    [complaint] = wrong_imports(module(name, source))

    assert because in complaint


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "retinue.engine.lanes",
            "import asyncio, sqlalchemy\nfrom retinue.store.core import sqlite\nfrom . import runs",
        ),
        ("retinue.config", "from retinue.domain.errors import Invalid\nimport msgspec"),
        ("retinue.domain.run", "from msgspec import Struct"),
        ("retinue.app.server", "from retinue import __version__, plugins\nimport retinue.api.app"),
        ("retinue.testing.local_instance", "import retinue.app.server, pytest"),
        ("retinue.cli.main", "import argparse\nfrom retinue import __version__\nfrom retinue.cli import client"),
        ("retinue.__main__", "from retinue.cli.main import main"),
    ],
)
def test_an_import_by_the_rules_is_allowed(name: str, source: str) -> None:
    assert wrong_imports(module(name, source)) == []


def test_a_relative_import_is_resolved_in_a_package_and_in_a_module() -> None:
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
def test_the_import_rules_detect_a_time_id_or_random_number_taken_from_the_system(source: str) -> None:
    assert len(system_calls(module("retinue.engine.lanes", source))) == 1
    assert system_calls(module("retinue.app.clock_and_ids", source)) == []


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
def test_the_import_rules_allow_a_clock_or_generator_that_is_passed_in(source: str) -> None:
    assert system_calls(module("retinue.engine.lanes", source)) == []


def test_an_import_cycle_through_a_function_is_detected() -> None:
    modules = [
        module("retinue.store.runs.runs", "from retinue.store.core import tables"),
        module("retinue.store.core.tables", "def late():\n    from retinue.store.runs.runs import claim"),
        module(
            "retinue.store.ledger.ledger", "from retinue.store.runs import runs\nfrom retinue.store.core import tables"
        ),
    ]

    assert import_cycles(modules) == {"store": {frozenset({"runs", "core"})}}
    assert import_cycles([modules[0], modules[2]]) == {}
