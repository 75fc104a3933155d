"""The difference between two readings: what changed, when it takes effect, and what waits for a restart."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest
from config.data_directory import SettingsDirectory

from retinue.config import InvalidSettings, SettingChange, SettingEffect, diff_configurations, reload_configuration
from retinue.config.settings import Settings
from retinue.config.table_parser import setting_rule


def test_reloading_unchanged_settings_reports_no_change(home: SettingsDirectory) -> None:
    configuration = home.load("[server]\ndrain_s = 1\n[agents.ada]")
    reloaded = reload_configuration(configuration, home.environment)
    assert reloaded.changes == ()
    assert reloaded.configuration == configuration


@pytest.mark.spec("C4")
def test_each_setting_change_has_its_effect(home: SettingsDirectory) -> None:
    old = home.load("[server]\ndefault_agent = 'a'\n[server.permission_policy]\n'agent.set' = 'boss'\n'b.c' = 'boss'")
    new = home.load(
        "[server]\ndefault_agent = 'b'\nzone = 'Europe/Berlin'\n[server.permission_policy]\n'agent.set' = 'standard'\n"
        "[server.logs]\nlevel = 'debug'\n[server.listen]\nport = 1"
    )
    assert diff_configurations((old.settings, old.declarations), (new.settings, new.declarations)) == [
        SettingChange("server.default_agent", SettingEffect.MESSAGE),
        SettingChange("server.listen.port", SettingEffect.RESTART),
        SettingChange("server.logs.level", SettingEffect.HOT),
        SettingChange('server.permission_policy."agent.set"', SettingEffect.MESSAGE),
        SettingChange('server.permission_policy."b.c"', SettingEffect.MESSAGE),
        SettingChange("server.zone", SettingEffect.RESTART),
    ]


def test_changes_of_declared_agents_and_people_wait_for_apply(home: SettingsDirectory) -> None:
    old = home.load("[templates.t]\nmodel = 'a'\n[agents.ada]\nextends = 't'\n[agents.bob]\n[people.m]\nrole = 'guest'")
    new = home.load(
        "[templates.t]\nmodel = 'b'\n[agents.ada]\nextends = 't'\n[agents.eve]\n[people.m]\nrole = 'member'"
    )
    assert diff_configurations((old.settings, old.declarations), (new.settings, new.declarations)) == [
        SettingChange("agents.ada.model", SettingEffect.APPLY),
        SettingChange("agents.bob", SettingEffect.APPLY),
        SettingChange("agents.eve", SettingEffect.APPLY),
        SettingChange("people.m.role", SettingEffect.APPLY),
    ]


@pytest.mark.spec("C4")
def test_a_reload_applies_hot_settings_and_reports_others_as_waiting_for_a_restart(home: SettingsDirectory) -> None:
    running = home.load("[server]\ndrain_s = 1\n[server.listen]\nport = 1000")
    home.write("[server]\ndrain_s = 2\n[server.listen]\nport = 2000\n[server.logs]\nlevel = 'error'")
    first = reload_configuration(running, home.environment)
    assert first.settings.drain_s == 2
    assert first.settings.logs.level == "error"
    assert first.settings.listen.port == 1000
    assert first.pending_restart == (SettingChange("server.listen.port", SettingEffect.RESTART),)
    second = reload_configuration(first.configuration, home.environment)
    assert second.changes == second.pending_restart == first.pending_restart, (
        "it waits for the restart after every reload"
    )
    home.write("[server]\ndrain_s = 2\n[server.listen]\nport = 1000\n[server.logs]\nlevel = 'error'")
    assert reload_configuration(second.configuration, home.environment).changes == ()


def test_a_reload_keeps_proxy_settings_while_the_server_listens_beyond_loopback(home: SettingsDirectory) -> None:
    guarded = "[server]\npublic_url = 'https://h.example'\ntrusted_proxies = ['10.0.0.1']\n[server.listen]\nhost = '::'"
    running = home.load(guarded)
    home.write("")
    reloaded = reload_configuration(running, home.environment)
    assert reloaded.settings.listen.host == "::"
    assert reloaded.settings.public_url == "https://h.example" and reloaded.settings.trusted_proxies == ("10.0.0.1",)


def test_a_reload_of_an_invalid_settings_file_is_refused(home: SettingsDirectory) -> None:
    running = home.load("[server]\ndrain_s = 1")
    home.write("[server]\ndrain_s = 2\nprot = 1")
    with pytest.raises(InvalidSettings):
        reload_configuration(running, home.environment)


def test_changes_of_directory_store_zone_and_proxy_settings_need_a_restart() -> None:
    effects = {each.name: setting_rule(each).effect for each in fields(Settings) if not is_dataclass(each.default)}
    assert {name for name, effect in effects.items() if effect is SettingEffect.RESTART} == {
        "home",
        "store",
        "zone",
        "public_url",
        "trusted_proxies",
    }
