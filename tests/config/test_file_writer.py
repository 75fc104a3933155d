"""The settings file is written completely or not at all, and only if it has not changed since it was read."""

from __future__ import annotations

import os

import pytest
from config.data_directory import SettingsDirectory

from retinue.config import InvalidSettings, SettingChange, SettingEffect, hash_settings_text
from retinue.config.file_writer import patch_settings_file, replace_settings_file
from retinue.domain.errors import Conflict, Invalid


def test_a_settings_patch_is_written_and_its_changes_returned(home: SettingsDirectory) -> None:
    before = home.load("# mine\n[server]\ndrain_s = 1 # short\n")
    written = patch_settings_file(
        home.environment, {"server": {"drain_s": 2}, "agents": {"ada": {}}}, expected_hash=before.hash
    )
    assert home.file.read_text() == "# mine\n[server]\ndrain_s = 2 # short\n\n[agents.ada]\n"
    assert written.changes == (
        SettingChange("agents.ada", SettingEffect.APPLY),
        SettingChange("server.drain_s", SettingEffect.HOT),
    )
    assert written.configuration == home.load()


def test_a_missing_settings_file_is_created_with_private_mode(home: SettingsDirectory) -> None:
    patch_settings_file(home.environment, {"server": {"drain_s": 2}}, expected_hash=home.load().hash)
    assert home.file.stat().st_mode & 0o777 == 0o600
    assert home.load().settings.drain_s == 2


def test_a_settings_patch_keeps_file_mode_and_symbolic_link(home: SettingsDirectory) -> None:
    target = home.write("[server]\ndrain_s = 1\n", name="kept/real.toml")
    target.chmod(0o640)
    home.file.symlink_to(target)
    patch_settings_file(home.environment, {"server": {"drain_s": 2}}, expected_hash=home.load().hash)
    assert home.file.is_symlink()
    assert target.read_text() == "[server]\ndrain_s = 2\n"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_settings_patch_with_an_unknown_key_is_refused_and_the_file_stays_unchanged(home: SettingsDirectory) -> None:
    before = home.load("[server]\ndrain_s = 1\n")
    with pytest.raises(InvalidSettings, match=r"server\.listen\.prot is not a setting"):
        patch_settings_file(home.environment, {"server": {"listen": {"prot": 2}}}, expected_hash=before.hash)
    assert home.file.read_text() == "[server]\ndrain_s = 1\n"
    assert os.listdir(home.folder) == ["retinue.toml"]


def test_a_settings_patch_with_a_secret_in_plain_text_is_refused(home: SettingsDirectory) -> None:
    with pytest.raises(InvalidSettings, match="a secret in plain text"):
        patch_settings_file(home.environment, {"agents": {"ada": {"token": "x"}}}, expected_hash=hash_settings_text(""))


def test_a_settings_patch_can_repair_a_broken_file(home: SettingsDirectory) -> None:
    home.write("[server]\nprot = 1\ndrain_s = 3\n")
    written = patch_settings_file(
        home.environment, {"server": {"prot": None}}, expected_hash=hash_settings_text(home.file.read_text())
    )
    assert written.configuration.settings.drain_s == 3


def test_a_settings_file_changed_in_between_is_not_overwritten(home: SettingsDirectory) -> None:
    before = home.load("[server]\ndrain_s = 1\n")
    home.write("[server]\ndrain_s = 9\n")
    with pytest.raises(Conflict) as refused:
        patch_settings_file(home.environment, {"server": {"drain_s": 2}}, expected_hash=before.hash)
    assert refused.value.code == "config.changed"
    with pytest.raises(Conflict):
        replace_settings_file(home.file, "x = 1", expected_hash=before.hash)
    assert home.file.read_text() == "[server]\ndrain_s = 9\n"
    assert os.listdir(home.folder) == ["retinue.toml"]


def test_included_files_are_read_when_a_settings_patch_is_checked(home: SettingsDirectory) -> None:
    home.write("[templates.t]\nmodel = 'm'", name="t.toml")
    before = home.load("include = ['t.toml']\n")
    written = patch_settings_file(home.environment, {"agents": {"ada": {"extends": "t"}}}, expected_hash=before.hash)
    assert written.configuration.declarations.agents[0].model == "m"


def test_a_settings_file_that_is_not_utf_8_is_not_changed(home: SettingsDirectory) -> None:
    home.file.write_bytes(b"\xff")
    with pytest.raises(Invalid, match="cannot read"):
        patch_settings_file(home.environment, {"server": {"drain_s": 2}}, expected_hash="")
