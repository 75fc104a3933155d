"""Numbers with the nouns that they count."""

from __future__ import annotations

import pytest

from retinue.text.quantity import format_quantity


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries"), (1_000, "1,000 entries")]
)
def test_a_noun_is_singular_for_one_only(count: int, text: str) -> None:
    assert format_quantity(count, "entry", plural="entries") == text


def test_the_usual_plural_ends_in_s() -> None:
    assert format_quantity(2, "dead letter") == "2 dead letters"
