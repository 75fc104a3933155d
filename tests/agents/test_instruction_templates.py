"""Templates of the owner's: what they may name, and what is refused with its line and cause."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.agents import instruction_templates
from retinue.agents.instruction_sections import BUILT_IN_SECTIONS
from retinue.agents.instruction_templates import ENTRY_FILE, SAMPLE_CONTEXTS, InstructionTemplate, InvalidTemplate
from retinue.agents.instructions import SECTION_MODES, Mode, PromptAgent, PromptContext, join_sections, render_sections


def rendered(source: str, situation: PromptContext = SAMPLE_CONTEXTS[0], more: Mapping[str, str] | None = None) -> str:
    return InstructionTemplate({ENTRY_FILE: source, **(more or {})}).render(
        situation, render_sections(situation, BUILT_IN_SECTIONS)
    )


def refused(source: str, **more: str) -> InvalidTemplate:
    with pytest.raises(InvalidTemplate) as caught:
        InstructionTemplate({ENTRY_FILE: source, **more}).check(BUILT_IN_SECTIONS)
    return caught.value


@pytest.mark.parametrize(
    "situation", SAMPLE_CONTEXTS, ids=lambda each: f"{each.mode}-{each.agent.instructions or 'bare'}"
)
def test_what_is_told_without_a_template_is_what_the_built_in_one_comes_to(situation: PromptContext) -> None:
    parts = render_sections(situation, BUILT_IN_SECTIONS)
    assert rendered('{% include "built-in.md.j2" %}', situation) == join_sections(parts).strip()


@pytest.mark.spec("H84")
def test_an_entry_file_may_name_every_variable_and_include_others() -> None:
    source = "I am {{ agent.name }} of {{ house.owner }}.\n{% include 'tone.md.j2' %}\n{{ sections.tools }}"
    text = rendered(source, more={"tone.md.j2": "{% if mode == 'full' %}Sing.{% endif %}"})
    assert text.startswith("I am ada of owner.\nSing.")
    assert "- read: Read a file." in text
    for name in instruction_templates.variable_names():
        InstructionTemplate({ENTRY_FILE: f"{{{{ {name} }}}}"}).check(BUILT_IN_SECTIONS)


@pytest.mark.spec("H84")
@pytest.mark.parametrize(
    ("source", "line", "because"),
    [
        ("one\ntwo {{ agnet.name }}", 2, "unknown variable 'agnet'"),
        ("{% if false %}\n{{ nobody }}\n{% endif %}", 2, "unknown variable 'nobody'"),
        ("one\ntwo\n{{ agent.nmae }}", 3, "nmae"),
        ("{{ sections.weather }}", 1, "weather"),
        ("one\n{% for x in tools %}\nno end", 3, "end of template"),
        ("one\n{{ agent.name", 2, ""),
        ("one\n{{ 1 // 0 }}", 2, "division"),
    ],
)
def test_what_cannot_be_used_is_refused_with_line_and_cause(source: str, line: int, because: str) -> None:
    broken = refused(source)
    assert f"line {line} of {ENTRY_FILE}" in broken.sentence
    assert because in broken.because
    assert broken.code == "instructions.template_invalid"
    assert "docs/reference/instructions.md" in broken.try_this


def test_a_fault_in_an_included_file_is_told_by_that_files_name() -> None:
    assert "line 2 of tone.md.j2" in refused('{% include "tone.md.j2" %}', **{"tone.md.j2": "a\n{{ b }}"}).sentence
    assert "the file 'gone.md.j2' does not exist" in refused('{% include "gone.md.j2" %}').because


@pytest.mark.parametrize(
    "source",
    [
        "{{ agent.__class__ }}",
        "{{ agent.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ tools.__getitem__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% include '../owner-token' %}",
        "{% for a in range(1000000) %}{{ a }}{% endfor %}",
        "{% for a in range(90000) %}{% for b in range(90000) %}xxxxxxxx{% endfor %}{% endfor %}",
    ],
)
def test_a_template_reaches_nothing_beyond_its_variables_and_has_a_bound(source: str) -> None:
    refused(source)


def test_values_are_data_and_never_read_as_templates() -> None:
    hostile = "{{ 7 * 7 }} {% include 'built-in.md.j2' %} {{ agent.__class__ }}"
    situation = replace(SAMPLE_CONTEXTS[0], agent=PromptAgent(name="ada", description=hostile), extra=hostile)
    text = rendered("{{ agent.description }}|{{ sections.context }}", situation)
    assert text == f"{hostile}|## Context of this run\n{hostile}"


def test_a_section_that_says_nothing_here_is_empty_and_not_unknown() -> None:
    bare = SAMPLE_CONTEXTS[1]
    assert rendered("[{{ sections.skills }}]", bare) == "[]"
    assert rendered("[{{ sections.subagent }}]", replace(SAMPLE_CONTEXTS[0], mode=Mode.FULL)) == "[]"
    for name in SECTION_MODES:
        InstructionTemplate({ENTRY_FILE: f'{{{{ sections["{name}"] }}}}'}).check(BUILT_IN_SECTIONS)


def test_it_is_known_which_sections_a_template_has_made_use_of() -> None:
    situation = SAMPLE_CONTEXTS[0]
    template = InstructionTemplate({ENTRY_FILE: "Hello. {{ sections.identity }}"})
    text, used = template.render_with_sections(situation, render_sections(situation, BUILT_IN_SECTIONS))
    assert text == "Hello. Be brief."
    assert [part.name for part in used] == ["identity"]


def test_a_house_without_templates_does_not_load_what_reads_them() -> None:
    """A tenth of a second of its start, and megabytes, for what most houses do not have."""
    script = "import sys, retinue.app.server; print('jinja2' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"


# --- on disk ---


def put(folder: Path, name: str, text: str | bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def test_an_agents_own_files_lie_over_those_of_the_house(tmp_path: Path) -> None:
    assert instruction_templates.load_template(tmp_path, "ada") is None
    put(tmp_path, ENTRY_FILE, "{% include 'tone.md.j2' %}")
    put(tmp_path, "tone.md.j2", "calm")
    put(tmp_path / "ada", "tone.md.j2", "lively")
    put(tmp_path, "README.md", "not a template")
    own, others = (
        instruction_templates.load_template(tmp_path, "ada"),
        instruction_templates.load_template(tmp_path, "grace"),
    )
    assert own is not None
    assert others is not None
    assert own.render(SAMPLE_CONTEXTS[0], ()) == "lively"
    assert others.render(SAMPLE_CONTEXTS[0], ()) == "calm"
    assert own.hash != others.hash


def test_any_change_of_a_file_is_seen_without_reading_it(tmp_path: Path) -> None:
    folder = tmp_path / "instructions"
    assert instruction_templates.template_fingerprints(str(folder), "ada") == ()
    put(folder, ENTRY_FILE, "one")
    first = instruction_templates.template_fingerprints(str(folder), "ada")
    put(folder / "ada", "tone.md.j2", "calm")
    second = instruction_templates.template_fingerprints(str(folder), "ada")
    assert len({first, second, instruction_templates.template_fingerprints(str(folder), "grace")}) == 2
    put(folder, ENTRY_FILE, "three")
    assert instruction_templates.template_fingerprints(str(folder), "grace") != first


@pytest.mark.parametrize(
    ("text", "because"),
    [(b"\xff\xfe", "not UTF-8"), (b"x" * (instruction_templates.FILE_BYTES_MAX + 1), "the limit is 65,536 bytes")],
)
def test_what_is_no_text_or_too_large_is_refused(tmp_path: Path, text: bytes, because: str) -> None:
    put(tmp_path, ENTRY_FILE, text)
    with pytest.raises(InvalidTemplate) as caught:
        instruction_templates.load_template(tmp_path, "ada")
    assert because in caught.value.because
