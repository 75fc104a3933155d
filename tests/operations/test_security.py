"""Security checks: each reports its own finding only, and its fix needs permission and is applied once."""

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
from operations.operations_instance import OperationsServer, open_operations_server, person

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
SETTINGS = Settings(home=HOME, store=HOME / "retinue.db", zone=load_zone("UTC"))
RUNS, READS = frozenset({ToolEffect.RUNS_CODE}), frozenset({ToolEffect.READS_UNTRUSTED})
ADA = Agent(name="ada", model="anthropic/claude-opus-4-5")
SECURE_FACTS = SecurityFacts(
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
SECURE_FACTS = replace(SECURE_FACTS, settings=replace(SETTINGS, plugins={"diary": PluginSettings()}))


def settings(**changes: Any) -> SecurityFacts:
    return replace(SECURE_FACTS, settings=replace(SECURE_FACTS.settings, **changes))


def webhook(*, trusted: bool) -> ConnectorSettings:
    return ConnectorSettings(platform="webhook", platform_settings=WebhookSettings(trusted=trusted))


def facts_with_path(kind: str, path: Path, mode: int, uid: int = 1000, **kw: Any) -> SecurityFacts:
    return replace(
        SECURE_FACTS,
        protected_paths=(*SECURE_FACTS.protected_paths, ProtectedPath(kind=kind, path=path, mode=mode, uid=uid, **kw)),
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


SANDBOX_OFF = SandboxSettings(kind=SandboxKind.OFF)
OUTSIDE = Path("/srv/elsewhere")
PUBLIC_CHANNEL_FACTS = replace(SECURE_FACTS, agents=(replace(SECURE_FACTS.agents[0], public_channel="telegram:42"),))
SMALL_MODEL_FACTS = replace(
    SECURE_FACTS, agents=(replace(SECURE_FACTS.agents[0], agent=replace(ADA, model="ollama/qwen3:8b")),)
)
C, W, I = SecuritySeverity.CRITICAL, SecuritySeverity.WARNING, SecuritySeverity.INFO  # noqa: E741

# Check, facts for which it reports a finding, severity, and part of the text.
FINDING_CASES: tuple[tuple[str, SecurityFacts, SecuritySeverity, str], ...] = (
    ("listen.beyond_loopback", replace(SECURE_FACTS, listens_on="0.0.0.0"), C, "0.0.0.0"),
    (
        "listen.beyond_loopback",
        replace(settings(public_url="https://server.example", trusted_proxies=("10.0.0.1",)), listens_on="10.0.0.2"),
        W,
        "10.0.0.2",
    ),
    ("listen.plain_http", settings(public_url="http://server.example"), C, "not encrypted"),
    ("listen.any_proxy", settings(trusted_proxies=("0.0.0.0/0",)), C, "any caller"),
    ("listen.any_proxy", settings(trusted_proxies=("10.0.0.1", "::/0")), C, "::/0"),
    ("sandbox.off", settings(sandbox=SANDBOX_OFF), C, "without a sandbox"),
    ("sandbox.off", settings(sandbox=SandboxSettings(mode=SandboxMode.OFF)), C, "without a sandbox"),
    ("sandbox.off", replace(settings(sandbox=SANDBOX_OFF), agents=()), W, "without a sandbox"),
    ("sandbox.main_off", settings(sandbox=SandboxSettings(mode=SandboxMode.NON_MAIN)), I, "your own sessions"),
    (
        "sandbox.unavailable",
        replace(SECURE_FACTS, probe=SandboxProbe(False, "no bwrap", "install it")),
        W,
        "sandbox does not work",
    ),
    (
        "exec.unsandboxed",
        settings(
            sandbox=SANDBOX_OFF,
            tools=ToolSettings(exec=ExecSettings(security=CommandSecurity.FULL, ask=CommandAsk.OFF)),
        ),
        C,
        "without a sandbox and without approval: ada",
    ),
    ("exec.unsandboxed", settings(sandbox=SANDBOX_OFF), W, "some commands"),
    (
        "exec.unsandboxed",
        settings(tools=ToolSettings(exec=ExecSettings(host=CommandLocation.HOST))),
        W,
        "some commands",
    ),
    (
        "exec.elevated",
        settings(tools=ToolSettings(exec=ExecSettings(elevated=ElevatedPolicy.FULL))),
        W,
        "can leave the sandbox",
    ),
    (
        "files.data_directory",
        replace(SECURE_FACTS, protected_paths=(ProtectedPath(kind="home", path=HOME, mode=0o755, uid=1000),)),
        C,
        "other users",
    ),
    (
        "files.data_directory",
        replace(SECURE_FACTS, protected_paths=(ProtectedPath(kind="home", path=HOME, mode=0o700, uid=7),)),
        C,
        "another user",
    ),
    ("files.keys", facts_with_path("keys", HOME / "keys" / "openai", 0o640), C, "openai"),
    ("files.settings", facts_with_path("settings", HOME / "more.toml", 0o644), C, "more.toml"),
    ("files.store", facts_with_path("store", OUTSIDE / "retinue.db", 0o644), W, "retinue.db"),
    ("files.logs", facts_with_path("logs", OUTSIDE / "retinue.log", 0o644), W, "retinue.log"),
    ("files.agents", facts_with_path("agents", OUTSIDE / "agents", 0o755), W, "agents"),
    ("files.backups", facts_with_path("backups", OUTSIDE / "backup", 0o755), W, "backup"),
    ("files.backups", facts_with_path("backups", HOME / "backups", 0o755, is_link=True), W, "backup"),
    ("files.mirror", facts_with_path("mirror", OUTSIDE / "mirror", 0o755), W, "mirror"),
    (
        "files.store",
        replace(
            SECURE_FACTS,
            protected_paths=(
                ProtectedPath(kind="home", path=HOME, mode=0o755, uid=1000),
                ProtectedPath(kind="store", path=HOME / "retinue.db", mode=0o644, uid=1000),
            ),
        ),
        W,
        "retinue.db",
    ),
    (
        "data_directory.link",
        replace(
            SECURE_FACTS, protected_paths=(ProtectedPath(kind="home", path=HOME, mode=0o700, uid=1000, is_link=True),)
        ),
        W,
        "link",
    ),
    (
        "data_directory.synced",
        replace(SECURE_FACTS, synced_by="/home/maria/Dropbox"),
        W,
        "another program synchronizes",
    ),
    ("settings.plain_secret", replace(SECURE_FACTS, plaintext_secrets=(f"{HOME}/retinue.toml: a.key",)), W, "a.key"),
    (
        "settings.plain_secret",
        replace(
            facts_with_path("settings", HOME / "open.toml", 0o644), plaintext_secrets=(f"{HOME}/open.toml: a.key",)
        ),
        C,
        "a.key",
    ),
    (
        "settings.lowered_level",
        replace(SECURE_FACTS, lowered_operations={"agent.set": (PermissionLevel.PRIVILEGED, PermissionLevel.STANDARD)}),
        W,
        "agent.set",
    ),
    (
        "settings.lowered_level",
        replace(SECURE_FACTS, lowered_operations={"token.create": (PermissionLevel.BOSS, PermissionLevel.STANDARD)}),
        C,
        "token.create",
    ),
    ("secrets.unredacted", replace(SECURE_FACTS, unredacted_secrets=frozenset({"pin"})), I, "pin"),
    ("web.private_hosts", settings(web=WebSettings(private_hosts=("nas.lan:5000",))), I, "nas.lan"),
    (
        "skills.trusted",
        settings(skills=SkillSettings(trusted=(TrustedSkillSource.WORKSPACE,))),
        W,
        "unapproved skills",
    ),
    ("webhooks.trusted", settings(connectors={"ci": webhook(trusted=True)}), W, "is trusted: ci"),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("exec",))), W, "'exec'"),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("*",))), W, "'*'"),
    ("tokens.unused", replace(SECURE_FACTS, tokens=(token("phone", days=40),)), I, "phone"),
    ("tokens.no_expiry", replace(SECURE_FACTS, tokens=(token("script"),)), W, "script"),
    ("people.guests", replace(SECURE_FACTS, shared_with={"gus": 2}), W, "gus (2)"),
    (
        "people.outside_senders",
        settings(tools=ToolSettings(by_sender={"person:gus": ToolListSettings(also_allow=("exec",))})),
        W,
        "tools.by_sender.person:gus",
    ),
    (
        "people.outside_senders",
        settings(tools=ToolSettings(outside_senders=OutsideSenderToolSettings(profile="full"))),
        W,
        "more than the minimal tools: tools.outside_senders",
    ),
    (
        "people.outside_senders",
        settings(tools=ToolSettings(outside_senders=OutsideSenderToolSettings(profile=None))),
        W,
        "tools.outside_senders",
    ),
    (
        "people.outside_senders",
        settings(tools=ToolSettings(by_channel={"ci:deploys": ChannelToolSettings(profile="coding")})),
        W,
        "tools.by_channel.ci:deploys",
    ),
    (
        "people.outside_senders",
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
            SECURE_FACTS,
            agents=(AgentAbilities(agent=replace(ADA, permission_level=PermissionLevel.BOSS), allowed_tools={}),),
        ),
        W,
        "your permission level: ada",
    ),
    ("agents.code_for_unknown_senders", PUBLIC_CHANNEL_FACTS, W, "unknown senders can write"),
    (
        "agents.code_for_unknown_senders",
        replace(PUBLIC_CHANNEL_FACTS, settings=replace(PUBLIC_CHANNEL_FACTS.settings, sandbox=SANDBOX_OFF)),
        C,
        "unknown senders can write",
    ),
    (
        "agents.channel_rules",
        replace(
            settings(tools=ToolSettings(outside_senders=OutsideSenderToolSettings(profile="full"))),
            channels={"ada": ("telegram:42",)},
        ),
        W,
        "telegram:42",
    ),
    (
        "agents.small_model",
        replace(SMALL_MODEL_FACTS, settings=replace(SMALL_MODEL_FACTS.settings, sandbox=SANDBOX_OFF)),
        C,
        "small model",
    ),
    ("plugins.unknown", replace(SECURE_FACTS, plugins=("diary", "spy")), W, "spy"),
    (
        "audit.broken",
        replace(SECURE_FACTS, audit_flaws=("server line 3: it is not as it was written",)),
        C,
        "server line 3",
    ),
)
# Facts that look similar and are secure.
NO_FINDING_CASES: tuple[tuple[str, SecurityFacts], ...] = (
    *((check.id, SECURE_FACTS) for check in SECURITY_CHECKS),
    ("listen.beyond_loopback", replace(SECURE_FACTS, listens_on="")),
    ("listen.beyond_loopback", replace(SECURE_FACTS, listens_on="::1")),
    ("listen.plain_http", settings(public_url="https://server.example")),
    ("listen.plain_http", settings(public_url="http://127.0.0.1:7717")),
    ("listen.any_proxy", settings(trusted_proxies=("10.0.0.0/8",))),
    ("sandbox.main_off", settings(sandbox=SandboxSettings(mode=SandboxMode.NON_MAIN, kind=SandboxKind.OFF))),
    ("sandbox.unavailable", replace(SECURE_FACTS, probe=None)),
    (
        "exec.unsandboxed",
        settings(sandbox=SANDBOX_OFF, tools=ToolSettings(exec=ExecSettings(security=CommandSecurity.DENY))),
    ),
    ("exec.unsandboxed", settings(sandbox=SANDBOX_OFF, tools=ToolSettings(exec=ExecSettings(ask=CommandAsk.ALWAYS)))),
    ("exec.unsandboxed", replace(settings(sandbox=SANDBOX_OFF), agents=())),
    ("exec.elevated", settings(tools=ToolSettings(exec=ExecSettings(elevated=ElevatedPolicy.ASK)))),
    ("files.store", facts_with_path("store", HOME / "retinue.db", 0o644)),  # others cannot enter the data directory
    ("files.backups", facts_with_path("backups", OUTSIDE / "backup", 0o700)),
    ("skills.trusted", settings(skills=SkillSettings(trusted=(TrustedSkillSource.INSTANCE,)))),
    ("webhooks.trusted", settings(connectors={"ci": webhook(trusted=False)})),
    ("tools.direct", settings(tools=ToolSettings(invoke_allow=("ls",)))),
    ("tokens.unused", replace(SECURE_FACTS, tokens=(token("new", days=3), token("old", days=90, used_at=NOW)))),
    (
        "tokens.no_expiry",
        replace(SECURE_FACTS, tokens=(token("owner-token"), token("ends", expires_at=NOW), token("x", who="gus"))),
    ),
    ("people.guests", replace(SECURE_FACTS, shared_with={"maria": 2})),
    (
        "people.outside_senders",
        settings(tools=ToolSettings(by_sender={"person:gus": ToolListSettings(deny=("exec",))})),
    ),
    (
        "people.outside_senders",
        settings(tools=ToolSettings(by_sender={"person:maria": ToolListSettings(profile="full")})),
    ),
    ("people.outside_senders", settings(tools=ToolSettings(by_channel={"*": ChannelToolSettings(profile="minimal")}))),
    (
        "agents.code_for_unknown_senders",
        replace(SECURE_FACTS, agents=(AgentAbilities(agent=ADA, allowed_tools={"read": READS}, public_channel="x:1"),)),
    ),
    ("agents.channel_rules", replace(SECURE_FACTS, channels={"ada": ("telegram:42",)})),  # only minimal tools
    (
        "agents.channel_rules",
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
    ("agents.small_model", SMALL_MODEL_FACTS),
    ("agents.small_model", settings(sandbox=SANDBOX_OFF)),
    ("plugins.unknown", replace(settings(plugins={"mine": PluginSettings(plugin="diary")}), plugins=("diary",))),
)
CHECKS_BY_ID = {check.id: check for check in SECURITY_CHECKS}


@pytest.mark.spec("C95")
@pytest.mark.parametrize(("id_", "facts", "severity", "words"), FINDING_CASES)
def test_a_security_check_reports_its_finding_with_severity_and_reason(
    id_: str, facts: SecurityFacts, severity: SecuritySeverity, words: str
) -> None:
    [found] = CHECKS_BY_ID[id_].findings(facts)
    assert (found.check, found.severity) == (id_, severity)
    assert words in " ".join(found.format_lines())
    assert found.because and found.try_this


@pytest.mark.parametrize(("id_", "facts"), NO_FINDING_CASES)
def test_a_security_check_reports_nothing_for_secure_facts(id_: str, facts: SecurityFacts) -> None:
    assert CHECKS_BY_ID[id_].findings(facts) == []


def test_every_security_check_has_a_finding_case_and_a_unique_id() -> None:
    assert {id_ for id_, *_ in FINDING_CASES} == set(CHECKS_BY_ID)
    assert len(CHECKS_BY_ID) == len(SECURITY_CHECKS)


def test_security_fixes_only_remove_file_permissions_of_others() -> None:
    fixes = {
        id_: found.fix
        for id_, facts, *_ in FINDING_CASES
        for found in CHECKS_BY_ID[id_].findings(facts)
        if found.fix is not None
    }
    assert fixes and all(id_.startswith("files.") for id_ in fixes)
    assert all(fix.mode_after == fix.mode_before & ~0o077 for fix in fixes.values())


@pytest.mark.parametrize("model", ["local/qwen3-4b", "openrouter/meta-llama/llama-3.1-8b-instruct", "x/gemma-27b-it"])
def test_the_security_check_recognizes_a_small_model_by_its_provider_or_its_size(model: str) -> None:
    assert security._explain_small_model(model, None)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("model", ["anthropic/claude-opus-4-5", "x/llama-405b", "openai/gpt-5.2", "x/8bit-special"])
def test_the_security_check_does_not_recognize_a_large_model_as_small(model: str) -> None:
    assert not security._explain_small_model(model, None)  # pyright: ignore[reportPrivateUsage]


def test_the_security_check_finds_plain_text_secrets_in_the_settings_and_not_references() -> None:
    table = {
        "server": {"store": "postgresql://retinue:hunter2@db/retinue", "zone": "UTC"},
        "providers": {
            "a": {"key": {"env": "A_KEY"}, "headers": {"authorization": "Bearer abcdefgh12345678"}},
            "b": {"key": {"file": "/etc/retinue/b"}, "headers": {"x-title": "mine"}},
        },
        "mcp": {"git": {"command": ["git-mcp", "--token", "ghp_0123456789abcdefABCDEF0123"]}},
        "plugins": {"mail": {"settings": {"password": "hunter2", "user": "maria", "tokens_max": 5}}},
        "sandbox": {"secrets": {"x": {"secret": {"env": "sk-proj-abcdefgh12345678"}}}},
    }
    assert set(find_secret_keys(table)) == {
        "server.store",
        "providers.a.headers.authorization",
        "mcp.git.command.2",
        "plugins.mail.settings.password",
        "sandbox.secrets.x.secret.env",
    }


# --- fixes ---


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_security_fix_of_file_permissions_sets_the_new_mode_once(tmp_path: Path) -> None:
    for was, now in ((0o644, 0o600), (0o755, 0o700), (0o440, 0o400), (0o666, 0o600)):
        path = tmp_path / f"{was:o}"
        path.write_text("x")
        path.chmod(was)
        assert f"{was:04o}" in fix_permissions(PermissionFix(path=path, mode_before=was, mode_after=now))
        assert mode(path) == now
        assert fix_permissions(PermissionFix(path=path, mode_before=was, mode_after=now)) == ""


def test_a_security_fix_of_file_permissions_skips_links_missing_files_and_files_of_others(tmp_path: Path) -> None:
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


def test_a_security_fix_of_file_permissions_changes_the_mode_of_a_socket(tmp_path: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    with sock:
        sock.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0o666)
        assert fix_permissions(PermissionFix(path=tmp_path / "s", mode_before=0o666, mode_after=0o600))
    assert mode(tmp_path / "s") == 0o600


# --- the checks on a server ---


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "retinue"
    made.mkdir(mode=0o700)
    return made


def security_context(server: OperationsServer, home: Path, **kw: Any) -> SecurityContext:
    environment = {"RETINUE_HOME": str(home), "PATH": os.environ["PATH"]}
    return SecurityContext(
        data_dir=home, environment=environment, now=NOW, store=server.server.store, is_quick=True, **kw
    )


async def found(at: SecurityContext) -> dict[str, list[SecurityFinding]]:
    by_check: dict[str, list[SecurityFinding]] = {}
    for each in await run_security_checks(at):
        by_check.setdefault(each.check, []).append(each)
    return by_check


@pytest.mark.spec("C95")
async def test_a_security_check_with_fix_closes_files_open_to_others_and_finds_none_the_second_time(home: Path) -> None:
    async with open_operations_server(LocalInstance(home)) as server:
        (home / "keys").mkdir(mode=0o755)
        for path, bits in (("owner-token", 0o644), ("keys/openai", 0o640), ("retinue.toml", 0o664)):
            (home / path).write_text("x = 1" if path.endswith("toml") else "x")
            (home / path).chmod(bits)
        (home / "backups" / "one").mkdir(parents=True)
        (home / "backups" / "one").chmod(0o755)
        home.chmod(0o755)
        at, owner = security_context(server, home), person("owner")
        looked = await check_security(at, owner, fix=False)
        assert looked.health == "problem" and looked.fixed == []
        assert {each.check for each in looked.security if each.fixable} >= {
            "files.data_directory",
            "files.keys",
            "files.settings",
            "files.backups",
        }
        assert mode(home) == 0o755  # the check itself changes nothing
        fixed = await check_security(at, owner, fix=True)
        assert any(str(home / "owner-token") in each and "0644" in each and "0600" in each for each in fixed.fixed)
        assert mode(home) == 0o700 and mode(home / "keys") == 0o700
        assert all(not mode(home / name) & 0o077 for name in ("owner-token", "keys/openai", "retinue.toml"))
        assert not any(each.fixable for each in fixed.security)
        again = await check_security(at, owner, fix=True)
        assert again.fixed == [] and not any(each.fixable for each in again.security)


async def test_only_the_owner_can_apply_security_fixes(home: Path) -> None:
    agent = Principal(address=address.agent_address("ada"), level=PermissionLevel.PRIVILEGED, trust=Trust.AGENT)
    async with open_operations_server(LocalInstance(home)) as server:
        home.chmod(0o755)
        with pytest.raises(NotAllowed):
            await check_security(security_context(server, home), agent, fix=True)
        assert mode(home) == 0o755
        assert (await check_security(security_context(server, home), agent, fix=False)).security
        home.chmod(0o700)


async def test_server_doctor_lists_security_findings_by_severity(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HOME", str(home))
    (home / "retinue.toml").write_text('[sandbox]\nkind = "off"\n')
    (home / "retinue.toml").chmod(0o600)
    async with open_operations_server(LocalInstance(home)) as server:
        (home / "owner-token").write_text("x")
        (home / "owner-token").chmod(0o644)
        body = json.dumps({"security": True, "quick": True}).encode()
        response = json.loads(
            await perform_operation(server.services, person("owner"), OPERATIONS["server.doctor"], body)
        )
        severities = [each["severity"] for each in response["security"]]
        assert severities == sorted(severities, key=["critical", "warning", "info"].index)
        assert {"files.keys", "sandbox.off"} <= {each["check"] for each in response["security"]}
        assert response["lines"][0].startswith("critical")
        assert "--fix would fix 1" in response["lines"][-1]
        plain = json.loads(
            await perform_operation(server.services, person("owner"), OPERATIONS["server.doctor"], b'{"quick":true}')
        )
        assert plain["security"] == [] and any("sandbox" in line and "warning" in line for line in plain["lines"])


async def test_security_facts_are_gathered_from_the_instance(home: Path, tmp_path: Path) -> None:
    synced = tmp_path / "Dropbox" / "retinue"
    synced.mkdir(parents=True, mode=0o700)
    key = tmp_path / "key"
    key.write_text("short\n")
    key.chmod(0o600)
    (synced / "retinue.toml").write_text(
        f'[server]\npermission_policy = {{ "agent.set" = "restricted" }}\n'
        '[tools.outside_senders]\nprofile = "full"\n'
        f'[providers.acme]\nurl = "http://127.0.0.1:9/v1"\nkey = {{ file = "{key}" }}\n'
        'headers = { authorization = "Bearer abcdefgh12345678" }\n'
    )
    link = tmp_path / "link"
    link.symlink_to(synced)
    instance = LocalInstance(synced, agents=(Agent(name="ada", model="scripted", tools=ToolRules(deny=("read",))),))
    async with open_operations_server(instance) as server:

        def body(conn: Any) -> None:
            tx = Transaction(conn, 1)
            sessions.start(tx, "5e" * 16, agent="ada", origin=Origin(OriginKind.CHAT, "telegram:42"))  # type: ignore[arg-type]
            tx.close()

        await server.server.store.write(body, point="test")
        toolbox = Toolbox([ReadTool()])
        at = replace(security_context(server, link, toolbox=toolbox), environment={"RETINUE_HOME": str(link)})
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
        assert {
            "data_directory.link",
            "data_directory.synced",
            "settings.plain_secret",
            "settings.lowered_level",
            "agents.channel_rules",
        } <= set(await found(at))


async def test_a_full_security_check_verifies_the_audit_and_probes_the_sandbox(home: Path) -> None:
    from retinue.domain.audit import call_allowed

    async with open_operations_server(LocalInstance(home)) as server:
        entry = call_allowed("read", "0" * 32, agent="ada", run="ab" * 16)
        await server.server.store.write(
            lambda conn: audit.append_in_transaction(conn, [entry, entry], now_ms=1, chain="5e" * 16), point="test"
        )
        at = replace(security_context(server, home), is_quick=False)
        facts = await gather_facts(at)
        assert facts.audit_flaws == () and facts.probe is not None
        await server.server.execute_sql("UPDATE audit SET who = 'nobody' WHERE position = 2")
        assert "audit.broken" in await found(at)


def test_the_security_facts_take_the_listen_host_from_the_environment(home: Path) -> None:
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


def test_the_doctor_check_of_the_sandbox_reports_a_sandbox_only_if_it_is_off() -> None:
    for sandbox, said in (
        (SandboxSettings(), ""),
        (SANDBOX_OFF, "`sandbox.kind"),
        (SandboxSettings(mode=SandboxMode.OFF), "`sandbox.mode"),
        (SandboxSettings(mode=SandboxMode.NON_MAIN), ""),
    ):
        facts = SettingsFacts(faults=(), settings=replace(SETTINGS, sandbox=sandbox))
        found = list(check_sandbox(facts))
        assert bool(found) is bool(said) and all(said in each.because for each in found)


async def test_refreshing_the_redactor_replaces_old_known_secrets_with_the_current_ones(home: Path) -> None:
    masks = Redactor()
    async with open_operations_server(LocalInstance(home)) as server:
        await refresh_redactor(masks, server.server.store, SETTINGS, {"ACME_API_KEY": "first-value-1"})
        assert masks.redact("first-value-1 second-value-2") == "[secret:env:ACME_API_KEY] second-value-2"
        await refresh_redactor(masks, server.server.store, SETTINGS, {"ACME_API_KEY": "second-value-2"})
        assert masks.redact("first-value-1 second-value-2") == "first-value-1 [secret:env:ACME_API_KEY]"


def test_the_known_secrets_include_every_secret_of_the_instance(tmp_path: Path) -> None:
    from retinue.config.models import ProviderSettings
    from retinue.config.sandbox import SecretRule

    (tmp_path / "keys" / "server").mkdir(parents=True)
    for name, words in (
        ("keys/server/acme:one.0", "kept-by-value-1"),
        ("owner-token", "the-owners-own"),
        ("k", "file-1"),
    ):
        (tmp_path / name).write_text(f"{words}\n")
        (tmp_path / name).chmod(0o600)
    made = replace(
        SETTINGS,
        home=tmp_path,
        store="postgresql://retinue:pass%2Fword@db/retinue",
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
    environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / "k")  # a path, not a secret
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
        "server.store": "pass/word",
        "owner-token": "the-owners-own",
        "keys:acme:one": "kept-by-value-1",
    }


def test_the_known_secrets_include_references_of_mcp_servers_and_skills_but_no_paths_or_plain_text(
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
