"""The frame of the page: coming in, going about, staying in touch."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from web.browser import LOOKS, Front, scrolls_sideways, settling, violations


def test_a_code_lets_a_browser_in_once_and_is_gone_from_its_address(front: Front) -> None:
    page = front.window("/chat")
    assert "code" not in page.url
    page.reload()
    expect(page.get_by_role("navigation", name="Screens")).to_be_visible()


def test_who_is_not_signed_in_is_told_how(front: Front) -> None:
    page = front.window()
    page.get_by_role("button", name="You are owner").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_role("heading", name="Who are you?")).to_be_visible()
    page.get_by_label("Code").fill("not a code")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("code")
    assert violations(page) == []
    page.get_by_label("Code").fill(front.rim.do("token.code")["code"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Screens")).to_be_visible()
    front.complaints.clear()  # of the refusals, which were meant


@pytest.mark.parametrize(("size", "theme"), LOOKS)
def test_every_screen_can_be_used_by_anyone(front: Front, size: str, theme: str) -> None:
    page = front.window(size=size, theme=theme)  # pyright: ignore[reportArgumentType]
    paths = page.eval_on_selector_all("nav[aria-label=Screens] a.screen", "all => all.map(each => each.pathname)")
    assert "/chat" in paths
    settle, found = settling(page), dict[str, list[str]]()
    for path in paths:
        page.goto(front.rim.address + path)
        expect(page.locator("main")).not_to_be_empty()
        settle()
        found[path] = violations(page) + (["scrolls sideways"] if scrolls_sideways(page) else [])
    assert {path: what for path, what in found.items() if what} == {}


def test_what_cannot_be_used_by_everyone_is_found(front: Front) -> None:
    page = front.window()
    assert violations(page) == []
    page.locator("main").evaluate(
        """(main) => {
            const pale = Object.assign(document.createElement("p"), {textContent: "Hardly to be seen"});
            Object.assign(pale.style, {color: "#bbb", background: "#fff"});
            main.prepend(Object.assign(new Image(), {src: "/icon.svg"}), pale);
        }"""
    )
    found = violations(page)
    assert [each.partition(":")[0] for each in found] == ["color-contrast", "image-alt"]
    assert found[1].endswith(": #content > img")


def test_the_keyboard_goes_everywhere_and_says_how(front: Front) -> None:
    page = front.window()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="What the keyboard does")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("guide")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{front.rim.address}/agents/guide")


def test_an_address_that_is_none_leads_home(front: Front) -> None:
    page = front.window("/no/such/place")
    page.get_by_role("link", name="Go to the conversations").click()
    expect(page).to_have_url(f"{front.rim.address}/")


def test_a_house_that_is_away_is_told_of_and_comes_back_by_itself(front: Front) -> None:
    page = front.window()
    front.rim.process.kill()
    expect(page.get_by_text("The house does not answer.")).to_be_visible()
    front.rim.process.open(again_at=front.rim.address)
    expect(page.get_by_text("The house does not answer.")).to_have_count(0)
