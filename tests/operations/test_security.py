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

from retinue.config import SecretReference, Settings, load_configuration
from retinue.config.connectors import ConnectorSettings
from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings
from retinue.config.settings import MirrorSettings
from retinue.config.skills import PluginSettings, SkillSettings, TrustedSkillSource
from retinue.config.tools import (
    ChannelToolSettings,
    CommandAsk,
    CommandLocation,
    CommandSecurity,
    ElevatedPolicy,
    ExecSettings,
    OutsideSenderToolSettings,
    ToolListSettings,
    ToolSettings,
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
from retinue.domain.times import load_zone, to_ms
from retinue.domain.token import Token, TokenKind
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import perform_operation
from retinue.operations.catalog import OPERATIONS
from retinue.operations.known_secrets import collect_secret_values as gather_secrets
from retinue.operations.known_secrets import refresh_redactor
from retinue.operations.server import security
from retinue.operations.server.doctor import check_security
from retinue.operations.server.doctor_checks import SettingsFacts, check_sandbox
from retinue.operations.server.security import (
    SECURITY_CHECKS,
    PermissionFix,
    SecurityFinding,
    SecuritySeverity,
    fix_permissions,
    run_security_checks,
)
from retinue.operations.server.security_facts import (
    AgentAbilities,
    ProtectedPath,
    SecurityContext,
    SecurityFacts,
    find_secret_keys,
)
from retinue.operations.server.security_facts import gather_security_facts as gather_facts
from retinue.sandbox.base import SandboxProbe
from retinue.store.agents import audit
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import sessions
from retinue.testing.local_instance import LocalInstance
from retinue.text.redaction import Redactor
from retinue.tools.files import ReadTool
from retinue.tools.toolbox import Toolbox

HOME = Path("/home/maria/.retinue")
NOW = datetime(2026, 11, 15, tzinfo=UTC)
SETTINGS = Settings(home=HOME, store=HOME / "house.db", zone=load_zone("UTC"))
RUNS, READS = frozenset({ToolEffect.RUNS_CODE}), frozenset({ToolEffect.READS_UNTRUSTED})
ADA = Agent(name="ada", model="anthropic/claude-opus-4-5")
WELL = SecurityFacts(
    data_dir=HOME,
    real_data_dir=HOME,
    uid=1000,
    now_ms=to_ms(NOW),
    settings=SETTINGS,
    listens_on="127.0.0.1",
    protected_paths=(
        ProtectedPath(kind="home", path=HOME, mode=0o700, uid=1000, is_folder=True),
        ProtectedPath(kind="keys", path=HOME / "owner-token", mode=0o600, uid=1000),
        ProtectedPath(kind="settings", path=HOME / "retinue.toml", mode=0o600, uid=1000),
        ProtectedPath(kind="agents", path=HOME / "agents", mode=0o755, uid=1000, is_folder=True),
    ),
    synced_by="",
    plaintext_secrets=(),
    unredacted_secrets=frozenset(),
    probe=SandboxProbe(True, "it holds"),
    agents=(AgentAbilities(agent=ADA, allowed_tools={"exec": RUNS, "web_fetch": READS}),),
    people=(Person(name="owner", role=Role.OWNER), Person(name="gus", role=Role.GUEST)),
    shared_with={},
    tokens=(),
    channels={},
    plugins=("diary",),
    lowered_operations={},
    audit_flaws=(),
    specs={"exec": ToolSpec(name="exec", description="", parameters={}, effects=RUNS)},
)
WELL = replace(WELL, settings=replace(SETTINGS, plugins={"diary": PluginSettings()}))


def settings(**changes: Any) -> SecurityFacts:
    return replace(WELL, settings=replace(WELL.settings, **changes))


def webhook(*, trusted: bool) -> ConnectorSettings:
    return ConnectorSettings(kind="webhook", own=WebhookSettings(trusted=trusted))


def held(kind: str, path: Path, mode: int, uid: int = 1000, **kw: Any) -> SecurityFacts:
    return replace(
        WELL, protected_paths=(*WELL.protected_paths, ProtectedPath(kind=kind, path=path, mode=mode, uid=uid, **kw))
    )


def token(label: str, *, days: int = 0, who: str = "owner", **kw: Any) -> Token:
    made = NOW - timedelta(days=days)
    return Token(
        id=TokenId("ab" * 16),
        kind=TokenKind.TOKEN,
        principal=address.person_address(who),
        label=label,
        created_at=made,
        **kw,
    )


BARE = SandboxSettings(kind=SandboxKind.OFF)
OUTSIDE = Path("/srv/elsewhere")
IN_ROOM = replace(WELL, agents=(replace(WELL.agents[0], public_channel="telegram:42"),))
SMALL = replace(WELL, agents=(replace(WELL.agents[0], agent=replace(ADA, model="ollama/qwen3:8b")),))
C, W, I = SecuritySeverity.CRITICAL, SecuritySeverity.WARNING, SecuritySeverity.INFO  # noqa: E741

# A check, facts on which it speaks, how loudly, and a word of what it says.
FIRES: tuple[tuple[str, SecurityFacts, SecuritySeverity, str], ...] = (
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
    ("sandbox.off", replace(settings(sandbox=BARE), agents=()), W, "without a sandbox"),
    ("sandbox.main-bare", settings(sandbox=SandboxSettings(mode=SandboxMode.NON_MAIN)), I, "your own sessions"),
    (
        "sandbox.not-possible",
        replace(WELL, probe=SandboxProbe(False, "no bwrap", "install it")),
        W,
        "sandbox does not work",
    ),
    (
        "exec.bare",
        settings(
            sandbox=BARE, tools=ToolSettings(exec=ExecSettings(security=CommandSecurity.FULL, ask=CommandAsk.OFF))
        ),
        C,
        "without sandbox and approval: ada",
    ),
    ("exec.bare", settings(sandbox=BARE), W, "some commands"),
    ("exec.bare", settings(tools=ToolSettings(exec=ExecSettings(host=CommandLocation.HOST))), W, "some commands"),
    (
        "exec.elevated",
        settings(tools=ToolSettings(exec=ExecSettings(elevated=ElevatedPolicy.FULL))),
        W,
        "can leave the sandbox",
    ),
    (
        "files.home",
        replace(WELL, protected_paths=(ProtectedPath(kind="home", path=HOME, mode=0o755, uid=1000),)),
        C,
        "other users",
    ),
    (
        "files.home",
        replace(WELL, protected_paths=(ProtectedPath(kind="home", path=HOME, mode=0o700, uid=7),)),
        C,
        "another user",
    ),
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
            protected_paths=(
                ProtectedPath(kind="home", path=HOME, mode=0o755, uid=1000),
                ProtectedPath(kind="store", path=HOME / "house.db", mode=0o644, uid=1000),
            ),
        ),
        W,
        "house.db",
    ),
    (
        "home.link",
        replace(WELL, protected_paths=(ProtectedPath(kind="home", path=HOME, mode=0o700, uid=1000, is_link=True),)),
        W,
        "link",
    ),
    ("home.synced", replace(WELL, synced_by="/home/maria/Dropbox"), W, "another program synchronizes"),
    ("settings.plain-secret", replace(WELL, plaintext_secrets=(f"{HOME}/retinue.toml: a.key",)), W, "a.key"),
    (
        "settings.plain-secret",
        replace(held("settings", HOME / "open.toml", 0o644), plaintext_secrets=(f"{HOME}/open.toml: a.key",)),
        C,
        "a.key",
    ),
    (
        "settings.lowered",
        replace(WELL, lowered_operations={"agent.set": (PermissionLevel.PRIVILEGED, PermissionLevel.STANDARD)}),
        W,
        "agent.set",
    ),
    (
        "settings.lowered",
        replace(WELL, lowered_operations={"token.create": (PermissionLevel.BOSS, PermissionLevel.STANDARD)}),
        C,
        "token.create",
    ),
    ("secrets.unmasked", replace(WELL, unredacted_secrets=frozenset({"pin"})), I, "pin"),
    ("web.private-hosts", settings(web=WebSettings(private_hosts=("nas.lan:5000",))), I, "nas.lan"),
    (
        "skills.trusted",
        settings(skills=SkillSettings(trusted=(TrustedSkillSource.WORKSPACE,))),
        W,
        "unapproved skills",
    ),
    ("webhooks.trusted", settings(connectors={"ci": webhook(trusted=True)}), W, "is trusted: ci"),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("exec",))), W, "'exec'"),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("*",))), W, "'*'"),
    ("tokens.unused", replace(WELL, tokens=(token("phone", days=40),)), I, "phone"),
    ("tokens.wide", replace(WELL, tokens=(token("script"),)), W, "script"),
    ("people.guests", replace(WELL, shared_with={"gus": 2}), W, "gus (2)"),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(by_sender={"person:gus": ToolListSettings(also_allow=("exec",))})),
        W,
        "tools.by_sender.person:gus",
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(outside_senders=OutsideSenderToolSettings(profile="full"))),
        W,
        "more than the minimal tools: tools.outside_senders",
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(outside_senders=OutsideSenderToolSettings(profile=None))),
        W,
        "tools.outside_senders",
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(by_channel={"ci:deploys": ChannelToolSettings(profile="coding")})),
        W,
        "tools.by_channel.ci:deploys",
    ),
    (
        "people.outside-senders",
        settings(
            tools=ToolSettings(
                by_channel={"*": ChannelToolSettings(by_sender={"channel:irc:*": ToolListSettings(ask=("exec",))})}
            )
        ),
        W,
        "tools.by_channel.*.by_sender.channel:irc:*",
    ),
    (
        "agents.boss",
        replace(
            WELL, agents=(AgentAbilities(agent=replace(ADA, permission_level=PermissionLevel.BOSS), allowed_tools={}),)
        ),
        W,
        "your permission level: ada",
    ),
    ("agents.code-for-strangers", IN_ROOM, W, "unknown senders can write"),
    (
        "agents.code-for-strangers",
        replace(IN_ROOM, settings=replace(IN_ROOM.settings, sandbox=BARE)),
        C,
        "unknown senders can write",
    ),
    (
        "agents.open-rooms",
        replace(
            settings(tools=ToolSettings(outside_senders=OutsideSenderToolSettings(profile="full"))),
            channels={"ada": ("telegram:42",)},
        ),
        W,
        "telegram:42",
    ),
    ("agents.small-model", replace(SMALL, settings=replace(SMALL.settings, sandbox=BARE)), C, "small model"),
    ("plugins.unknown", replace(WELL, plugins=("diary", "spy")), W, "spy"),
    ("audit.broken", replace(WELL, audit_flaws=("house line 3: it is not as it was written",)), C, "house line 3"),
)
# The same, where what looks alike is well.
SILENT: tuple[tuple[str, SecurityFacts], ...] = (
    *((check.id, WELL) for check in SECURITY_CHECKS),
    ("listen.beyond-loopback", replace(WELL, listens_on="")),
    ("listen.beyond-loopback", replace(WELL, listens_on="::1")),
    ("listen.plain-http", settings(public_url="https://house.example")),
    ("listen.plain-http", settings(public_url="http://127.0.0.1:7717")),
    ("listen.any-proxy", settings(trusted_proxies=("10.0.0.0/8",))),
    ("sandbox.main-bare", settings(sandbox=SandboxSettings(mode=SandboxMode.NON_MAIN, kind=SandboxKind.OFF))),
    ("sandbox.not-possible", replace(WELL, probe=None)),
    ("exec.bare", settings(sandbox=BARE, tools=ToolSettings(exec=ExecSettings(security=CommandSecurity.DENY)))),
    ("exec.bare", settings(sandbox=BARE, tools=ToolSettings(exec=ExecSettings(ask=CommandAsk.ALWAYS)))),
    ("exec.bare", replace(settings(sandbox=BARE), agents=())),
    ("exec.elevated", settings(tools=ToolSettings(exec=ExecSettings(elevated=ElevatedPolicy.ASK)))),
    ("files.store", held("store", HOME / "house.db", 0o644)),  # nobody else gets into the home
    ("files.backups", held("backups", OUTSIDE / "backup", 0o700)),
    ("skills.trusted", settings(skills=SkillSettings(trusted=(TrustedSkillSource.SERVER,)))),
    ("webhooks.trusted", settings(connectors={"ci": webhook(trusted=False)})),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("ls",)))),
    ("tokens.unused", replace(WELL, tokens=(token("new", days=3), token("old", days=90, used_at=NOW)))),
    ("tokens.wide", replace(WELL, tokens=(token("owner-token"), token("ends", expires_at=NOW), token("x", who="gus")))),
    ("people.guests", replace(WELL, shared_with={"maria": 2})),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(by_sender={"person:gus": ToolListSettings(deny=("exec",))})),
    ),
    (
        "people.outside-senders",
        settings(tools=ToolSettings(by_sender={"person:maria": ToolListSettings(profile="full")})),
    ),
    ("people.outside-senders", settings(tools=ToolSettings(by_channel={"*": ChannelToolSettings(profile="minimal")}))),
    (
        "agents.code-for-strangers",
        replace(WELL, agents=(AgentAbilities(agent=ADA, allowed_tools={"read": READS}, public_channel="x:1"),)),
    ),
    ("agents.open-rooms", replace(WELL, channels={"ada": ("telegram:42",)})),  # they have the minimal tools
    (
        "agents.open-rooms",
        replace(
            settings(
                tools=ToolSettings(
                    outside_senders=OutsideSenderToolSettings(profile="full"),
                    by_channel={"*": ChannelToolSettings(profile="minimal")},
                )
            ),
            channels={"ada": ("telegram:42",)},
        ),
    ),
    ("agents.small-model", SMALL),
    ("agents.small-model", settings(sandbox=BARE)),
    ("plugins.unknown", replace(settings(plugins={"mine": PluginSettings(plugin="diary")}), plugins=("diary",))),
)
BY_ID = {check.id: check for check in SECURITY_CHECKS}


@pytest.mark.spec("C95")
@pytest.mark.parametrize(("id_", "facts", "severity", "words"), FIRES)
def test_a_check_speaks_of_what_it_is_for(
    id_: str, facts: SecurityFacts, severity: SecuritySeverity, words: str
) -> None:
    [found] = BY_ID[id_].findings(facts)
    assert (found.check, found.severity) == (id_, severity)
    assert words in " ".join(found.format_lines())
    assert found.because and found.try_this


@pytest.mark.parametrize(("id_", "facts"), SILENT)
def test_a_check_is_silent_about_what_is_well(id_: str, facts: SecurityFacts) -> None:
    assert BY_ID[id_].findings(facts) == []


def test_every_check_has_a_case_in_which_it_speaks_and_a_name_of_its_own() -> None:
    assert {id_ for id_, *_ in FIRES} == set(BY_ID)
    assert len(BY_ID) == len(SECURITY_CHECKS)


def test_only_file_modes_can_be_fixed_without_asking_and_only_by_taking_away() -> None:
    fixes = {
        id_: found.fix for id_, facts, *_ in FIRES for found in BY_ID[id_].findings(facts) if found.fix is not None
    }
    assert fixes and all(id_.startswith("files.") for id_ in fixes)
    assert all(fix.mode_after == fix.mode_before & ~0o077 for fix in fixes.values())


@pytest.mark.parametrize("model", ["local/qwen3-4b", "openrouter/meta-llama/llama-3.1-8b-instruct", "x/gemma-27b-it"])
def test_small_models_are_told_by_where_they_run_or_by_their_size(model: str) -> None:
    assert security._explain_small_model(model, None)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("model", ["anthropic/claude-opus-4-5", "x/llama-405b", "openai/gpt-5.2", "x/8bit-special"])
def test_other_models_are_not(model: str) -> None:
    assert not security._explain_small_model(model, None)  # pyright: ignore[reportPrivateUsage]


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
    assert set(find_secret_keys(table)) == {
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
        assert f"{was:04o}" in fix_permissions(PermissionFix(path=path, mode_before=was, mode_after=now))
        assert mode(path) == now
        assert fix_permissions(PermissionFix(path=path, mode_before=was, mode_after=now)) == ""


def test_closing_follows_no_link_and_touches_nothing_of_others(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("x")
    target.chmod(0o644)
    link = tmp_path / "link"
    link.symlink_to(target)
    assert fix_permissions(PermissionFix(path=link, mode_before=0o644, mode_after=0o600)) == ""
    assert mode(target) == 0o644
    assert fix_permissions(PermissionFix(path=tmp_path / "gone", mode_before=0o644, mode_after=0o600)) == ""
    if os.getuid() == 0:
        os.chown(target, 1, 1)
        assert fix_permissions(PermissionFix(path=target, mode_before=0o644, mode_after=0o600)) == ""
        assert mode(target) == 0o644


def test_a_socket_and_a_pipe_are_closed_too(tmp_path: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    with sock:
        sock.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0o666)
        assert fix_permissions(PermissionFix(path=tmp_path / "s", mode_before=0o666, mode_after=0o600))
    assert mode(tmp_path / "s") == 0o600


# --- a whole house ---


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "house"
    made.mkdir(mode=0o700)
    return made


def ground(house: DeskHouse, home: Path, **kw: Any) -> SecurityContext:
    environment = {"RETINUE_HOME": str(home), "PATH": os.environ["PATH"]}
    return SecurityContext(
        data_dir=home, environment=environment, now=NOW, store=house.house.store, is_quick=True, **kw
    )


async def found(at: SecurityContext) -> dict[str, list[SecurityFinding]]:
    by_check: dict[str, list[SecurityFinding]] = {}
    for each in await run_security_checks(at):
        by_check.setdefault(each.check, []).append(each)
    return by_check


@pytest.mark.spec("C95")
async def test_fixing_closes_what_is_open_says_so_and_finds_nothing_to_fix_the_second_time(home: Path) -> None:
    async with desk_house(LocalInstance(home)) as house:
        (home / "keys").mkdir(mode=0o755)
        for path, bits in (("owner-token", 0o644), ("keys/openai", 0o640), ("retinue.toml", 0o664)):
            (home / path).write_text("x = 1" if path.endswith("toml") else "x")
            (home / path).chmod(bits)
        (home / "backups" / "one").mkdir(parents=True)
        (home / "backups" / "one").chmod(0o755)
        home.chmod(0o755)
        at, owner = ground(house, home), person("owner")
        looked = await check_security(at, owner, fix=False)
        assert looked.health == "problem" and looked.fixed == []
        assert {each.check for each in looked.security if each.fixable} >= {
            "files.home",
            "files.keys",
            "files.settings",
            "files.backups",
        }
        assert mode(home) == 0o755  # looking changes nothing
        fixed = await check_security(at, owner, fix=True)
        assert any(str(home / "owner-token") in each and "0644" in each and "0600" in each for each in fixed.fixed)
        assert mode(home) == 0o700 and mode(home / "keys") == 0o700
        assert all(not mode(home / name) & 0o077 for name in ("owner-token", "keys/openai", "retinue.toml"))
        assert not any(each.fixable for each in fixed.security)
        again = await check_security(at, owner, fix=True)
        assert again.fixed == [] and not any(each.fixable for each in again.security)


async def test_only_the_owner_fixes(home: Path) -> None:
    agent = Principal(address=address.agent_address("ada"), level=PermissionLevel.PRIVILEGED, trust=Trust.AGENT)
    async with desk_house(LocalInstance(home)) as house:
        home.chmod(0o755)
        with pytest.raises(NotAllowed):
            await check_security(ground(house, home), agent, fix=True)
        assert mode(home) == 0o755
        assert (await check_security(ground(house, home), agent, fix=False)).security
        home.chmod(0o700)


async def test_what_is_asked_over_any_door_is_told_by_severity(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HOME", str(home))
    (home / "retinue.toml").write_text('[sandbox]\nkind = "off"\n')
    (home / "retinue.toml").chmod(0o600)
    async with desk_house(LocalInstance(home)) as house:
        (home / "owner-token").write_text("x")
        (home / "owner-token").chmod(0o644)
        body = json.dumps({"security": True, "quick": True}).encode()
        told = json.loads(await perform_operation(house.desk, person("owner"), OPERATIONS["house.doctor"], body))
        severities = [each["severity"] for each in told["security"]]
        assert severities == sorted(severities, key=["critical", "warning", "info"].index)
        assert {"files.keys", "sandbox.off"} <= {each["check"] for each in told["security"]}
        assert told["lines"][0].startswith("critical")
        assert "--fix would fix 1" in told["lines"][-1]
        plain = json.loads(
            await perform_operation(house.desk, person("owner"), OPERATIONS["house.doctor"], b'{"quick":true}')
        )
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
    household = LocalInstance(synced, agents=(Agent(name="ada", model="scripted", tools=ToolRules(deny=("read",))),))
    async with desk_house(household) as house:

        def body(conn: Any) -> None:
            page = Transaction(conn, 1)
            sessions.start(page, "5e" * 16, agent="ada", origin=Origin(OriginKind.CHAT, "telegram:42"))  # type: ignore[arg-type]
            page.close()

        await house.house.store.write(body, point="test")
        toolbox = Toolbox([ReadTool()])
        at = replace(ground(house, link, toolbox=toolbox), environment={"RETINUE_HOME": str(link)})
        facts = await gather_facts(at)
        assert facts.real_data_dir == synced and "Dropbox" in facts.synced_by
        assert any(each.kind == "home" and each.is_link for each in facts.protected_paths)
        assert [place.rpartition(" ")[2] for place in facts.plaintext_secrets] == [
            "providers.acme.headers.authorization"
        ]
        assert facts.unredacted_secrets == {"providers.acme.key"}
        assert facts.lowered_operations["agent.set"][1] is PermissionLevel.RESTRICTED
        assert facts.channels == {"ada": ("telegram:42",)}
        free = {each.agent.name: set(each.allowed_tools) for each in facts.agents}
        assert free == {"ada": set(), "bo": {"read"}}
        assert {"home.link", "home.synced", "settings.plain-secret", "settings.lowered", "agents.open-rooms"} <= set(
            await found(at)
        )


async def test_a_deep_look_reads_the_audit_and_tries_the_sandbox(home: Path) -> None:
    from retinue.domain.audit import call_allowed

    async with desk_house(LocalInstance(home)) as house:
        entry = call_allowed("read", "0" * 32, agent="ada", run="ab" * 16)
        await house.house.store.write(
            lambda conn: audit.append_in_transaction(conn, [entry, entry], now_ms=1, chain="5e" * 16), point="test"
        )
        at = replace(ground(house, home), is_quick=False)
        facts = await gather_facts(at)
        assert facts.audit_flaws == () and facts.probe is not None
        await house.house.execute_sql("UPDATE audit SET who = 'nobody' WHERE position = 2")
        assert "audit.broken" in await found(at)


def test_listening_is_judged_by_what_the_environment_says(home: Path) -> None:
    from retinue.operations.server.security_facts import _listen_host  # pyright: ignore[reportPrivateUsage]

    cases: tuple[tuple[str, str], ...] = (
        ("", "127.0.0.1"),
        ("off", ""),
        ("0.0.0.0:80", "0.0.0.0"),
        ("[::]:80", "::"),
    )
    listens: Callable[..., str] = _listen_host
    for said, meant in cases:
        assert listens(SETTINGS, {"RETINUE_LISTEN": said} if said else {}) == meant


def test_the_plain_doctor_tells_of_a_sandbox_that_is_off_and_of_no_other() -> None:
    for sandbox, said in (
        (SandboxSettings(), ""),
        (BARE, "`sandbox.kind"),
        (SandboxSettings(mode=SandboxMode.OFF), "`sandbox.mode"),
        (SandboxSettings(mode=SandboxMode.NON_MAIN), ""),
    ):
        facts = SettingsFacts(faults=(), settings=replace(SETTINGS, sandbox=sandbox))
        found = list(check_sandbox(facts))
        assert bool(found) is bool(said) and all(said in each.because for each in found)


async def test_masks_are_refreshed_with_what_there_is_now(home: Path) -> None:
    masks = Redactor()
    async with desk_house(LocalInstance(home)) as house:
        await refresh_redactor(masks, house.house.store, SETTINGS, {"ACME_API_KEY": "first-value-1"})
        assert masks.redact("first-value-1 second-value-2") == "[secret:env:ACME_API_KEY] second-value-2"
        await refresh_redactor(masks, house.house.store, SETTINGS, {"ACME_API_KEY": "second-value-2"})
        assert masks.redact("first-value-1 second-value-2") == "first-value-1 [secret:env:ACME_API_KEY]"


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
                key=SecretReference(file=tmp_path / "k"),
                headers={
                    "x-token": SecretReference(env="HEADER"),
                    "authorization": "Bearer written-out",
                    "x-title": "mine",
                },
            )
        },
        sandbox=SandboxSettings(secrets={"gh": SecretRule(secret=SecretReference(env="GH"))}),
        mirror=MirrorSettings(),
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
    made = load_configuration(environment, text=text).settings
    assert gather_secrets(made, [], environment) == {
        "mcp.k.headers.X-Gate": "gate-secret-1",
        "mcp.k.env.A": "a-secret-1",
        "env:C_TOKEN": "c-secret-1",
        "skills.entries.baking.env.OVEN": "oven-secret-1",
    }
