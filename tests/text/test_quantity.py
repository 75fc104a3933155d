"""Numbers with the nouns that they count."""

from __future__ import annotations

import pytest

from retinue.text.quantity import format_quantity


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries"), (1_000, "1,000 entries")]
)
def test_a_quantity_has_a_singular_noun_for_one_only(count: int, text: str) -> None:
    assert format_quantity(count, "entry", plural="entries") == text


def test_a_quantity_has_a_noun_with_the_plural_s_by_default() -> None:
    assert format_quantity(2, "dead letter") == "2 dead letters"
