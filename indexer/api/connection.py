"""One HTTP connection, with the limits that aiohttp itself does not have.

aiohttp bounds single header lines and idle keep-alive connections. What is added here, each named as in the
configuration: `maxHeaderBytes` over the whole head of a request, `readHeaderTimeout` from the first byte of
a head (for a new connection: from accepting it) to its end, and `writeTimeout` for a client that does not
take its answer. The body's `readTimeout` is in `indexer.api.body`. What is no HTTP is answered in JSON, too.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import EMPTY_PAYLOAD, StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong

from indexer import log
from indexer.api.errors import HIT_RATE_PATH, BodyError, error_bytes, error_response
from indexer.config import Http

LINGER = 0.5
"""Seconds in which the rest of a refused body is thrown away: else the client sees a reset, no answer."""

_HEAD_END = b"\r\n\r\n"
_log = log.get(__name__)


class Connection(web.RequestHandler):
    """aiohttp's connection with deadlines; `manager` is the application runner's server."""

    __slots__ = ("_body", "_draining", "_head_open", "_head_size", "_head_tail", "_head_timer", "_limits")

    def __init__(self, manager: web.Server, limits: Http) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_timeout,
            access_log=None,  # type: ignore[arg-type]  # none: aiohttp documents None as off
            max_line_size=limits.max_header_bytes,
            max_field_size=limits.max_header_bytes,
            max_headers=max(1, limits.max_header_bytes // 4),  # the whole head is bounded below
            lingering_time=LINGER,
            auto_decompress=False,  # a small body must not become a big one
        )
        self._limits = limits
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the request that was parsed last."""
        self._draining = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_open = True
        self._head_size = 0
        self._head_tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the clock of the first head. Every byte counts as unsent until the kernel has it."""
        super().connection_made(transport)
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=0)  # uvloop's is no subclass
        self._start_head_timer()

    def drain(self) -> None:
        """Serve the request that is under way, if there is one, and then close.

        aiohttp's own `close` would drop the rest of a body that still comes, and would not close idle ones.
        To be called until the connection is gone: the first time idle ones stay, since under load a request
        may have come that was not read yet.
        """
        if self._draining and self._head_open and not self._head_size:
            self.force_close()
        self._draining = True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stops the clock."""
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Measures the head while it arrives, then hands everything to the parser."""
        if self._head_open:
            if self._head_timer is None:
                self._start_head_timer()
            seen = self._head_tail + data
            end = seen.find(_HEAD_END)
            size = self._head_size - len(self._head_tail) + (len(seen) if end < 0 else end + len(_HEAD_END))
            if size > self._limits.max_header_bytes:
                self._refuse(
                    431, f"request head is larger than http.maxHeaderBytes = {self._limits.max_header_bytes}"
                )
                return
            self._head_size, self._head_tail = size, seen[-3:]
        super().data_received(data)
        if not self._messages:
            return
        if self._head_open:
            self._head_open = False
            self._stop_head_timer()
        newest, body = self._messages[-1]
        if isinstance(newest, RawRequestMessage):
            self._body = body
        elif not self._body.is_eof():
            # The rest of a body is no HTTP, so its end won't come; its reader would wait until readTimeout.
            self._body.set_exception(BodyError(400, _invalid(newest.message)))
            self._body.feed_eof()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Sends the answer within writeTimeout, or drops the connection.

        An answer that overtakes its request's body is the last one: what still comes is not the next head.
        """
        body_ended = request.content.is_eof()
        if not body_ended:
            self._body = EMPTY_PAYLOAD  # what still comes of it is thrown away, right or wrong
        if self._draining or not body_ended:
            resp.force_close()
        try:
            async with asyncio.timeout(self._limits.write_timeout):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            _log.warning("client did not take its answer", write_timeout=self._limits.write_timeout)
            if self.transport is not None:
                self.transport.abort()
            return resp, True
        finally:
            # With requests waiting (aiohttp's `_messages`: parsed, not yet served) a body may be coming.
            if body_ended and not self._messages:
                self._await_head()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no valid HTTP (400, 431), and to our own mistakes (500)."""
        if isinstance(exc, ConnectionError | web.PayloadAccessError):
            text = "the client is gone"  # nobody will read it
        elif status >= 500:
            _log.error("request failed unexpectedly", path=request.path, exc_info=exc)
            text = "internal error"
        else:
            text = _invalid(message or "")
        if isinstance(exc, LineTooLong):
            status = 431
        answer = error_response(HIT_RATE_PATH, status, text)
        answer.force_close()
        return answer

    def _await_head(self) -> None:
        self._stop_head_timer()
        self._head_open = True
        self._head_size = 0
        self._head_tail = b""

    def _start_head_timer(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._limits.read_header_timeout
        message = f"request head did not arrive within http.readHeaderTimeout = {seconds:g}s"
        self._head_timer = loop.call_later(seconds, self._refuse, 408, message)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        """Answers a request whose head never got to the application, and closes."""
        self._stop_head_timer()
        self._head_open = False
        if self.transport is not None and not self.transport.is_closing():
            body = error_bytes(HIT_RATE_PATH, status, message)
            reason = {408: "Request Timeout", 431: "Request Header Fields Too Large"}[status]
            head = (
                f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.force_close()


def _invalid(reason: str) -> str:
    """Of the parser's reason, the line that says it; the others show where."""
    return f"not a valid HTTP request: {reason.partition(chr(10))[0].rstrip(':')}"


def connection_factory(server: web.Server, limits: Http) -> Callable[[], Connection]:
    """The protocol factory for `loop.create_server`."""
    return lambda: Connection(server, limits)
