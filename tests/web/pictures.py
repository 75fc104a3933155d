"""Pictures of every screen for the docs: `python tests/web/pictures.py` writes `docs/pictures`, and with names such as
`channels usage` only those.

They show a real server whose provider is scripted here.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from api.tcp_server import ApiClient, open_api_client  # noqa: E402
from flows.fake_provider import Asked, FakeReply, calls, says  # noqa: E402
from playwright.sync_api import Page, expect  # noqa: E402
from web.browser import WebApp, open_browser  # noqa: E402
from web.channels_instance import (  # noqa: E402
    CONNECTOR_SETTINGS,
    NOOR,
    FakeTelegramUsers,
    add_poison_message,
    open_fake_telegram,
    write_tokens,
)
from web.conftest import SETTINGS  # noqa: E402
from web.test_activity import start_session, wait_for_outcome  # noqa: E402
from web.test_usage import PRICED_MODELS, serve_provider  # noqa: E402

from retinue.testing.fake_telegram import build_user  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
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


def reply_to(request: Asked) -> FakeReply:
    text = request.raw.decode()
    usage = {"input_tokens": 18_000, "output_tokens": 900}
    if request.results:
        return says(
            "Done: the notes are in `notes.md`, and the comparison stands." if "scout" in text else BRIEFING, **usage
        )
    if "Where do we stand" in text:
        return calls(("session_status", {}), thinking="Two threads are open. I look first, then I tell.", **usage)
    if "flaky" in text:
        return calls(
            ("exec", {"command": "rm -rf build/ && make test"}),
            text="A clean build shows whether it is the flake.",
            **usage,
        )
    return says("Good. I keep an eye on it and write when something changes.", **usage)


def add_agents(server: ApiClient) -> None:
    """Add agents with conversations, schedules and a heartbeat."""
    for name, model, color, description in (
        ("chief", "mock/m1", "indigo", "Knows what everyone does, and what you wait for."),
        ("scout", "mock/m2", "cyan", "Reads widely and tells briefly."),
        ("forge", "mock/m1", "red", "Writes code, runs the tests."),
        ("scribe", "mock/m2", "green", "Keeps the journal."),
    ):
        server.do("agent.register", name=name, model=model, color=color, description=description)
    server.do("agent.set", name="forge", tools_ask=["exec"])
    for agent, text, name in (
        ("scribe", "Note that the offsite is on Friday.", "Journal"),
        ("scout", "Compare the three vendors for me.", "Vendor comparison"),
        ("chief", "Plan the offsite with me.", "Plan the offsite"),
        ("chief", "Where do we stand?", "Morning briefing"),
    ):
        wait_for_outcome(server, start_session(server, agent, text, name)[1])
    start_session(server, "forge", "Fix the flaky test.", "Fix flaky test")
    for name, agent, when, text in (
        ("morning-briefing", "chief", {"cron": "0 9 * * 1-5", "zone": "Europe/Berlin"}, "Where do we stand?"),
        ("vendors", "scout", {"cron": "0 14 * * TUE,THU"}, "Is there news of the vendors?"),
        ("journal", "scribe", {"cron": "30 21 * * *"}, "Write down what happened today."),
        ("build", "forge", {"every": "10m", "gate": {"command": "exit 1"}}, "Is the build green?"),
    ):
        request: dict[str, Any] = {"name": name, "to": f"agent:{agent}", "text": text, **when}
        server.do("schedule.add", **request)
    server.do("agent.set", name="chief", heartbeat_every_s=1800)
    server.do(
        "heartbeat.add", agent="chief", title="Inbox", text="Is there mail that waits for an answer since yesterday?"
    )
    for name in ("journal", "build"):
        server.do("schedule.run", schedule=name)


def add_channels(server: ApiClient, telegram: FakeTelegramUsers) -> None:
    """Add bindings, identities and senders: one accepted, two waiting."""
    server.do("identity.link", person="owner", platform="telegram", id="4710")
    server.do("binding.set", agent="chief", connector="telegram")
    server.do("binding.set", agent="scout", connector="family", peer="-100200300", extra_agents=["scribe"])
    server.do("binding.set", agent="forge", connector="work", peer="#builds")
    for user, text in (
        (NOOR, "Hello!"),
        (build_user(4712, "Zoe"), "Is this the right bot?"),
        (build_user(4713, "Kim"), "Hi"),
    ):
        telegram.add_user(user["id"], user["first_name"])
        telegram.send_message(text, user)
    telegram.wait_until(lambda: len(server.do("pairing.list")["pairings"]) == 3)
    noor = next(each for each in server.do("pairing.list")["pairings"] if each["sender_id"] == "4711")
    server.do("pairing.accept", request=noor["id"])
    telegram.send_message("Where do we stand?", NOOR)
    telegram.wait_until(lambda: len(telegram.bot_texts(NOOR)) > 1)
    add_poison_message(
        server, "The photos of Friday", message_id="118", because="the disk was full: nothing could be written"
    )


def take_screenshot(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(600)  # sleep: lets animations end; no test depends on it
    page.screenshot(path=PICTURES / f"{name}.jpg", type="jpeg", quality=QUALITY)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    names = sys.argv[1:]
    with (
        serve_provider(reply_to) as url,
        open_fake_telegram() as telegram,
        tempfile.TemporaryDirectory() as folder,
        open_api_client(
            Path(folder) / "instance",
            SETTINGS
            + PRICED_MODELS.format(url=url)
            + CONNECTOR_SETTINGS.format(**write_tokens(Path(folder), telegram)),
        ) as server,
        open_browser() as browser,
    ):
        add_agents(server)
        add_channels(server, telegram)
        app = WebApp(browser, server)
        sessions = {each["name"]: each["sessionId"] for each in server.do("session.list", limit=50)["sessions"]}
        run = server.do("run.list", session=sessions["Morning briefing"], limit=1)["runs"][0]["id"]
        screens = {
            "chat": f"/chat/{sessions['Morning briefing']}",
            "approvals": "/approvals",
            "activity": "/activity",
            "runs": "/runs",
            "run": f"/runs/{run}",
            "schedules": "/schedules",
            "week": "/schedules/week",
            "schedule": f"/schedules/{server.do('schedule.show', schedule='build')['id']}",
            "heartbeat": "/schedules/heartbeat",
            "usage": "/usage",
            "channels": "/channels",
            "routing": "/channels/routing",
            "access-requests": "/channels/requests",
            "agents": "/agents",
            "agent": "/agents/forge",
            "settings": "/settings",
            "configuration": "/settings/configuration",
        }
        for look, size, theme in LOOKS:
            page = app.open_window(size=size, theme=theme, reduce_motion=True)  # pyright: ignore[reportArgumentType]
            for name, path in screens.items():
                if names and name not in names:
                    continue
                page.goto(server.address + path)
                expect(page.locator("main")).not_to_be_empty()
                take_screenshot(page, f"{name}-{look}")
            page.context.close()


if __name__ == "__main__":
    main()
