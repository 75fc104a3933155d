"""Hooks: the owner's programs, found by precedence, allowed by requirements, and run after events."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from flows.tools_instance import ScriptedServer, open_scripted_server
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
ENABLED = HookSettings(enabled=True, timeout_s=60.0)
HOST_FACTS = HostFacts(
    os="linux",
    has_bin=lambda name: name == "sh",
    has_env=lambda name: name == "THERE",
    has_config=lambda dotted: dotted == "web.browser",
)
HANDLER_THAT_STORES_ITS_INPUT = '#!/bin/sh\ncat > "$HOOK_DATA/$HOOK_EVENT"\n'


def hook(
    root: Path, name: str, *, events: str = "[command]", more: str = "", handler: str = HANDLER_THAT_STORES_ITS_INPUT
) -> Path:
    folder = root / "hooks" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "HOOK.md").write_text(f"---\nname: {name}\ndescription: A hook.\nevents: {events}\n{more}---\nWords.\n")
    (folder / "handler.sh").write_text(handler)
    os.chmod(folder / "handler.sh", 0o755)
    return folder


def names(home: Path, *workspaces: Path) -> dict[str, HookSource]:
    return {each.name: each.source for each in find_hooks(home, workspaces).hooks}


@pytest.mark.spec("C88")
def test_workspace_hooks_shadow_instance_hooks_and_instance_hooks_shadow_bundled_hooks(
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
def test_a_hook_with_unmet_requirements_is_not_ready_and_reports_the_reason(
    tmp_path: Path, more: str, because: str
) -> None:
    more = more.replace("{", '{"').replace(": [", '": ["').replace("]}", '"]}').replace(", unheard", '", "unheard')
    hook(
        tmp_path, "gated", more=more if more.startswith("requires") else more.replace('": ["', ": [").replace('"]', "]")
    )
    [found] = [each for each in find_hooks(tmp_path).hooks if each.name == "gated"]
    [stood] = evaluate_hooks([found], {found.key: found.hash}, HOST_FACTS, settings=ENABLED)
    assert stood.state is (HookState.UNAVAILABLE if because else HookState.READY)
    assert because in stood.because


def test_a_hook_is_ready_only_with_its_approved_hash_and_if_enabled(tmp_path: Path) -> None:
    folder = hook(tmp_path, "mine")
    [found] = [each for each in find_hooks(tmp_path).hooks if each.name == "mine"]
    good = {found.key: found.hash}
    assert evaluate_hooks([found], {}, HOST_FACTS, settings=ENABLED)[0].state is HookState.NEW
    assert evaluate_hooks([found], good, HOST_FACTS, settings=ENABLED)[0].state is HookState.READY
    assert evaluate_hooks([found], good, HOST_FACTS, settings=HookSettings())[0].state is HookState.OFF
    assert (
        evaluate_hooks([found], good, HOST_FACTS, settings=HookSettings(enabled=True, deny=("m*",)))[0].state
        is HookState.OFF
    )
    (folder / "handler.sh").write_text("#!/bin/sh\nrm -rf /\n")
    [changed] = [each for each in find_hooks(tmp_path).hooks if each.name == "mine"]
    assert evaluate_hooks([changed], good, HOST_FACTS, settings=ENABLED)[0].state is HookState.CHANGED


@pytest.mark.parametrize("events", ["[]", "[unheard]", "{}", "[command, unheard]"])
def test_a_hook_with_unknown_or_no_events_is_invalid(tmp_path: Path, events: str) -> None:
    hook(tmp_path, "odd", events=events)
    assert "odd" not in names(tmp_path)
    assert [each.folder.name for each in find_hooks(tmp_path).invalid] == ["odd"]


def test_a_hook_with_a_link_or_without_an_executable_handler_is_invalid(tmp_path: Path) -> None:
    os.chmod(hook(tmp_path, "cannot-run") / "handler.sh", 0o644)
    (hook(tmp_path, "leads-out") / "notes").symlink_to("/etc/passwd")
    with pytest.raises(Invalid):
        parse_hook("---\nname: other\nevents: [command]\n---\n", folder="mine")
    assert {each.folder.name for each in find_hooks(tmp_path).invalid} == {"cannot-run", "leads-out"}


def test_hook_output_must_be_json_and_its_messages_are_limited() -> None:
    many = {"messages": ["x" * 10_000] * 50}
    said = parse_messages(json.dumps(many).encode())
    assert (len(said), len(said[0])) == (MESSAGES_MAX, MESSAGE_CHARS_MAX)
    for nothing in (b"", b"hello", b'{"messages": 7}', b'{"messages": [""]}', b"{" * 100_000):
        assert parse_messages(nothing) == []


# --- on a server ---


@dataclass
class HookedServer(ScriptedServer):
    hooks: HookRunner | None = None

    @property
    def running(self) -> HookRunner:
        assert self.hooks is not None
        return self.hooks

    def event_data(self, name: str, event: str) -> Mapping[str, str]:
        return json.loads((self.root / DATA_FOLDER / name / event).read_text())

    async def wait_for_file(self, path: Path) -> None:
        await wait_until(path.exists, f"{path} is there")
        await self.running.wait_idle()


@asynccontextmanager
async def hook_instance(root: Path, *, settings: HookSettings = ENABLED) -> AsyncGenerator[HookedServer]:
    async def host_sandbox() -> Sandbox:
        return HostSandbox()

    async with open_scripted_server(root) as inside:
        services = inside.server.services
        hooks = HookRunner(
            root,
            services.store,
            settings=lambda: settings,
            host_facts=lambda: HOST_FACTS,
            get_sandbox=host_sandbox,
            send_message=lambda event, hook, text: operations.send_hook_output(services, event, hook, text),
        )
        server = structs.replace(inside.server, services=structs.replace(services, hooks=hooks))
        made = HookedServer(
            server, root, inside.model, inside.configuration, inside.witness, inside.models, hooks=hooks
        )
        await hooks.start()
        try:
            yield made
        finally:
            await hooks.stop()


@pytest.mark.spec("C88")
async def test_a_slash_command_runs_the_hooks_of_its_event_and_their_messages_reach_the_sender(
    tmp_path: Path,
) -> None:
    hook(tmp_path, "all", events="[command]")
    speaks = HANDLER_THAT_STORES_ITS_INPUT + 'echo \'{"messages": ["Noted."]}\'\n'
    hook(tmp_path, "resets", events="[command:reset]", handler=speaks)
    hook(tmp_path, "stops", events="[command:stop]")
    async with hook_instance(tmp_path) as server:
        services = server.server.services
        for name in ("all", "resets", "stops"):
            await operations.enable_hook(services, OWNER, HookEnableRequest(name=name))
        await server.turn("Good morning.", "Good morning.", origin="person:owner")
        await server.post("/reset and keep this", origin="person:owner")
        await server.wait_for_file(tmp_path / DATA_FOLDER / "resets" / "command:reset")
        event_data = server.event_data("all", "command:reset")
        assert event_data["sender"] == "person:owner"
        assert event_data["text"] == "/reset and keep this"
        assert event_data["agent"] == "ada"
        assert not (tmp_path / DATA_FOLDER / "stops" / "command:reset").exists()
        await server.rest()
        assert "Noted." in [mail.text for mail in await server.mail("person:owner")]


@pytest.mark.spec("C88")
async def test_hooks_run_for_session_start_and_session_reset(tmp_path: Path) -> None:
    hook(tmp_path, "watch", events='["session:start", "session:reset", "agent:bootstrap"]')
    async with hook_instance(tmp_path) as server:
        await operations.enable_hook(server.server.services, OWNER, HookEnableRequest(name="watch"))
        session = await server.turn("Hello.", "Hello.", origin="person:owner")
        await server.wait_for_file(tmp_path / DATA_FOLDER / "watch" / "agent:bootstrap")
        assert server.event_data("watch", "session:start")["session"] == session
        await server.post("/reset", origin="person:owner")
        await server.wait_for_file(tmp_path / DATA_FOLDER / "watch" / "session:reset")
        assert server.event_data("watch", "session:reset")["agent"] == "ada"


async def test_a_startup_hook_can_send_a_message_to_the_owner(tmp_path: Path) -> None:
    hook(tmp_path, "greets", events='["gateway:startup"]', handler='#!/bin/sh\necho \'{"messages": ["Open."]}\'\n')
    async with hook_instance(tmp_path) as server:
        await operations.enable_hook(server.server.services, OWNER, HookEnableRequest(name="greets"))
        server.running.notify_started(datetime(2026, 3, 4, tzinfo=UTC))
        await server.running.wait_idle()
        assert [mail.text for mail in await server.mail("person:owner")] == ["Open."]


async def test_a_hook_that_fails_times_out_or_prints_too_much_does_not_affect_other_hooks(tmp_path: Path) -> None:
    hook(tmp_path, "a-breaks", handler="#!/bin/sh\nexit 3\n")
    hook(tmp_path, "b-sleeps", handler=f"#!/bin/sh\ntouch {tmp_path}/asleep\nexec sleep 600\n")
    hook(tmp_path, "c-shouts", handler="#!/bin/sh\nyes\n")
    hook(tmp_path, "d-no-program", handler="#!/no/such/program\n")
    hook(tmp_path, "e-works")
    async with hook_instance(tmp_path, settings=HookSettings(enabled=True, timeout_s=60)) as server:
        for each in find_hooks(tmp_path).hooks:
            await operations.enable_hook(server.server.services, OWNER, HookEnableRequest(name=each.name))
        async with skip_loop_time_on_increase(60, count=lambda: int((tmp_path / "asleep").exists())):
            done = await server.running.run_hooks(HookEvent(event="command:new", key="1", at="now"))
        assert done == ["command-logger", "e-works"]
        assert await server.turn("Hello.", "Hello.")


async def test_no_hook_runs_if_hooks_are_disabled(tmp_path: Path) -> None:
    hook(tmp_path, "mine")
    async with hook_instance(tmp_path, settings=HookSettings()) as server:
        shown = await operations.enable_hook(server.server.services, OWNER, HookEnableRequest(name="mine"))
        assert shown.state is HookState.OFF
        assert await server.running.run_hooks(HookEvent(event="command:new", key="1", at="now")) == ()


async def test_hooks_are_listed_shown_enabled_by_their_hash_and_disabled(tmp_path: Path) -> None:
    hook(tmp_path, "mine")
    hook(tmp_path, "broken", events="[]")
    async with hook_instance(tmp_path) as server:
        services = server.server.services
        listed = await operations.list_hooks(services, OWNER, HookListRequest())
        assert {each.name: each.state for each in listed.hooks} == {
            "command-logger": HookState.NEW,
            "mine": HookState.NEW,
        }
        assert [Path(each.folder).name for each in listed.broken] == ["broken"]
        read = await operations.show_hook(services, OWNER, HookNameRequest(name="mine"))
        assert "handler.sh (executable)" in read.content
        with pytest.raises(Conflict):
            await operations.enable_hook(services, OWNER, HookEnableRequest(name="mine", hash="0" * 12))
        enabled = await operations.enable_hook(
            services, OWNER, HookEnableRequest(name="mine", hash=read.hook.hash[:12])
        )
        assert enabled.state is HookState.READY
        gone = [await operations.disable_hook(services, OWNER, HookNameRequest(name="mine")) for _ in range(2)]
        assert [each.was_enabled for each in gone] == [True, False]
        for unknown in ("broken", "unheard"):
            with pytest.raises(NotFound):
                await operations.show_hook(services, OWNER, HookNameRequest(name=unknown))


async def test_the_bundled_command_logger_hook_writes_a_line_for_each_command(tmp_path: Path) -> None:
    async with hook_instance(tmp_path) as server:
        await operations.enable_hook(server.server.services, OWNER, HookEnableRequest(name="command-logger"))
        for number in range(2):
            await server.running.run_hooks(
                HookEvent(event="command:stop", key=str(number), at="now", sender="person:owner")
            )
        lines = (tmp_path / DATA_FOLDER / "command-logger" / "commands.log").read_text().splitlines()
        assert [json.loads(line)["key"] for line in lines] == ["0", "1"]


def test_every_hook_event_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "hooks.md").read_text()
    assert [event for event in HOOK_EVENTS if f"`{event}`" not in guide] == []


async def test_a_sandboxed_hook_can_read_only_its_own_folder_of_the_data_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    looks = '#!/bin/sh\ncat > "$HOOK_DATA/told"\ncat ' + f'"{home}/owner-token" "{home}/hooks/other/HOOK.md"\nexit 0\n'
    mine, other = hook(home, "mine", handler=looks), hook(home, "other")
    (home / "owner-token").write_text("a token")
    data = home / DATA_FOLDER / "mine"
    data.mkdir(parents=True)
    sandbox = OwnerSandbox(SandboxSettings, data_directory=home, user_home=Path.home())
    try:
        sandboxed = await sandbox()
    except SandboxFailed as error:
        pytest.skip(f"no sandbox here: {error.because}")
    confinement = Confinement(
        folder=data, writable=(data,), readable=(mine,), environment={"HOOK_DATA": str(data), "HOOK_EVENT": "x"}
    )
    output = await run_command(
        sandboxed, [str(mine / "handler.sh")], confinement, input_data=b"hello", timeout_s=60, bytes_max=10_000
    )
    assert (data / "told").read_bytes() == b"hello"
    assert b"a token" not in output
    assert b"A hook." not in output
    assert other.exists()
