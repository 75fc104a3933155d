"""Hooks: small programs of the owner's, found by precedence, gated, and run when something happens."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from flows.tools_instance import HandsHouse, hands_house
from msgspec import structs

from retinue.agents.hook_runner import (
    DATA_FOLDER,
    MESSAGE_CHARS_MAX,
    MESSAGES_MAX,
    HookEvent,
    HookRunner,
    parse_messages,
)
from retinue.agents.hooks import (
    HOOK_EVENTS,
    HookSource,
    HookState,
    bundled_hooks_folder,
    evaluate_hooks,
    find_hooks,
    parse_hook,
)
from retinue.agents.skills import HostFacts
from retinue.config.hooks import HookSettings
from retinue.config.sandbox import SandboxSettings
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.operations.skill import hooks as operations
from retinue.operations.skill.hooks import HookEnableRequest, HookListRequest, HookNameRequest
from retinue.sandbox.base import Confinement, Sandbox, SandboxFailed
from retinue.sandbox.host import HostSandbox
from retinue.sandbox.owner_sandbox import OwnerSandbox
from retinue.sandbox.single_command import run_command
from retinue.testing.local_instance import boss_principal
from retinue.testing.loop_time import skip_loop_time_on_increase
from retinue.testing.wait_conditions import wait_until

OWNER = boss_principal("owner")
ON = HookSettings(enabled=True)
HERE = HostFacts(
    os="linux",
    has_bin=lambda name: name == "sh",
    has_env=lambda name: name == "THERE",
    has_config=lambda dotted: dotted == "web.browser",
)
WRITES = '#!/bin/sh\ncat > "$HOOK_DATA/$HOOK_EVENT"\n'


def hook(root: Path, name: str, *, events: str = "[command]", more: str = "", handler: str = WRITES) -> Path:
    folder = root / "hooks" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "HOOK.md").write_text(f"---\nname: {name}\ndescription: A hook.\nevents: {events}\n{more}---\nWords.\n")
    (folder / "handler.sh").write_text(handler)
    os.chmod(folder / "handler.sh", 0o755)
    return folder


def names(home: Path, *workspaces: Path) -> dict[str, HookSource]:
    return {each.name: each.source for each in find_hooks(home, workspaces).hooks}


@pytest.mark.spec("C88")
def test_of_two_hooks_of_one_name_the_workspaces_counts_before_the_houses_and_that_before_what_comes_along(
    tmp_path: Path,
) -> None:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    assert names(home) == {"command-logger": HookSource.BUNDLED}
    hook(home, "command-logger")
    hook(home, "greeter")
    hook(workspace, "greeter")
    found = find_hooks(home, [workspace])
    assert {each.name: each.source for each in found.hooks} == {
        "command-logger": HookSource.INSTANCE,
        "greeter": HookSource.WORKSPACE,
    }
    assert sorted(each.folder for each in found.shadowed) == sorted(
        [home / "hooks" / "greeter", bundled_hooks_folder() / "command-logger"]
    )


@pytest.mark.spec("C88")
@pytest.mark.parametrize(
    ("more", "because"),
    [
        ("requires: {bins: [sh]}\n", ""),
        ("requires: {bins: [unheard-of]}\n", "unheard-of is not installed"),
        ("requires: {anyBins: [sh, unheard-of]}\n", ""),
        ("requires: {anyBins: [unheard-of]}\n", "none of the commands"),
        ("requires: {env: [THERE]}\n", ""),
        ("requires: {env: [ELSEWHERE]}\n", "ELSEWHERE is not set"),
        ("requires: {config: [web.browser]}\n", ""),
        ("requires: {config: [web.unheard]}\n", "web.unheard is not enabled"),
        ("os: [linux]\n", ""),
        ("os: [darwin]\n", "it is for darwin"),
    ],
)
def test_a_hook_whose_needs_are_not_met_is_not_run_and_says_why(tmp_path: Path, more: str, because: str) -> None:
    more = more.replace("{", '{"').replace(": [", '": ["').replace("]}", '"]}').replace(", unheard", '", "unheard')
    hook(
        tmp_path, "gated", more=more if more.startswith("requires") else more.replace('": ["', ": [").replace('"]', "]")
    )
    [found] = [each for each in find_hooks(tmp_path).hooks if each.name == "gated"]
    [stood] = evaluate_hooks([found], {found.key: found.hash}, HERE, settings=ON)
    assert stood.state is (HookState.UNFIT if because else HookState.READY)
    assert because in stood.because


def test_a_hook_is_run_only_as_it_was_found_good(tmp_path: Path) -> None:
    folder = hook(tmp_path, "mine")
    [found] = [each for each in find_hooks(tmp_path).hooks if each.name == "mine"]
    good = {found.key: found.hash}
    assert evaluate_hooks([found], {}, HERE, settings=ON)[0].state is HookState.NEW
    assert evaluate_hooks([found], good, HERE, settings=ON)[0].state is HookState.READY
    assert evaluate_hooks([found], good, HERE, settings=HookSettings())[0].state is HookState.OFF
    assert (
        evaluate_hooks([found], good, HERE, settings=HookSettings(enabled=True, deny=("m*",)))[0].state is HookState.OFF
    )
    (folder / "handler.sh").write_text("#!/bin/sh\nrm -rf /\n")
    [changed] = [each for each in find_hooks(tmp_path).hooks if each.name == "mine"]
    assert evaluate_hooks([changed], good, HERE, settings=ON)[0].state is HookState.CHANGED


@pytest.mark.parametrize("events", ["[]", "[unheard]", "{}", "[command, unheard]"])
def test_events_that_nobody_knows_make_no_hook(tmp_path: Path, events: str) -> None:
    hook(tmp_path, "odd", events=events)
    assert "odd" not in names(tmp_path)
    assert [each.folder.name for each in find_hooks(tmp_path).invalid] == ["odd"]


def test_a_folder_with_a_link_or_without_a_handler_is_no_hook(tmp_path: Path) -> None:
    os.chmod(hook(tmp_path, "cannot-run") / "handler.sh", 0o644)
    (hook(tmp_path, "leads-out") / "notes").symlink_to("/etc/passwd")
    with pytest.raises(Invalid):
        parse_hook("---\nname: other\nevents: [command]\n---\n", folder="mine")
    assert {each.folder.name for each in find_hooks(tmp_path).invalid} == {"cannot-run", "leads-out"}


def test_what_a_hook_says_is_bounded_and_must_be_its_json() -> None:
    many = {"messages": ["x" * 10_000] * 50}
    said = parse_messages(json.dumps(many).encode())
    assert (len(said), len(said[0])) == (MESSAGES_MAX, MESSAGE_CHARS_MAX)
    for nothing in (b"", b"hello", b'{"messages": 7}', b'{"messages": [""]}', b"{" * 100_000):
        assert parse_messages(nothing) == []


# --- in a house ---


@dataclass
class HookedHouse(HandsHouse):
    hooks: HookRunner | None = None

    @property
    def running(self) -> HookRunner:
        assert self.hooks is not None
        return self.hooks

    def told(self, name: str, event: str) -> Mapping[str, str]:
        return json.loads((self.root / DATA_FOLDER / name / event).read_text())

    async def until(self, path: Path) -> None:
        await wait_until(path.exists, f"{path} is there")
        await self.running.wait_idle()


@asynccontextmanager
async def hooked_house(root: Path, *, settings: HookSettings = ON) -> AsyncGenerator[HookedHouse]:
    async def bare() -> Sandbox:
        return HostSandbox()

    async with hands_house(root) as inside:
        desk = inside.house.services
        hooks = HookRunner(
            root,
            desk.store,
            settings=lambda: settings,
            host_facts=lambda: HERE,
            get_sandbox=bare,
            send_message=lambda event, hook, text: operations.send_hook_output(desk, event, hook, text),
        )
        house = structs.replace(inside.house, services=structs.replace(desk, hooks=hooks))
        made = HookedHouse(house, root, inside.model, inside.configuration, inside.witness, inside.models, hooks=hooks)
        await hooks.start()
        try:
            yield made
        finally:
            await hooks.stop()


@pytest.mark.spec("C88")
async def test_a_command_is_told_to_every_hook_that_asked_for_it_and_its_words_come_to_whoever_gave_it(
    tmp_path: Path,
) -> None:
    hook(tmp_path, "all", events="[command]")
    speaks = WRITES + 'echo \'{"messages": ["Noted."]}\'\n'
    hook(tmp_path, "resets", events="[command:reset]", handler=speaks)
    hook(tmp_path, "stops", events="[command:stop]")
    async with hooked_house(tmp_path) as house:
        desk = house.house.services
        for name in ("all", "resets", "stops"):
            await operations.enable_hook(desk, OWNER, HookEnableRequest(name=name))
        await house.turn("Good morning.", "Good morning.", origin="person:owner")
        await house.post("/reset and keep this", origin="person:owner")
        await house.until(tmp_path / DATA_FOLDER / "resets" / "command:reset")
        told = house.told("all", "command:reset")
        assert told["sender"] == "person:owner"
        assert told["text"] == "/reset and keep this"
        assert told["agent"] == "ada"
        assert not (tmp_path / DATA_FOLDER / "stops" / "command:reset").exists()
        await house.rest()
        assert "Noted." in [mail.text for mail in await house.mail("person:owner")]


@pytest.mark.spec("C88")
async def test_sessions_that_begin_and_begin_anew_are_told(tmp_path: Path) -> None:
    hook(tmp_path, "watch", events='["session:start", "session:reset", "agent:bootstrap"]')
    async with hooked_house(tmp_path) as house:
        await operations.enable_hook(house.house.services, OWNER, HookEnableRequest(name="watch"))
        session = await house.turn("Hello.", "Hello.", origin="person:owner")
        await house.until(tmp_path / DATA_FOLDER / "watch" / "agent:bootstrap")
        assert house.told("watch", "session:start")["session"] == session
        await house.post("/reset", origin="person:owner")
        await house.until(tmp_path / DATA_FOLDER / "watch" / "session:reset")
        assert house.told("watch", "session:reset")["agent"] == "ada"


async def test_a_hook_may_be_told_that_the_house_has_opened_and_greet_its_owner(tmp_path: Path) -> None:
    hook(tmp_path, "greets", events='["gateway:startup"]', handler='#!/bin/sh\necho \'{"messages": ["Open."]}\'\n')
    async with hooked_house(tmp_path) as house:
        await operations.enable_hook(house.house.services, OWNER, HookEnableRequest(name="greets"))
        house.running.notify_started(datetime(2026, 3, 4, tzinfo=UTC))
        await house.running.wait_idle()
        assert [mail.text for mail in await house.mail("person:owner")] == ["Open."]


async def test_a_hook_that_breaks_takes_too_long_or_says_too_much_touches_nothing_else(tmp_path: Path) -> None:
    hook(tmp_path, "a-breaks", handler="#!/bin/sh\nexit 3\n")
    hook(tmp_path, "b-sleeps", handler=f"#!/bin/sh\ntouch {tmp_path}/asleep\nexec sleep 600\n")
    hook(tmp_path, "c-shouts", handler="#!/bin/sh\nyes\n")
    hook(tmp_path, "d-no-program", handler="#!/no/such/program\n")
    hook(tmp_path, "e-works")
    async with hooked_house(tmp_path, settings=HookSettings(enabled=True, timeout_s=60)) as house:
        for each in find_hooks(tmp_path).hooks:
            await operations.enable_hook(house.house.services, OWNER, HookEnableRequest(name=each.name))
        async with skip_loop_time_on_increase(60, count=lambda: int((tmp_path / "asleep").exists())):
            done = await house.running.run_hooks(HookEvent(event="command:new", key="1", at="now"))
        assert done == ["command-logger", "e-works"]
        assert await house.turn("Hello.", "Hello.")


async def test_nothing_is_run_in_a_house_that_did_not_turn_hooks_on(tmp_path: Path) -> None:
    hook(tmp_path, "mine")
    async with hooked_house(tmp_path, settings=HookSettings()) as house:
        shown = await operations.enable_hook(house.house.services, OWNER, HookEnableRequest(name="mine"))
        assert shown.state is HookState.OFF
        assert await house.running.run_hooks(HookEvent(event="command:new", key="1", at="now")) == ()


async def test_hooks_are_listed_shown_enabled_as_they_were_read_and_disabled(tmp_path: Path) -> None:
    hook(tmp_path, "mine")
    hook(tmp_path, "broken", events="[]")
    async with hooked_house(tmp_path) as house:
        desk = house.house.services
        listed = await operations.list_hooks(desk, OWNER, HookListRequest())
        assert {each.name: each.state for each in listed.hooks} == {
            "command-logger": HookState.NEW,
            "mine": HookState.NEW,
        }
        assert [Path(each.folder).name for each in listed.broken] == ["broken"]
        read = await operations.show_hook(desk, OWNER, HookNameRequest(name="mine"))
        assert "handler.sh (executable)" in read.content
        with pytest.raises(Conflict):
            await operations.enable_hook(desk, OWNER, HookEnableRequest(name="mine", hash="0" * 12))
        enabled = await operations.enable_hook(desk, OWNER, HookEnableRequest(name="mine", hash=read.hook.hash[:12]))
        assert enabled.state is HookState.READY
        gone = [await operations.disable_hook(desk, OWNER, HookNameRequest(name="mine")) for _ in range(2)]
        assert [each.was_enabled for each in gone] == [True, False]
        for unknown in ("broken", "unheard"):
            with pytest.raises(NotFound):
                await operations.show_hook(desk, OWNER, HookNameRequest(name=unknown))


async def test_the_logger_that_comes_along_keeps_a_line_for_each_command(tmp_path: Path) -> None:
    async with hooked_house(tmp_path) as house:
        await operations.enable_hook(house.house.services, OWNER, HookEnableRequest(name="command-logger"))
        for number in range(2):
            await house.running.run_hooks(
                HookEvent(event="command:stop", key=str(number), at="now", sender="person:owner")
            )
        lines = (tmp_path / DATA_FOLDER / "command-logger" / "commands.log").read_text().splitlines()
        assert [json.loads(line)["key"] for line in lines] == ["0", "1"]


def test_every_event_has_its_line_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "hooks.md").read_text()
    assert [event for event in HOOK_EVENTS if f"`{event}`" not in guide] == []


async def test_behind_walls_a_hook_sees_its_own_folder_and_nothing_else_of_the_house(tmp_path: Path) -> None:
    home = tmp_path / "home"
    looks = '#!/bin/sh\ncat > "$HOOK_DATA/told"\ncat ' + f'"{home}/owner-token" "{home}/hooks/other/HOOK.md"\nexit 0\n'
    mine, other = hook(home, "mine", handler=looks), hook(home, "other")
    (home / "owner-token").write_text("a token")
    data = home / DATA_FOLDER / "mine"
    data.mkdir(parents=True)
    sandbox = OwnerSandbox(SandboxSettings, data_directory=home, user_home=Path.home())
    try:
        walls = await sandbox()
    except SandboxFailed as error:
        pytest.skip(f"no sandbox here: {error.because}")
    confinement = Confinement(
        folder=data, writable=(data,), readable=(mine,), environment={"HOOK_DATA": str(data), "HOOK_EVENT": "x"}
    )
    said = await run_command(
        walls, [str(mine / "handler.sh")], confinement, input_data=b"hello", timeout_s=60, bytes_max=10_000
    )
    assert (data / "told").read_bytes() == b"hello"
    assert b"a token" not in said
    assert b"A hook." not in said
    assert other.exists()
