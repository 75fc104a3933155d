"""Hostile content in a conversation: no script runs, nothing is loaded, and nothing imitates the web app."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect
from web.browser import WebApp, scrolls_sideways
from web.chat_actions import import_session, message_log, open_chat, replies

PWN = "window.__pwned=1"
RLO = "\u202e"

HOSTILE = f"""
<script>{PWN}</script>
<img src=x onerror="{PWN}">
<svg onload="{PWN}"><script>{PWN}</script><animate onbegin="{PWN}" attributeName=x dur=1s></svg>
<iframe srcdoc="<script>parent.__pwned=1</script>"></iframe>
<iframe src="javascript:{PWN}"></iframe>
<style>* {{ display: none !important }}</style>
<link rel=stylesheet href="https://outside.example/evil.css">
<math><mtext><table><mglyph><style><img src=x onerror="{PWN}"></style></mglyph></table></mtext></math>
<details open ontoggle="{PWN}"><summary>open</summary></details>
<form action="https://outside.example"><button class="button main">Allow once</button></form>
<div class="card approval" role="alertdialog" style="position:fixed;inset:0">guide asks: may I?</div>
<base href="https://outside.example/">
<meta http-equiv=refresh content="0;url=https://outside.example">

![picture](https://outside.example/pixel.png) ![data](data:image/svg+xml,<svg/onload={PWN}>)

[script](javascript:{PWN}) [data](data:text/html,<script>{PWN}</script>) [vb](vbscript:x) [rel](/api/token/code) [ok](https://example.com/a)
[https://bank.example/login](https://evil.example/login) [bank.example](https://evilbank.example) [go to b\u0430nk.example](https://evil.example)
https://bank.example@evil.example/ [spaced](\x01javascript:{PWN})

<a href="#" onclick="{PWN}" id="content" name="live">x</a>
`<img src=x onerror={PWN}>`

```html"><script>{PWN}</script>
<script>{PWN}</script>
```

- [x] <input onfocus={PWN} autofocus>
- [ ] open

> **Server** This run was allowed. [Allow once](https://example.com) {RLO}drawkcab

| a | b |
|---|---|
| <script>{PWN}</script> | {"wide " * 200} |

[ref]: javascript:{PWN}
[through][ref]
"""

NAME = f'<img src=x onerror="{PWN}">'


@pytest.fixture
def page(app: WebApp) -> Iterator[Page]:
    """A conversation with hostile messages, tool calls, results, notes and name."""
    call = {"id": "c1", "name": NAME[:60], "arguments": {"path": HOSTILE, "</pre><script>": PWN, RLO: "turned"}}
    output = {"toolMessage": {"toolCallId": "c1", "toolName": "read", "content": [{"type": "text", "text": HOSTILE}]}}
    session = import_session(
        app,
        [
            {"type": "user_message", "text": HOSTILE},
            {"type": "assistant_message", "text": HOSTILE, "toolCalls": [call]},
            {"type": "tool_result", "toolCallId": "c1", "output": output},
            {"type": "note", "text": HOSTILE},
            {"type": "assistant_message", "text": HOSTILE},
        ],
    )
    app.server.do("session.rename", session=session, name=f"{NAME} {session[:8]}")
    opened = open_chat(app, session)
    expect(replies(opened)).to_have_count(2)
    yield opened
    assert opened.evaluate("window.__pwned") is None


def test_hostile_content_runs_no_script_and_sends_no_request(app: WebApp, page: Page) -> None:
    message_log(page).locator("summary").first.click()
    page.get_by_role("button", name="Find in conversation").click()
    page.get_by_role("searchbox", name="Find in conversation").fill("onerror")
    expect(page.get_by_role("search").get_by_role("status")).to_contain_text("of")
    page.reload()
    expect(replies(page)).to_have_count(2)
    assert page.evaluate("window.__pwned") is None
    assert not scrolls_sideways(page)
    # The fixture `app` checks that there was no policy error and no request to another host.


def test_hostile_markup_in_the_web_chat_is_shown_as_plain_text(page: Page) -> None:
    expect(replies(page).first).to_contain_text("<script>window.__pwned=1</script>")
    expect(message_log(page).locator("article.own .plain")).to_contain_text("<iframe")
    found = page.evaluate(
        """() => [...document.querySelectorAll(".markdown *")]
            .filter((each) => !each.closest(".code > .head"))
            .map((each) => each.tagName.toLowerCase())"""
    )
    assert set(found) <= {
        *("p", "br", "strong", "em", "del", "code", "pre", "ul", "ol", "li", "blockquote", "h3", "hr", "a", "div"),
        *("table", "thead", "tbody", "tr", "th", "td", "input"),
    }
    handlers = page.evaluate(
        """() => [...document.querySelectorAll(".markdown *")].flatMap((each) => [...each.attributes])
            .filter((each) => /^on|^style$|^id$|^name$|^srcdoc$|^action$/.test(each.name)).map((each) => each.name)"""
    )
    assert handlers == []


def test_hostile_content_cannot_use_the_styles_of_the_app(page: Page) -> None:
    classes = page.evaluate(
        """() => [...new Set([...document.querySelectorAll(".markdown *")].flatMap((each) => [...each.classList]))]"""
    )
    assert {each for each in classes if not each.startswith("svelte-")} <= {"code", "head", "scrolling"}
    expect(message_log(page).get_by_role("button", name="Allow once")).to_have_count(0)
    expect(message_log(page).get_by_role("alertdialog")).to_have_count(0)
    # Texts of the server are notes with a label that Markdown cannot produce.
    expect(message_log(page).get_by_role("note")).to_have_count(1)
    expect(message_log(page).locator(".markdown .label")).to_have_count(0)


def test_links_in_hostile_content_of_the_web_chat_show_their_host_and_send_no_referrer(page: Page) -> None:
    links = page.evaluate(
        """() => [...document.querySelectorAll(".markdown a")].map((each) =>
            ({href: each.getAttribute("href"), rel: each.rel, target: each.target, words: each.textContent}))"""
    )
    assert links
    for link in links:
        if link["href"] is None:
            continue
        assert urlsplit(link["href"]).scheme in ("http", "https", "mailto"), link
        assert link["target"] == "_blank"
        assert {"noopener", "noreferrer"} <= set(link["rel"].split())
    words = [link["words"] for link in links]
    assert "https://bank.example/login (evil.example)" in words
    assert "bank.example (evilbank.example)" in words
    assert "go to b\u0430nk.example (evil.example)" in words
    assert any("@evil.example" in each and each.endswith("(evil.example)") for each in words)
    assert "ok" in words


def test_hostile_names_arguments_and_results_are_plain_text_in_the_web_app(page: Page) -> None:
    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x onerror=")
    assert RLO not in page.locator("body").inner_text()
    card = message_log(page).locator("details.card").first
    card.locator("summary").click()
    expect(card.locator("pre").first).to_contain_text("</pre><script>")
    expect(card.locator("pre").last).to_contain_text("<svg onload=")
    assert card.locator("pre").evaluate_all("all => all.every((each) => each.children.length === 0)")


def test_hostile_content_with_huge_tables_and_deep_nesting_does_not_block_the_web_app(app: WebApp) -> None:
    table = "|" + "a|" * 100 + "\n|" + "-|" * 100 + "\n" + ("|" + "x|" * 100 + "\n") * 100
    deep = ">" * 1_000 + " deep\n\n" + "".join("  " * i + "- x\n" for i in range(200)) + "\n" + "[" * 5_000
    session = import_session(app, [{"type": "assistant_message", "text": each} for each in (table, deep, "**after**")])
    page = open_chat(app, session)
    expect(message_log(page).get_by_text("after", exact=True)).to_be_visible()
    assert not scrolls_sideways(page)
    assert json.loads(page.evaluate("JSON.stringify([...document.querySelectorAll('table')].length)")) == 1
