"""Validates questionnaires and their answers, and formats both as text. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from retinue.domain.errors import Invalid
from retinue.domain.questionnaire import Answer, Field, FieldKind, Questionnaire
from retinue.domain.storable_text import is_storable
from retinue.domain.trust import Trust

TITLE_LENGTH_MAX = 200
FIELDS_MAX = 20
LABEL_LENGTH_MAX = 500
OPTIONS_MAX = 30
CHOICES_PRESSED_MAX = 10  # more buttons are hard to scan
OPTION_LENGTH_MAX = 200
ANSWER_LENGTH_MAX = 4_000  # of a text, in characters
NUMBER_SIZE_MAX = 1e15  # beyond this, a JSON number may differ from what was typed

# No dot, @ or slash: a name appears in the person's text and must not look like an address that an agent was given.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_WITH_OPTIONS = (FieldKind.CHOICE, FieldKind.SEVERAL)
_LINES_FOLLOW = "\n  "


def check_questions(title: str, fields: Sequence[Field]) -> None:
    """Raise `Invalid` if a question cannot be answered or exceeds a limit. The error names the field."""
    if not title.strip() or len(title) > TITLE_LENGTH_MAX or not is_storable(title):
        raise _unusable("its title", f"a title has 1 to {TITLE_LENGTH_MAX} characters")
    if not 1 <= len(fields) <= FIELDS_MAX:
        raise _unusable("its fields", f"there are {len(fields)}, and 1 to {FIELDS_MAX} can be asked")
    names = [field.name for field in fields]
    for number, field in enumerate(fields, start=1):
        if fault := _fault(field):
            raise _unusable(f"field {number}", fault)
        if names.index(field.name) < number - 1:
            raise _unusable(f"field {number}", f"another one is called {field.name} already")


def _unusable(what: str, because: str) -> Invalid:
    return Invalid(
        f"these questions cannot be asked: {what}",
        because=because,
        try_this="ask again with that put right",
        code="questionnaire.unusable",
    )


def _fault(field: Field) -> str:
    """Return what is wrong with a field; empty if nothing is."""
    if not _NAME.fullmatch(field.name):
        return "a name has 1 to 40 lower-case letters, digits and hyphens, and begins with a letter"
    if not field.label.strip() or len(field.label) > LABEL_LENGTH_MAX or not is_storable(field.label):
        return f"a label has 1 to {LABEL_LENGTH_MAX} characters"
    if field.kind not in _WITH_OPTIONS and field.options:
        return f"{field.kind} has no options"
    if field.kind in _WITH_OPTIONS:
        if not 1 <= len(field.options) <= OPTIONS_MAX or len(set(field.options)) < len(field.options):
            return f"{field.kind} has 1 to {OPTIONS_MAX} options, no two alike"
        if not all(_is_option(option) for option in field.options):
            return f"an option is one line of 1 to {OPTION_LENGTH_MAX} characters"
    return _fault_of_bounds(field)


def _is_option(option: str) -> bool:
    return bool(option.strip()) and option.isprintable() and len(option) <= OPTION_LENGTH_MAX and is_storable(option)


def _fault_of_bounds(field: Field) -> str:
    bounds = [bound for bound in (field.least, field.most) if bound is not None]
    if not bounds:
        return ""
    if field.kind in (FieldKind.CHOICE, FieldKind.YES_NO):
        return f"{field.kind} has no least and most"
    if not all(math.isfinite(bound) and abs(bound) <= NUMBER_SIZE_MAX for bound in bounds):
        return "least and most are numbers of a size that can be kept"
    if len(bounds) == 2 and bounds[0] > bounds[1]:
        return "least is more than most"
    most_possible = {FieldKind.TEXT: ANSWER_LENGTH_MAX, FieldKind.SEVERAL: len(field.options)}.get(field.kind)
    if most_possible is not None and field.least is not None and field.least > most_possible:
        return f"no answer reaches {field.least:g}"
    return ""


def choices_of(fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the choices if a single one of a few answers the whole questionnaire; otherwise none."""
    if len(fields) != 1:
        return ()
    match fields[0].kind:
        case FieldKind.YES_NO:
            return ("Yes", "No")
        case FieldKind.CHOICE if len(fields[0].options) <= CHOICES_PRESSED_MAX:
            return fields[0].options
        case _:
            return ()


def as_shown(title: str, fields: Sequence[Field]) -> str:
    """Format a questionnaire as text for a channel, where it is answered in free text or with a button."""
    lines = [title]
    for field in fields:
        lines.append(f"- {field.label}" if len(fields) > 1 or field.label != title else "")
        lines += [f"    {number}. {option}" for number, option in enumerate(field.options, start=1)]
    return "\n".join(line for line in lines if line)


def faults(fields: Sequence[Field], answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return what is wrong with each answer, by field name; empty if all are valid."""
    found = {field.name: fault for field in fields if (fault := _misfit(field, answers.get(field.name)))}
    known = {field.name for field in fields}
    return found | {name[:40]: "nobody asked for this" for name in answers if name not in known}


def _is_left_out(answer: Answer) -> bool:
    return answer is None or answer == [] or (isinstance(answer, str) and not answer.strip())


def _misfit(field: Field, answer: Answer) -> str:
    if _is_left_out(answer):
        return "this must be answered" if field.required else ""
    match field.kind:
        case FieldKind.TEXT:
            return _misfit_of_text(field, answer)
        case FieldKind.CHOICE:
            return "" if answer in field.options else "pick one of the options"
        case FieldKind.SEVERAL:
            return _misfit_of_several(field, answer)
        case FieldKind.NUMBER:
            return _misfit_of_number(field, answer)
        case FieldKind.YES_NO:
            return "" if isinstance(answer, bool) else "say yes or no"


def _misfit_of_text(field: Field, answer: Answer) -> str:
    if not isinstance(answer, str) or not is_storable(answer):
        return "this is a text"
    most = min(ANSWER_LENGTH_MAX, field.most if field.most is not None else ANSWER_LENGTH_MAX)
    return _out_of_bounds(len(answer), field.least, most, "characters")


def _misfit_of_several(field: Field, answer: Answer) -> str:
    if not isinstance(answer, list) or len(set(answer)) < len(answer) or not set(answer) <= set(field.options):
        return "pick from the options, each once"
    return _out_of_bounds(len(answer), field.least, field.most, "of them")


def _misfit_of_number(field: Field, answer: Answer) -> str:
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        return "this is a number"
    if abs(answer) > NUMBER_SIZE_MAX:
        return "this number is too large to be kept"
    return _out_of_bounds(answer, field.least, field.most, "")


def _out_of_bounds(size: float, least: float | None, most: float | None, unit: str) -> str:
    if least is not None and size < least:
        return f"at least {least:g} {unit}".rstrip()
    if most is not None and size > most:
        return f"at most {most:g} {unit}".rstrip()
    return ""


def given(fields: Sequence[Field], answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers in the order of the questions, without empty ones."""
    return {field.name: answers[field.name] for field in fields if not _is_left_out(answers.get(field.name))}


def in_words(questionnaire: Questionnaire, answers: Mapping[str, Answer]) -> str:
    """Format the answers as the person's message to the agent.

    Only the names of the fields appear in it. Labels are the agent's text, possibly written after
    it read untrusted content. They must not come back as something that a person said.
    """
    lines = [f"Answers to questionnaire {questionnaire.id[:8]}:"]
    lines += [f"{field.name}: {_word(answers.get(field.name))}" for field in questionnaire.fields]
    return "\n".join(lines)


def _word(answer: Answer) -> str:
    match answer:
        case None:
            return "(not answered)"
        case bool():
            return "yes" if answer else "no"
        case list():
            return "; ".join(answer)
        case float() if answer.is_integer():
            return str(int(answer))
        case str():
            return answer.replace("\n", _LINES_FOLLOW)  # so that no line of an answer looks like the next field
        case _:
            return str(answer)


def trust_of(questionnaire: Questionnaire, answers: Mapping[str, Answer], person: Trust) -> Trust:
    """Return the trust of the answers: the person's, unless an option was picked.

    Options are the agent's text. If the agent had read untrusted content before, a picked option is
    untrusted too.
    """
    picked = any(field.kind in _WITH_OPTIONS and field.name in answers for field in questionnaire.fields)
    return Trust.UNTRUSTED if picked and questionnaire.trust is Trust.UNTRUSTED else person
