"""The one place that turns an error into an HTTP answer.

hit-rate answers with its three-key envelope (list, message, status), every other route with `message` and
`status`; a request that is no HTTP at all gets the hit-rate envelope too, since routers are who speaks here.
Nothing that a client can send is a 500: that is for Redis being away and for our own mistakes.
"""

import msgspec
from aiohttp import web

from indexer import log
from indexer.api.messages import ErrorResponse, HitRateResponse
from indexer.errors import CacheIndexerError, HashError, IndexUnavailableError
from indexer.query import UnknownPoolError

HIT_RATE_PATH = "/kv-cache/hit-rate"
MAX_MESSAGE = 500
"""Characters of a message: what it quotes of the request must not echo megabytes back."""

_log = log.get(__name__)


class BadRequestError(Exception):
    """The request's content is refused (400); the text names the field, the value and what is allowed."""


class BodyError(Exception):
    """The body is not read to its end (408, 413), so that the connection cannot be used again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_bytes(path: str, status: int, message: str) -> bytes:
    """The JSON body of an error answer."""
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    if path == HIT_RATE_PATH:
        return msgspec.json.encode(HitRateResponse([], message, status))
    return msgspec.json.encode(ErrorResponse(message, status))


def error_response(path: str, status: int, message: str) -> web.Response:
    """The answer itself; the caller adds headers where the status needs one."""
    return web.Response(
        body=error_bytes(path, status, message), status=status, content_type="application/json"
    )


def response_of(path: str, error: Exception) -> web.Response:
    """The answer for an exception of a handler; one that nobody foresaw is logged and is a 500."""
    match error:
        case BadRequestError() | HashError() | UnknownPoolError():
            return error_response(path, 400, str(error))
        case BodyError():
            answer = error_response(path, error.status, str(error))
            answer.force_close()
            return answer
        case IndexUnavailableError():
            return error_response(path, 500, f"the index is unavailable: {error}")
        case CacheIndexerError():
            return error_response(path, 500, str(error))
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            answer = error_response(path, 405, f"method {error.method} is not allowed here; use {allowed}")
            answer.headers["Allow"] = allowed
            return answer
        case web.HTTPNotFound():
            return error_response(path, 404, f"no such route: {path}")
        case web.HTTPException():
            return error_response(path, error.status, error.text or error.reason)
        case _:
            _log.error("request failed unexpectedly", path=path, exc_info=error)
            return error_response(path, 500, f"internal error: {type(error).__name__}")
