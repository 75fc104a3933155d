"""Between two readings: what changed, when it takes effect, and what is kept until a restart."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest
from config.data_directory import Home

from retinue.config import InvalidSettings, SettingChange, SettingEffect, diff_configurations, reload_configuration
from retinue.config.settings import Settings
from retinue.config.table_parser import setting_rule


def test_nothing_changed_is_no_change(home: Home) -> None:
    configuration = home.load("[house]\ndrain_s = 1\n[agents.ada]")
    reloaded = reload_configuration(configuration, home.environment)
    assert reloaded.changes == ()
    assert reloaded.configuration == configuration


@pytest.mark.spec("C4")
def test_each_change_says_when_it_takes_effect(home: Home) -> None:
    old = home.load("[house]\ndefault_agent = 'a'\n[house.permission_policy]\n'agent.set' = 'boss'\n'b.c' = 'boss'")
    new = home.load(
        "[house]\ndefault_agent = 'b'\nzone = 'Europe/Berlin'\n[house.permission_policy]\n'agent.set' = 'standard'\n"
        "[house.logs]\nlevel = 'debug'\n[house.listen]\nport = 1"
    )
    assert diff_configurations((old.settings, old.declarations), (new.settings, new.declarations)) == [
        SettingChange("house.default_agent", SettingEffect.MESSAGE),
        SettingChange("house.listen.port", SettingEffect.RESTART),
        SettingChange("house.logs.level", SettingEffect.HOT),
        SettingChange('house.permission_policy."agent.set"', SettingEffect.MESSAGE),
        SettingChange('house.permission_policy."b.c"', SettingEffect.MESSAGE),
        SettingChange("house.zone", SettingEffect.RESTART),
    ]


def test_declared_staff_waits_for_apply(home: Home) -> None:
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
def test_a_reload_applies_what_it_can_and_reports_the_rest_as_waiting_for_a_restart(home: Home) -> None:
    running = home.load("[house]\ndrain_s = 1\n[house.listen]\nport = 1000")
    home.write("[house]\ndrain_s = 2\n[house.listen]\nport = 2000\n[house.logs]\nlevel = 'error'")
    first = reload_configuration(running, home.environment)
    assert first.settings.drain_s == 2
    assert first.settings.logs.level == "error"
    assert first.settings.listen.port == 1000
    assert first.pending_restart == (SettingChange("house.listen.port", SettingEffect.RESTART),)
    second = reload_configuration(first.configuration, home.environment)
    assert second.changes == second.pending_restart == first.pending_restart, (
        "it waits until the restart, and not only once"
    )
    home.write("[house]\ndrain_s = 2\n[house.listen]\nport = 1000\n[house.logs]\nlevel = 'error'")
    assert reload_configuration(second.configuration, home.environment).changes == ()


def test_a_reload_never_leaves_an_open_door_without_what_guards_it(home: Home) -> None:
    guarded = "[house]\npublic_url = 'https://h.example'\ntrusted_proxies = ['10.0.0.1']\n[house.listen]\nhost = '::'"
    running = home.load(guarded)
    home.write("")
    reloaded = reload_configuration(running, home.environment)
    assert reloaded.settings.listen.host == "::"
    assert reloaded.settings.public_url == "https://h.example" and reloaded.settings.trusted_proxies == ("10.0.0.1",)


def test_a_reload_of_a_broken_file_changes_nothing(home: Home) -> None:
    running = home.load("[house]\ndrain_s = 1")
    home.write("[house]\ndrain_s = 2\nprot = 1")
    with pytest.raises(InvalidSettings):
        reload_configuration(running, home.environment)


def test_places_and_doors_take_effect_with_a_restart() -> None:
    effects = {each.name: setting_rule(each).effect for each in fields(Settings) if not is_dataclass(each.default)}
    assert {name for name, effect in effects.items() if effect is SettingEffect.RESTART} == {
        "home",
        "store",
        "zone",
        "public_url",
        "trusted_proxies",
    }
