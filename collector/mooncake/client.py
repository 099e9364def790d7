"""One Mooncake master's admin HTTP API: GET requests only, none of them destructive.

The master does not percent-decode `/query_key` (and the batch call only since 0.3.12), so URLs are put
together here, byte by byte. It answers 400 to pipelined requests; aiohttp sends none.
"""

import asyncio
import re
from collections.abc import Sequence
from types import TracebackType
from urllib.parse import quote

import aiohttp
from yarl import URL

from collector.mooncake import answers
from collector.mooncake.errors import MasterAnswerError, MasterNotServingError, MasterUnreachableError
from collector.mooncake.gate import Gauges, read
from collector.mooncake.view import Places

CONNECTIONS = 8
"""At most so many at once; a master has four HTTP threads."""

# Cut a value short, or end the request line. Surrogates stand for bytes that are no UTF-8.
_UNASKABLE = re.compile(r"[\x00-\x20&\x7f\ud800-\udfff]")
# In a batch a comma separates keys, and 0.3.9 answers broken JSON for a key with a quote.
_UNBATCHABLE = re.compile(r"[\x00-\x20&\x7f\ud800-\udfff,\"\\]")


def askable(key: str) -> bool:
    """Whether `/query_key` can be asked for `key` at all."""
    return _UNASKABLE.search(key) is None


def batchable(key: str) -> bool:
    """Whether `/batch_query_keys` can be asked for `key`."""
    return _UNBATCHABLE.search(key) is None


class MasterClient:
    """Asks the master at `base` (URL without a trailing slash). `timeout` in seconds bounds every wait, and
    `segments_timeout` (None: the same) the whole answer of its list of segments.

    Every method raises MasterError. Use it as an async context manager.
    """

    def __init__(self, base: str, timeout: float, segments_timeout: float | None = None) -> None:
        self.base = base
        self._url = URL(base)
        self._timeout = timeout
        self._segments_timeout = segments_timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "MasterClient":
        # A long list may take long to arrive; but never a silence longer than the timeout.
        timeout = aiohttp.ClientTimeout(
            total=10 * self._timeout, connect=self._timeout, sock_read=self._timeout
        )
        connector = aiohttp.TCPConnector(limit=CONNECTIONS)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def check_health(self) -> None:
        """Raise unless the master says that it serves as leader."""
        status, body = await self._get("/health")
        try:
            serving = status == 200 and answers.serves(body)
        except ValueError as error:
            raise MasterAnswerError(f"{self.base}/health: {error}") from error
        if not serving:
            raise MasterNotServingError(f"{self.base} does not serve: {_shown(body)}")

    async def gauges(self) -> Gauges:
        """The counters that tell a change."""
        return read((await self._ok("/metrics")).decode("utf-8", "replace"))

    async def segments(self) -> list[str]:
        """Names of the mounted segments, as the clients gave them; they may repeat."""
        try:
            async with asyncio.timeout(self._segments_timeout):
                return answers.lines(await self._ok("/get_all_segments"))
        except TimeoutError:
            why = f"no answer within discovery.segmentsFetchTimeout = {self._segments_timeout:g}s"
            raise MasterUnreachableError(f"{self.base}/get_all_segments: {why}") from None

    async def keys(self) -> bytes:
        """The list of all keys, raw (see `answers.lines`): equal bytes are an equal set."""
        return await self._ok("/get_all_keys")

    async def segment_endpoints(self) -> dict[str, str]:
        """Segment name by transport endpoint; empty for masters that don't tell (before 0.3.12)."""
        status, body = await self._get("/get_segments_detail")
        if status == 404:
            return {}
        try:
            return answers.segment_endpoints(self._body("/get_segments_detail", status, body))
        except ValueError as error:
            raise MasterAnswerError(f"{self.base}/get_segments_detail: {error}") from error

    async def places(self, key: str) -> Places | None:
        """Where an `askable` key lies; None while it is being written, or has gone. GRANTS A LEASE."""
        status, body = await self._get("/query_key", f"key={key}")
        if status == 404 and any(word in body for word in answers.ABSENT):
            return None
        try:
            return answers.places(self._body("/query_key", status, body))
        except ValueError as error:
            raise MasterAnswerError(f"{self.base}/query_key: {error}: {_shown(body)}") from error

    async def batch_places(self, keys: Sequence[str], *, decoded: bool) -> dict[str, Places]:
        """The same for several `batchable` keys; those without an answer are left out.

        `decoded`: this master decodes percent signs (since 0.3.12, which also ended the leases).
        """
        path = "/batch_query_keys"
        asked = ",".join(quote(key, safe="@:/=?;") if decoded else key for key in keys)
        status, body = await self._get(path, f"keys={asked}")
        try:
            return answers.batch_places(self._body(path, status, body))
        except ValueError as error:
            raise MasterAnswerError(f"{self.base}{path}: {error}: {_shown(body)}") from error

    async def batch_probe(self, key: str) -> bytes | None:
        """The raw answer of the batch call for one key; None for a master that has no such call."""
        status, body = await self._get("/batch_query_keys", f"keys={key}")
        if status == 404:
            return None
        return self._body("/batch_query_keys", status, body)

    async def _ok(self, path: str) -> bytes:
        return self._body(path, *await self._get(path))

    def _body(self, path: str, status: int, body: bytes) -> bytes:
        if status == 200:
            return body
        if status >= 500:
            raise MasterNotServingError(f"{self.base}{path} answered {status}: {_shown(body)}")
        raise MasterAnswerError(f"{self.base}{path} answered {status}: {_shown(body)}")

    async def _get(self, path: str, query: str = "") -> tuple[int, bytes]:
        if self._session is None:
            raise RuntimeError("MasterClient is not open")
        url = URL.build(
            scheme=self._url.scheme,
            authority=self._url.raw_authority,
            path=self._url.raw_path.rstrip("/") + path,
            query_string=query,
            encoded=True,
        )
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                return response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            cause = str(error) or type(error).__name__
            raise MasterUnreachableError(f"{self.base}{path}: {cause}") from error


def _shown(body: bytes) -> str:
    return repr(body[:120])
