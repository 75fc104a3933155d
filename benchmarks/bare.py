"""Bare Starlette and msgspec: the least a POST can cost with the same server. `python -m benchmarks.bare SOCKET`."""

from __future__ import annotations

import sys

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    words: str = ""


class Answered(msgspec.Struct):
    address: str
    level: str
    words: str


async def answer(request: Request) -> Response:
    asked = msgspec.json.decode(await request.body() or b"{}", type=Asked)
    body = msgspec.json.encode(Answered("person:owner", "boss", asked.words))
    return Response(body, media_type="application/json")


def main() -> None:
    app = Starlette(routes=[Route("/api/person/whoami", answer, methods=["POST"])])
    uvicorn.run(app, uds=sys.argv[1], log_level="error", access_log=False, lifespan="off")


if __name__ == "__main__":
    main()
