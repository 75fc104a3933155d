"""Templates of instructions: the variables they may use, and errors with line and cause."""

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
from retinue.agents.instructions import (
    SECTION_MODES,
    Mode,
    PromptAgent,
    PromptContext,
    join_sections,
    render_sections,
)
from retinue.agents.instructions_docs import list_variables
from retinue.domain.renamed_names import TEMPLATE_SECTIONS, TEMPLATE_VARIABLES


def render_template(
    source: str, situation: PromptContext = SAMPLE_CONTEXTS[0], more: Mapping[str, str] | None = None
) -> str:
    return InstructionTemplate({ENTRY_FILE: source, **(more or {})}).render(
        situation, render_sections(situation, BUILT_IN_SECTIONS)
    )


def error_of(source: str, **more: str) -> InvalidTemplate:
    with pytest.raises(InvalidTemplate) as caught:
        InstructionTemplate({ENTRY_FILE: source, **more}).check(BUILT_IN_SECTIONS)
    return caught.value


@pytest.mark.parametrize(
    "situation", SAMPLE_CONTEXTS, ids=lambda each: f"{each.mode}-{each.agent.instructions or 'bare'}"
)
def test_the_built_in_instruction_template_gives_the_same_text_as_no_template(situation: PromptContext) -> None:
    parts = render_sections(situation, BUILT_IN_SECTIONS)
    assert render_template('{% include "built-in.md.j2" %}', situation) == join_sections(parts).strip()


@pytest.mark.spec("H84")
def test_an_instruction_template_can_use_every_variable_and_include_other_files() -> None:
    source = "I am {{ agent.name }} of {{ instance.owner }}.\n{% include 'tone.md.j2' %}\n{{ sections.tools }}"
    text = render_template(source, more={"tone.md.j2": "{% if mode == 'full' %}Sing.{% endif %}"})
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
def test_an_invalid_instruction_template_is_refused_with_its_line_and_reason(
    source: str, line: int, because: str
) -> None:
    broken = error_of(source)
    assert f"line {line} of {ENTRY_FILE}" in broken.sentence
    assert because in broken.because
    assert broken.code == "instructions.template_invalid"
    assert "docs/reference/instructions.md" in broken.try_this


def test_an_error_in_an_included_instruction_template_names_the_included_file() -> None:
    assert "line 2 of tone.md.j2" in error_of('{% include "tone.md.j2" %}', **{"tone.md.j2": "a\n{{ b }}"}).sentence
    assert "the file 'gone.md.j2' does not exist" in error_of('{% include "gone.md.j2" %}').because


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
def test_an_instruction_template_that_accesses_internals_or_exceeds_its_limits_is_refused(source: str) -> None:
    error_of(source)


def test_values_of_instruction_template_variables_are_never_rendered_as_templates() -> None:
    hostile = "{{ 7 * 7 }} {% include 'built-in.md.j2' %} {{ agent.__class__ }}"
    situation = replace(SAMPLE_CONTEXTS[0], agent=PromptAgent(name="ada", description=hostile), extra=hostile)
    text = render_template("{{ agent.description }}|{{ sections.context }}", situation)
    assert text == f"{hostile}|## Context of this run\n{hostile}"


def test_a_section_without_text_is_empty_in_an_instruction_template() -> None:
    bare = SAMPLE_CONTEXTS[1]
    assert render_template("[{{ sections.skills }}]", bare) == "[]"
    assert render_template("[{{ sections.subagent }}]", replace(SAMPLE_CONTEXTS[0], mode=Mode.FULL)) == "[]"
    for name in SECTION_MODES:
        InstructionTemplate({ENTRY_FILE: f'{{{{ sections["{name}"] }}}}'}).check(BUILT_IN_SECTIONS)


OLD_AND_NEW = {
    "{{ house.owner }} {{ house['zone'] }}": "{{ instance.owner }} {{ instance['zone'] }}",
    "{{ where.workspace }}, {{ where.home }}": "{{ workspace.path }}, {{ workspace.agent_directory }}",
    "{{ agent.called }}, {{ runtime.thinking }}": "{{ agent.display_name }}, {{ runtime.effort }}",
    "{% if runtime.tags %}tags{% endif %}": "{% if runtime.needs_reasoning_tags %}tags{% endif %}",
    "{% for each in agents %}{{ each.called }}{% endfor %}": "{% for a in agents %}{{ a.display_name }}{% endfor %}",
    "{{ agents | map(attribute='called') | join }}": "{{ agents | map(attribute='display_name') | join }}",
    "{% if errand %}{{ errand.task }}{% endif %}": "{% if subagent_task %}{{ subagent_task.task }}{% endif %}",
    "{{ sections.house }}{{ sections['call-style'] }}": "{{ sections.instance }}{{ sections.call_style }}",
}


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW.items())
def test_an_instruction_template_with_old_variable_names_renders_the_same_text_as_with_new_names(
    old: str, new: str
) -> None:
    for context in SAMPLE_CONTEXTS:
        assert render_template(old, context) == render_template(new, context)
    InstructionTemplate({ENTRY_FILE: old}).check(BUILT_IN_SECTIONS)
    assert not instruction_templates.find_renamed_names(InstructionTemplate({ENTRY_FILE: new}))


def test_old_names_of_variables_and_sections_are_found_in_an_instruction_template() -> None:
    variables = {name for name, _, _ in list_variables()}
    for old, new in TEMPLATE_VARIABLES.items():
        assert new in variables and old not in variables
        source = f"{{% if {old.replace('[]', '[0]')} %}}{{% endif %}}"
        found = instruction_templates.find_renamed_names(InstructionTemplate({ENTRY_FILE: "\n" + source}))
        assert {each.line for each in found} == {2}
        assert new.rpartition(".")[2] in {each.new.removeprefix(".") for each in found}
    for old, new in TEMPLATE_SECTIONS.items():
        template = InstructionTemplate({ENTRY_FILE: f"{{{{ sections['{old}'] }}}}"})
        assert new in SECTION_MODES and old not in SECTION_MODES
        assert [each.new for each in instruction_templates.find_renamed_names(template)] == [f"sections.{new}"]


def test_rendering_an_instruction_template_returns_the_sections_that_the_template_used() -> None:
    situation = SAMPLE_CONTEXTS[0]
    template = InstructionTemplate({ENTRY_FILE: "Hello. {{ sections.identity }}"})
    text, used = template.render_with_sections(situation, render_sections(situation, BUILT_IN_SECTIONS))
    assert text == "Hello. Be brief."
    assert [part.name for part in used] == ["identity"]


def test_importing_the_server_does_not_import_jinja2_for_instruction_templates() -> None:
    """Importing it takes a tenth of a second and megabytes, and most servers do not use it."""
    script = "import sys, retinue.app.server; print('jinja2' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"


# --- on disk ---


def write_file(folder: Path, name: str, text: str | bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def test_instruction_templates_of_an_agent_override_those_of_the_instance(tmp_path: Path) -> None:
    assert instruction_templates.load_template(tmp_path, "ada") is None
    write_file(tmp_path, ENTRY_FILE, "{% include 'tone.md.j2' %}")
    write_file(tmp_path, "tone.md.j2", "calm")
    write_file(tmp_path / "ada", "tone.md.j2", "lively")
    write_file(tmp_path, "README.md", "not a template")
    own, others = (
        instruction_templates.load_template(tmp_path, "ada"),
        instruction_templates.load_template(tmp_path, "grace"),
    )
    assert own is not None
    assert others is not None
    assert own.render(SAMPLE_CONTEXTS[0], ()) == "lively"
    assert others.render(SAMPLE_CONTEXTS[0], ()) == "calm"
    assert own.hash != others.hash


def test_instruction_template_fingerprints_change_whenever_a_template_file_changes(tmp_path: Path) -> None:
    folder = tmp_path / "instructions"
    assert instruction_templates.template_fingerprints(str(folder), "ada") == ()
    write_file(folder, ENTRY_FILE, "one")
    first = instruction_templates.template_fingerprints(str(folder), "ada")
    write_file(folder / "ada", "tone.md.j2", "calm")
    second = instruction_templates.template_fingerprints(str(folder), "ada")
    assert len({first, second, instruction_templates.template_fingerprints(str(folder), "grace")}) == 2
    write_file(folder, ENTRY_FILE, "three")
    assert instruction_templates.template_fingerprints(str(folder), "grace") != first


@pytest.mark.parametrize(
    ("text", "because"),
    [
        (b"\xff\xfe", "not valid UTF-8"),
        (b"x" * (instruction_templates.FILE_BYTES_MAX + 1), "the limit is 65,536 bytes"),
    ],
)
def test_a_binary_or_too_large_instruction_template_file_is_refused(tmp_path: Path, text: bytes, because: str) -> None:
    write_file(tmp_path, ENTRY_FILE, text)
    with pytest.raises(InvalidTemplate) as caught:
        instruction_templates.load_template(tmp_path, "ada")
    assert because in caught.value.because
