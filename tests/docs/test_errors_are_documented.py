"""Each error code is documented, and the generated pages match the code."""

from __future__ import annotations

import re

from retinue.operations import generate_reference
from retinue.operations.catalog import OPERATIONS
from retinue.operations.error_reference import find_errors, render_errors_page


def test_errors_are_documented_in_an_up_to_date_error_reference() -> None:
    page = (generate_reference.REFERENCE / "errors.md").read_text()
    assert page == generate_reference.GENERATED_NOTICE + render_errors_page(find_errors(generate_reference.SOURCE))


def test_operations_are_documented_in_an_up_to_date_operation_reference() -> None:
    assert (generate_reference.REFERENCE / "operations.md").read_text() == generate_reference.render_operations_page(
        OPERATIONS.values()
    )


def test_every_error_code_in_the_source_is_documented_in_the_error_reference() -> None:
    page = (generate_reference.REFERENCE / "errors.md").read_text()
    source = "\n".join(
        path.read_text() for path in generate_reference.SOURCE.rglob("*.py") if "testing" not in path.parts
    )
    codes = set(re.findall(r"""\bcode\s*(?:: str)?\s*=\s*"([a-z_-]+(?:\.[a-z_-]+)+)\"""", source))
    assert len(codes) > 20
    assert {code for code in codes if f"## `{code}`" not in page} == set()
