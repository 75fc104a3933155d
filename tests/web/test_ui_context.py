"""The context line, made by the page's own code and read by the house's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.ui_context import LINE_LENGTH_MAX, attributes_of, line_of, words_of

WEB = Path(__file__).parents[2] / "web"
TYPESCRIPT = WEB / "node_modules" / "typescript"
PANEL = {"id": "p1", "type": "lists", "title": "Shopping"}
ITEM = {"kind": "item", "type": "list", "id": "groceries", "name": "Groceries"}
VIEW = {"kind": "view", "name": "Due soon", "query": "tag:urgent ORDER BY added"}

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not TYPESCRIPT.exists(), reason="the page's code needs node and its packages"
)

RUN = """
const ts = require(process.argv[1]);
const source = require("fs").readFileSync(process.argv[2], "utf8");
const options = { module: "CommonJS", target: "ES2022" };
const made = { exports: {} };
const plain = ts.transpileModule(source, { compilerOptions: options }).outputText;
new Function("module", "exports", plain)(made, made.exports);
const [name, ...asked] = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(asked.map((each) => made.exports[name](each))));
"""


def page(function: str, *asked: Any) -> list[str]:
    """What the page's own function makes of each of these."""
    command = ["node", "-e", RUN, str(TYPESCRIPT), str(WEB / "src" / "lib" / "context.ts")]
    done = subprocess.run(command, input=json.dumps([function, *asked]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def line(**before: Any) -> str:
    [made] = page("contextLine", before)
    return made


@pytest.mark.spec("A88")
def test_the_line_has_one_of_two_forms_and_only_the_panel_where_nothing_is_active() -> None:
    item, view, bare, nothing, kept_out = page(
        "contextLine",
        {"panel": PANEL, "active": ITEM, "selection": ["a1", "b2"], "brief": True},
        {"panel": PANEL, "active": VIEW, "selection": ["a1"], "brief": True},
        {"panel": PANEL},
        {},
        {"panel": PANEL, "selection": ["a1"]},
    )
    of_panel = 'panel-id="p1" panel-type="lists" panel-title="Shopping"'
    assert (
        item == f'<context {of_panel} type="list" id="groceries" name="Groceries" selection="a1,b2" mode="brief" />\n'
    )
    query = 'view-name="Due soon" view-query="tag:urgent ORDER BY added"'
    assert view == f'<context {of_panel} {query} selection="a1" mode="brief" />\n'
    assert bare == kept_out == f"<context {of_panel} />\n"
    assert nothing == "<context />\n"


@pytest.mark.spec("A60")
def test_every_value_is_escaped_on_one_line_and_cannot_end_its_attribute() -> None:
    nasty = "a\"b'c<d>&e\n/>\tf\x07\u2028g"
    made = line(
        panel={"id": nasty, "type": nasty, "title": nasty},
        active={"kind": "item", "type": nasty, "id": nasty, "name": nasty},
        selection=[nasty],
        extras={"note": nasty},
    )
    assert made.count("\n") == 1 and made.endswith(" />\n")
    assert made.count("<") == made.count(">") == 1
    clean = "a\"b'c<d>&e /> f g"
    names = ("panel-id", "panel-type", "panel-title", "type", "id", "name", "selection", "note")
    assert attributes_of(made) == dict.fromkeys(names, clean)
    # The house reads back exactly what was said, and none of it as words.
    assert words_of(made + "hello") == "hello"


@pytest.mark.spec("A60")
def test_what_is_too_long_is_cut_with_an_ellipsis() -> None:
    long = "x" * 3_000
    made = attributes_of(
        line(
            active={**ITEM, "description": long},
            selection=["a"],
            selectionTitles=[long],
            extras={"note": long, "short": "y" * 500},
        )
    )
    assert (len(made["description"]), len(made["selection-titles"]), len(made["note"])) == (500, 1_000, 500)
    assert all(made[name].endswith("…") for name in ("description", "selection-titles", "note"))
    assert made["short"] == "y" * 500


@pytest.mark.spec("A60")
def test_a_panel_cannot_say_what_is_the_pages_to_say_nor_by_a_name_that_is_none() -> None:
    extras = {
        "mode": "brief",
        "panel-id": "other",
        "Upper": "x",
        "a b": "x",
        'q="': "x",
        "1st": "x",
        "own-word": "kept",
    }
    assert attributes_of(line(panel=PANEL, extras=extras)) == {
        "panel-id": "p1",
        "panel-type": "lists",
        "panel-title": "Shopping",
        "own-word": "kept",
    }


@pytest.mark.spec("A60")
def test_the_longest_line_a_page_makes_is_still_one_to_the_house() -> None:
    most = '"' * 2_000
    made = line(
        panel={"id": most, "type": most, "title": most},
        active={"kind": "item", "type": most, "id": most, "name": most, "description": most},
        selection=[most],
        selectionTitles=[most],
        brief=True,
        extras={f"extra-{number}": most for number in range(50)},
    )
    assert len(made) < LINE_LENGTH_MAX
    assert line_of(made + "words") == made


TEXTS = (
    '<context panel-id="p" mode="brief" />\n/stop',
    "<context />\nhello",
    "<context />",
    "no context here",
    ' <context panel-id="p" />\nindented is not ours',
    '<context panel-id="p" />and more on the line\nwords',
    "<context onclick=alert />\nwords",
    '<context a="<b>" />\nwords',
    "<contextual />\nwords",
    '<context a="1" />\n<context b="2" />\nonly the first goes',
)


@pytest.mark.spec("A60")
def test_the_page_and_the_house_leave_out_the_same() -> None:
    assert page("wordsOf", *TEXTS) == [words_of(text) for text in TEXTS]
    assert [words_of(text) for text in TEXTS[:4]] == ["/stop", "hello", "", "no context here"]
    assert [words_of(text) for text in TEXTS[4:9]] == list(TEXTS[4:9])
