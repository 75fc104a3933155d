"""How well a house is closed: each check fires on what it is for and on nothing else; fixing takes rights, once."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.config import Secret, Settings, load
from retinue.config.connectors import ConnectorSettings
from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings
from retinue.config.settings import Mirror
from retinue.config.skills import PluginSettings, SkillSettings, Trusted
from retinue.config.tools import (
    Asking,
    ChannelLists,
    Elevated,
    ExecSettings,
    Lists,
    OutsideLists,
    Security,
    ToolSettings,
    Where,
)
from retinue.config.web import WebSettings
from retinue.connectors.webhook.settings import WebhookSettings
from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.credential import Credential
from retinue.domain.errors import NotAllowed
from retinue.domain.ids import TokenId
from retinue.domain.person import Person, Role
from retinue.domain.principal import Principal
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace
from retinue.domain.times import to_ms, zone
from retinue.domain.token import Token, TokenKind
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import perform
from retinue.operations.catalog import OPERATIONS
from retinue.operations.known_secrets import gather as gather_secrets
from retinue.operations.known_secrets import refresh
from retinue.operations.server import security
from retinue.operations.server.doctor import closedness
from retinue.operations.server.doctor_checks import SettingFacts, confined
from retinue.operations.server.security import CHECKS, Closing, Exposed, Severity, close, examine
from retinue.operations.server.security_facts import Abilities, Facts, Ground, Held, plain_in
from retinue.operations.server.security_facts import gather as gather_facts
from retinue.sandbox.base import Probe
from retinue.store.agents import audit
from retinue.store.core.transaction import Page
from retinue.store.sessions import sessions
from retinue.testing.local_instance import Household
from retinue.text.redaction import Masks
from retinue.tools.files import Read
from retinue.tools.toolbox import Toolbox

HOME = Path("/home/maria/.retinue")
NOW = datetime(2026, 11, 15, tzinfo=UTC)
SETTINGS = Settings(home=HOME, store=HOME / "house.db", zone=zone("UTC"))
RUNS, READS = frozenset({Effect.RUNS_CODE}), frozenset({Effect.READS_UNTRUSTED})
ADA = Agent(name="ada", model="anthropic/claude-opus-4-5")
WELL = Facts(
    home=HOME,
    real_home=HOME,
    uid=1000,
    now_ms=to_ms(NOW),
    settings=SETTINGS,
    listens_on="127.0.0.1",
    held=(
        Held(kind="home", path=HOME, mode=0o700, uid=1000, is_folder=True),
        Held(kind="keys", path=HOME / "owner-token", mode=0o600, uid=1000),
        Held(kind="settings", path=HOME / "retinue.toml", mode=0o600, uid=1000),
        Held(kind="agents", path=HOME / "agents", mode=0o755, uid=1000, is_folder=True),
    ),
    synced_by="",
    plain=(),
    unmasked=frozenset(),
    probe=Probe(True, "it holds"),
    staff=(Abilities(agent=ADA, free={"exec": RUNS, "web_fetch": READS}),),
    people=(Person(name="owner", role=Role.OWNER), Person(name="gus", role=Role.GUEST)),
    shared_with={},
    tokens=(),
    rooms={},
    plugins=("diary",),
    lowered={},
    flaws=(),
    specs={"exec": ToolSpec(name="exec", description="", parameters={}, effects=RUNS)},
)
WELL = replace(WELL, settings=replace(SETTINGS, plugins={"diary": PluginSettings()}))


def settings(**changes: Any) -> Facts:
    return replace(WELL, settings=replace(WELL.settings, **changes))


def webhook(*, trusted: bool) -> ConnectorSettings:
    return ConnectorSettings(kind="webhook", own=WebhookSettings(trusted=trusted))


def held(kind: str, path: Path, mode: int, uid: int = 1000, **kw: Any) -> Facts:
    return replace(WELL, held=(*WELL.held, Held(kind=kind, path=path, mode=mode, uid=uid, **kw)))


def token(label: str, *, days: int = 0, who: str = "owner", **kw: Any) -> Token:
    made = NOW - timedelta(days=days)
    return Token(
        id=TokenId("ab" * 16), kind=TokenKind.TOKEN, principal=address.person(who), label=label, created_at=made, **kw
    )


BARE = SandboxSettings(kind=SandboxKind.OFF)
OUTSIDE = Path("/srv/elsewhere")
IN_ROOM = replace(WELL, staff=(replace(WELL.staff[0], strangers="telegram:42"),))
SMALL = replace(WELL, staff=(replace(WELL.staff[0], agent=replace(ADA, model="ollama/qwen3:8b")),))
C, W, I = Severity.CRITICAL, Severity.WARNING, Severity.INFO  # noqa: E741

# A check, facts on which it speaks, how loudly, and a word of what it says.
FIRES: tuple[tuple[str, Facts, Severity, str], ...] = (
    ("listen.beyond-loopback", replace(WELL, listens_on="0.0.0.0"), C, "0.0.0.0"),
    (
        "listen.beyond-loopback",
        replace(settings(public_url="https://house.example", trusted_proxies=("10.0.0.1",)), listens_on="10.0.0.2"),
        W,
        "10.0.0.2",
    ),
    ("listen.plain-http", settings(public_url="http://house.example"), C, "not encrypted"),
    ("listen.any-proxy", settings(trusted_proxies=("0.0.0.0/0",)), C, "any caller"),
    ("listen.any-proxy", settings(trusted_proxies=("10.0.0.1", "::/0")), C, "::/0"),
    ("sandbox.off", settings(sandbox=BARE), C, "without a sandbox"),
    ("sandbox.off", settings(sandbox=SandboxSettings(mode=SandboxMode.OFF)), C, "without a sandbox"),
    ("sandbox.off", replace(settings(sandbox=BARE), staff=()), W, "without a sandbox"),
    ("sandbox.main-bare", settings(sandbox=SandboxSettings(mode=SandboxMode.NON_MAIN)), I, "you sit before"),
    ("sandbox.not-possible", replace(WELL, probe=Probe(False, "no bwrap", "install it")), W, "cannot be confined"),
    (
        "exec.bare",
        settings(sandbox=BARE, tools=ToolSettings(exec=ExecSettings(security=Security.FULL, ask=Asking.OFF))),
        C,
        "bare and unasked: ada",
    ),
    ("exec.bare", settings(sandbox=BARE), W, "some commands"),
    ("exec.bare", settings(tools=ToolSettings(exec=ExecSettings(host=Where.HOST))), W, "some commands"),
    ("exec.elevated", settings(tools=ToolSettings(exec=ExecSettings(elevated=Elevated.FULL))), W, "leaves the sandbox"),
    ("files.home", replace(WELL, held=(Held(kind="home", path=HOME, mode=0o755, uid=1000),)), C, "others than you"),
    ("files.home", replace(WELL, held=(Held(kind="home", path=HOME, mode=0o700, uid=7),)), C, "someone else"),
    ("files.keys", held("keys", HOME / "keys" / "openai", 0o640), C, "openai"),
    ("files.settings", held("settings", HOME / "more.toml", 0o644), C, "more.toml"),
    ("files.store", held("store", OUTSIDE / "house.db", 0o644), W, "house.db"),
    ("files.logs", held("logs", OUTSIDE / "retinue.log", 0o644), W, "retinue.log"),
    ("files.agents", held("agents", OUTSIDE / "agents", 0o755), W, "agents"),
    ("files.backups", held("backups", OUTSIDE / "backup", 0o755), W, "backup"),
    ("files.backups", held("backups", HOME / "backups", 0o755, is_link=True), W, "backup"),
    ("files.mirror", held("mirror", OUTSIDE / "mirror", 0o755), W, "mirror"),
    (
        "files.store",
        replace(
            WELL,
            held=(
                Held(kind="home", path=HOME, mode=0o755, uid=1000),
                Held(kind="store", path=HOME / "house.db", mode=0o644, uid=1000),
            ),
        ),
        W,
        "house.db",
    ),
    ("home.link", replace(WELL, held=(Held(kind="home", path=HOME, mode=0o700, uid=1000, is_link=True),)), W, "link"),
    ("home.synced", replace(WELL, synced_by="/home/maria/Dropbox"), W, "carried elsewhere"),
    ("settings.plain-secret", replace(WELL, plain=(f"{HOME}/retinue.toml: a.key",)), W, "a.key"),
    (
        "settings.plain-secret",
        replace(held("settings", HOME / "open.toml", 0o644), plain=(f"{HOME}/open.toml: a.key",)),
        C,
        "a.key",
    ),
    (
        "settings.lowered",
        replace(WELL, lowered={"agent.set": (PermissionLevel.PRIVILEGED, PermissionLevel.STANDARD)}),
        W,
        "agent.set",
    ),
    (
        "settings.lowered",
        replace(WELL, lowered={"token.create": (PermissionLevel.BOSS, PermissionLevel.STANDARD)}),
        C,
        "token.create",
    ),
    ("secrets.unmasked", replace(WELL, unmasked=frozenset({"pin"})), I, "pin"),
    ("web.private-hosts", settings(web=WebSettings(private_hosts=("nas.lan:5000",))), I, "nas.lan"),
    ("skills.trusted", settings(skills=SkillSettings(trusted=(Trusted.WORKSPACE,))), W, "nobody has looked at"),
    ("webhooks.trusted", settings(connectors={"ci": webhook(trusted=True)}), W, "is believed: ci"),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("exec",))), W, "'exec'"),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("*",))), W, "'*'"),
    ("tokens.unused", replace(WELL, tokens=(token("phone", days=40),)), I, "phone"),
    ("tokens.wide", replace(WELL, tokens=(token("script"),)), W, "script"),
    ("people.guests", replace(WELL, shared_with={"gus": 2}), W, "gus (2)"),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(by_sender={"person:gus": Lists(also_allow=("exec",))})),
        W,
        "tools.by_sender.person:gus",
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(outside_senders=OutsideLists(profile="full"))),
        W,
        "more than the minimal tools: tools.outside_senders",
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(outside_senders=OutsideLists(profile=None))),
        W,
        "tools.outside_senders",
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(by_channel={"ci:deploys": ChannelLists(profile="coding")})),
        W,
        "tools.by_channel.ci:deploys",
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(by_channel={"*": ChannelLists(by_sender={"channel:irc:*": Lists(ask=("exec",))})})),
        W,
        "tools.by_channel.*.by_sender.channel:irc:*",
    ),
    (
        "agents.boss",
        replace(WELL, staff=(Abilities(agent=replace(ADA, permission_level=PermissionLevel.BOSS), free={}),)),
        W,
        "everything that you may: ada",
    ),
    ("agents.code-for-strangers", IN_ROOM, W, "strangers can write"),
    (
        "agents.code-for-strangers",
        replace(IN_ROOM, settings=replace(IN_ROOM.settings, sandbox=BARE)),
        C,
        "strangers can write",
    ),
    (
        "agents.open-rooms",
        replace(
            settings(tools=ToolSettings(outside_senders=OutsideLists(profile="full"))),
            rooms={"ada": ("telegram:42",)},
        ),
        W,
        "telegram:42",
    ),
    ("agents.small-model", replace(SMALL, settings=replace(SMALL.settings, sandbox=BARE)), C, "small model"),
    ("plugins.unknown", replace(WELL, plugins=("diary", "spy")), W, "spy"),
    ("audit.broken", replace(WELL, flaws=("house line 3: it is not as it was written",)), C, "house line 3"),
)
# The same, where what looks alike is well.
SILENT: tuple[tuple[str, Facts], ...] = (
    *((check.id, WELL) for check in CHECKS),
    ("listen.beyond-loopback", replace(WELL, listens_on="")),
    ("listen.beyond-loopback", replace(WELL, listens_on="::1")),
    ("listen.plain-http", settings(public_url="https://house.example")),
    ("listen.plain-http", settings(public_url="http://127.0.0.1:7717")),
    ("listen.any-proxy", settings(trusted_proxies=("10.0.0.0/8",))),
    ("sandbox.main-bare", settings(sandbox=SandboxSettings(mode=SandboxMode.NON_MAIN, kind=SandboxKind.OFF))),
    ("sandbox.not-possible", replace(WELL, probe=None)),
    ("exec.bare", settings(sandbox=BARE, tools=ToolSettings(exec=ExecSettings(security=Security.DENY)))),
    ("exec.bare", settings(sandbox=BARE, tools=ToolSettings(exec=ExecSettings(ask=Asking.ALWAYS)))),
    ("exec.bare", replace(settings(sandbox=BARE), staff=())),
    ("exec.elevated", settings(tools=ToolSettings(exec=ExecSettings(elevated=Elevated.ASK)))),
    ("files.store", held("store", HOME / "house.db", 0o644)),  # nobody else gets into the home
    ("files.backups", held("backups", OUTSIDE / "backup", 0o700)),
    ("skills.trusted", settings(skills=SkillSettings(trusted=(Trusted.HOUSE,)))),
    ("webhooks.trusted", settings(connectors={"ci": webhook(trusted=False)})),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("ls",)))),
    ("tokens.unused", replace(WELL, tokens=(token("new", days=3), token("old", days=90, used_at=NOW)))),
    ("tokens.wide", replace(WELL, tokens=(token("owner-token"), token("ends", expires_at=NOW), token("x", who="gus")))),
    ("people.guests", replace(WELL, shared_with={"maria": 2})),
    ("people.outside-senders", settings(tools=ToolSettings(by_sender={"person:gus": Lists(deny=("exec",))}))),
    ("people.outside-senders", settings(tools=ToolSettings(by_sender={"person:maria": Lists(profile="full")}))),
    ("people.outside-senders", settings(tools=ToolSettings(by_channel={"*": ChannelLists(profile="minimal")}))),
    ("agents.code-for-strangers", replace(WELL, staff=(Abilities(agent=ADA, free={"read": READS}, strangers="x:1"),))),
    ("agents.open-rooms", replace(WELL, rooms={"ada": ("telegram:42",)})),  # they have the minimal tools
    (
        "agents.open-rooms",
        replace(
            settings(
                tools=ToolSettings(
                    outside_senders=OutsideLists(profile="full"), by_channel={"*": ChannelLists(profile="minimal")}
                )
            ),
            rooms={"ada": ("telegram:42",)},
        ),
    ),
    ("agents.small-model", SMALL),
    ("agents.small-model", settings(sandbox=BARE)),
    ("plugins.unknown", replace(settings(plugins={"mine": PluginSettings(plugin="diary")}), plugins=("diary",))),
)
BY_ID = {check.id: check for check in CHECKS}


@pytest.mark.spec("C95")
@pytest.mark.parametrize(("id_", "facts", "severity", "words"), FIRES)
def test_a_check_speaks_of_what_it_is_for(id_: str, facts: Facts, severity: Severity, words: str) -> None:
    [found] = BY_ID[id_].findings(facts)
    assert (found.check, found.severity) == (id_, severity)
    assert words in " ".join(found.lines())
    assert found.because and found.try_this


@pytest.mark.parametrize(("id_", "facts"), SILENT)
def test_a_check_is_silent_about_what_is_well(id_: str, facts: Facts) -> None:
    assert BY_ID[id_].findings(facts) == []


def test_every_check_has_a_case_in_which_it_speaks_and_a_name_of_its_own() -> None:
    assert {id_ for id_, *_ in FIRES} == set(BY_ID)
    assert len(BY_ID) == len(CHECKS)


def test_only_file_modes_can_be_fixed_without_asking_and_only_by_taking_away() -> None:
    fixes = {
        id_: found.fix for id_, facts, *_ in FIRES for found in BY_ID[id_].findings(facts) if found.fix is not None
    }
    assert fixes and all(id_.startswith("files.") for id_ in fixes)
    assert all(fix.now == fix.was & ~0o077 for fix in fixes.values())


@pytest.mark.parametrize("model", ["local/qwen3-4b", "openrouter/meta-llama/llama-3.1-8b-instruct", "x/gemma-27b-it"])
def test_small_models_are_told_by_where_they_run_or_by_their_size(model: str) -> None:
    assert security._is_small(model, None)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("model", ["anthropic/claude-opus-4-5", "x/llama-405b", "openai/gpt-5.2", "x/8bit-special"])
def test_other_models_are_not(model: str) -> None:
    assert not security._is_small(model, None)  # pyright: ignore[reportPrivateUsage]


def test_secrets_in_plain_text_are_found_in_settings_and_those_kept_elsewhere_are_not() -> None:
    table = {
        "house": {"store": "postgresql://retinue:hunter2@db/house", "zone": "UTC"},
        "providers": {
            "a": {"key": {"env": "A_KEY"}, "headers": {"authorization": "Bearer abcdefgh12345678"}},
            "b": {"key": {"file": "/etc/retinue/b"}, "headers": {"x-title": "mine"}},
        },
        "mcp": {"git": {"command": ["git-mcp", "--token", "ghp_0123456789abcdefABCDEF0123"]}},
        "plugins": {"mail": {"settings": {"password": "hunter2", "user": "maria", "tokens_max": 5}}},
        "sandbox": {"secrets": {"x": {"secret": {"env": "sk-proj-abcdefgh12345678"}}}},
    }
    assert set(plain_in(table)) == {
        "house.store",
        "providers.a.headers.authorization",
        "mcp.git.command.2",
        "plugins.mail.settings.password",
        "sandbox.secrets.x.secret.env",
    }


# --- fixing ---


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_closing_takes_rights_from_others_and_gives_none(tmp_path: Path) -> None:
    for was, now in ((0o644, 0o600), (0o755, 0o700), (0o440, 0o400), (0o666, 0o600)):
        path = tmp_path / f"{was:o}"
        path.write_text("x")
        path.chmod(was)
        assert f"{was:04o}" in close(Closing(path=path, was=was, now=now))
        assert mode(path) == now
        assert close(Closing(path=path, was=was, now=now)) == ""


def test_closing_follows_no_link_and_touches_nothing_of_others(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("x")
    target.chmod(0o644)
    link = tmp_path / "link"
    link.symlink_to(target)
    assert close(Closing(path=link, was=0o644, now=0o600)) == ""
    assert mode(target) == 0o644
    assert close(Closing(path=tmp_path / "gone", was=0o644, now=0o600)) == ""
    if os.getuid() == 0:
        os.chown(target, 1, 1)
        assert close(Closing(path=target, was=0o644, now=0o600)) == ""
        assert mode(target) == 0o644


def test_a_socket_and_a_pipe_are_closed_too(tmp_path: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    with sock:
        sock.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0o666)
        assert close(Closing(path=tmp_path / "s", was=0o666, now=0o600))
    assert mode(tmp_path / "s") == 0o600


# --- a whole house ---


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "house"
    made.mkdir(mode=0o700)
    return made


def ground(house: DeskHouse, home: Path, **kw: Any) -> Ground:
    environment = {"RETINUE_HOME": str(home), "PATH": os.environ["PATH"]}
    return Ground(home=home, environment=environment, now=NOW, store=house.house.store, quick=True, **kw)


async def found(at: Ground) -> dict[str, list[Exposed]]:
    by_check: dict[str, list[Exposed]] = {}
    for each in await examine(at):
        by_check.setdefault(each.check, []).append(each)
    return by_check


@pytest.mark.spec("C95")
async def test_fixing_closes_what_is_open_says_so_and_finds_nothing_to_fix_the_second_time(home: Path) -> None:
    async with desk_house(Household(home)) as house:
        (home / "keys").mkdir(mode=0o755)
        for path, bits in (("owner-token", 0o644), ("keys/openai", 0o640), ("retinue.toml", 0o664)):
            (home / path).write_text("x = 1" if path.endswith("toml") else "x")
            (home / path).chmod(bits)
        (home / "backups" / "one").mkdir(parents=True)
        (home / "backups" / "one").chmod(0o755)
        home.chmod(0o755)
        at, owner = ground(house, home), person("owner")
        looked = await closedness(at, owner, fix=False)
        assert looked.health == "problem" and looked.fixed == []
        assert {each.check for each in looked.security if each.fixable} >= {
            "files.home",
            "files.keys",
            "files.settings",
            "files.backups",
        }
        assert mode(home) == 0o755  # looking changes nothing
        fixed = await closedness(at, owner, fix=True)
        assert any(str(home / "owner-token") in each and "0644" in each and "0600" in each for each in fixed.fixed)
        assert mode(home) == 0o700 and mode(home / "keys") == 0o700
        assert all(not mode(home / name) & 0o077 for name in ("owner-token", "keys/openai", "retinue.toml"))
        assert not any(each.fixable for each in fixed.security)
        again = await closedness(at, owner, fix=True)
        assert again.fixed == [] and not any(each.fixable for each in again.security)


async def test_only_the_owner_fixes(home: Path) -> None:
    agent = Principal(address=address.agent("ada"), level=PermissionLevel.PRIVILEGED, trust=Trust.AGENT)
    async with desk_house(Household(home)) as house:
        home.chmod(0o755)
        with pytest.raises(NotAllowed):
            await closedness(ground(house, home), agent, fix=True)
        assert mode(home) == 0o755
        assert (await closedness(ground(house, home), agent, fix=False)).security
        home.chmod(0o700)


async def test_what_is_asked_over_any_door_is_told_by_severity(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HOME", str(home))
    (home / "retinue.toml").write_text('[sandbox]\nkind = "off"\n')
    (home / "retinue.toml").chmod(0o600)
    async with desk_house(Household(home)) as house:
        (home / "owner-token").write_text("x")
        (home / "owner-token").chmod(0o644)
        body = json.dumps({"security": True, "quick": True}).encode()
        told = json.loads(await perform(house.desk, person("owner"), OPERATIONS["house.doctor"], body))
        severities = [each["severity"] for each in told["security"]]
        assert severities == sorted(severities, key=["critical", "warning", "info"].index)
        assert {"files.keys", "sandbox.off"} <= {each["check"] for each in told["security"]}
        assert told["lines"][0].startswith("critical")
        assert "--fix would see to 1" in told["lines"][-1]
        plain = json.loads(await perform(house.desk, person("owner"), OPERATIONS["house.doctor"], b'{"quick":true}'))
        assert plain["security"] == [] and any("sandbox" in line and "warning" in line for line in plain["lines"])


async def test_facts_are_those_of_the_house(home: Path, tmp_path: Path) -> None:
    synced = tmp_path / "Dropbox" / "house"
    synced.mkdir(parents=True, mode=0o700)
    key = tmp_path / "key"
    key.write_text("short\n")
    key.chmod(0o600)
    (synced / "retinue.toml").write_text(
        f'[house]\npermission_policy = {{ "agent.set" = "restricted" }}\n'
        '[tools.outside_senders]\nprofile = "full"\n'
        f'[providers.acme]\nurl = "http://127.0.0.1:9/v1"\nkey = {{ file = "{key}" }}\n'
        'headers = { authorization = "Bearer abcdefgh12345678" }\n'
    )
    link = tmp_path / "link"
    link.symlink_to(synced)
    household = Household(synced, agents=(Agent(name="ada", model="scripted", tools=ToolRules(deny=("read",))),))
    async with desk_house(household) as house:

        def body(conn: Any) -> None:
            page = Page(conn, 1)
            sessions.start(page, "5e" * 16, agent="ada", origin=Origin(OriginKind.CHAT, "telegram:42"))  # type: ignore[arg-type]
            page.close()

        await house.house.store.write(body, point="test")
        toolbox = Toolbox([Read()])
        at = replace(ground(house, link, toolbox=toolbox), environment={"RETINUE_HOME": str(link)})
        facts = await gather_facts(at)
        assert facts.real_home == synced and "Dropbox" in facts.synced_by
        assert any(each.kind == "home" and each.is_link for each in facts.held)
        assert [place.rpartition(" ")[2] for place in facts.plain] == ["providers.acme.headers.authorization"]
        assert facts.unmasked == {"providers.acme.key"}
        assert facts.lowered["agent.set"][1] is PermissionLevel.RESTRICTED
        assert facts.rooms == {"ada": ("telegram:42",)}
        free = {each.agent.name: set(each.free) for each in facts.staff}
        assert free == {"ada": set(), "bo": {"read"}}
        assert {"home.link", "home.synced", "settings.plain-secret", "settings.lowered", "agents.open-rooms"} <= set(
            await found(at)
        )


async def test_a_deep_look_reads_the_audit_and_tries_the_sandbox(home: Path) -> None:
    from retinue.domain.audit import call_allowed

    async with desk_house(Household(home)) as house:
        entry = call_allowed("read", "0" * 32, agent="ada", run="ab" * 16)
        await house.house.store.write(
            lambda conn: audit.on_its_own(conn, [entry, entry], now_ms=1, chain="5e" * 16), point="test"
        )
        at = replace(ground(house, home), quick=False)
        facts = await gather_facts(at)
        assert facts.flaws == () and facts.probe is not None
        await house.house.sql("UPDATE audit SET who = 'nobody' WHERE position = 2")
        assert "audit.broken" in await found(at)


def test_listening_is_judged_by_what_the_environment_says(home: Path) -> None:
    from retinue.operations.server.security_facts import _listens_on  # pyright: ignore[reportPrivateUsage]

    cases: tuple[tuple[str, str], ...] = (
        ("", "127.0.0.1"),
        ("off", ""),
        ("0.0.0.0:80", "0.0.0.0"),
        ("[::]:80", "::"),
    )
    listens: Callable[..., str] = _listens_on
    for said, meant in cases:
        assert listens(SETTINGS, {"RETINUE_LISTEN": said} if said else {}) == meant


def test_the_plain_doctor_tells_of_a_sandbox_that_is_off_and_of_no_other() -> None:
    for sandbox, said in (
        (SandboxSettings(), ""),
        (BARE, "`sandbox.kind"),
        (SandboxSettings(mode=SandboxMode.OFF), "`sandbox.mode"),
        (SandboxSettings(mode=SandboxMode.NON_MAIN), ""),
    ):
        facts = SettingFacts(faults=(), settings=replace(SETTINGS, sandbox=sandbox))
        found = list(confined(facts))
        assert bool(found) is bool(said) and all(said in each.because for each in found)


async def test_masks_are_refreshed_with_what_there_is_now(home: Path) -> None:
    masks = Masks()
    async with desk_house(Household(home)) as house:
        await refresh(masks, house.house.store, SETTINGS, {"ACME_API_KEY": "first-value-1"})
        assert masks.mask("first-value-1 second-value-2") == "[secret:env:ACME_API_KEY] second-value-2"
        await refresh(masks, house.house.store, SETTINGS, {"ACME_API_KEY": "second-value-2"})
        assert masks.mask("first-value-1 second-value-2") == "first-value-1 [secret:env:ACME_API_KEY]"


def test_every_secret_the_house_knows_of_is_gathered(tmp_path: Path) -> None:
    from retinue.config.models import ProviderSettings
    from retinue.config.sandbox import SecretRule

    (tmp_path / "keys" / "house").mkdir(parents=True)
    for name, words in (
        ("keys/house/acme:one.0", "kept-by-value-1"),
        ("owner-token", "the-owners-own"),
        ("k", "file-1"),
    ):
        (tmp_path / name).write_text(f"{words}\n")
        (tmp_path / name).chmod(0o600)
    made = replace(
        SETTINGS,
        home=tmp_path,
        store="postgresql://retinue:pass%2Fword@db/house",
        providers={
            "acme": ProviderSettings(
                key=Secret(file=tmp_path / "k"),
                headers={"x-token": Secret(env="HEADER"), "authorization": "Bearer written-out", "x-title": "mine"},
            )
        },
        sandbox=SandboxSettings(secrets={"gh": SecretRule(secret=Secret(env="GH"))}),
        mirror=Mirror(),
    )
    environment = {"HEADER": "header-1", "GH": "github-1", "ACME_API_KEY": "env-key-1", "PATH": "/bin", "GONE": "x"}
    environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / "k")  # a place, and no secret itself
    stored = [
        Credential(id="acme:two", provider="acme", source="env:TWO"),
        Credential(id="acme:three", provider="acme", source="env:ACME_API_KEY", agent="ada"),
    ]
    found = gather_secrets(made, stored, environment)
    assert found == {
        "providers.acme.key": "file-1",
        "providers.acme.headers.x-token": "header-1",
        "providers.acme.headers.authorization": "written-out",
        "sandbox.secrets.gh": "github-1",
        "ada:acme:three": "env-key-1",
        "house.store": "pass/word",
        "owner-token": "the-owners-own",
        "keys:acme:one": "kept-by-value-1",
    }


def test_what_servers_and_skills_are_given_from_elsewhere_is_secret_and_a_place_or_plain_words_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "oven").write_text("oven-secret-1\n")
    (tmp_path / "oven").chmod(0o600)
    text = f"""
        [mcp.k]
        command = ["/bin/true"]
        env = {{ A = {{ env = "A_PAT" }}, B = "plain words", C = "a ${{C_TOKEN}}", D = {{ env = "MAPS" }} }}
        headers = {{ X-Gate = {{ env = "GATE" }}, X-Region = "north-by-north" }}
        [skills.entries.baking]
        env = {{ OVEN = {{ file = "{tmp_path}/oven" }}, TRAY = {{ env = "NOT_SET" }} }}
    """
    environment = {
        "RETINUE_HOME": str(tmp_path),
        "A_PAT": "a-secret-1",
        "C_TOKEN": "c-secret-1",
        "MAPS": str(tmp_path),
        "GATE": "gate-secret-1",
    }
    made = load(environment, text=text).settings
    assert gather_secrets(made, [], environment) == {
        "mcp.k.headers.X-Gate": "gate-secret-1",
        "mcp.k.env.A": "a-secret-1",
        "env:C_TOKEN": "c-secret-1",
        "skills.entries.baking.env.OVEN": "oven-secret-1",
    }
