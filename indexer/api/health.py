"""GET /healthz and GET /readyz."""

import msgspec
from aiohttp import web

from indexer.api.messages import ReadyResponse
from indexer.api.state import QUERY


async def healthz(request: web.Request) -> web.Response:
    """The process lives; nothing else is looked at, so that Redis being away restarts nobody."""
    return web.Response(text="ok")


async def readyz(request: web.Request) -> web.Response:
    """200 when Redis answers and the scripts load, for every pool, engines or not; else 503 with reasons."""
    reasons = await request.app[QUERY].ready()
    return web.Response(
        body=msgspec.json.encode(ReadyResponse(not reasons, reasons)),
        status=503 if reasons else 200,
        content_type="application/json",
    )
