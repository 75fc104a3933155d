"""Each error code has its paragraph, and the generated pages are the ones the code makes."""

from __future__ import annotations

from retinue.operations import generate
from retinue.operations.catalog import OPERATIONS


def test_the_error_page_is_what_the_code_makes_it() -> None:
    page = (generate.REFERENCE / "errors.md").read_text()
    assert page == generate.errors_page(list(generate.errors_in(generate.SOURCE)))


def test_the_operations_page_is_what_the_code_makes_it() -> None:
    assert (generate.REFERENCE / "operations.md").read_text() == generate.operations_page(OPERATIONS.values())


def test_every_error_with_a_code_of_its_own_says_why() -> None:
    silent = [said for said in generate.errors_in(generate.SOURCE) if not said.because]
    assert silent == []
