"""Several files become one tree, and variables are filled in. Errors name their file and line."""

from __future__ import annotations

import pytest
from config.data_directory import SettingsDirectory
from hypothesis import given
from hypothesis import strategies as st

from retinue.config import InvalidSettings
from retinue.config.errors import FaultCollector
from retinue.config.toml_source import FILES_MAX, INCLUDE_DEPTH_MAX, FileAccess, SettingsReader, merge_tables


@pytest.mark.spec("C2")
def test_included_settings_files_are_merged_deeply_and_later_ones_override(home: SettingsDirectory) -> None:
    home.write("[server]\ndrain_s = 1\n[server.slots]\nmain = 1\nsubagent = 1\nschedule = 1", name="base.toml")
    home.write("[server.slots]\nsubagent = 2\nschedule = 2", name="conf.d/10.toml")
    home.write("[server.slots]\nschedule = 3\nbackground = 3", name="conf.d/20.toml")
    configuration = home.load('include = ["base.toml", "conf.d/*.toml"]\n[server.slots]\nbackground = 9')
    slots = configuration.settings.slots
    assert (slots.main, slots.subagent, slots.schedule, slots.background) == (1, 2, 3, 9)
    assert configuration.settings.drain_s == 1
    assert [file.name for file in configuration.files] == ["retinue.toml", "base.toml", "10.toml", "20.toml"]


def test_include_paths_of_settings_files_are_relative_to_the_including_file(home: SettingsDirectory) -> None:
    home.write('include = ["inner.toml"]', name="sub/outer.toml")
    home.write("[server]\ndrain_s = 4", name="sub/inner.toml")
    assert home.load('include = "sub/outer.toml"').settings.drain_s == 4


def test_an_error_in_an_included_settings_file_names_that_file_and_its_line(home: SettingsDirectory) -> None:
    inner = home.write("\n\n[server]\ndrain_s = 'x'", name="inner.toml")
    outer = "# first\ninclude = ['inner.toml']\n[server]\nprot = 1"
    faults = home.faults(outer)
    assert (faults["server.drain_s"].position.file, faults["server.drain_s"].position.line) == (inner, 4)
    assert (faults["server.prot"].position.file, faults["server.prot"].position.line) == (home.file, 4)


def test_an_error_in_an_overriding_setting_names_the_overriding_file(home: SettingsDirectory) -> None:
    home.write("[server]\ndrain_s = 1\n", name="a.toml")
    later = home.write("[server]\n\n\ndrain_s = 'x'\n", name="b.toml")
    fault = home.fault("include = ['a.toml', 'b.toml']")
    assert (fault.position.file, fault.position.line) == (later, 4)


@pytest.mark.spec("C2")
def test_circular_includes_of_settings_files_are_refused_with_the_cycle(home: SettingsDirectory) -> None:
    a = home.write("include = ['sub/../b.toml']", name="a.toml")
    b = home.write("include = ['a.toml']", name="b.toml")
    fault = home.fault("include = ['a.toml']")
    assert fault.path == "include[0]"
    assert fault.because == f"{a} -> {b} -> {a}"


def test_a_settings_file_that_includes_itself_is_refused_as_circular(home: SettingsDirectory) -> None:
    assert "circular" in home.fault("include = ['retinue.toml']").sentence


def test_a_settings_file_can_be_included_twice_without_a_cycle(home: SettingsDirectory) -> None:
    home.write("[server]\ndrain_s = 1", name="a.toml")
    home.write("include = ['a.toml']", name="b.toml")
    assert home.load("include = ['a.toml', 'b.toml']").settings.drain_s == 1


def test_the_depth_of_included_settings_files_is_limited(home: SettingsDirectory) -> None:
    for number in range(INCLUDE_DEPTH_MAX + 1):
        home.write(f"include = ['{number + 1}.toml']", name=f"{number}.toml")
    home.write("", name=f"{INCLUDE_DEPTH_MAX + 1}.toml")
    assert "too deep" in home.fault("include = ['0.toml']").sentence
    home.write("", name=f"{INCLUDE_DEPTH_MAX - 1}.toml")
    assert home.load()


def test_the_number_of_included_settings_files_is_limited(home: SettingsDirectory) -> None:
    for number in range(FILES_MAX + 20):
        home.write("", name=f"conf.d/{number:03}.toml")
    faults = home.faults("include = ['conf.d/*.toml']")
    assert str(FILES_MAX) in faults["include[0]"].because


def test_an_included_settings_file_must_exist_but_an_include_pattern_can_match_nothing(home: SettingsDirectory) -> None:
    fault = home.fault("include = ['none/*.toml', 'none.toml']")
    assert fault.path == "include[1]"
    assert str(home.folder / "none.toml") in fault.sentence


@pytest.mark.parametrize("include", ["3", "[3]", "['']", "{ a = 1 }", "['/**/*.toml']"])
def test_an_include_of_a_settings_file_that_is_no_file_name_is_refused(home: SettingsDirectory, include: str) -> None:
    fault = home.fault(f"include = {include}")
    assert fault.path.startswith("include")
    assert fault.because and fault.try_this


def test_config_version_is_checked_in_included_settings_files(home: SettingsDirectory) -> None:
    file = home.write("config_version = 1", name="a.toml")
    assert home.fault("include = ['a.toml']").position.file == file


@pytest.mark.spec("A1", "C2")
def test_environment_variables_in_settings_are_expanded_at_any_depth(home: SettingsDirectory) -> None:
    text = "[agents.ada]\ndescription = 'a ${ONE} b ${TWO}'\ntools = { allow = ['x', '${TWO}'] }"
    agent = home.load(text, ONE="1", TWO="2").declarations.agents[0]
    assert agent.description == "a 1 b 2"
    assert agent.tools.allow == ("x", "2")


@pytest.mark.spec("C2")
def test_an_unset_or_empty_variable_in_the_settings_is_refused_with_the_path(home: SettingsDirectory) -> None:
    faults = home.faults("[agents.ada.tools]\nallow = ['x',\n '${NOT_SET}']\nask = ['${EMPTY}']", EMPTY="")
    assert set(faults) == {"agents.ada.tools.allow[1]", "agents.ada.tools.ask[0]"}
    assert "needs the environment variable NOT_SET" in faults["agents.ada.tools.allow[1]"].sentence
    assert faults["agents.ada.tools.allow[1]"].position.line == 3


@pytest.mark.spec("C2")
def test_a_doubled_dollar_sign_in_the_settings_escapes_a_variable(home: SettingsDirectory) -> None:
    text = "[agents.ada]\ndescription = '$${HOME} $5 $$ {x} $$${NAME}'"
    assert home.load(text, NAME="n").declarations.agents[0].description == "${HOME} $5 $$ {x} $${NAME}"


@pytest.mark.parametrize("text", ["${", "${}", "${a-b}", "${1A}", "${ A }", "a ${A"])
def test_an_invalid_variable_reference_in_the_settings_is_refused(home: SettingsDirectory, text: str) -> None:
    assert "without a valid variable name" in home.fault(f"[agents.ada]\ndescription = '{text}'", A="1").sentence


def test_the_value_of_a_variable_in_the_settings_is_not_expanded_again(home: SettingsDirectory) -> None:
    text = "[agents.ada]\ndescription = '${ONE}'"
    assert home.load(text, ONE="${TWO}", TWO="2").declarations.agents[0].description == "${TWO}"


@given(text=st.text(alphabet="ab$${}AB \n"), value=st.text(alphabet="${}AB", min_size=1))
def test_expanding_variables_in_any_settings_text_raises_no_error_and_restores_escaped_text(
    text: str, value: str
) -> None:
    faults = FaultCollector()
    source = SettingsReader(FileAccess(read=lambda _: "", glob=lambda _, __: []), {"A": value}, faults)
    source._expand_text(text, ("x",))
    faults = FaultCollector()
    source = SettingsReader(FileAccess(read=lambda _: "", glob=lambda _, __: []), {}, faults)
    assert source._expand_text(text.replace("${", "$${"), ("x",)) == text
    assert faults.count == 0


TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=12
).filter(lambda tree: isinstance(tree, dict))


@given(a=TREES, b=TREES, c=TREES)
def test_merging_settings_tables_is_idempotent_and_associative_in_the_keys(a: dict, b: dict, c: dict) -> None:
    assert merge_tables(merge_tables(a, b), b) == merge_tables(a, b)
    assert merge_tables({}, a) == merge_tables(a, {}) == a
    left, right = merge_tables(merge_tables(a, b), c), merge_tables(a, merge_tables(b, c))
    assert left.keys() == right.keys()


def test_settings_files_that_are_not_toml_add_only_their_syntax_errors(home: SettingsDirectory) -> None:
    home.write("[server]\nprot = ", name="a.toml")
    home.write("include = ['a.toml']\n[server]\nport = 1")
    with pytest.raises(InvalidSettings) as refused:
        home.load()
    assert [str(fault.position.file) for fault in refused.value.faults] == [str(home.folder / "a.toml"), str(home.file)]
