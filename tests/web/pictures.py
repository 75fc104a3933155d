"""Pictures of every screen for the docs: `python tests/web/pictures.py` writes `docs/pictures`.

The house in them is a real one, with a provider that says what is written here.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from api.rim import Rim, open_rim  # noqa: E402
from flows.provider import Asked, Said, calls, says  # noqa: E402
from playwright.sync_api import Page, expect  # noqa: E402
from web.browser import Front, open_browser  # noqa: E402
from web.conftest import SETTINGS  # noqa: E402
from web.test_live import begin, settled  # noqa: E402
from web.test_money import PRICED, serving  # noqa: E402

INTO = ROOT / "docs" / "pictures"
QUALITY = 72
LOOKS = (("light", "laptop", "light"), ("dark", "laptop", "dark"), ("phone", "phone", "dark"))

BRIEFING = """I asked **scout** and **forge**; here is where we stand.

| item | owner | state |
|---|---|---|
| vendor comparison | scout | done |
| flaky `test_retry` | forge | needs a permission |

```python
@pytest.mark.parametrize("n", range(50))
def test_retry(n):
    assert retry(n) <= 3
```

1. Scout read *five* sources.
2. Forge wants to run a shell command: see Approvals.
"""


def plays(asked: Asked) -> Said:
    words = asked.raw.decode()
    usage = {"input_tokens": 18_000, "output_tokens": 900}
    if asked.results:
        return says(
            "Done: the notes are in `notes.md`, and the comparison stands." if "scout" in words else BRIEFING, **usage
        )
    if "Where do we stand" in words:
        return calls(("session_status", {}), thinking="Two threads are open. I look first, then I tell.", **usage)
    if "flaky" in words:
        return calls(
            ("exec", {"command": "rm -rf build/ && make test"}),
            text="A clean build shows whether it is the flake.",
            **usage,
        )
    return says("Good. I keep an eye on it and write when something changes.", **usage)


def fill(rim: Rim) -> None:
    """A staff with something to do."""
    for name, model, colour, description in (
        ("chief", "mock/m1", "indigo", "Knows what everyone does, and what you wait for."),
        ("scout", "mock/m2", "cyan", "Reads widely and tells briefly."),
        ("forge", "mock/m1", "red", "Writes code, runs the tests."),
        ("scribe", "mock/m2", "green", "Keeps the journal."),
    ):
        rim.do("agent.register", name=name, model=model, colour=colour, description=description)
    rim.do("agent.set", name="forge", tools_ask=["exec"])
    for agent, text, name in (
        ("scribe", "Note that the offsite is on Friday.", "Journal"),
        ("scout", "Compare the three vendors for me.", "Vendor comparison"),
        ("chief", "Plan the offsite with me.", "Plan the offsite"),
        ("chief", "Where do we stand?", "Morning briefing"),
    ):
        settled(rim, begin(rim, agent, text, name)[1])
    begin(rim, "forge", "Fix the flaky test.", "Fix flaky test")
    for name, agent, when, text in (
        ("morning-briefing", "chief", {"cron": "0 9 * * 1-5", "zone": "Europe/Berlin"}, "Where do we stand?"),
        ("vendors", "scout", {"cron": "0 14 * * TUE,THU"}, "Is there news of the vendors?"),
        ("journal", "scribe", {"cron": "30 21 * * *"}, "Write down what happened today."),
        ("build", "forge", {"every": "10m", "gate": {"command": "exit 1"}}, "Is the build green?"),
    ):
        asked: dict[str, Any] = {"name": name, "to": f"agent:{agent}", "text": text, **when}
        rim.do("schedule.add", **asked)
    rim.do("agent.set", name="chief", heartbeat_every_s=1800)
    rim.do(
        "heartbeat.add", agent="chief", title="Inbox", text="Is there mail that waits for an answer since yesterday?"
    )
    for name in ("journal", "build"):
        rim.do("schedule.run", schedule=name)


def take(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(600)  # what glides in has come to rest
    page.screenshot(path=INTO / f"{name}.jpg", type="jpeg", quality=QUALITY)


def main() -> None:
    INTO.mkdir(exist_ok=True)
    with (
        serving(plays) as url,
        tempfile.TemporaryDirectory() as folder,
        open_rim(Path(folder), SETTINGS + PRICED.format(url=url)) as rim,
        open_browser() as browser,
    ):
        fill(rim)
        front = Front(browser, rim)
        sessions = {each["name"]: each["sessionId"] for each in rim.do("session.list", limit=50)["sessions"]}
        run = rim.do("run.list", session=sessions["Morning briefing"], limit=1)["runs"][0]["id"]
        screens = {
            "chat": f"/chat/{sessions['Morning briefing']}",
            "approvals": "/approvals",
            "live": "/live",
            "runs": "/runs",
            "run": f"/runs/{run}",
            "schedules": "/schedules",
            "week": "/schedules/week",
            "schedule": f"/schedules/{rim.do('schedule.show', schedule='build')['id']}",
            "heartbeat": "/schedules/heartbeat",
            "money": "/money",
            "agents": "/agents",
            "agent": "/agents/forge",
            "house": "/house",
            "settings": "/house/settings",
        }
        for look, size, theme in LOOKS:
            page = front.window(size=size, theme=theme, calm=True)  # pyright: ignore[reportArgumentType]
            for name, path in screens.items():
                page.goto(rim.address + path)
                expect(page.locator("main")).not_to_be_empty()
                take(page, f"{name}-{look}")
            page.context.close()


if __name__ == "__main__":
    main()
