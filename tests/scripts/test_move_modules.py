"""Moving modules: imports, references, dotted names and paths follow, and nothing else is changed."""

from __future__ import annotations

from scripts.move_modules import MOVES, SOURCE, Moves, PythonFile, read_sections

PATHS = {"store/news": "store/core/events", "policy/tools": "policy/tools/tools", "service": "app/systemd_unit"}
MOVED = Moves(PATHS, {*PATHS, "store/agents", "store/__init__"})

BEFORE = '''\
"""Reads `store/core/events`, as src/retinue/store/core/events.py has it; not its news."""
from retinue.policy.tools.tools import Rule as Rule, may_use
from retinue.store import agents, news


class Feed:
    news: list[str] = news.read()

    def tell(self, conn):
        return news.newest(conn), self.news


def hide(news):
    return news


command = ["-m", "retinue.app.systemd_unit"], "retinue.service", "retinue.store.core.events.read"
'''
AFTER = '''\
"""Reads `store/core/events`, as src/retinue/store/core/events.py has it; not its news."""
from retinue.policy.tools.tools.tools import Rule as Rule, may_use
from retinue.store import agents
from retinue.store.core import events


class Feed:
    news: list[str] = events.read()

    def tell(self, conn):
        return events.newest(conn), self.news


def hide(news):
    return news


command = ["-m", "retinue.app.systemd_unit"], "retinue.service", "retinue.store.core.events.read"
'''


def test_what_means_a_moved_module_follows_and_what_only_shares_its_name_does_not() -> None:
    assert PythonFile(BEFORE, "tests/one.py", MOVED).rewritten() == AFTER


def test_a_name_that_is_taken_in_a_file_gets_the_name_of_its_package() -> None:
    text = "from retinue.store import news\nevents = news.read()\n"

    assert PythonFile(text, "one.py", MOVED).rewritten() == (
        "from retinue.store.core import events as store_events\nevents = store_events.read()\n"
    )


def test_every_module_of_the_list_exists_and_no_two_go_to_one_place() -> None:
    moves = [move for section in read_sections(MOVES.read_text()) for move in section.paths.items()]

    assert [old for old, _ in moves if not (SOURCE / f"{old}.py").is_file()] == []
    assert len({new for _, new in moves}) == len(moves)
