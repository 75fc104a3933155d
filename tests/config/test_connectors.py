"""Connectors in the settings file: every account of ours under a name of its own, strict to the last key."""

from __future__ import annotations

import pytest
from config.data_directory import Home

from retinue.config import SettingEffect, examine_configuration, reload_configuration
from retinue.config.connectors import (
    ConnectorSettings,
    UnparsedConnectorSettings,
    iterate_secret_names,
    iterate_secrets,
)
from retinue.config.settings_form import build_settings_form
from retinue.connectors.connector_registry import (
    PLATFORM_NAMES,
    UNSUPPORTED_PLATFORMS,
    PlatformRegistry,
    import_built_in,
)
from retinue.connectors.irc.settings import IrcSettings
from retinue.connectors.telegram.settings import TelegramSettings
from retinue.domain.access import DmPolicy
from retinue.domain.errors import NotFound

TWO_BOTS = """
[connectors.family]
kind = "telegram"
token_env = "FAMILY_BOT"
dm = "pairing"

[connectors.work]
kind = "telegram"
enabled = false
token_file = "secrets/work-token"
allow_from = ["4711"]
poll_s = 5
groups = { "-100200" = { activation = "always" } }
"""


@pytest.mark.spec("D60")
def test_two_accounts_of_one_kind_are_two_connectors_each_with_keys_of_its_own(home: Home) -> None:
    found = home.load(TWO_BOTS).settings.connectors
    family, work = found["family"], found["work"]
    assert (family.kind, family.enabled, family.door.dm) == ("telegram", True, DmPolicy.PAIRING)
    assert isinstance(family.own, TelegramSettings) and isinstance(work.own, TelegramSettings)
    assert (family.own.token_env, family.own.token_file) == ("FAMILY_BOT", "")
    assert (work.enabled, work.own.poll_s, work.door.allow_from) == (False, 5, ("4711",))
    assert work.door.groups["-100200"].activation == "always"
    assert work.door.dm is DmPolicy.CLOSED  # nobody said otherwise


def test_an_unknown_key_is_refused_with_its_full_path_and_the_one_that_was_meant(home: Home) -> None:
    fault = home.fault('[connectors.family]\nkind = "telegram"\ntoken_evn = "FAMILY_BOT"\n')
    assert fault.path == "connectors.family.token_evn" and "token_env" in fault.try_this
    assert fault.position.line == 3
    assert home.fault('[connectors.family]\nkind = "telegram"\npoll_s = 0\n').path == "connectors.family.poll_s"
    assert home.fault('[connectors.family]\nkind = "telegram"\ndm = "opne"\n').path == "connectors.family.dm"


def test_a_secret_stands_in_no_settings_file(home: Home) -> None:
    fault = home.fault('[connectors.family]\nkind = "telegram"\ntoken = "123:abc-very-secret"\n')
    assert fault.path == "connectors.family.token" and "secret in plain text" in fault.sentence
    assert "very-secret" not in str(fault) and "token_file" in fault.try_this


def test_the_kind_must_be_said_and_must_be_one_that_there_is(home: Home) -> None:
    assert home.fault("[connectors.family]\n").path == "connectors.family.kind"
    fault = home.fault('[connectors.family]\nkind = "telegramm"\n')
    assert fault.path == "connectors.family.kind" and "telegram" in fault.try_this


@pytest.mark.spec("C122.whatsapp")
def test_a_channel_that_is_not_here_is_refused_by_its_name_with_the_reason(home: Home) -> None:
    fault = home.fault('[connectors.family]\nkind = "whatsapp"\n')
    assert "whatsapp" in fault.sentence and "whatsapp_login" in fault.because
    for name, because in UNSUPPORTED_PLATFORMS.items():
        with pytest.raises(NotFound) as refused:
            PlatformRegistry().find(name)
        assert refused.value.code == "connector.platform_not_supported" and refused.value.because == because
        # Not even where a plug-in might bring something: it would have to be there first.
        assert "not a known platform" in home.fault(f'[plugins.x]\n[connectors.family]\nkind = "{name}"\n').sentence


def test_a_kind_that_a_plug_in_may_bring_keeps_its_keys_until_it_is_there(home: Home) -> None:
    text = '[plugins.pigeons]\n[connectors.loft]\nkind = "pigeon"\ndm = "open"\nbirds = 3\n'
    loft = home.load(text).settings.connectors["loft"]
    assert loft.own == UnparsedConnectorSettings(table={"birds": 3}) and loft.door.dm is DmPolicy.OPEN
    assert home.fault('[connectors.loft]\nkind = "pigeon"\n').path == "connectors.loft.kind"


@pytest.mark.parametrize("name", ["Family", "1st", "a b", "external", "completion", "x" * 65])
def test_a_name_that_cannot_stand_in_an_address_is_refused(home: Home, name: str) -> None:
    fault = home.fault(f'[connectors."{name}"]\nkind = "telegram"\n')
    assert fault.path.startswith("connectors.")


def test_what_changed_is_told_by_the_path_it_has_in_the_file(home: Home) -> None:
    before = home.load(TWO_BOTS)
    home.write(TWO_BOTS.replace('dm = "pairing"', 'dm = "open"').replace("poll_s = 5", "poll_s = 6"))
    changes = {change.path: change.effect for change in reload_configuration(before, home.environment).changes}
    assert changes == {"connectors.family.dm": SettingEffect.MESSAGE, "connectors.work.poll_s": SettingEffect.HOT}


def test_the_form_shows_a_connector_as_one_table(home: Home) -> None:
    home.write(TWO_BOTS)
    sections = {
        section.path: section
        for section in build_settings_form(examine_configuration(home.environment), home.environment)
    }
    keys = [entry.name for entry in sections["connectors", "family"].fields]
    assert {"connectors.family.kind", "connectors.family.dm", "connectors.family.token_env"} <= set(keys)
    assert not any(".door" in key or ".own" in key for key in keys)


def test_a_house_without_connectors_has_none(home: Home) -> None:
    assert home.load("").settings.connectors == {}
    assert ConnectorSettings().own == UnparsedConnectorSettings()


def test_every_kind_of_the_house_is_there_and_its_secrets_can_lie_in_a_file() -> None:
    assert PlatformRegistry().names == PLATFORM_NAMES
    for name in PLATFORM_NAMES:
        kind = import_built_in(name)
        assert kind.name == name and kind.title
        stems = set(iterate_secret_names(kind.settings))
        assert {question.key for question in kind.questions if question.secret} <= stems


def test_a_file_that_may_be_anything_is_not_taken_for_a_secret() -> None:
    assert list(iterate_secret_names(IrcSettings)) == ["account_password", "password"]
    own = IrcSettings(host="irc.example", tls_ca_file="ca.pem", password_env="IRC")
    assert list(iterate_secrets(own)) == [("password", "IRC", "")]
