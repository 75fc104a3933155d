"""The documentation of settings agrees with the code."""

from __future__ import annotations

import re

from config.data_directory import SettingsDirectory

from retinue.config.settings_docs import PAGE_PATH, render_settings_page

GUIDE = PAGE_PATH.parent.parent / "guides" / "configure.md"


def test_the_settings_reference_page_is_up_to_date() -> None:
    assert PAGE_PATH.read_text(encoding="utf-8") == render_settings_page()


def test_the_sample_in_the_configuration_guide_is_a_valid_settings_file(home: SettingsDirectory) -> None:
    sample = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0]
    configuration = home.load(sample)
    assert configuration.default_agent == "ada"
    staff = {each.name: each for each in configuration.declarations.agents}
    assert staff["ada"].tools.deny == () and staff["ada"].turns_max == 30
    assert staff["ada"].instructions == "Answer in German."
    assert staff["night-clerk"].tools.deny == ("web",)
    uncommented = sample.replace("# store =", "store =")
    [store] = re.findall(
        r'^store = "(postgresql://retinue:\$\{RETINUE_DB_PASSWORD\}@db\.example/\w+)"', uncommented, re.MULTILINE
    )
    expected = store.replace("${RETINUE_DB_PASSWORD}", "x")
    assert home.load(uncommented, RETINUE_DB_PASSWORD="x").settings.store == expected


def test_the_settings_error_shown_in_the_configuration_guide_is_the_real_error(home: SettingsDirectory) -> None:
    fault = home.fault("\n" * 9 + "[server.listen]\nprot = 1")
    page = GUIDE.read_text(encoding="utf-8")
    assert (
        f"error: {fault.sentence} (/home/you/.retinue/retinue.toml, line {fault.position.line}) [config.invalid]"
        in page
    )
    assert f"because: {fault.because}" in page and f"try: {fault.try_this}" in page
