"""Writes what all streams of a pool have to say: few calls, many streams in each, one in flight.

An idle writer writes at once; while a call is in flight whatever arrives gathers for the next one. Streams
take turns, so that a busy one can't starve the others, and an entry that is refused concerns its stream only.
"""

import asyncio

from msgspec import structs

from collector.ingest.entries import SUSPICION, Entry
from collector.ingest.stream import Stream
from collector.leadership import Reign
from collector.metrics import Metrics
from indexer import clock, log
from indexer.blocks import WIDTH
from indexer.errors import IndexFullError, IndexUnavailableError
from indexer.index.state import Outcome
from indexer.index.writer import IndexWriter

BLOCKS = 2000
"""Blocks in a call: some 4 ms of Redis, which serves nobody else meanwhile."""
ENTRIES = 200
RETRY_SECONDS = 0.05

_log = log.get(__name__)


class Writer:
    """Runs for one reign."""

    def __init__(self, pool: str, index: IndexWriter, reign: Reign, metrics: Metrics) -> None:
        self._pool = pool
        self._index = index
        self._reign = reign
        self._metrics = metrics
        self._ready: dict[Stream, None] = {}
        self._woken = asyncio.Event()
        self._full = False

    def wake(self, stream: Stream) -> None:
        """The stream may have something to write."""
        self._ready[stream] = None
        self._woken.set()

    def forget(self, stream: Stream) -> None:
        """The stream is over."""
        self._ready.pop(stream, None)

    async def run(self) -> None:
        """Write until cancelled. FencedError: another one leads."""
        while True:
            await self._woken.wait()
            taken = self._gather()
            if not taken:
                self._woken.clear()
                continue
            outcomes = await self._write([entry for _, entry in taken])
            if outcomes is None:
                # Whether it arrived is unknown; what the streams say next is that, and maybe more.
                for stream, _ in taken:
                    self.wake(stream)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            now = clock.monotonic()
            for (stream, entry), outcome in zip(taken, outcomes, strict=True):
                self._count(entry, outcome, now)
                stream.settle(entry, outcome)

    def _gather(self) -> list[tuple[Stream, Entry]]:
        taken: list[tuple[Stream, Entry]] = []
        budget = BLOCKS
        while self._ready and budget > 0 and len(taken) < ENTRIES:
            stream = next(iter(self._ready))
            del self._ready[stream]
            entry = stream.take(budget)
            if entry is not None:
                taken.append((stream, entry))
                budget -= entry.blocks
        return taken

    async def _write(self, entries: list[Entry]) -> list[Outcome] | None:
        """An outcome for each; None when it is unknown."""
        before, began = self._reign.rev, clock.monotonic()
        applies = [entry.apply for entry in entries]
        try:
            try:
                rev, outcomes = await self._index.apply(self._reign.token, applies)
                self._tell_full(False)
            except IndexFullError:
                # What is gone must still go: else the index would claim it for ever.
                self._tell_full(True)
                rev, outcomes = await self._index.apply(
                    self._reign.token, [self._without_stores(entry) for entry in entries]
                )
        except IndexUnavailableError as error:
            self._metrics.writes.labels(self._pool, "unknown").inc()
            _log.warning("a write was not answered", pool=self._pool, error=str(error))
            return None
        self._reign.saw(before, rev)
        self._metrics.writes.labels(self._pool, "ok").inc()
        self._metrics.write_seconds.labels(self._pool).observe(clock.monotonic() - began)
        return outcomes

    def _without_stores(self, entry: Entry) -> "structs.Struct":  # type: ignore[name-defined]
        raise NotImplementedError
