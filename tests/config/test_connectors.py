"""Connectors in the settings file: each has its own name, and unknown keys are refused."""

from __future__ import annotations

import pytest
from config.data_directory import SettingsDirectory

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
platform = "telegram"
token_env = "FAMILY_BOT"
dm_policy = "pairing"

[connectors.work]
platform = "telegram"
enabled = false
token_file = "secrets/work-token"
allow_from = ["4711"]
poll_s = 5
groups = { "-100200" = { activation = "always" } }
"""


@pytest.mark.spec("D60")
def test_two_accounts_of_one_platform_are_two_connectors_with_their_own_settings(home: SettingsDirectory) -> None:
    found = home.load(TWO_BOTS).settings.connectors
    family, work = found["family"], found["work"]
    assert (family.platform, family.enabled, family.access.dm_policy) == ("telegram", True, DmPolicy.PAIRING)
    assert isinstance(family.platform_settings, TelegramSettings) and isinstance(
        work.platform_settings, TelegramSettings
    )
    assert (family.platform_settings.token_env, family.platform_settings.token_file) == ("FAMILY_BOT", "")
    assert (work.enabled, work.platform_settings.poll_s, work.access.allow_from) == (False, 5, ("4711",))
    assert work.access.groups["-100200"].activation == "always"
    assert work.access.dm_policy is DmPolicy.CLOSED  # the default


def test_an_unknown_connector_setting_is_refused_with_its_path_and_the_nearest_setting(home: SettingsDirectory) -> None:
    fault = home.fault('[connectors.family]\nplatform = "telegram"\ntoken_evn = "FAMILY_BOT"\n')
    assert fault.path == "connectors.family.token_evn" and "token_env" in fault.try_this
    assert fault.position.line == 3
    assert home.fault('[connectors.family]\nplatform = "telegram"\npoll_s = 0\n').path == "connectors.family.poll_s"
    assert (
        home.fault('[connectors.family]\nplatform = "telegram"\ndm_policy = "opne"\n').path
        == "connectors.family.dm_policy"
    )


def test_a_connector_secret_in_plain_text_in_the_settings_is_refused(home: SettingsDirectory) -> None:
    fault = home.fault('[connectors.family]\nplatform = "telegram"\ntoken = "123:abc-very-secret"\n')
    assert fault.path == "connectors.family.token" and "secret in plain text" in fault.sentence
    assert "very-secret" not in str(fault) and "token_file" in fault.try_this


def test_the_settings_of_a_connector_must_name_a_known_platform(home: SettingsDirectory) -> None:
    assert home.fault("[connectors.family]\n").path == "connectors.family.platform"
    fault = home.fault('[connectors.family]\nplatform = "telegramm"\n')
    assert fault.path == "connectors.family.platform" and "telegram" in fault.try_this


@pytest.mark.spec("C122.whatsapp")
def test_an_unsupported_platform_in_the_settings_is_refused_with_the_reason(home: SettingsDirectory) -> None:
    fault = home.fault('[connectors.family]\nplatform = "whatsapp"\n')
    assert "whatsapp" in fault.sentence and "whatsapp_login" in fault.because
    for name, because in UNSUPPORTED_PLATFORMS.items():
        with pytest.raises(NotFound) as refused:
            PlatformRegistry().find(name)
        assert refused.value.code == "connector.platform_not_supported" and refused.value.because == because
        # The same if a plugin is declared, because it is not installed.
        assert "not a known platform" in home.fault(f'[plugins.x]\n[connectors.family]\nplatform = "{name}"\n').sentence


def test_settings_of_a_platform_from_a_plugin_are_kept_unparsed(home: SettingsDirectory) -> None:
    text = '[plugins.pigeons]\n[connectors.loft]\nplatform = "pigeon"\ndm_policy = "open"\nbirds = 3\n'
    loft = home.load(text).settings.connectors["loft"]
    assert (
        loft.platform_settings == UnparsedConnectorSettings(table={"birds": 3})
        and loft.access.dm_policy is DmPolicy.OPEN
    )
    assert home.fault('[connectors.loft]\nplatform = "pigeon"\n').path == "connectors.loft.platform"


@pytest.mark.parametrize("name", ["Family", "1st", "a b", "external", "completion", "x" * 65])
def test_a_connector_name_in_the_settings_that_is_invalid_in_an_address_is_refused(
    home: SettingsDirectory, name: str
) -> None:
    fault = home.fault(f'[connectors."{name}"]\nplatform = "telegram"\n')
    assert fault.path.startswith("connectors.")


def test_changes_of_connector_settings_are_reported_by_their_path_in_the_file(home: SettingsDirectory) -> None:
    before = home.load(TWO_BOTS)
    home.write(TWO_BOTS.replace('dm_policy = "pairing"', 'dm_policy = "open"').replace("poll_s = 5", "poll_s = 6"))
    changes = {change.path: change.effect for change in reload_configuration(before, home.environment).changes}
    assert changes == {
        "connectors.family.dm_policy": SettingEffect.MESSAGE,
        "connectors.work.poll_s": SettingEffect.HOT,
    }


def test_the_settings_form_shows_a_connector_as_one_section(home: SettingsDirectory) -> None:
    home.write(TWO_BOTS)
    sections = {
        section.path: section
        for section in build_settings_form(examine_configuration(home.environment), home.environment)
    }
    keys = [entry.name for entry in sections["connectors", "family"].fields]
    assert {"connectors.family.platform", "connectors.family.dm_policy", "connectors.family.token_env"} <= set(keys)
    assert not any(".access" in key or ".platform_settings" in key for key in keys)


def test_a_settings_file_without_connectors_configures_no_connector(home: SettingsDirectory) -> None:
    assert home.load("").settings.connectors == {}
    assert ConnectorSettings().platform_settings == UnparsedConnectorSettings()


def test_every_built_in_platform_can_be_imported_and_its_secrets_can_be_files() -> None:
    assert PlatformRegistry().names == PLATFORM_NAMES
    for name in PLATFORM_NAMES:
        kind = import_built_in(name)
        assert kind.name == name and kind.title
        stems = set(iterate_secret_names(kind.settings))
        assert {question.key for question in kind.questions if question.secret} <= stems


def test_a_file_setting_of_a_connector_that_is_no_secret_is_not_listed_as_a_secret() -> None:
    assert list(iterate_secret_names(IrcSettings)) == ["account_password", "password"]
    own = IrcSettings(host="irc.example", tls_ca_file="ca.pem", password_env="IRC")
    assert list(iterate_secrets(own)) == [("password", "IRC", "")]
