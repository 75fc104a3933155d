"""Settings of an agent and defaults for all agents, each tested by its effect."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from flows.tools_instance import ADA, BO, ScriptedServer, open_scripted_server

from retinue.config.sandbox import WorkspaceAccess
from retinue.domain.agent import SandboxRules, ToolRules
from retinue.domain.envelope import Outcome, Receipt
from retinue.domain.errors import InvalidFields, NotFound
from retinue.domain.sandbox import SandboxMode
from retinue.domain.structs import replace
from retinue.store.envelopes import envelopes
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until


async def outputs(server: ScriptedServer, session: str) -> list[str]:
    return [result.output for result in await server.results(session)]


# --- default agent ---


@pytest.mark.spec("C113.default")
async def test_the_default_agent_setting_decides_who_gets_a_message_without_a_recipient(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home", config='[server]\ndefault_agent = "BO"') as server:
        assert (await server.ask("server.status"))["default_agent"] == "bo"
        server.model.will_reply("Here.")

        sent = await server.ask("envelope.send", text="Who is there?")
        await server.rest()

        found = await server.server.store.read(lambda conn: envelopes.get(conn, sent["envelope"]))
        assert found is not None and str(found.recipient).startswith("agent:bo")
        invoked = await server.ask("tool.invoke", tool="session_status", args={}, session=sent["session"])
        assert "agent: bo" in invoked["output"]


async def test_without_a_default_agent_setting_the_default_is_main_or_else_the_first_by_name(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home", staff=[BO, ADA]) as server:
        assert (await server.ask("server.status"))["default_agent"] == "ada"
        await server.ask("agent.register", name="Main", model="scripted")
        assert (await server.ask("server.status"))["default_agent"] == "Main"
    async with open_scripted_server(tmp_path / "empty", staff=[]) as server:
        assert (await server.ask("server.status"))["default_agent"] is None
        with pytest.raises(NotFound) as nobody:
            await server.ask("envelope.send", text="Anyone?")
        assert nobody.value.code == "agent.none"


# --- workspace ---


@pytest.mark.spec("C113.workspace")
async def test_the_workspace_setting_of_an_agent_decides_where_it_works(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    async with open_scripted_server(tmp_path / "home") as server:
        await server.ask("agent.set", name="ada", workspace=str(elsewhere))
        await server.ask("agent.set", name="bo", workspace="drafts/new")
        for name in ("ada", "bo"):
            lines = (
                tool_call_reply("write", path="a.txt", content=name),
                tool_call_reply("exec", command="pwd"),
                "Done.",
            )
            session = await server.turn("Note it.", *lines, to=f"agent:{name}")
            place = elsewhere if name == "ada" else server.home("bo") / "drafts/new"
            assert (place / "a.txt").read_text() == name
            assert str(place) in (await outputs(server, session))[-1]
        assert not (server.home("ada") / "a.txt").exists()

        # A direct call resolves the same path, and so does a path that names the home directory.
        await server.ask("agent.set", name="ada", tools_also_allow=["write"])
        server.rule(invoke_allow=("write",))
        await server.ask("tool.invoke", tool="write", args={"path": "b.txt", "content": "b"}, agent="ada")
        assert (elsewhere / "b.txt").read_text() == "b"


@pytest.mark.spec("C113.workspace")
async def test_an_agent_without_a_workspace_setting_works_in_its_own_agent_directory(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        for name in ("ada", "bo"):
            await server.turn(
                "Note it.", tool_call_reply("write", path="a.txt", content=name), "Done.", to=f"agent:{name}"
            )
        assert [(server.home(name) / "a.txt").read_text() for name in ("ada", "bo")] == ["ada", "bo"]


@pytest.mark.spec("C114.workspace")
async def test_the_default_workspace_setting_gives_each_agent_a_separate_subdirectory(tmp_path: Path) -> None:
    config = f'[defaults]\nworkspace = "{tmp_path / "work"}"'
    async with open_scripted_server(tmp_path / "home", config=config) as server:
        for name in ("ada", "bo"):
            await server.turn(
                "Note it.", tool_call_reply("write", path="a.txt", content=name), "Done.", to=f"agent:{name}"
            )
        assert [(tmp_path / "work" / name / "a.txt").read_text() for name in ("ada", "bo")] == ["ada", "bo"]
        session = await server.turn("Look.", tool_call_reply("read", path=str(tmp_path / "work/bo/a.txt")), "No.")
        assert "bo" not in (await outputs(server, session))[-1].partition("\n")[0].split()
        assert (await server.results(session))[-1].failed or await server.asked()


async def test_a_run_fails_with_an_error_if_the_workspace_setting_of_its_agent_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with open_scripted_server(tmp_path / "home") as server:
        await server.ask("agent.set", name="ada", workspace=str(tmp_path / "file/below"))
        receipt = await server.post("Hello.")
        await server.rest()
        notices = [mail.text for mail in await server.mail("person:owner")]
        assert receipt.session is not None and any("[agent.workspace_unusable]" in text for text in notices)


# --- limits of its sandbox ---


@pytest.mark.spec("C113.sandbox_workspace", "C113.sandbox_browser")
async def test_the_sandbox_rules_in_agent_settings_can_be_stricter_than_the_defaults(tmp_path: Path) -> None:
    strict = SandboxRules(workspace=WorkspaceAccess.READ, browser=False)
    staff = [ADA, replace(BO, sandbox=strict, tools=ToolRules(also_allow=("browser",)))]
    async with open_scripted_server(tmp_path / "home", staff=staff) as server:
        for name, failed in (("ada", False), ("bo", True)):
            lines = (tool_call_reply("write", path="a.txt", content="x"), "Done.")
            session = await server.turn("Note it.", *lines, to=f"agent:{name}", sender="person:maria")
            assert [result.failed for result in await server.results(session)] == [failed]
        session = await server.turn(
            "Look.", tool_call_reply("browser", action="tabs"), "Done.", to="agent:bo", origin="person:maria"
        )
        assert "sandbox.browser" in (await outputs(server, session))[-1]
        touched = await server.turn("Touch.", tool_call_reply("exec", command="touch b.txt"), "Done.", to="agent:bo")
        assert not (server.home("bo") / "b.txt").exists(), await outputs(server, touched)
        await server.turn("Touch.", tool_call_reply("exec", command="touch b.txt"), "Done.", to="agent:ada")
        assert (server.home("ada") / "b.txt").exists()


@pytest.mark.spec("C113.sandbox_mode")
@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
async def test_agent_settings_can_turn_the_sandbox_on_for_an_agent_while_it_is_off_by_default(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("seen from the host")
    config = '[sandbox]\nkind = "bubblewrap"\nmode = "off"\n[tools.exec]\nsecurity = "full"\nask = "off"\n'
    staff = [ADA, replace(BO, sandbox=SandboxRules(mode=SandboxMode.ALL))]
    async with open_scripted_server(tmp_path / "home", staff=staff, config=config) as server:
        for name, seen in (("ada", True), ("bo", False)):
            look = tool_call_reply("exec", command=f"cat {outside}")
            session = await server.turn("Look.", look, "Done.", to=f"agent:{name}")
            assert ("seen from the host" in (await outputs(server, session))[-1]) is seen, name


# --- settings for all agents ---


@pytest.mark.spec("C114.thinking")
async def test_the_effort_setting_of_an_agent_overrides_the_default_effort(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home", config='[defaults]\neffort = "low"') as server:
        await server.ask("agent.set", name="bo", effort="high")
        await server.turn("One.", "1")
        await server.turn("Two.", "2", to="agent:bo")
        assert [prompt.effort for prompt in server.model.prompts] == ["low", "high"]


@pytest.mark.spec("C114.timeout")
async def test_the_run_time_limit_setting_of_an_agent_overrides_the_default_limit(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home", config="[defaults]\nrun_seconds_max = 1") as server:
        await server.ask("agent.set", name="bo", run_seconds_max=3600)

        async def outcome(receipt: Receipt) -> Outcome | None:
            settled = await server.server.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
            return settled.outcome if settled else None

        async def ada_has_ended() -> object:
            await sent.wait()
            return await wait_until(lambda: outcome(ada), "the run of ada is completed")

        # Both take longer than the limit of ada.
        sent = asyncio.Event()
        server.model.rule = lambda prompt: text_reply("late", once=ada_has_ended)
        ada, bo = await server.post("One."), await server.post("Two.", to="agent:bo")
        sent.set()
        await server.rest()
        assert [await outcome(ada), await outcome(bo)] == [Outcome.DEAD, Outcome.ANSWERED]


@pytest.mark.spec("C114.max_concurrent")
async def test_the_concurrency_setting_of_an_agent_overrides_the_default_concurrency(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home", config="[defaults]\nconcurrency = 1") as server:
        await server.ask("agent.set", name="bo", concurrency=2)
        most = {"ada": 0, "bo": 0}
        watched = asyncio.Event()
        server.model.rule = lambda prompt: text_reply("done", once=watched.wait)
        for name in most:
            for number in range(2):
                await server.post("Go.", to=f"agent:{name}", origin=f"person:owner/{number}")

        async def watch() -> None:
            lanes = (await server.ask("server.lanes"))["lanes"]
            for name in most:
                most[name] = max(most[name], sum(lane["agent"] == name and lane["run"] is not None for lane in lanes))

        await wait_until(lambda: len(server.model.prompts) >= 3, "every allowed run is active")
        await watch()
        watched.set()
        while server.server.engine.active_lanes:
            await watch()
        assert most == {"ada": 1, "bo": 2}


@pytest.mark.spec("C114.time_format")
@pytest.mark.parametrize(("format", "half"), [("auto", False), ("24", False), ("12", True)])
async def test_the_time_format_setting_for_agents_applies_to_the_time_in_session_status(
    tmp_path: Path, format: str, half: bool
) -> None:
    async with open_scripted_server(tmp_path / "home", config=f'[defaults]\ntime_format = "{format}"') as server:
        session = await server.turn("What time is it?", tool_call_reply("session_status"), "Late.")
        now = (await outputs(server, session))[-1].partition("\n")[0]
        assert (" am " in now or " pm " in now) is half


@pytest.mark.spec("C114.context_tokens")
async def test_the_context_tokens_setting_for_agents_is_shown_by_the_context_command(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home", config="[defaults]\ncontext_tokens = 20000") as server:
        session = await server.turn("Hello.", "Hi.")
        receipt = await server.post("/context")
        await server.rest()
        assert receipt.session == session
        assert any("of 20,000 tokens" in mail.text for mail in await server.mail("person:owner"))


async def test_agent_show_lists_each_effective_setting_with_its_source_and_key(tmp_path: Path) -> None:
    config = """
    [defaults]
    concurrency = 2
    subagents = { archive_after_s = 10 }
    [sandbox]
    workspace = "ro"
    [sessions.reset]
    daily_at = "04:00"
    idle_minutes = 30
    """
    async with open_scripted_server(tmp_path / "home", config=config) as server:
        await server.ask(
            "agent.set",
            name="ada",
            run_seconds_max=60,
            reset_idle_minutes=0,
            subagents_model="scripted",
            sandbox_workspace="rw",
            sandbox_scope="session",
        )
        told = (await server.ask("agent.show", name="ada"))["effective_settings"]
        told = {name: each for name, each in told.items() if not name.startswith("heartbeat_")}
        assert {name: (each["value"], each["by"], each["key"]) for name, each in told.items()} == {
            "model": ("scripted", "agent", "agents.ada.model"),
            "effort": (None, "built_in", "defaults.effort"),
            "verbose": (None, "built_in", "defaults.verbose"),
            "elevated": (None, "built_in", "defaults.elevated"),
            "concurrency": (2, "server", "defaults.concurrency"),
            "run_seconds_max": (60.0, "agent", "agents.ada.run_seconds_max"),
            "workspace": (str(server.home("ada")), "built_in", "defaults.workspace"),
            "subagents_model": ("scripted", "agent", "agents.ada.subagents.model"),
            "subagents_effort": (None, "built_in", "defaults.subagents.effort"),
            "subagents_run_seconds_max": (None, "built_in", "defaults.subagents.run_seconds_max"),
            "subagents_archive_after_s": (10.0, "server", "defaults.subagents.archive_after_s"),
            "reset_daily_at": ("04:00", "server", "sessions.reset.daily_at"),
            "reset_idle_minutes": (0.0, "agent", "agents.ada.reset.idle_minutes"),
            "reset_context_tokens_max": (None, "built_in", "sessions.reset.context_tokens_max"),
            "sandbox_mode": ("all", "built_in", "sandbox.mode"),
            "sandbox_scope": ("session", "agent", "agents.ada.sandbox.scope"),
            "sandbox_workspace": ("ro", "server", "sandbox.workspace"),
            "sandbox_visible_sessions": ("spawned", "built_in", "sandbox.visible_sessions"),
            "sandbox_browser": (True, "built_in", "sandbox.browser"),
            "sandbox_image": ("debian:stable-slim", "built_in", "sandbox.docker.image"),
            "sandbox_cpus": (1.0, "built_in", "sandbox.docker.cpus"),
            "sandbox_idle_hours": (24.0, "built_in", "sandbox.docker.idle_hours"),
            "sandbox_age_days": (7.0, "built_in", "sandbox.docker.age_days"),
        }


# --- identity, visible agents and type ---


@pytest.mark.spec("C113.name", "C113.identity")
async def test_the_display_name_setting_of_an_agent_introduces_it_in_the_system_prompt(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path / "home") as server:
        await server.ask("agent.set", name="ada", display_name="Ada of the night", icon="\N{CRESCENT MOON}")
        await server.turn("Who are you?", "Ada.")
        assert server.model.prompts[-1].instructions.startswith("You are Ada of the night, a helpful, careful agent")
        [here] = [each for each in (await server.ask("server.initial_state"))["agents"] if each["name"] == "ada"]
        assert (here["display_name"], here["icon"]) == ("Ada of the night", "\N{CRESCENT MOON}")


@pytest.mark.spec("A29")
async def test_agents_hidden_or_denied_by_agent_settings_are_neither_listed_nor_reachable_by_message(
    tmp_path: Path,
) -> None:
    staff = [ADA, BO, replace(BO, name="cy"), replace(BO, name="ghost", visible=False)]
    async with open_scripted_server(tmp_path / "home", staff=staff) as server:
        await server.ask("agent.set", name="ada", delegation_deny=["c*"])
        session = await server.turn("Who is there?", tool_call_reply("agents_list"), "Bo.")
        assert [each["id"] for each in json.loads((await outputs(server, session))[-1])["agents"]] == ["bo"]
        for name, key in (("cy", "agents.ada.delegation.deny"), ("ghost", "agents.ghost.visible")):
            before = len(server.model.prompts)
            session = await server.turn(
                "Ask.", tool_call_reply("agents_message", agentId=name, content="Hello?"), "I may not."
            )
            assert key in (await outputs(server, session))[-1]
            assert len(server.model.prompts) == before + 2, "no other model was called"


@pytest.mark.spec("A4")
async def test_the_runner_setting_of_an_agent_is_selectable_and_unset_fields_use_the_defaults(tmp_path: Path) -> None:
    config = '[models]\ndefault = "scripted"'
    async with open_scripted_server(tmp_path / "home", config=config) as server:
        plain = await server.ask("agent.register", name="cy")
        assert (plain["runner"], plain["provider"], plain["model"]) == ("loop", None, "")
        await server.turn("Hello.", "Hello.", to="agent:cy")
        assert (await server.ask("agent.show", name="cy"))["effective_settings"]["model"] == {
            "value": "scripted",
            "by": "server",
            "key": "models.default",
        }

        with pytest.raises(InvalidFields) as missing:
            await server.ask("agent.register", name="far", runner="external")
        assert missing.value.code == "agent.external_url_missing" and set(missing.value.fields) == {"external_url"}
        with pytest.raises(InvalidFields) as unused:
            await server.ask("agent.set", name="cy", external_url="https://far.example/in")
        assert unused.value.code == "agent.external_unused"
        with pytest.raises(InvalidFields) as bare:
            await server.ask(
                "agent.register",
                name="far",
                runner="external",
                external_url="https://far.example/in",
                external_secret="hunter2",
            )
        assert "hunter2" not in str(bare.value)
        far = await server.ask(
            "agent.register",
            name="far",
            runner="external",
            external_url="https://far.example/in",
            external_secret="env:FAR_KEY",
        )
        assert far["external"] == {
            "url": "https://far.example/in",
            "secret": "env:FAR_KEY",
            "timeout_s": 300.0,
            "retries": 3,
        }
        assert '[agents.far.external.secret]\nenv = "FAR_KEY"' in (await server.ask("config.export"))["text"]
        chat = await server.ask("agent.set", name="far", runner="loop", clear=["external_url", "external_secret"])
        assert (chat["runner"], chat["external"]["url"]) == ("loop", "")
