"""No test waits for time to pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from wait_rules import parse_test_file, read_test_files, wrong_waits

import retinue.testing

TESTS = Path(__file__).parent
TESTING = Path(retinue.testing.__file__).parent
WAIT_CONDITIONS_FILE = TESTING / "wait_conditions.py"


def test_no_test_waits_for_time_to_pass_and_every_time_limit_is_at_least_a_minute() -> None:
    files = read_test_files(TESTS, TESTING)
    assert {__file__, str(TESTS / "api" / "tcp_server.py"), str(WAIT_CONDITIONS_FILE)} <= {file.path for file in files}

    complaints = [
        complaint for file in files if Path(file.path) != WAIT_CONDITIONS_FILE for complaint in wrong_waits(file)
    ]

    assert not complaints, "\n".join(complaints)


FORBIDDEN_SOURCES = {
    "import time\ntime.sleep(0.1)": "time.sleep waits for time to pass",
    "import asyncio\nasync def f():\n    await asyncio.sleep(delay)": "asyncio.sleep waits for time to pass",
    "from time import sleep\nsleep(1)": "time.sleep waits for time to pass",
    "import anyio as a\na.sleep(1)": "anyio.sleep waits for time to pass",
    "import time\ntime.sleep(1)  # sleep:": "time.sleep waits for time to pass",
    "page.wait_for_timeout(600)": "use expect(...)",
    "import time\nend = time.monotonic() + 60": "a deadline made by hand",
    "import asyncio\nend = asyncio.get_running_loop().time() + LIMIT_S": "a deadline made by hand",
    "end = loop.time() + 60": "a deadline made by hand",
    "import asyncio\nasyncio.timeout(20)": "timeout is limited to 20 s",
    "from asyncio import timeout\ntimeout(20)": "timeout is limited to 20 s",
    "import asyncio\nasyncio.wait_for(task, 5)": "wait_for is limited to 5 s",
    "import asyncio\nasyncio.wait_for(task, timeout=5)": "wait_for is limited to 5 s",
    "import anyio\nanyio.fail_after(59)": "fail_after is limited to 59 s",
    "WITHIN_S = 10 * 3\nprocess.wait(WITHIN_S)": "wait is limited to 30 s",
    "process.communicate(timeout=5.0)": "communicate is limited to 5 s",
    "import subprocess\nsubprocess.run(['x'], timeout=30)": "run is limited to 30 s",
    "thread.join(3)": "join is limited to 3 s",
    "queue.get(timeout=1)": "get is limited to 1 s",
    "future.result(30)": "result is limited to 30 s",
    "wait_until(f, 'x', limit_s=5)": "wait_until is limited to 5 s",
    "@pytest.mark.timeout(30)\ndef test(): pass": "timeout is limited to 30 s",
    "from playwright.sync_api import expect\nexpect(it).to_be_visible(timeout=20_000)": "limited to 20000 ms",
    "from playwright.sync_api import expect\nthread.join(20)": "join is limited to 20 s",
}
ALLOWED_SOURCES = [
    "import asyncio\nasync def f():\n    await asyncio.sleep(0)",
    "import time\ntime.sleep(0.1)  # sleep: the pace of the stand-in, which no test waits for",
    "import asyncio\nasyncio.wait_for(task, 5)  # time limit: the limit is what is tested",
    "clock.sleep(5)",
    "', '.join(words)",
    "import asyncio\nasyncio.timeout(60)",
    "import asyncio\nasyncio.timeout(None)",
    "event.wait()",
    "from playwright.sync_api import expect\nexpect(it).to_be_visible(timeout=60_000)",
    "import time\ntook = time.monotonic() - began",
]


@pytest.mark.parametrize("source", FORBIDDEN_SOURCES)
def test_a_wait_for_time_and_a_short_limit_are_detected(source: str) -> None:
    [complaint] = wrong_waits(parse_test_file("some.py", source))

    assert complaint.startswith("some.py:") and FORBIDDEN_SOURCES[source] in complaint


@pytest.mark.parametrize("source", ALLOWED_SOURCES)
def test_code_that_does_not_depend_on_time_is_allowed(source: str) -> None:
    assert wrong_waits(parse_test_file("some.py", source)) == []


def test_the_limit_of_a_wait_is_resolved_in_the_file_it_is_imported_from(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "limits.py").write_text("WAIT_S = 5.0\n")
    (tmp_path / "test_it.py").write_text("from flows.limits import WAIT_S\nprocess.wait(WAIT_S)\n")

    [complaint] = [complaint for file in read_test_files(tmp_path) for complaint in wrong_waits(file)]

    assert complaint == f"{tmp_path / 'test_it.py'}:2: wait is limited to 5 s; a limit ends a hang: 60 or more"
