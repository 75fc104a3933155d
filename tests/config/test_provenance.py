"""Settings of [provenance]: each mistake is refused with its path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli.server_process import environment
from config.data_directory import SettingsDirectory

from retinue.config import InvalidSettings, load_configuration
from retinue.config.file_writer import patch_settings_file
from retinue.config.provenance import (
    ArgumentRule,
    MeasureRule,
    SourceRule,
    StandingExplanation,
    ToolRequestRule,
    parse_provenance_rules,
)
from retinue.config.settings_loader import reload_configuration
from retinue.domain.trust import Trust
from retinue.policy.provenance.provenance_rules import build_policy_with_defaults
from retinue.testing.wait_conditions import WAIT_LIMIT_S

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "injection.md"

VALID_RULE = """
[[provenance.source]]
tools = "calendar_*"
trust = "untrusted"
fields = { id = "id:event", title = "name" }
"""
SOURCE_RULE = '[[provenance.source]]\ntools = "x"\ntrust = "private"\n'
ARGUMENT_RULE = '[[provenance.argument]]\ntools = "x"\nargument = "y"\n'


def test_provenance_rules_of_every_kind_are_parsed_from_the_settings(home: SettingsDirectory) -> None:
    found = home.load("""
        [provenance]
        explaining_trust = ["owner", "person"]
        [[provenance.source]]
        tools = "payments"
        trust = "untrusted"
        fields = { sender = "account", stars = "number" }
        patterns = { "<value>" = 'Rating: (?P<stars>[0-9.]+)' }
        field_words = { sender = ["sent"] }
        owner_field = "sender"
        owner_values = ["me"]
        owner_content_fields = { subject = "name" }
        typed_only = true
        [[provenance.argument]]
        tools = "pay"
        argument = "account"
        kind = "account|name"
        explanations = ["today", "every-value"]
        choice_words = { all = ["all of them"] }
        unless = ["to"]
        [[provenance.tool_request]]
        tools = "pay"
        words = ["pay", "*"]
        [[provenance.measure]]
        words = "smallest"
        field = "size"
        is_maximum = false
    """).settings.provenance
    assert found.explaining_trust == (Trust.OWNER, Trust.PERSON)
    assert found.source == (
        SourceRule(
            tools="payments",
            trust=Trust.UNTRUSTED,
            fields={"sender": "account", "stars": "number"},
            patterns={"<value>": "Rating: (?P<stars>[0-9.]+)"},
            field_words={"sender": ("sent",)},
            owner_field="sender",
            owner_values=("me",),
            owner_content_fields={"subject": "name"},
            typed_only=True,
        ),
    )
    assert found.argument == (
        ArgumentRule(
            tools="pay",
            argument="account",
            kind="account|name",
            explanations=(StandingExplanation.TODAY, StandingExplanation.EVERY_VALUE),
            choice_words={"all": ("all of them",)},
            unless=("to",),
        ),
    )
    assert found.tool_request == (ToolRequestRule(tools="pay", words=("pay", "*")),)
    assert found.measure == (MeasureRule(words="smallest", field="size", is_maximum=False),)
    policy = build_policy_with_defaults(found)
    assert policy.acts[0] is found.tool_request[0] and policy.find_act_rule("write") is not None, (
        "the owner's rules come first"
    )


def test_the_provenance_settings_example_in_the_guide_is_valid(home: SettingsDirectory) -> None:
    _, _, rest = GUIDE.read_text().partition("```toml\n")
    found = home.load(rest.partition("```")[0]).settings.provenance
    assert found.source and found.argument and found.tool_request and found.measure


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ('[[provenance.source]]\ntools = "x"\ntrust = "trusted"', "provenance.source[0].trust", "is 'trusted'"),
        ('[[provenance.source]]\ntools = "x"', "provenance.source[0].trust", "is missing"),
        ('[[provenance.source]]\ntrust = "private"', "provenance.source[0].tools", "is missing"),
        ('[[provenance.source]]\ntools = ["x"]\ntrust = "private"', "provenance.source[0].tools", "must be a string"),
        (
            '[[provenance.source]]\ntools = ""\ntrust = "private"',
            "provenance.source[0].tools",
            "must be a name or a pattern",
        ),
        (
            '[[provenance.source]]\ntools = "x[ab"\ntrust = "private"',
            "provenance.source[0].tools",
            "must close every [",
        ),
        (SOURCE_RULE + 'colour = "red"', "provenance.source[0].colour", "is not a setting"),
        (SOURCE_RULE + 'fields = { a = "colour" }', "provenance.source[0].fields.a", "must be one of email, url"),
        (SOURCE_RULE + "fields = { a = 1 }", "provenance.source[0].fields.a", "must be a string"),
        (SOURCE_RULE + 'fields = ["a"]', "provenance.source[0].fields", "must be a table"),
        (
            SOURCE_RULE + 'owner_content_fields = { a = "colour" }',
            "provenance.source[0].owner_content_fields.a",
            "must be one of email, url",
        ),
        (
            SOURCE_RULE + 'patterns = { a = "(" }',
            "provenance.source[0].patterns.a",
            "must be a Python regular expression",
        ),
        (SOURCE_RULE + 'patterns = { a = "(?P<b>x)" }', "provenance.source[0].patterns.a", "has the group 'b'"),
        (SOURCE_RULE + 'field_words = { a = "sent" }', "provenance.source[0].field_words.a", "must be a list"),
        (
            SOURCE_RULE + 'field_words = { a = [""] }',
            "provenance.source[0].field_words.a[0]",
            "must have at least one word",
        ),
        (SOURCE_RULE + 'typed_only = "yes"', "provenance.source[0].typed_only", "must be true or false"),
        ('[[provenance.argument]]\ntools = "x"', "provenance.argument[0].argument", "is missing"),
        (ARGUMENT_RULE + 'explanations = ["perhaps"]', "provenance.argument[0].explanations[0]", "is 'perhaps'"),
        (ARGUMENT_RULE + 'explanations = "any"', "provenance.argument[0].explanations", "must be a list"),
        (ARGUMENT_RULE + 'kind = "account|colour"', "provenance.argument[0].kind", "must be one of email, url"),
        (
            ARGUMENT_RULE + "choice_words = { all = [1] }",
            "provenance.argument[0].choice_words.all[0]",
            "must be a string",
        ),
        ('[[provenance.tool_request]]\ntools = "x"', "provenance.tool_request[0].words", "is missing"),
        (
            '[[provenance.tool_request]]\ntools = "x"\nwords = "pay"',
            "provenance.tool_request[0].words",
            "must be a list",
        ),
        (
            '[[provenance.tool_request]]\ntools = "x"\nwords = [" "]',
            "provenance.tool_request[0].words[0]",
            "must have at least one word",
        ),
        ('[[provenance.measure]]\nwords = "largest"', "provenance.measure[0].field", "is missing"),
        (
            '[[provenance.measure]]\nwords = "a"\nfield = "b"\nis_maximum = 1',
            "provenance.measure[0].is_maximum",
            "must be true or false",
        ),
        ('[[provenance.sources]]\ntools = "x"', "provenance.sources", "is not a setting"),
        ('[provenance.source]\ntools = "x"\ntrust = "private"', "provenance.source", "must be a list"),
        ('[provenance]\nsource = ["x"]', "provenance.source[0]", "must be a table"),
        ('[provenance]\nexplaining_trust = ["friend"]', "provenance.explaining_trust[0]", "is 'friend'"),
        ("provenance = 3", "provenance", "must be a table"),
    ],
)
def test_an_invalid_provenance_rule_in_the_settings_is_refused_with_its_path(
    home: SettingsDirectory, text: str, path: str, says: str
) -> None:
    fault = home.fault(text)
    assert fault.path == path and fault.sentence.startswith(f"{path} {says}")
    assert fault.because and fault.try_this and fault.position.line


def test_every_invalid_provenance_rule_in_the_settings_is_reported_with_its_line(home: SettingsDirectory) -> None:
    faults = home.faults(
        VALID_RULE
        + '[[provenance.source]]\ntools = "x"\ntrust = "trusted"\n'
        + '[[provenance.source]]\ntools = "y"\ntrust = "private"\npatterns = { a = "(?P<b>x)" }\n'
        + '[[provenance.tool_request]]\ntools = "x"\n'
        + "[server.listen]\nprot = 1\n"
    )
    assert list(faults) == [
        "provenance.source[1].trust",
        "provenance.source[2].patterns.a",
        "provenance.tool_request[0].words",
        "server.listen.prot",
    ]
    wrong = faults["provenance.source[1].trust"]
    assert "owner, person, agent, private, untrusted" in wrong.because and wrong.position.line == 8


def test_a_reload_with_an_invalid_provenance_rule_is_refused_and_keeps_the_current_rules(
    home: SettingsDirectory,
) -> None:
    current = home.load(VALID_RULE)
    home.write(VALID_RULE + '[[provenance.source]]\ntools = "x"\ntrust = "trusted"\n')
    with pytest.raises(InvalidSettings, match=r"provenance\.source\[1\]\.trust is 'trusted'"):
        reload_configuration(current, home.environment)
    assert [rule.tools for rule in current.settings.provenance.source] == ["calendar_*"]
    home.write(VALID_RULE + '[[provenance.source]]\ntools = "x"\ntrust = "private"\n')
    found = reload_configuration(current, home.environment)
    assert [rule.tools for rule in found.settings.provenance.source] == ["calendar_*", "x"]
    assert [change.path for change in found.changes] == ["provenance.source"] and not found.pending_restart


def test_a_settings_patch_with_an_invalid_provenance_rule_is_refused(home: SettingsDirectory) -> None:
    before = home.load(VALID_RULE)
    wrong = {"provenance": {"tool_request": [{"tools": "pay", "words": "pay"}]}}
    with pytest.raises(InvalidSettings, match=r"provenance\.tool_request\[0\]\.words must be a list"):
        patch_settings_file(home.environment, wrong, expected_hash=before.hash)
    assert home.file.read_text() == VALID_RULE
    patch_settings_file(
        home.environment,
        {"provenance": {"tool_request": [{"tools": "pay", "words": ["pay"]}]}},
        expected_hash=before.hash,
    )
    assert load_configuration(home.environment).settings.provenance.tool_request == (
        ToolRequestRule(tools="pay", words=("pay",)),
    )


def test_an_invalid_provenance_rule_stops_the_server_from_starting_and_doctor_reports_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    file = home / "retinue.toml"
    file.write_text('[[provenance.source]]\ntools = "mcp_time_*"\ntrust = "trusted"\n')

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
            check=False,
        )

    opened = run("retinue.app.server")
    assert opened.returncode == 1
    assert f"provenance.source[0].trust is 'trusted', which is not a valid choice ({file}, line 3)" in opened.stderr
    looked = run("retinue.cli.main", "doctor")
    assert looked.returncode != 0 and "provenance.source[0].trust is 'trusted'" in looked.stdout + looked.stderr


def test_parse_provenance_rules_refuses_unknown_keys() -> None:
    assert parse_provenance_rules({}).source == ()
    with pytest.raises(InvalidSettings, match=r"provenance\.effects is not a setting"):
        parse_provenance_rules({"effects": {}})


def test_an_invalid_exec_allow_rule_in_the_settings_is_refused_with_its_path(home: SettingsDirectory) -> None:
    faults = home.faults('[tools.exec]\nallow = ["git status", "ls | wc", "./run", " "]\n')
    assert list(faults) == ["tools.exec.allow[1]", "tools.exec.allow[2]", "tools.exec.allow[3]"]
    assert "must be plain words" in faults["tools.exec.allow[1]"].sentence
    assert home.load('[tools.exec]\nallow = ["git status", "/opt/*/bin/report *"]\n').settings.tools.exec.allow
