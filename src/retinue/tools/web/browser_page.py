"""The pages of one browser: navigation, outline, mouse and keyboard, over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, field

from retinue.tools.base import ToolFailed
from retinue.tools.web.cdp import BrowserFailed, Cdp, TooMuch
from retinue.tools.web.chromium import HEIGHT, WIDTH
from retinue.tools.web.page_snapshot import Names, Outline
from retinue.tools.web.url_guard import WebFailed

TABS_MAX = 4
FRAMES_MAX = 8
SETTLE_S = 0.3
NOTES_MAX = 10
PLAIN_CHARS_MAX = 200_000
_SCHEMES = ("http", "https", "about", "blob", "data")

_MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
_KEYS: dict[str, tuple[str, int, str]] = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "Space": ("Space", 32, " "),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
}


class _Tab(Struct):
    target: str
    session: str
    frame: str = ""
    loading: bool = False
    names: Names = field(default_factory=Names)


class Pages:
    """The tabs of one browser. A window that a page opens becomes the current tab; `back` closes
    it.
    """

    def __init__(self, cdp: Cdp, *, load_s: float) -> None:
        self._cdp = cdp
        self._load_s = load_s
        self._tabs: list[_Tab] = []
        self._notes: list[str] = []
        self._changed = asyncio.Event()
        self._errands: set[asyncio.Task[None]] = set()
        cdp.listen(self._heard)

    async def begin(self) -> None:
        await self._cdp.call("Browser.setDownloadBehavior", {"behavior": "deny", "eventsEnabled": True})
        await self._cdp.call("Target.setDiscoverTargets", {"discover": True})
        await self._new_tab()

    async def close(self) -> None:
        for errand in self._errands:
            errand.cancel()
        if self._errands:
            await asyncio.wait(self._errands)

    @property
    def notes(self) -> list[str]:
        """Return the side events since the last read, and clear them."""
        told, self._notes = self._notes, []
        return told

    async def open(self, url: str) -> None:
        if not self._tabs:
            await self._new_tab()
        tab = self._tab
        tab.loading = True  # set before the call: a fast page has loaded when the call returns
        try:
            answer = await self._call("Page.navigate", {"url": url}, timeout_s=self._load_s)
        except ToolFailed:
            tab.loading = False
            raise
        if problem := answer.get("errorText", ""):
            tab.loading = False
            host = urlsplit(url).hostname or ""
            raise WebFailed(f"'{host}' could not be opened", because=str(problem), try_this="try another page")
        if "loaderId" not in answer:  # a jump within the same page
            tab.loading = False
        await self._settle()

    async def back(self) -> None:
        history = await self._call("Page.getNavigationHistory")
        at = int(history["currentIndex"])
        if at > 0 and str(history["entries"][at - 1]["url"]) != "about:blank":
            await self._call("Page.navigateToHistoryEntry", {"entryId": history["entries"][at - 1]["id"]})
        elif len(self._tabs) > 1:
            await self._leave()
        else:
            raise BrowserFailed(
                "there is nothing to go back to", because="this is the first page", code="browser.first"
            )
        await self._settle()

    async def scroll(self, *, up: bool) -> None:
        distance = -0.8 * HEIGHT if up else 0.8 * HEIGHT
        await self._mouse("mouseWheel", WIDTH / 2, HEIGHT / 2, deltaX=0, deltaY=distance)
        await self._settle()

    async def click(self, ref: str) -> None:
        x, y = await self._middle(self._node(ref))
        await self._mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            await self._mouse(kind, x, y, button="left", clickCount=1)
        await self._settle()

    async def type(self, ref: str, text: str, *, submit: bool) -> None:
        """Type text. It replaces the current value."""
        node = self._node(ref)
        await self._call("DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
        await self._call("DOM.focus", {"backendNodeId": node})
        await self._on(node, "function() { this.select ? this.select() : document.execCommand('selectAll') }")
        if text:
            await self._call("Input.insertText", {"text": text})
        else:
            await self._key("Delete")
        if submit:
            await self._key("Enter")
        await self._settle()

    async def choose(self, ref: str, text: str) -> None:
        chosen = await self._on(
            self._node(ref),
            """function(wanted) {
                const option = [...(this.options || [])].find(o => o.label.trim() === wanted || o.value === wanted);
                if (!option) return false;
                this.value = option.value;
                this.dispatchEvent(new Event('input', {bubbles: true}));
                this.dispatchEvent(new Event('change', {bubbles: true}));
                return true;
            }""",
            text,
        )
        if chosen is not True:
            raise BrowserFailed(
                f"{ref} has no such choice",
                because="none of its options has this label, or it is no list to choose from",
                try_this="take a snapshot, and use the name of an option as it stands there",
                code="browser.no-option",
            )
        await self._settle()

    async def press(self, key: str) -> None:
        await self._key(key)
        await self._settle()

    async def screenshot(self) -> bytes:
        shot = await self._call("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(str(shot["data"]))

    async def where(self) -> tuple[str, str]:
        """Return the address and title of the current page. Leaves a page of Chromium's own, or a
        file, at once.
        """
        history = await self._call("Page.getNavigationHistory")
        entry = history["entries"][int(history["currentIndex"])]
        url = str(entry["url"])
        if urlsplit(url).scheme not in _SCHEMES:
            await self._call("Page.navigate", {"url": "about:blank"})
            raise BrowserFailed(
                "this is no page of the web", because="only http and https are shown", code="web.refused"
            )
        return url, str(entry.get("title", ""))

    async def targets(self) -> list[str]:
        """Return the ids of the open windows."""
        told = await self._cdp.call("Target.getTargets")
        return [str(each["targetId"]) for each in told["targetInfos"] if each.get("type") == "page"]

    async def outline(self) -> str:
        """Return the outline of the page, with refs for the elements that can be acted on."""
        outline = Outline(self._tab.names)
        try:
            for number, frame in enumerate(await self._frames()):
                given = {"frameId": frame} if frame else {}
                try:
                    tree = await self._call("Accessibility.getFullAXTree", given)
                except TooMuch:
                    raise
                except BrowserFailed:
                    if number == 0:
                        raise
                    continue  # a cross-site frame has its own process and its own tree
                if number:
                    outline.lines.append("- frame")
                outline.add(tree.get("nodes", []), depth=1 if number else 0)
        except TooMuch:
            return await self._plain()
        return "\n".join(outline.lines)

    @property
    def _tab(self) -> _Tab:
        if not self._tabs:
            raise BrowserFailed(
                "no page is open", because="the last one was closed", try_this="open one", code="browser.no-page"
            )
        return self._tabs[-1]

    async def _call(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return await self._cdp.call(method, params, session=self._tab.session, **more)

    async def _new_tab(self) -> None:
        made = await self._cdp.call("Target.createTarget", {"url": "about:blank"})
        await self._adopt(str(made["targetId"]))

    async def _leave(self) -> None:
        await self._cdp.call("Target.closeTarget", {"targetId": self._tabs.pop().target})

    def _given(self) -> int:
        return max((tab.names.given for tab in self._tabs), default=0)

    async def _adopt(self, target: str) -> None:
        if any(tab.target == target for tab in self._tabs):
            return
        tab = _Tab(target, "", names=Names(self._given()))
        self._tabs.append(tab)  # append before the first await, because the same window is reported more than once
        try:
            attached = await self._cdp.call("Target.attachToTarget", {"targetId": target, "flatten": True})
            tab.session = str(attached["sessionId"])
            for method in ("Page.enable", "Accessibility.enable", "DOM.enable", "Inspector.enable"):
                await self._cdp.call(method, session=tab.session)
            await self._cdp.call("Page.setInterceptFileChooserDialog", {"enabled": True}, session=tab.session)
            tree = await self._cdp.call("Page.getFrameTree", session=tab.session)
            tab.frame = str(tree["frameTree"]["frame"]["id"])
        except ToolFailed:
            if tab in self._tabs:
                self._tabs.remove(tab)
            raise

    async def _frames(self) -> list[str]:
        tree = (await self._call("Page.getFrameTree"))["frameTree"]
        frames = [""]
        left: list[dict[str, Any]] = list(tree.get("childFrames", []))
        while left and len(frames) < FRAMES_MAX:
            inner = left.pop(0)
            frames.append(str(inner["frame"]["id"]))
            left += inner.get("childFrames", [])
        return frames

    async def _plain(self) -> str:
        """Return the plain text of a page that is too large for an outline."""
        expression = f"document.body ? document.body.innerText.slice(0, {PLAIN_CHARS_MAX}) : ''"
        answer = await self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        return f"[too much for an outline; its words alone]\n{answer.get('result', {}).get('value', '')}"

    def _node(self, ref: str) -> int:
        node = self._tab.names.nodes.get(ref)
        if node is None:
            raise BrowserFailed(
                f"there is no {ref[:20]!r} on the page",
                because="names are those of the page that is open, and it may have changed since",
                try_this="take a snapshot",
                code="browser.no-such-ref",
            )
        return node

    async def _middle(self, node: int) -> tuple[float, float]:
        try:
            await self._call("DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
            found = await self._call("DOM.getContentQuads", {"backendNodeId": node})
            quads: list[list[float]] = found.get("quads", [])
        except BrowserFailed as error:
            if error.code != BrowserFailed.code:
                raise
            quads = []
        if not quads:
            raise BrowserFailed(
                "it cannot be clicked",
                because="it is hidden, or no longer on the page",
                try_this="take a snapshot",
                code="browser.hidden",
            )
        return sum(quads[0][0::2]) / 4, sum(quads[0][1::2]) / 4

    async def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        await self._dispatched(
            self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "pointerType": "mouse", **more})
        )

    async def _dispatched(self, call: Awaitable[Any]) -> None:
        """Ignore a failed dispatch: an event that opens a dialog is answered late, and one that
        closes the page never.
        """
        try:
            await call
        except BrowserFailed as error:
            if error.code != "browser.failed":
                raise

    async def _key(self, key: str) -> None:
        *held, last = key.split("+") if len(key) > 1 else [key]
        modifiers = sum({_MODIFIERS[each] for each in held if each in _MODIFIERS})
        if (last not in _KEYS and len(last) != 1) or any(each not in _MODIFIERS for each in held):
            raise BrowserFailed(
                f"there is no key {key[:40]!r}",
                because=f"keys are single letters, {', '.join(_KEYS)}, with {', '.join(_MODIFIERS)} and + before them",
                code="browser.no-such-key",
            )
        code, number, text = _KEYS[last] if last in _KEYS else ("", ord(last.upper()[:1]), last)
        if modifiers & ~_MODIFIERS["Shift"]:
            text = ""
        named = " " if last == "Space" else last
        given: dict[str, Any] = {"key": named, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        down: dict[str, Any] = {
            "type": "keyDown" if text else "rawKeyDown",
            **given,
            **({"text": text} if text else {}),
        }
        if modifiers == _MODIFIERS["Control"] and last in ("a", "A"):
            down["commands"] = ["selectAll"]
        for event in (down, {"type": "keyUp", **given}):
            await self._dispatched(self._call("Input.dispatchKeyEvent", event))

    async def _on(self, node: int, function: str, *arguments: str) -> object:
        found = await self._call("DOM.resolveNode", {"backendNodeId": node})
        called = await self._call(
            "Runtime.callFunctionOn",
            {
                "objectId": found["object"]["objectId"],
                "functionDeclaration": function,
                "arguments": [{"value": each} for each in arguments],
                "returnByValue": True,
            },
        )
        return called.get("result", {}).get("value")

    async def _settle(self) -> None:
        """Give the page a moment to react, and wait for loading to finish."""
        await asyncio.sleep(SETTLE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._load_s):
                while self._cdp.open and self._tabs and (self._tabs[-1].loading or not self._tabs[-1].frame):
                    self._changed.clear()
                    await self._changed.wait()
                return
        if self._tabs and self._tabs[-1].loading:
            self._note("the page was still loading when this was taken")

    def _heard(self, method: str, params: dict[str, Any], session: str) -> None:
        tab = next((tab for tab in self._tabs if tab.session and tab.session == session), None)
        match method:
            case "Page.frameStartedLoading" | "Page.frameStoppedLoading":
                if tab is not None and params.get("frameId") == tab.frame:
                    tab.loading = method == "Page.frameStartedLoading"
            case "Page.frameNavigated":
                if tab is not None and "parentId" not in params.get("frame", {}):
                    tab.names.forget()
            case "Page.loadEventFired":
                if tab is not None:
                    tab.loading = False
            case "Page.javascriptDialogOpening":
                self._dismiss(params, session)
            case "Page.fileChooserOpened":
                self._note("the page asked for a file, and got none")
            case "Browser.downloadWillBegin":
                self._note("the page began a download, which was refused")
            case "Target.targetCreated":
                info: dict[str, Any] = params.get("targetInfo", {})
                if info.get("type") == "page" and info.get("openerId"):
                    self._popup(str(info.get("targetId")))
            case "Target.targetDestroyed" | "Target.targetCrashed":
                self._tabs = [tab for tab in self._tabs if tab.target != params.get("targetId")]
                if method == "Target.targetCrashed":
                    self._note("the page crashed")
            case "gone":
                pass
            case _:
                return
        self._changed.set()

    def _dismiss(self, params: dict[str, Any], session: str) -> None:
        """Close a dialog without answering it, except that leaving a page is confirmed."""
        leaving = params.get("type") == "beforeunload"
        if not leaving:
            self._note(f"the page said in a dialogue, which was closed: {str(params.get('message', ''))[:300]!r}")
        self._soon(lambda: self._cdp.call("Page.handleJavaScriptDialog", {"accept": leaving}, session=session))

    def _popup(self, target: str) -> None:
        if len(self._tabs) >= TABS_MAX:
            self._note("the page opened one window too many, which was closed")
            self._soon(lambda: self._cdp.call("Target.closeTarget", {"targetId": target}))
        elif all(tab.target != target for tab in self._tabs):
            self._note("the page opened a window, which is shown now; `back` leaves it")
            self._soon(lambda: self._adopt(target))

    def _soon(self, work: Callable[[], Awaitable[Any]]) -> None:
        async def errand() -> None:
            with contextlib.suppress(ToolFailed):
                await work()
            self._changed.set()

        task = asyncio.get_running_loop().create_task(errand())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _note(self, note: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(note)
