"""Controls the pages of one browser over the DevTools protocol: navigation, outline, mouse and keyboard."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, field

from retinue.tools.base import ToolFailed
from retinue.tools.web.cdp import CdpClient
from retinue.tools.web.chromium import HEIGHT, WIDTH
from retinue.tools.web.errors import (
    BrowserCommandFailed,
    BrowserFailed,
    BrowserKeyUnknown,
    BrowserReplyTooLarge,
    ElementHidden,
    NoPageOpen,
    NoPreviousPage,
    OptionNotFound,
    PageNotOpened,
    PageSchemeRefused,
    RefNotFound,
)
from retinue.tools.web.page_snapshot import ElementRefs, PageOutline

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
    refs: ElementRefs = field(default_factory=ElementRefs)


class BrowserPages:
    """The tabs of one browser.

    A window that a page opens becomes the current tab; `back` closes it.
    """

    def __init__(self, cdp: CdpClient, *, load_s: float) -> None:
        self._cdp = cdp
        self._load_s = load_s
        self._tabs: list[_Tab] = []
        self._notes: list[str] = []
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        cdp.add_listener(self._handle_event)

    async def start(self) -> None:
        await self._cdp.call("Browser.setDownloadBehavior", {"behavior": "deny", "eventsEnabled": True})
        await self._cdp.call("Target.setDiscoverTargets", {"discover": True})
        await self._new_tab()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def notes(self) -> list[str]:
        """Return what else happened in the browser since the last call, such as closed dialogs. Clears the list."""
        notes, self._notes = self._notes, []
        return notes

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
            raise PageNotOpened(urlsplit(url).hostname or "", because=str(problem))
        if "loaderId" not in answer:  # a jump within the same page
            tab.loading = False
        await self._settle()

    async def back(self) -> None:
        history = await self._call("Page.getNavigationHistory")
        at = int(history["currentIndex"])
        if at > 0 and str(history["entries"][at - 1]["url"]) != "about:blank":
            await self._call("Page.navigateToHistoryEntry", {"entryId": history["entries"][at - 1]["id"]})
        elif len(self._tabs) > 1:
            await self._close_tab()
        else:
            raise NoPreviousPage
        await self._settle()

    async def scroll(self, *, up: bool) -> None:
        distance = -0.8 * HEIGHT if up else 0.8 * HEIGHT
        await self._send_mouse_event("mouseWheel", WIDTH / 2, HEIGHT / 2, deltaX=0, deltaY=distance)
        await self._settle()

    async def click(self, ref: str) -> None:
        x, y = await self._find_click_point(self._find_node(ref))
        await self._send_mouse_event("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            await self._send_mouse_event(kind, x, y, button="left", clickCount=1)
        await self._settle()

    async def type_text(self, ref: str, text: str, *, submit: bool) -> None:
        """Type text into an element, replacing its current value."""
        node = self._find_node(ref)
        await self._call("DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
        await self._call("DOM.focus", {"backendNodeId": node})
        await self._call_on_node(node, "function() { this.select ? this.select() : document.execCommand('selectAll') }")
        if text:
            await self._call("Input.insertText", {"text": text})
        else:
            await self._send_key("Delete")
        if submit:
            await self._send_key("Enter")
        await self._settle()

    async def select_option(self, ref: str, text: str) -> None:
        chosen = await self._call_on_node(
            self._find_node(ref),
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
            raise OptionNotFound(ref)
        await self._settle()

    async def press_key(self, key: str) -> None:
        await self._send_key(key)
        await self._settle()

    async def screenshot(self) -> bytes:
        shot = await self._call("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(str(shot["data"]))

    async def read_location(self) -> tuple[str, str]:
        """Return the address and title of the current page.

        If the page is a file or an internal page of Chromium, the browser leaves it at once and an
        error is raised.
        """
        history = await self._call("Page.getNavigationHistory")
        entry = history["entries"][int(history["currentIndex"])]
        url = str(entry["url"])
        if urlsplit(url).scheme not in _SCHEMES:
            await self._call("Page.navigate", {"url": "about:blank"})
            raise PageSchemeRefused
        return url, str(entry.get("title", ""))

    async def list_targets(self) -> list[str]:
        """Return the DevTools ids of the open windows of the browser."""
        found = await self._cdp.call("Target.getTargets")
        return [str(each["targetId"]) for each in found["targetInfos"] if each.get("type") == "page"]

    async def read_outline(self) -> str:
        """Return the outline of the page, with refs for the elements that can be acted on."""
        outline = PageOutline(self._tab.refs)
        try:
            for number, frame in enumerate(await self._list_frames()):
                given = {"frameId": frame} if frame else {}
                try:
                    tree = await self._call("Accessibility.getFullAXTree", given)
                except BrowserReplyTooLarge:
                    raise
                except BrowserFailed:
                    if number == 0:
                        raise
                    continue  # a cross-site frame has its own process and its own tree
                if number:
                    outline.lines.append("- frame")
                outline.add_frame(tree.get("nodes", []), depth=1 if number else 0)
        except BrowserReplyTooLarge:
            return await self._read_plain_text()
        return "\n".join(outline.lines)

    @property
    def _tab(self) -> _Tab:
        if not self._tabs:
            raise NoPageOpen
        return self._tabs[-1]

    async def _call(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return await self._cdp.call(method, params, session=self._tab.session, **more)

    async def _new_tab(self) -> None:
        made = await self._cdp.call("Target.createTarget", {"url": "about:blank"})
        await self._attach_tab(str(made["targetId"]))

    async def _close_tab(self) -> None:
        await self._cdp.call("Target.closeTarget", {"targetId": self._tabs.pop().target})

    def _count_refs(self) -> int:
        return max((tab.refs.count for tab in self._tabs), default=0)

    async def _attach_tab(self, target: str) -> None:
        if any(tab.target == target for tab in self._tabs):
            return
        tab = _Tab(target, "", refs=ElementRefs(self._count_refs()))
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

    async def _list_frames(self) -> list[str]:
        tree = (await self._call("Page.getFrameTree"))["frameTree"]
        frames = [""]
        left: list[dict[str, Any]] = list(tree.get("childFrames", []))
        while left and len(frames) < FRAMES_MAX:
            inner = left.pop(0)
            frames.append(str(inner["frame"]["id"]))
            left += inner.get("childFrames", [])
        return frames

    async def _read_plain_text(self) -> str:
        """Return the plain text of a page that is too large for an outline."""
        expression = f"document.body ? document.body.innerText.slice(0, {PLAIN_CHARS_MAX}) : ''"
        answer = await self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        text = answer.get("result", {}).get("value", "")
        return f"[the page is too large for an outline; this is its plain text]\n{text}"

    def _find_node(self, ref: str) -> int:
        node = self._tab.refs.node_by_ref.get(ref)
        if node is None:
            raise RefNotFound(ref)
        return node

    async def _find_click_point(self, node: int) -> tuple[float, float]:
        try:
            await self._call("DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
            found = await self._call("DOM.getContentQuads", {"backendNodeId": node})
            quads: list[list[float]] = found.get("quads", [])
        except BrowserCommandFailed:
            quads = []
        if not quads:
            raise ElementHidden
        return sum(quads[0][0::2]) / 4, sum(quads[0][1::2]) / 4

    async def _send_mouse_event(self, kind: str, x: float, y: float, **more: Any) -> None:
        await self._ignore_failure(
            self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "pointerType": "mouse", **more})
        )

    async def _ignore_failure(self, call: Awaitable[Any]) -> None:
        """Await a call that sends an event, and ignore a missing confirmation.

        An event that opens a dialog is confirmed late, and an event that closes the page is never
        confirmed.
        """
        with contextlib.suppress(BrowserCommandFailed):
            await call

    async def _send_key(self, key: str) -> None:
        *held, last = key.split("+") if len(key) > 1 else [key]
        modifiers = sum({_MODIFIERS[each] for each in held if each in _MODIFIERS})
        if (last not in _KEYS and len(last) != 1) or any(each not in _MODIFIERS for each in held):
            raise BrowserKeyUnknown(key, names=_KEYS, modifiers=_MODIFIERS)
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
            await self._ignore_failure(self._call("Input.dispatchKeyEvent", event))

    async def _call_on_node(self, node: int, function: str, *arguments: str) -> object:
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
                while self._cdp.is_open and self._tabs and (self._tabs[-1].loading or not self._tabs[-1].frame):
                    self._changed.clear()
                    await self._changed.wait()
                return
        if self._tabs and self._tabs[-1].loading:
            self._add_note("the page was still loading")

    def _handle_event(self, method: str, params: dict[str, Any], session: str) -> None:
        tab = next((tab for tab in self._tabs if tab.session and tab.session == session), None)
        match method:
            case "Page.frameStartedLoading" | "Page.frameStoppedLoading":
                if tab is not None and params.get("frameId") == tab.frame:
                    tab.loading = method == "Page.frameStartedLoading"
            case "Page.frameNavigated":
                if tab is not None and "parentId" not in params.get("frame", {}):
                    tab.refs.clear()
            case "Page.loadEventFired":
                if tab is not None:
                    tab.loading = False
            case "Page.javascriptDialogOpening":
                self._close_dialog(params, session)
            case "Page.fileChooserOpened":
                self._add_note("the page asked for a file, and none was uploaded")
            case "Browser.downloadWillBegin":
                self._add_note("the page started a download, which was refused")
            case "Target.targetCreated":
                info: dict[str, Any] = params.get("targetInfo", {})
                if info.get("type") == "page" and info.get("openerId"):
                    self._handle_popup(str(info.get("targetId")))
            case "Target.targetDestroyed" | "Target.targetCrashed":
                self._tabs = [tab for tab in self._tabs if tab.target != params.get("targetId")]
                if method == "Target.targetCrashed":
                    self._add_note("the page crashed")
            case "gone":
                pass
            case _:
                return
        self._changed.set()

    def _close_dialog(self, params: dict[str, Any], session: str) -> None:
        """Close a dialog without answering it. Only a dialog that asks whether to leave the page is confirmed."""
        leaving = params.get("type") == "beforeunload"
        if not leaving:
            self._add_note(f"the page showed a dialog, which was closed: {str(params.get('message', ''))[:300]!r}")
        self._run_soon(lambda: self._cdp.call("Page.handleJavaScriptDialog", {"accept": leaving}, session=session))

    def _handle_popup(self, target: str) -> None:
        if len(self._tabs) >= TABS_MAX:
            self._add_note("the page opened too many windows, and the last one was closed")
            self._run_soon(lambda: self._cdp.call("Target.closeTarget", {"targetId": target}))
        elif all(tab.target != target for tab in self._tabs):
            self._add_note("the page opened a window, which is now the current page; `back` closes it")
            self._run_soon(lambda: self._attach_tab(target))

    def _run_soon(self, work: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            with contextlib.suppress(ToolFailed):
                await work()
            self._changed.set()

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_note(self, note: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(note)
