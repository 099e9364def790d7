"""Reading a request's body within the limits of the configuration."""

import asyncio

from aiohttp import HttpVersion11, web

from indexer.api.errors import BodyError, response_of
from indexer.config import Http

LIMITS = web.AppKey("limits", Http)


def _check_announced(request: web.Request) -> None:
    limit = request.app[LIMITS].max_hit_rate_body_bytes
    if (request.content_length or 0) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> BodyError:
    return BodyError(413, f"body is larger than http.maxHitRateBodyBytes = {limit} bytes")


async def expect(request: web.Request) -> web.StreamResponse | None:
    """Answers `Expect: 100-continue`: a body that is announced as too large need not be sent at all."""
    try:
        _check_announced(request)
    except BodyError as error:
        return response_of(request.path, error)
    if request.headers.get("Expect", "").lower() != "100-continue":
        return response_of(
            request.path, web.HTTPExpectationFailed(text="only Expect: 100-continue is supported")
        )
    if request.version >= HttpVersion11:  # older clients know no interim answers
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun
    return None


async def read_body(request: web.Request) -> bytes:
    """The whole body, at most http.maxHitRateBodyBytes and within http.readTimeout.

    Raises BodyError: 413 as soon as the limit is passed (the rest is not read), 408 when time is up.
    The application's `client_max_size` is the limit, so aiohttp counts what really comes, chunked or not.
    """
    limits = request.app[LIMITS]
    _check_announced(request)
    try:
        async with asyncio.timeout(limits.read_timeout):
            return await request.read()
    except TimeoutError:
        raise BodyError(
            408, f"body did not arrive within http.readTimeout = {limits.read_timeout:g}s"
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(limits.max_hit_rate_body_bytes) from None
