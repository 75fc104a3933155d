"""The frame of the web app: sign-in, navigation, shortcuts and the connection."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from web.browser import SIZES_AND_THEMES, WebApp, find_violations, scrolls_sideways, track_requests


def test_a_sign_in_code_signs_in_and_disappears_from_the_url(app: WebApp) -> None:
    page = app.open_window("/chat")
    assert "code" not in page.url
    page.reload()
    expect(page.get_by_role("navigation", name="Screens")).to_be_visible()


def test_the_sign_in_screen_accepts_a_valid_code_only(app: WebApp) -> None:
    page = app.open_window()
    page.get_by_role("button", name="Signed in as owner").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Sign-in code").fill("not a code")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("code")
    assert find_violations(page) == []
    page.get_by_label("Sign-in code").fill(app.server.do("token.code")["code"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Screens")).to_be_visible()
    app.close_expecting_errors()  # refused requests are expected


def test_a_url_of_an_earlier_web_app_version_redirects_to_the_current_screen(app: WebApp) -> None:
    page = app.open_window()
    addresses = {
        "/doors": "/channels",
        "/doors/bindings": "/channels/routing",
        "/house/settings": "/settings/configuration",
        "/live/dead": "/activity/failed",
        "/money?days=7": "/usage?days=7",
    }
    for old, new in addresses.items():
        page.goto(app.server.address + old)
        expect(page).to_have_url(app.server.address + new)
        expect(page.locator("main")).not_to_be_empty()


@pytest.mark.parametrize(("size", "theme"), SIZES_AND_THEMES)
def test_every_screen_is_accessible(app: WebApp, size: str, theme: str) -> None:
    page = app.open_window(size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    paths = page.eval_on_selector_all("nav[aria-label=Screens] a.screen", "all => all.map(each => each.pathname)")
    assert "/chat" in paths
    wait_until_settled, found = track_requests(page), dict[str, list[str]]()
    for path in paths:
        page.goto(app.server.address + path)
        expect(page.locator("main")).not_to_be_empty()
        wait_until_settled()
        found[path] = find_violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert {path: what for path, what in found.items() if what} == {}


def test_the_accessibility_check_finds_violations(app: WebApp) -> None:
    page = app.open_window()
    assert find_violations(page) == []
    page.locator("main").evaluate(
        """(main) => {
            const pale = Object.assign(document.createElement("p"), {textContent: "Hardly to be seen"});
            Object.assign(pale.style, {color: "#bbb", background: "#fff"});
            main.prepend(Object.assign(new Image(), {src: "/icon.svg"}), pale);
        }"""
    )
    found = find_violations(page)
    assert [each.partition(":")[0] for each in found] == ["color-contrast", "image-alt"]
    assert found[1].endswith(": #content > img")


def test_the_shortcut_help_and_the_command_palette_open_by_keyboard(app: WebApp) -> None:
    page = app.open_window()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("guide")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{app.server.address}/agents/guide")


def test_a_shortcut_opens_a_dialog_while_another_one_closes(app: WebApp) -> None:
    page = app.open_window()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    # The browser reports that a dialog has closed only after this script, and so after the key.
    page.evaluate(
        "() => { document.querySelector('dialog').close();"
        " dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true })); }"
    )
    page.get_by_role("combobox").fill("guide")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{app.server.address}/agents/guide")


def test_an_unknown_url_links_to_chat(app: WebApp) -> None:
    page = app.open_window("/no/such/place")
    page.get_by_role("link", name="Open Chat").click()
    expect(page).to_have_url(f"{app.server.address}/")


def test_the_web_app_shows_a_lost_connection_and_restores_it(app: WebApp) -> None:
    page = app.open_window()
    app.server.process.kill()
    expect(page.get_by_text("The server does not respond.")).to_be_visible()
    app.server.process.open(again_at=app.server.address)
    expect(page.get_by_text("The server does not respond.")).to_have_count(0)
