"""The settings file is written whole or not at all, and only over the text that it was meant for."""

from __future__ import annotations

import os

import pytest
from config.data_directory import Home

from retinue.config import InvalidSettings, SettingChange, SettingEffect, hash_settings_text
from retinue.config.file_writer import patch_settings_file, replace_settings_file
from retinue.domain.errors import Conflict, Invalid


def test_a_change_is_written_and_told(home: Home) -> None:
    before = home.load("# mine\n[house]\ndrain_s = 1 # short\n")
    written = patch_settings_file(
        home.environment, {"house": {"drain_s": 2}, "agents": {"ada": {}}}, expected_hash=before.hash
    )
    assert home.file.read_text() == "# mine\n[house]\ndrain_s = 2 # short\n\n[agents.ada]\n"
    assert written.changes == (
        SettingChange("agents.ada", SettingEffect.APPLY),
        SettingChange("house.drain_s", SettingEffect.HOT),
    )
    assert written.configuration == home.load()


def test_a_file_that_is_not_there_yet_is_made_for_its_owner_alone(home: Home) -> None:
    patch_settings_file(home.environment, {"house": {"drain_s": 2}}, expected_hash=home.load().hash)
    assert home.file.stat().st_mode & 0o777 == 0o600
    assert home.load().settings.drain_s == 2


def test_mode_and_link_stay(home: Home) -> None:
    target = home.write("[house]\ndrain_s = 1\n", name="kept/real.toml")
    target.chmod(0o640)
    home.file.symlink_to(target)
    patch_settings_file(home.environment, {"house": {"drain_s": 2}}, expected_hash=home.load().hash)
    assert home.file.is_symlink()
    assert target.read_text() == "[house]\ndrain_s = 2\n"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_change_that_would_break_the_settings_is_refused_with_the_path_and_the_file_stays(home: Home) -> None:
    before = home.load("[house]\ndrain_s = 1\n")
    with pytest.raises(InvalidSettings, match=r"house\.listen\.prot is not a setting"):
        patch_settings_file(home.environment, {"house": {"listen": {"prot": 2}}}, expected_hash=before.hash)
    assert home.file.read_text() == "[house]\ndrain_s = 1\n"
    assert os.listdir(home.folder) == ["retinue.toml"]


def test_a_secret_cannot_be_written_in_plain_text(home: Home) -> None:
    with pytest.raises(InvalidSettings, match="a secret in plain text"):
        patch_settings_file(home.environment, {"agents": {"ada": {"token": "x"}}}, expected_hash=hash_settings_text(""))


def test_a_change_may_mend_a_broken_file(home: Home) -> None:
    home.write("[house]\nprot = 1\ndrain_s = 3\n")
    written = patch_settings_file(
        home.environment, {"house": {"prot": None}}, expected_hash=hash_settings_text(home.file.read_text())
    )
    assert written.configuration.settings.drain_s == 3


def test_a_file_that_was_saved_in_between_is_not_overwritten(home: Home) -> None:
    before = home.load("[house]\ndrain_s = 1\n")
    home.write("[house]\ndrain_s = 9\n")
    with pytest.raises(Conflict) as refused:
        patch_settings_file(home.environment, {"house": {"drain_s": 2}}, expected_hash=before.hash)
    assert refused.value.code == "config.changed"
    with pytest.raises(Conflict):
        replace_settings_file(home.file, "x = 1", expected_hash=before.hash)
    assert home.file.read_text() == "[house]\ndrain_s = 9\n"
    assert os.listdir(home.folder) == ["retinue.toml"]


def test_included_files_are_followed_when_a_change_is_checked(home: Home) -> None:
    home.write("[templates.t]\nmodel = 'm'", name="t.toml")
    before = home.load("include = ['t.toml']\n")
    written = patch_settings_file(home.environment, {"agents": {"ada": {"extends": "t"}}}, expected_hash=before.hash)
    assert written.configuration.declarations.agents[0].model == "m"


def test_a_file_that_is_not_text_is_not_changed(home: Home) -> None:
    home.file.write_bytes(b"\xff")
    with pytest.raises(Invalid, match="cannot read"):
        patch_settings_file(home.environment, {"house": {"drain_s": 2}}, expected_hash="")
