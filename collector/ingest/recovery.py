"""Asking the replay socket until the stream is whole, or there is no hope.

Attempts that bring nothing new are paced by `backoffInitial` and `backoffMax`. While live batches wait, only
a few are made: what was heard must not wait for ever for what was not.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from collector.ingest.replay import ReplayError, fetch
from collector.ingest.sequence import Cursor
from collector.ingest.tools import Tools
from collector.ingest.tracker import Tracker
from indexer import log
from indexer.index.state import StreamKey

ATTEMPTS = 3
"""Attempts without progress while live batches wait."""

_log = log.get(__name__)


class Recovery:
    """The attempts of one stream; remembers the ones that brought nothing."""

    def __init__(self, tracker: Tracker, tools: Tools, key: StreamKey, wake: Callable[[], None]) -> None:
        self._tracker = tracker
        self._tools = tools
        self._log = _log.bind(pool=tools.pool, ip=key.ip, rank=key.rank)
        self._wake = wake
        self._at: Cursor | None = None
        self._failures = 0

    async def run(self, start: int, url: str) -> None:
        """One attempt, after the pause that it has to wait; always ends the tracker's recovery."""
        tracker = self._tracker
        cursor = tracker.cursor
        if cursor != self._at:
            self._at, self._failures = cursor, 0
        if self._failures:
            await self._pause()
        if self._failures >= ATTEMPTS and tracker.buffer.waiting:
            tracker.give_up()
            tracker.recovered(False)
            self._count("given_up")
            self._wake()
            return
        complete = False
        try:
            async with self._tools.replays:
                complete = await self._ask(start, url)
        except ReplayError as error:
            self._log.warning("replay failed", url=url, error=str(error))
        self._failures += 1
        self._count("complete" if complete else "broken")
        tracker.recovered(complete)
        self._wake()

    async def _pause(self) -> None:
        config = self._tools.config
        pause = min(config.backoff_initial * 2 ** (self._failures - 1), config.backoff_max)
        loop = asyncio.get_running_loop()
        until = loop.time() + pause
        # A stream without news can wait long; with news, the last attempts were enough.
        while (left := until - loop.time()) > 0:
            if self._failures >= ATTEMPTS and self._tracker.buffer.waiting:
                return
            await asyncio.sleep(min(left, 0.2))

    async def _ask(self, start: int, url: str) -> bool:
        """Whether the answer came whole."""
        # "I never got that far" is only believed after it was asked for all it has.
        if not await self._read(start, url) and (start == 0 or not await self._read(0, url)):
            self._tracker.unpublished()
        return True

    async def _read(self, start: int, url: str) -> bool:
        """Take in an answer; whether it held a batch from where the stream stands on."""
        stamp = self._tools.engine.dialect.stamp
        found = False
        async with aclosing(fetch(self._tools.context, url, start, stamp)) as chunks:
            async for chunk in chunks:
                cursor = self._tracker.cursor
                wanted = [b for b in chunk if cursor is None or b[0] >= cursor.next - 1]
                if not wanted:
                    continue
                found = True
                if not self._tracker.replayed(wanted):
                    break
                self._wake()
        return found

    def _count(self, outcome: str) -> None:
        self._tools.metrics.replays.labels(self._tools.pool, outcome).inc()
