"""Stands in for the process of a local model: the same lines on its output, the same wire on its port, and no model.

How it behaves while loading is its argument; how it answers is in the question: `hang`, `die`, `die in an event`, or
anything else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

ORDER = json.loads(sys.stdin.buffer.readline())
ANSWER_LOCK = Lock()


def write_event(what: str, **more: object) -> None:
    print(json.dumps({"state": what, **more}), flush=True)


class AnswerHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {ORDER['token']}":
            self.send_error(401)
            return
        if not ANSWER_LOCK.acquire(blocking=False):
            self.send_error(500, "two at once")
            return
        try:
            try:
                self.answer(request)
            finally:
                ANSWER_LOCK.release()
            self.wfile.write(b"data: [DONE]\n\n")  # after the release: the next request may follow at once
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has closed the connection

    def answer(self, request: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        report = {
            "asked": request,
            "pid": os.getpid(),
            "order": ORDER,
            "environment": dict(os.environ),
            "argv": sys.argv,
        }
        self.send_text(json.dumps(report))
        question = request["messages"][-1]["content"]
        if question == "die in an event":
            self.wfile.write(b'data: {"choices": [{"ind')
        if question.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        while question == "hang":
            time.sleep(0.01)  # sleep: an endless answer without using the processor
            self.wfile.write(b": still here\n\n")
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}})

    def send_text(self, text: str) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def event(self, event: object) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(how: str) -> None:
    match how:
        case "missing":
            write_event("missing", because="No module named 'xllamacpp'")
            return
        case "broken":
            print("\n".join("0.00.00 I some other line" for _ in range(10_000)), file=sys.stderr)
            print("0.00.04 E llama_model_load: unknown model architecture: 'dodo'", file=sys.stderr)
            write_event("failed")
            return
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stuck":
            write_event("loading")
            sys.stdin.buffer.read()
            return
        case _:
            pass
    for share in (0.5, 1.0):
        write_event("reading", fraction=share)
    write_event("loading")
    server = ThreadingHTTPServer(("127.0.0.1", 0), AnswerHandler)
    if how != "ready-and-gone":
        Thread(target=server.serve_forever, daemon=True).start()
    write_event("ready", url=f"http://127.0.0.1:{server.server_port}")
    if how == "ready-and-gone":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
