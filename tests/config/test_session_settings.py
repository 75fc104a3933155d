"""Settings of sessions and of sending: read completely, or refused with name and line."""

from __future__ import annotations

import pytest
from config.data_directory import SettingsDirectory

from retinue.config import hash_settings_text, load_configuration
from retinue.config.declarations_export import export_declarations
from retinue.config.sessions import ResetSettings, SendRuleSettings, SendSettings, SessionResetSettings
from retinue.config.toml_patch import patch_settings_text
from retinue.domain.agent import Agent
from retinue.domain.reset_rules import ResetRules
from retinue.domain.send_policy import SendAction
from retinue.domain.session_keys import ChatType

ALL_SESSION_SETTINGS = """\
[sessions]
greeting = true

[sessions.reset]
daily_at = "4:00"
idle_minutes = 0.5
context_tokens_max = 120_000

[sessions.reset.by_kind]
group = { idle_minutes = 60 }
terminal = { daily_at = "never" }

[sessions.reset.by_channel.telegram]
context_tokens_max = 0

[sessions.send]
default = "deny"

[sessions.send.rules.family]
action = "allow"
channel = "telegram"
chat_type = "group"
key_prefix = "channel:telegram:-100"
"""


def test_every_session_setting_is_read_from_the_file(home: SettingsDirectory) -> None:
    sessions = home.load(ALL_SESSION_SETTINGS).settings.sessions
    assert sessions.greeting
    assert sessions.reset == SessionResetSettings(
        daily_at="4:00",
        idle_minutes=0.5,
        context_tokens_max=120_000,
        by_kind={"group": ResetSettings(idle_minutes=60), "terminal": ResetSettings(daily_at="never")},
        by_channel={"telegram": ResetSettings(context_tokens_max=0)},
    )
    family = SendRuleSettings(
        action=SendAction.ALLOW, channel="telegram", chat_type=ChatType.GROUP, key_prefix="channel:telegram:-100"
    )
    assert sessions.send == SendSettings(default=SendAction.DENY, rules={"family": family})


def test_session_settings_have_defaults(home: SettingsDirectory) -> None:
    sessions = home.load("").settings.sessions
    assert (sessions.reset, sessions.send, sessions.greeting) == (SessionResetSettings(), SendSettings(), False)


@pytest.mark.parametrize(
    ("text", "path", "sentence"),
    [
        ('[sessions.reset]\ndaily_at = "25:00"', "sessions.reset.daily_at", "must be a time of day such as 04:00"),
        ("[sessions.reset]\nidle_minutes = -1", "sessions.reset.idle_minutes", "must be from 0 to"),
        ("[sessions.reset]\nmaxTokens = 5", "sessions.reset.maxTokens", "is not a setting"),
        ("[sessions.reset.by_kind.cave]\nidle_minutes = 1", "sessions.reset.by_kind.cave", "must be one of"),
        ('[sessions.reset.by_kind.chat]\ndaily_at = "4"', "sessions.reset.by_kind.chat.daily_at", "time of day"),
        ('[sessions.reset.by_channel."a b"]\nidle_minutes = 1', 'sessions.reset.by_channel."a b"', "cannot be a name"),
        ('[sessions.send]\ndefault = "maybe"', "sessions.send.default", "which is not a valid choice"),
        (
            '[sessions.send.rules.x]\nchat_type = "crowd"',
            "sessions.send.rules.x.chat_type",
            "which is not a valid choice",
        ),
        ('[sessions.send.rules.x]\nkey_prefix = ""', "sessions.send.rules.x.key_prefix", "a key prefix"),
        ('[agents.ada]\nreset = { daily_at = "noon" }', "agents.ada.reset.daily_at", "must be a time of day"),
        ("[agents.ada.reset]\ncontext_tokens_max = 1.5", "agents.ada.reset.context_tokens_max", "a whole number"),
    ],
)
def test_invalid_session_settings_are_refused_with_path_and_line(
    home: SettingsDirectory, text: str, path: str, sentence: str
) -> None:
    fault = home.fault(f"\n\n{text}")
    assert fault.path == path
    assert sentence in fault.sentence
    assert fault.position.line in (3, 4)


def test_the_reset_rules_of_an_agent_are_read_from_the_settings_and_exported(home: SettingsDirectory) -> None:
    rules = ResetRules(daily_at="05:30", idle_minutes=90, context_tokens_max=0)
    ada = Agent(name="ada", reset=rules)
    (declared,) = home.load(
        '[agents.ada.reset]\ndaily_at = "05:30"\nidle_minutes = 90\ncontext_tokens_max = 0'
    ).declarations.agents
    assert declared == ada
    assert home.load(export_declarations([ada], [])).declarations.agents == (ada,)


def test_a_patch_of_session_settings_keeps_the_rest_of_the_file(home: SettingsDirectory) -> None:
    text = '# Ours.\n[sessions.reset]\ndaily_at = "04:00"  # early\n'
    changes = {"sessions": {"reset": {"idle_minutes": 30, "by_kind": {"group": {"idle_minutes": 5}}}}}
    result = patch_settings_text(
        text,
        changes,
        expected_hash=hash_settings_text(text),
        validate=lambda made: load_configuration(home.environment, text=made),
    )
    assert result.startswith(text)
    reset = home.load(result).settings.sessions.reset
    assert (reset.daily_at, reset.idle_minutes, reset.by_kind["group"].idle_minutes) == ("04:00", 30, 5)
