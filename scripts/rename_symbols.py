# pyright: basic, reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
"""Rename symbols of a typed Python tree with pyright's language server.

    python rename_symbols.py ROOT LIST [LIST ...] [--dry]

A line of a list is `dotted.name NEW`: `retinue.store.core.transaction.Page Transaction`,
`retinue.store.core.transaction.Page.tell emit`, `retinue.x.function(parameter) new_parameter`. All renames are asked
for on one snapshot and applied together.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import unquote, urlparse

from scripts.check_renames import read_list


class Server:
    def __init__(self, root: Path) -> None:
        self.root = root
        env = {**os.environ, "NODE_OPTIONS": "--max-old-space-size=8192"}
        self.process = subprocess.Popen(
            [root / ".venv/bin/pyright-langserver", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=root,
            env=env,
        )
        self.ids = 0
        self.answers: dict[int, Queue[Any]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        out = self.process.stdout
        assert out
        while True:
            length = 0
            while (line := out.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if not length:
                return
            message = json.loads(out.read(length))
            if "method" in message and "id" in message:
                result: Any = None
                if message["method"] == "workspace/configuration":
                    result = [{} for _ in message["params"]["items"]]
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": result})
            elif "id" in message:
                self.answers[message["id"]].put(message)

    def _send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        assert self.process.stdin
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self.process.stdin.flush()

    def ask(self, method: str, params: Any, timeout: float = 900) -> Any:
        self.ids += 1
        mine = self.answers[self.ids] = Queue()
        self._send({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params})
        message = mine.get(timeout=timeout)
        if "error" in message:
            raise RuntimeError(message["error"])
        return message["result"]

    def tell(self, method: str, params: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def start(self) -> None:
        uri = self.root.as_uri()
        self.ask(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": uri,
                "workspaceFolders": [{"uri": uri, "name": "root"}],
                "capabilities": {
                    "workspace": {"configuration": True, "workspaceEdit": {"documentChanges": True}},
                    "textDocument": {"rename": {"prepareSupport": True}},
                },
            },
        )
        self.tell("initialized", {})


def module_file(root: Path, dotted: list[str]) -> tuple[Path, list[str]]:
    bases = [root / "src", root / "tests", root]
    for count in range(len(dotted), 0, -1):
        for base in bases:
            stem = base.joinpath(*dotted[:count])
            for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                if path.is_file():
                    return path, dotted[count:]
    raise LookupError(".".join(dotted))


def find(path: Path, names: list[str], parameter: str | None) -> tuple[int, int]:
    """Line and column (0-based) of the name."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    node: ast.AST = ast.parse(text)
    found: ast.AST | None = None
    for name in names:
        found = None
        body = getattr(node, "body", [])
        stack = list(body)
        while stack:
            each = stack.pop(0)
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and each.name == name:
                found = each
                break
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id == name:
                found = each.target
                break
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Attribute) and each.target.attr == name:
                found = each.target
                break
            if isinstance(each, ast.Assign):
                targets = [
                    t for target in each.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])
                ]
                hits = [
                    t
                    for t in targets
                    if (isinstance(t, ast.Name) and t.id == name) or (isinstance(t, ast.Attribute) and t.attr == name)
                ]
                if hits:
                    found = hits[0]
                    break
            if isinstance(each, ast.TypeAlias if hasattr(ast, "TypeAlias") else ()) and each.name.id == name:
                found = each.name
                break
            if isinstance(each, (ast.If, ast.Try, ast.With)):
                stack = list(ast.iter_child_nodes(each)) + stack
            # self.x = ... in methods of a class
            if isinstance(node, ast.ClassDef) and isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                stack += [
                    s
                    for s in ast.walk(each)
                    if isinstance(s, (ast.Assign, ast.AnnAssign))
                    and any(
                        isinstance(t, ast.Attribute)
                        and isinstance(t.value, ast.Name)
                        and t.value.id == "self"
                        and t.attr == name
                        for t in (s.targets if isinstance(s, ast.Assign) else [s.target])
                    )
                ]
        if found is None:
            raise LookupError(f"{path}: no {'.'.join(names)}")
        node = found
    assert found is not None
    if parameter:
        assert isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef))
        for arg in [
            *found.args.posonlyargs,
            *found.args.args,
            *found.args.kwonlyargs,
            *filter(None, [found.args.vararg, found.args.kwarg]),
        ]:
            if arg.arg == parameter:
                return arg.lineno - 1, utf16(lines[arg.lineno - 1], arg.col_offset)
        raise LookupError(f"{path}: no parameter {parameter} of {'.'.join(names)}")
    line, column = found.lineno - 1, found.col_offset  # type: ignore[attr-defined]
    if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        text = lines[line]
        start = column
        word = {ast.FunctionDef: "def ", ast.AsyncFunctionDef: "async def ", ast.ClassDef: "class "}[type(found)]
        return line, text.index(found.name, start + len(word) - 1)
    if isinstance(found, ast.Attribute):
        return found.end_lineno - 1, utf16(lines[found.end_lineno - 1], found.end_col_offset) - len(found.attr)  # type: ignore
    return line, utf16(lines[line], column)


def utf16(line: str, byte_offset: int) -> int:
    return len(line.encode()[:byte_offset].decode().encode("utf-16-le")) // 2


def path_of(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path))


def main() -> int:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    dry = "--dry" in sys.argv
    root = Path(arguments[0]).resolve()
    wanted = [each for file in arguments[1:] for each in read_list(Path(file))]
    server = Server(root)
    server.start()
    edits: dict[Path, dict[tuple[int, int, int, int], str]] = defaultdict(dict)
    problems: list[str] = []
    began = time.monotonic()
    for number, (old, new) in enumerate(wanted, 1):
        name, _, parameter = old.partition("(")
        parameter = parameter.rstrip(")") or None
        try:
            path, rest = module_file(root, name.split("."))
            line, column = find(path, rest, parameter)
        except (LookupError, ValueError, AssertionError) as wrong:
            problems.append(f"{old}: {wrong}")
            continue
        parameters = {
            "textDocument": {"uri": path.as_uri()},
            "position": {"line": line, "character": column},
            "newName": new,
        }
        try:
            answer = server.ask("textDocument/rename", parameters)
            for _ in range(60 if not edits else 0):  # the server answers with nothing until it has read the project
                if answer:
                    break
                time.sleep(1)
                answer = server.ask("textDocument/rename", parameters)
        except RuntimeError as wrong:
            problems.append(f"{old}: {wrong}")
            continue
        if not answer:
            problems.append(f"{old}: nothing to rename at {path}:{line + 1}:{column + 1}")
            continue
        count = 0
        changes = [(c["textDocument"]["uri"], c["edits"]) for c in answer.get("documentChanges", []) if "edits" in c]
        changes += list(answer.get("changes", {}).items())
        for uri, several in changes:
            for edit in several:
                r = edit["range"]
                key = (r["start"]["line"], r["start"]["character"], r["end"]["line"], r["end"]["character"])
                before = edits[path_of(uri)].get(key)
                if before not in (None, edit["newText"]):
                    problems.append(f"{old}: {path_of(uri)}:{key[0] + 1} is to become {before} and {edit['newText']}")
                    continue
                edits[path_of(uri)][key] = edit["newText"]
                count += 1
        print(f"{number}/{len(wanted)} {time.monotonic() - began:.0f} s {old} -> {new}: {count}", flush=True)
    if not dry:
        for path, several in edits.items():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            for (l1, c1, l2, c2), text in sorted(several.items(), reverse=True):
                assert l1 == l2
                raw = lines[l1].encode("utf-16-le")
                lines[l1] = (raw[: 2 * c1] + text.encode("utf-16-le") + raw[2 * c2 :]).decode("utf-16-le")
            path.write_text("".join(lines), encoding="utf-8")
    print(f"{len(edits)} files, {sum(map(len, edits.values()))} edits")
    print(*problems, sep="\n")
    server.process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
