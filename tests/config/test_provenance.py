"""The rules of [origin] are read with the other settings: each mistake is refused with its path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli.server_process import environment
from config.data_directory import Home

from retinue.config import InvalidSettings, load_configuration
from retinue.config.file_writer import patch_settings_file
from retinue.config.loader import reload_configuration
from retinue.config.provenance import (
    ArgumentRule,
    MeasureRule,
    SourceRule,
    StandingExplanation,
    ToolRequestRule,
    parse_provenance_rules,
)
from retinue.domain.trust import Trust
from retinue.policy.provenance.provenance_rules import build_policy_with_defaults
from retinue.testing.wait_conditions import WAIT_LIMIT_S

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "injection.md"

GOOD = """
[[origin.source]]
tools = "calendar_*"
trust = "untrusted"
fields = { id = "id:event", title = "name" }
"""
SOURCE = '[[origin.source]]\ntools = "x"\ntrust = "private"\n'
ARGUMENT = '[[origin.argument]]\ntools = "x"\nargument = "y"\n'


def test_rules_of_every_kind_are_read_into_types(home: Home) -> None:
    found = home.load("""
        [origin]
        speakers = ["owner", "person"]
        [[origin.source]]
        tools = "payments"
        trust = "untrusted"
        fields = { sender = "account", stars = "number" }
        patterns = { "<value>" = 'Rating: (?P<stars>[0-9.]+)' }
        parts = { sender = ["sent"] }
        own = "sender"
        own_values = ["me"]
        own_fields = { subject = "name" }
        closed = true
        [[origin.argument]]
        tools = "pay"
        argument = "account"
        kind = "account|name"
        standing = ["today", "each"]
        says = { all = ["all of them"] }
        unless = ["to"]
        [[origin.act]]
        tools = "pay"
        words = ["pay", "*"]
        [[origin.measure]]
        words = "smallest"
        field = "size"
        most = false
    """).settings.origin
    assert found.speakers == (Trust.OWNER, Trust.PERSON)
    assert found.source == (
        SourceRule(
            tools="payments",
            trust=Trust.UNTRUSTED,
            fields={"sender": "account", "stars": "number"},
            patterns={"<value>": "Rating: (?P<stars>[0-9.]+)"},
            parts={"sender": ("sent",)},
            own="sender",
            own_values=("me",),
            own_fields={"subject": "name"},
            closed=True,
        ),
    )
    assert found.argument == (
        ArgumentRule(
            tools="pay",
            argument="account",
            kind="account|name",
            standing=(StandingExplanation.TODAY, StandingExplanation.EACH),
            says={"all": ("all of them",)},
            unless=("to",),
        ),
    )
    assert found.act == (ToolRequestRule(tools="pay", words=("pay", "*")),)
    assert found.measure == (MeasureRule(words="smallest", field="size", most=False),)
    policy = build_policy_with_defaults(found)
    assert policy.acts[0] is found.act[0] and policy.find_act_rule("write") is not None, "the owner's rules come first"


def test_the_example_in_the_guide_is_read(home: Home) -> None:
    _, _, rest = GUIDE.read_text().partition("```toml\n")
    found = home.load(rest.partition("```")[0]).settings.origin
    assert found.source and found.argument and found.act and found.measure


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ('[[origin.source]]\ntools = "x"\ntrust = "trusted"', "origin.source[0].trust", "is 'trusted'"),
        ('[[origin.source]]\ntools = "x"', "origin.source[0].trust", "is missing"),
        ('[[origin.source]]\ntrust = "private"', "origin.source[0].tools", "is missing"),
        ('[[origin.source]]\ntools = ["x"]\ntrust = "private"', "origin.source[0].tools", "must be a text"),
        ('[[origin.source]]\ntools = ""\ntrust = "private"', "origin.source[0].tools", "must be a name or a pattern"),
        ('[[origin.source]]\ntools = "x[ab"\ntrust = "private"', "origin.source[0].tools", "must close every ["),
        (SOURCE + 'colour = "red"', "origin.source[0].colour", "is not a setting"),
        (SOURCE + 'fields = { a = "colour" }', "origin.source[0].fields.a", "must be one of email, url"),
        (SOURCE + "fields = { a = 1 }", "origin.source[0].fields.a", "must be a text"),
        (SOURCE + 'fields = ["a"]', "origin.source[0].fields", "must be a table"),
        (SOURCE + 'own_fields = { a = "colour" }', "origin.source[0].own_fields.a", "must be one of email, url"),
        (SOURCE + 'patterns = { a = "(" }', "origin.source[0].patterns.a", "must be a Python regular expression"),
        (SOURCE + 'patterns = { a = "(?P<b>x)" }', "origin.source[0].patterns.a", "has the group 'b'"),
        (SOURCE + 'parts = { a = "sent" }', "origin.source[0].parts.a", "must be a list"),
        (SOURCE + 'parts = { a = [""] }', "origin.source[0].parts.a[0]", "must have at least one word"),
        (SOURCE + 'closed = "yes"', "origin.source[0].closed", "must be true or false"),
        ('[[origin.argument]]\ntools = "x"', "origin.argument[0].argument", "is missing"),
        (ARGUMENT + 'standing = ["perhaps"]', "origin.argument[0].standing[0]", "is 'perhaps'"),
        (ARGUMENT + 'standing = "any"', "origin.argument[0].standing", "must be a list"),
        (ARGUMENT + 'kind = "account|colour"', "origin.argument[0].kind", "must be one of email, url"),
        (ARGUMENT + "says = { all = [1] }", "origin.argument[0].says.all[0]", "must be a text"),
        ('[[origin.act]]\ntools = "x"', "origin.act[0].words", "is missing"),
        ('[[origin.act]]\ntools = "x"\nwords = "pay"', "origin.act[0].words", "must be a list"),
        ('[[origin.act]]\ntools = "x"\nwords = [" "]', "origin.act[0].words[0]", "must have at least one word"),
        ('[[origin.measure]]\nwords = "largest"', "origin.measure[0].field", "is missing"),
        ('[[origin.measure]]\nwords = "a"\nfield = "b"\nmost = 1', "origin.measure[0].most", "must be true or false"),
        ('[[origin.sources]]\ntools = "x"', "origin.sources", "is not a setting"),
        ('[origin.source]\ntools = "x"\ntrust = "private"', "origin.source", "must be a list"),
        ('[origin]\nsource = ["x"]', "origin.source[0]", "must be a table"),
        ('[origin]\nspeakers = ["friend"]', "origin.speakers[0]", "is 'friend'"),
        ("origin = 3", "origin", "must be a table"),
    ],
)
def test_a_rule_that_is_not_understood_is_refused_with_its_path(home: Home, text: str, path: str, says: str) -> None:
    fault = home.fault(text)
    assert fault.path == path and fault.sentence.startswith(f"{path} {says}")
    assert fault.because and fault.try_this and fault.position.line


def test_every_mistake_is_listed_beside_the_rules_that_are_right(home: Home) -> None:
    faults = home.faults(
        GOOD
        + '[[origin.source]]\ntools = "x"\ntrust = "trusted"\n'
        + '[[origin.source]]\ntools = "y"\ntrust = "private"\npatterns = { a = "(?P<b>x)" }\n'
        + '[[origin.act]]\ntools = "x"\n'
        + "[house.listen]\nprot = 1\n"
    )
    assert list(faults) == [
        "origin.source[1].trust",
        "origin.source[2].patterns.a",
        "origin.act[0].words",
        "house.listen.prot",
    ]
    wrong = faults["origin.source[1].trust"]
    assert "owner, person, agent, private, untrusted" in wrong.because and wrong.position.line == 8


def test_a_reload_with_a_wrong_rule_is_refused_and_the_rules_in_force_stay(home: Home) -> None:
    current = home.load(GOOD)
    home.write(GOOD + '[[origin.source]]\ntools = "x"\ntrust = "trusted"\n')
    with pytest.raises(InvalidSettings, match=r"origin\.source\[1\]\.trust is 'trusted'"):
        reload_configuration(current, home.environment)
    assert [rule.tools for rule in current.settings.origin.source] == ["calendar_*"]
    home.write(GOOD + '[[origin.source]]\ntools = "x"\ntrust = "private"\n')
    found = reload_configuration(current, home.environment)
    assert [rule.tools for rule in found.settings.origin.source] == ["calendar_*", "x"]
    assert [change.path for change in found.changes] == ["origin.source"] and not found.pending_restart


def test_a_patch_with_a_wrong_rule_is_refused_and_the_file_stays(home: Home) -> None:
    before = home.load(GOOD)
    wrong = {"origin": {"act": [{"tools": "pay", "words": "pay"}]}}
    with pytest.raises(InvalidSettings, match=r"origin\.act\[0\]\.words must be a list"):
        patch_settings_file(home.environment, wrong, expected_hash=before.hash)
    assert home.file.read_text() == GOOD
    patch_settings_file(
        home.environment, {"origin": {"act": [{"tools": "pay", "words": ["pay"]}]}}, expected_hash=before.hash
    )
    assert load_configuration(home.environment).settings.origin.act == (ToolRequestRule(tools="pay", words=("pay",)),)


def test_a_wrong_rule_keeps_the_server_from_starting_and_doctor_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    file = home / "retinue.toml"
    file.write_text('[[origin.source]]\ntools = "mcp_time_*"\ntrust = "trusted"\n')

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
    assert f"origin.source[0].trust is 'trusted', which is not a valid choice ({file}, line 3)" in opened.stderr
    looked = run("retinue.cli.main", "doctor")
    assert looked.returncode != 0 and "origin.source[0].trust is 'trusted'" in looked.stdout + looked.stderr


def test_rules_from_elsewhere_are_read_as_strictly() -> None:
    assert parse_provenance_rules({}).source == ()
    with pytest.raises(InvalidSettings, match=r"origin\.effects is not a setting"):
        parse_provenance_rules({"effects": {}})


def test_a_rule_for_commands_that_cannot_be_read_is_refused_with_its_path(home: Home) -> None:
    faults = home.faults('[tools.exec]\nallow = ["git status", "ls | wc", "./run", " "]\n')
    assert list(faults) == ["tools.exec.allow[1]", "tools.exec.allow[2]", "tools.exec.allow[3]"]
    assert "must be plain words" in faults["tools.exec.allow[1]"].sentence
    assert home.load('[tools.exec]\nallow = ["git status", "/opt/*/bin/report *"]\n').settings.tools.exec.allow
