"""Bare Starlette and msgspec: the minimum cost of a POST with the same HTTP server.

`python -m benchmarks.bare_starlette SOCKET` starts it.
"""

from __future__ import annotations

import sys

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class WhoamiRequest(msgspec.Struct, forbid_unknown_fields=True):
    words: str = ""


class WhoamiResponse(msgspec.Struct):
    address: str
    level: str
    words: str


async def answer(request: Request) -> Response:
    asked = msgspec.json.decode(await request.body() or b"{}", type=WhoamiRequest)
    body = msgspec.json.encode(WhoamiResponse("person:owner", "boss", asked.words))
    return Response(body, media_type="application/json")


def main() -> None:
    app = Starlette(routes=[Route("/api/person/whoami", answer, methods=["POST"])])
    uvicorn.run(app, uds=sys.argv[1], log_level="error", access_log=False, lifespan="off")


if __name__ == "__main__":
    main()
