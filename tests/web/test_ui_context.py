"""The context line, built by the code of the web app and parsed by the server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.ui_context import LINE_LENGTH_MAX, context_attributes, context_line, text_without_context

WEB = Path(__file__).parents[2] / "web"
TYPESCRIPT = WEB / "node_modules" / "typescript"
PANEL = {"id": "p1", "type": "lists", "title": "Shopping"}
ITEM = {"kind": "item", "type": "list", "id": "groceries", "name": "Groceries"}
VIEW = {"kind": "view", "name": "Due soon", "query": "tag:urgent ORDER BY added"}

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not TYPESCRIPT.exists(),
    reason="needs node and the packages of the web app",
)

RUN_SCRIPT = """
const ts = require(process.argv[1]);
const source = require("fs").readFileSync(process.argv[2], "utf8");
const options = { module: "CommonJS", target: "ES2022" };
const made = { exports: {} };
const plain = ts.transpileModule(source, { compilerOptions: options }).outputText;
new Function("module", "exports", plain)(made, made.exports);
const [name, ...asked] = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(asked.map((each) => made.exports[name](each))));
"""


def run_typescript(function: str, *arguments: Any) -> list[str]:
    """The results of a function of `uiContext.ts` for each argument."""
    command = ["node", "-e", RUN_SCRIPT, str(TYPESCRIPT), str(WEB / "src" / "lib" / "uiContext.ts")]
    done = subprocess.run(
        command, input=json.dumps([function, *arguments]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def build_line(**state: Any) -> str:
    [made] = run_typescript("buildContextLine", state)
    return made


@pytest.mark.spec("A88")
def test_the_ui_context_line_describes_an_item_a_view_or_only_the_panel() -> None:
    item, view, bare, nothing, kept_out = run_typescript(
        "buildContextLine",
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
def test_every_value_of_the_ui_context_line_is_escaped_and_stays_in_its_attribute() -> None:
    hostile = "a\"b'c<d>&e\n/>\tf\x07\u2028g"
    made = build_line(
        panel={"id": hostile, "type": hostile, "title": hostile},
        active={"kind": "item", "type": hostile, "id": hostile, "name": hostile},
        selection=[hostile],
        extras={"note": hostile},
    )
    assert made.count("\n") == 1 and made.endswith(" />\n")
    assert made.count("<") == made.count(">") == 1
    clean = "a\"b'c<d>&e /> f g"
    names = ("panel-id", "panel-type", "panel-title", "type", "id", "name", "selection", "note")
    assert context_attributes(made) == dict.fromkeys(names, clean)
    # The server parses the same values and removes the line from the text.
    assert text_without_context(made + "hello") == "hello"


@pytest.mark.spec("A60")
def test_long_values_in_the_ui_context_line_are_truncated_with_an_ellipsis() -> None:
    long = "x" * 3_000
    made = context_attributes(
        build_line(
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
def test_extras_of_the_ui_context_line_cannot_override_reserved_names_or_use_invalid_ones() -> None:
    extras = {
        "mode": "brief",
        "panel-id": "other",
        "Upper": "x",
        "a b": "x",
        'q="': "x",
        "1st": "x",
        "own-word": "kept",
    }
    assert context_attributes(build_line(panel=PANEL, extras=extras)) == {
        "panel-id": "p1",
        "panel-type": "lists",
        "panel-title": "Shopping",
        "own-word": "kept",
    }


@pytest.mark.spec("A60")
def test_the_longest_ui_context_line_is_accepted_by_the_server() -> None:
    most = '"' * 2_000
    made = build_line(
        panel={"id": most, "type": most, "title": most},
        active={"kind": "item", "type": most, "id": most, "name": most, "description": most},
        selection=[most],
        selectionTitles=[most],
        brief=True,
        extras={f"extra-{number}": most for number in range(50)},
    )
    assert len(made) < LINE_LENGTH_MAX
    assert context_line(made + "words") == made


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
def test_the_web_app_and_the_server_remove_the_same_ui_context_line() -> None:
    assert run_typescript("stripContextLine", *TEXTS) == [text_without_context(text) for text in TEXTS]
    assert [text_without_context(text) for text in TEXTS[:4]] == ["/stop", "hello", "", "no context here"]
    assert [text_without_context(text) for text in TEXTS[4:9]] == list(TEXTS[4:9])
