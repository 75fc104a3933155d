"""What is set of an agent, and what the house has for all, each seen where it has its effect."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from flows.tools_instance import ADA, BO, HandsHouse, hands_house

from retinue.config.sandbox import WorkspaceAccess
from retinue.domain.agent import SandboxRules, ToolRules
from retinue.domain.envelope import Outcome, Receipt
from retinue.domain.errors import InvalidFields, NotFound
from retinue.domain.sandbox import SandboxMode
from retinue.domain.structs import replace
from retinue.store.envelopes import envelopes
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until


async def outputs(house: HandsHouse, session: str) -> list[str]:
    return [result.output for result in await house.results(session)]


# --- who answers where nobody is named ---


@pytest.mark.spec("C113.default")
async def test_mail_to_nobody_goes_to_the_default_agent(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home", config='[house]\ndefault_agent = "BO"') as house:
        assert (await house.ask("house.status"))["default_agent"] == "bo"
        house.model.will_reply("Here.")

        sent = await house.ask("envelope.send", text="Who is there?")
        await house.rest()

        found = await house.house.store.read(lambda conn: envelopes.get(conn, sent["envelope"]))
        assert found is not None and str(found.recipient).startswith("agent:bo")
        invoked = await house.ask("tool.invoke", tool="session_status", args={}, session=sent["session"])
        assert "agent: bo" in invoked["output"]


async def test_without_a_word_on_it_the_default_is_main_else_the_first(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home", staff=[BO, ADA]) as house:
        assert (await house.ask("house.status"))["default_agent"] == "ada"
        await house.ask("agent.register", name="Main", model="scripted")
        assert (await house.ask("house.status"))["default_agent"] == "Main"
    async with hands_house(tmp_path / "empty", staff=[]) as house:
        assert (await house.ask("house.status"))["default_agent"] is None
        with pytest.raises(NotFound) as nobody:
            await house.ask("envelope.send", text="Anyone?")
        assert nobody.value.code == "agent.none"


# --- where it works ---


@pytest.mark.spec("C113.workspace")
async def test_an_agent_works_in_the_workspace_it_was_given(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    async with hands_house(tmp_path / "home") as house:
        await house.ask("agent.set", name="ada", workspace=str(elsewhere))
        await house.ask("agent.set", name="bo", workspace="desk/drawer")
        for name in ("ada", "bo"):
            lines = (
                tool_call_reply("write", path="a.txt", content=name),
                tool_call_reply("exec", command="pwd"),
                "Done.",
            )
            session = await house.turn("Note it.", *lines, to=f"agent:{name}")
            place = elsewhere if name == "ada" else house.home("bo") / "desk/drawer"
            assert (place / "a.txt").read_text() == name
            assert str(place) in (await outputs(house, session))[-1]
        assert not (house.home("ada") / "a.txt").exists()

        # A direct call finds the same place, and so does one who reads the home by its own name.
        await house.ask("agent.set", name="ada", tools_also_allow=["write"])
        house.rule(invoke_allow=("write",))
        await house.ask("tool.invoke", tool="write", args={"path": "b.txt", "content": "b"}, agent="ada")
        assert (elsewhere / "b.txt").read_text() == "b"


@pytest.mark.spec("C113.workspace")
async def test_an_agent_of_which_nothing_is_said_works_in_a_folder_of_its_own(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home") as house:
        for name in ("ada", "bo"):
            await house.turn(
                "Note it.", tool_call_reply("write", path="a.txt", content=name), "Done.", to=f"agent:{name}"
            )
        assert [(house.home(name) / "a.txt").read_text() for name in ("ada", "bo")] == ["ada", "bo"]


@pytest.mark.spec("C114.workspace")
async def test_the_house_can_have_a_folder_in_which_each_agent_has_its_own(tmp_path: Path) -> None:
    config = f'[defaults]\nworkspace = "{tmp_path / "work"}"'
    async with hands_house(tmp_path / "home", config=config) as house:
        for name in ("ada", "bo"):
            await house.turn(
                "Note it.", tool_call_reply("write", path="a.txt", content=name), "Done.", to=f"agent:{name}"
            )
        assert [(tmp_path / "work" / name / "a.txt").read_text() for name in ("ada", "bo")] == ["ada", "bo"]
        session = await house.turn("Look.", tool_call_reply("read", path=str(tmp_path / "work/bo/a.txt")), "No.")
        assert "bo" not in (await outputs(house, session))[-1].partition("\n")[0].split()
        assert (await house.results(session))[-1].failed or await house.asked()


async def test_a_workspace_that_cannot_be_made_fails_the_run_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with hands_house(tmp_path / "home") as house:
        await house.ask("agent.set", name="ada", workspace=str(tmp_path / "file/below"))
        receipt = await house.post("Hello.")
        await house.rest()
        notices = [mail.text for mail in await house.mail("person:owner")]
        assert receipt.session is not None and any("[agent.workspace_unusable]" in text for text in notices)


# --- how far its sandbox lets it ---


@pytest.mark.spec("C113.sandbox_workspace", "C113.sandbox_browser")
async def test_an_agents_own_sandbox_is_stricter_than_the_houses(tmp_path: Path) -> None:
    strict = SandboxRules(workspace=WorkspaceAccess.READ, browser=False)
    staff = [ADA, replace(BO, sandbox=strict, tools=ToolRules(also_allow=("browser",)))]
    async with hands_house(tmp_path / "home", staff=staff) as house:
        for name, failed in (("ada", False), ("bo", True)):
            lines = (tool_call_reply("write", path="a.txt", content="x"), "Done.")
            session = await house.turn("Note it.", *lines, to=f"agent:{name}", sender="person:maria")
            assert [result.failed for result in await house.results(session)] == [failed]
        session = await house.turn(
            "Look.", tool_call_reply("browser", action="tabs"), "Done.", to="agent:bo", origin="person:maria"
        )
        assert "sandbox.browser" in (await outputs(house, session))[-1]
        touched = await house.turn("Touch.", tool_call_reply("exec", command="touch b.txt"), "Done.", to="agent:bo")
        assert not (house.home("bo") / "b.txt").exists(), await outputs(house, touched)
        await house.turn("Touch.", tool_call_reply("exec", command="touch b.txt"), "Done.", to="agent:ada")
        assert (house.home("ada") / "b.txt").exists()


@pytest.mark.spec("C113.sandbox_mode")
@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
async def test_an_agent_may_be_confined_where_the_house_confines_nobody(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("seen from the host")
    config = '[sandbox]\nkind = "bubblewrap"\nmode = "off"\n[tools.exec]\nsecurity = "full"\nask = "off"\n'
    staff = [ADA, replace(BO, sandbox=SandboxRules(mode=SandboxMode.ALL))]
    async with hands_house(tmp_path / "home", staff=staff, config=config) as house:
        for name, seen in (("ada", True), ("bo", False)):
            look = tool_call_reply("exec", command=f"cat {outside}")
            session = await house.turn("Look.", look, "Done.", to=f"agent:{name}")
            assert ("seen from the host" in (await outputs(house, session))[-1]) is seen, name


# --- what the house has for all ---


@pytest.mark.spec("C114.thinking")
async def test_how_hard_models_think_is_the_agents_word_and_else_the_houses(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home", config='[defaults]\neffort = "low"') as house:
        await house.ask("agent.set", name="bo", effort="high")
        await house.turn("One.", "1")
        await house.turn("Two.", "2", to="agent:bo")
        assert [prompt.effort for prompt in house.model.prompts] == ["low", "high"]


@pytest.mark.spec("C114.timeout")
async def test_how_long_a_run_may_take_is_the_agents_word_and_else_the_houses(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home", config="[defaults]\nrun_seconds_max = 1") as house:
        await house.ask("agent.set", name="bo", run_seconds_max=3600)

        async def outcome(receipt: Receipt) -> Outcome | None:
            settled = await house.house.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
            return settled.outcome if settled else None

        async def ada_has_ended() -> object:
            await sent.wait()
            return await wait_until(lambda: outcome(ada), "the run of ada has ended")

        # Both take longer than ada may.
        sent = asyncio.Event()
        house.model.rule = lambda prompt: text_reply("late", once=ada_has_ended)
        ada, bo = await house.post("One."), await house.post("Two.", to="agent:bo")
        sent.set()
        await house.rest()
        assert [await outcome(ada), await outcome(bo)] == [Outcome.DEAD, Outcome.ANSWERED]


@pytest.mark.spec("C114.max_concurrent")
async def test_how_many_runs_an_agent_has_at_once_is_its_own_word_and_else_the_houses(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home", config="[defaults]\nconcurrency = 1") as house:
        await house.ask("agent.set", name="bo", concurrency=2)
        most = {"ada": 0, "bo": 0}
        watched = asyncio.Event()
        house.model.rule = lambda prompt: text_reply("done", once=watched.wait)
        for name in most:
            for number in range(2):
                await house.post("Go.", to=f"agent:{name}", origin=f"person:owner/{number}")

        async def watch() -> None:
            lanes = (await house.ask("house.lanes"))["lanes"]
            for name in most:
                most[name] = max(most[name], sum(lane["agent"] == name and lane["run"] is not None for lane in lanes))

        await wait_until(lambda: len(house.model.prompts) >= 3, "all who may work do")
        await watch()
        watched.set()
        while house.house.engine.active_lanes:
            await watch()
        assert most == {"ada": 1, "bo": 2}


@pytest.mark.spec("C114.time_format")
@pytest.mark.parametrize(("format", "half"), [("auto", False), ("24", False), ("12", True)])
async def test_agents_are_told_the_time_by_the_clock_that_the_owner_reads(
    tmp_path: Path, format: str, half: bool
) -> None:
    async with hands_house(tmp_path / "home", config=f'[defaults]\ntime_format = "{format}"') as house:
        session = await house.turn("What time is it?", tool_call_reply("session_status"), "Late.")
        now = (await outputs(house, session))[-1].partition("\n")[0]
        assert (" am " in now or " pm " in now) is half


@pytest.mark.spec("C114.context_tokens")
async def test_the_window_that_is_shown_is_only_shown(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home", config="[defaults]\ncontext_tokens = 20000") as house:
        session = await house.turn("Hello.", "Hi.")
        told = await house.post("/context")
        await house.rest()
        assert told.session == session
        assert any("of 20,000 tokens" in mail.text for mail in await house.mail("person:owner"))


async def test_it_is_told_what_holds_for_an_agent_and_who_says_so(tmp_path: Path) -> None:
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
    async with hands_house(tmp_path / "home", config=config) as house:
        await house.ask(
            "agent.set",
            name="ada",
            run_seconds_max=60,
            reset_idle_minutes=0,
            subagents_model="scripted",
            sandbox_workspace="rw",
            sandbox_scope="session",
        )
        told = (await house.ask("agent.show", name="ada"))["in_force"]
        told = {name: each for name, each in told.items() if not name.startswith("heartbeat_")}
        assert {name: (each["value"], each["by"], each["key"]) for name, each in told.items()} == {
            "model": ("scripted", "agent", "agents.ada.model"),
            "effort": (None, "built-in", "defaults.effort"),
            "verbose": (None, "built-in", "defaults.verbose"),
            "elevated": (None, "built-in", "defaults.elevated"),
            "concurrency": (2, "house", "defaults.concurrency"),
            "run_seconds_max": (60.0, "agent", "agents.ada.run_seconds_max"),
            "workspace": (str(house.home("ada")), "built-in", "defaults.workspace"),
            "subagents_model": ("scripted", "agent", "agents.ada.subagents.model"),
            "subagents_effort": (None, "built-in", "defaults.subagents.effort"),
            "subagents_run_seconds_max": (None, "built-in", "defaults.subagents.run_seconds_max"),
            "subagents_archive_after_s": (10.0, "house", "defaults.subagents.archive_after_s"),
            "reset_daily_at": ("04:00", "house", "sessions.reset.daily_at"),
            "reset_idle_minutes": (0.0, "agent", "agents.ada.reset.idle_minutes"),
            "reset_context_tokens_max": (None, "built-in", "sessions.reset.context_tokens_max"),
            "sandbox_mode": ("all", "built-in", "sandbox.mode"),
            "sandbox_scope": ("session", "agent", "agents.ada.sandbox.scope"),
            "sandbox_workspace": ("ro", "house", "sandbox.workspace"),
            "sandbox_sessions": ("spawned", "built-in", "sandbox.sessions"),
            "sandbox_browser": (True, "built-in", "sandbox.browser"),
            "sandbox_image": ("debian:stable-slim", "built-in", "sandbox.docker.image"),
            "sandbox_cpus": (1.0, "built-in", "sandbox.docker.cpus"),
            "sandbox_idle_hours": (24.0, "built-in", "sandbox.docker.idle_hours"),
            "sandbox_age_days": (7.0, "built-in", "sandbox.docker.age_days"),
        }


# --- who it is, whom it sees, and of what type it is ---


@pytest.mark.spec("C113.name", "C113.identity")
async def test_an_agent_is_told_who_it_is_by_what_people_call_it(tmp_path: Path) -> None:
    async with hands_house(tmp_path / "home") as house:
        await house.ask("agent.set", name="ada", display_name="Ada of the night", icon="\N{CRESCENT MOON}")
        await house.turn("Who are you?", "Ada.")
        assert house.model.prompts[-1].instructions.startswith("You are Ada of the night, a helpful, careful agent")
        [here] = [each for each in (await house.ask("house.state"))["agents"] if each["name"] == "ada"]
        assert (here["display_name"], here["icon"]) == ("Ada of the night", "\N{CRESCENT MOON}")


@pytest.mark.spec("A29")
async def test_who_is_hidden_or_denied_is_neither_listed_nor_written_to(tmp_path: Path) -> None:
    staff = [ADA, BO, replace(BO, name="cy"), replace(BO, name="ghost", visible=False)]
    async with hands_house(tmp_path / "home", staff=staff) as house:
        await house.ask("agent.set", name="ada", delegation_deny=["c*"])
        session = await house.turn("Who is there?", tool_call_reply("agents_list"), "Bo.")
        assert [each["id"] for each in json.loads((await outputs(house, session))[-1])["agents"]] == ["bo"]
        for name, key in (("cy", "agents.ada.delegation.deny"), ("ghost", "agents.ghost.visible")):
            before = len(house.model.prompts)
            session = await house.turn(
                "Ask.", tool_call_reply("agents_message", agentId=name, content="Hello?"), "I may not."
            )
            assert key in (await outputs(house, session))[-1]
            assert len(house.model.prompts) == before + 2, "nobody else was asked anything"


@pytest.mark.spec("A4")
async def test_an_agents_type_is_chosen_and_what_it_leaves_out_is_as_the_house_has_it(tmp_path: Path) -> None:
    config = '[models]\ndefault = "scripted"'
    async with hands_house(tmp_path / "home", config=config) as house:
        plain = await house.ask("agent.register", name="cy")
        assert (plain["runner"], plain["provider"], plain["model"]) == ("loop", None, "")
        await house.turn("Hello.", "Hello.", to="agent:cy")
        assert (await house.ask("agent.show", name="cy"))["in_force"]["model"] == {
            "value": "scripted",
            "by": "house",
            "key": "models.default",
        }

        with pytest.raises(InvalidFields) as missing:
            await house.ask("agent.register", name="far", runner="external")
        assert missing.value.code == "agent.external_url_missing" and set(missing.value.fields) == {"external_url"}
        with pytest.raises(InvalidFields) as unused:
            await house.ask("agent.set", name="cy", external_url="https://far.example/in")
        assert unused.value.code == "agent.external_unused"
        with pytest.raises(InvalidFields) as bare:
            await house.ask(
                "agent.register",
                name="far",
                runner="external",
                external_url="https://far.example/in",
                external_secret="hunter2",
            )
        assert "hunter2" not in str(bare.value)
        far = await house.ask(
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
        assert '[agents.far.external.secret]\nenv = "FAR_KEY"' in (await house.ask("config.export"))["text"]
        chat = await house.ask("agent.set", name="far", runner="loop", clear=["external_url", "external_secret"])
        assert (chat["runner"], chat["external"]["url"]) == ("loop", "")
