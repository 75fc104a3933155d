"""Pictures of every screen for the docs: `python tests/web/pictures.py` writes `docs/pictures`, and with names such as
`doors money` only those.

The house in them is a real one, with a provider that says what is written here.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from api.tcp_server import Rim, open_rim  # noqa: E402
from flows.fake_provider import Asked, Said, calls, says  # noqa: E402
from playwright.sync_api import Page, expect  # noqa: E402
from web.browser import Front, open_browser  # noqa: E402
from web.channels_instance import DOORS, NOOR, Street, open_street, secrets_in, stumble  # noqa: E402
from web.conftest import SETTINGS  # noqa: E402
from web.test_activity import begin, settled  # noqa: E402
from web.test_usage import PRICED, serving  # noqa: E402

from retinue.testing.fake_telegram import person  # noqa: E402

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


def fill_doors(rim: Rim, street: Street) -> None:
    """People at the doors: one whom the house knows, one who was let in, two who wait."""
    rim.do("identity.link", person="owner", service="telegram", id="4710")
    rim.do("binding.set", agent="chief", connector="telegram")
    rim.do("binding.set", agent="scout", connector="family", peer="-100200300", also=["scribe"])
    rim.do("binding.set", agent="forge", connector="work", peer="#builds")
    for somebody, words in ((NOOR, "Hello!"), (person(4712, "Zoe"), "Is this the house?"), (person(4713, "Kim"), "Hi")):
        street.meet(somebody["id"], somebody["first_name"])
        street.says(words, somebody)
    street.until(lambda: len(rim.do("pairing.list")["pairings"]) == 3)
    noor = next(each for each in rim.do("pairing.list")["pairings"] if each["speaker"] == "4711")
    rim.do("pairing.accept", which=noor["id"])
    street.says("Where do we stand?", NOOR)
    street.until(lambda: len(street.texts(NOOR)) > 1)
    stumble(rim, "The photos of Friday", message_id="118", because="the disk was full: nothing could be written")


def take(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(600)  # sleep: pictures for people, which no test looks at; what glides in comes to rest
    page.screenshot(path=INTO / f"{name}.jpg", type="jpeg", quality=QUALITY)


def main() -> None:
    INTO.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    with (
        serving(plays) as url,
        open_street() as street,
        tempfile.TemporaryDirectory() as folder,
        open_rim(
            Path(folder) / "house",
            SETTINGS + PRICED.format(url=url) + DOORS.format(**secrets_in(Path(folder), street)),
        ) as rim,
        open_browser() as browser,
    ):
        fill(rim)
        fill_doors(rim, street)
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
            "doors": "/doors",
            "bindings": "/doors/bindings",
            "let-in": "/doors/requests",
            "agents": "/agents",
            "agent": "/agents/forge",
            "house": "/house",
            "settings": "/house/settings",
        }
        for look, size, theme in LOOKS:
            page = front.window(size=size, theme=theme, calm=True)  # pyright: ignore[reportArgumentType]
            for name, path in screens.items():
                if wanted and name not in wanted:
                    continue
                page.goto(rim.address + path)
                expect(page.locator("main")).not_to_be_empty()
                take(page, f"{name}-{look}")
            page.context.close()


if __name__ == "__main__":
    main()
