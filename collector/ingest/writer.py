"""Writes what all streams of a pool have to say: few calls, many streams in each, one in flight.

An idle writer writes at once; while a call is in flight whatever arrives gathers for the next one. Streams
take turns, so that a busy one can't starve the others, and an entry that is refused concerns its stream only.
"""

import asyncio

from collector.ingest.entries import Entry
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
        self._streams: set[Stream] = set()
        self._ready: dict[Stream, None] = {}
        self._woken = asyncio.Event()
        self._full = False

    def add(self, stream: Stream) -> None:
        """A stream to write for from now on."""
        self._streams.add(stream)
        self.wake(stream)

    def remove(self, stream: Stream) -> None:
        """The stream is over; what is in flight for it is settled with nobody."""
        self._streams.discard(stream)
        self._ready.pop(stream, None)

    def wake(self, stream: Stream) -> None:
        """The stream may have something to write."""
        if stream in self._streams:
            self._ready[stream] = None
            self._woken.set()

    async def run(self) -> None:
        """Write until cancelled. FencedError: another one leads."""
        while True:
            await self._woken.wait()
            taken = self._gather()
            if not taken:
                self._woken.clear()
                continue
            try:
                outcomes = await self._write(taken)
            except IndexUnavailableError as error:
                # Whether it arrived is unknown: what the streams say next is the same again, or more.
                self._metrics.writes.labels(self._pool, "unknown").inc()
                _log.warning("a write was not answered", pool=self._pool, error=str(error))
                for stream, _ in taken:
                    self.wake(stream)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            now = clock.monotonic()
            for (stream, entry), outcome in zip(taken, outcomes, strict=True):
                if outcome.code == "OK":
                    self._count(entry, now)
                if stream in self._streams:
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

    async def _write(self, taken: list[tuple[Stream, Entry]]) -> list[Outcome]:
        before, began = self._reign.rev, clock.monotonic()
        token, applies = self._reign.token, [entry.apply for _, entry in taken]
        try:
            rev, outcomes = await self._index.apply(token, applies)
            self._tell_full(False)
        except IndexFullError:
            # What is gone must go: the index would claim it for ever. What is new is a miss, no more.
            self._tell_full(True)
            bare = [stream.without_stores(entry) for stream, entry in taken]
            dropped = sum(entry.blocks for _, entry in taken) - sum(entry.blocks for entry in bare)
            rev, outcomes = await self._index.apply(token, [entry.apply for entry in bare])
            self._metrics.stores_dropped.labels(self._pool).inc(dropped)
        self._reign.saw(before, rev)
        self._metrics.writes.labels(self._pool, "ok").inc()
        self._metrics.write_seconds.labels(self._pool).observe(clock.monotonic() - began)
        return outcomes

    def _tell_full(self, full: bool) -> None:
        if full != self._full:
            self._full = full
            if full:
                _log.error("Redis is out of memory, new blocks are not indexed", pool=self._pool)
            else:
                _log.info("Redis has memory again", pool=self._pool)

    def _count(self, entry: Entry, now: float) -> None:
        metrics, pool, apply = self._metrics, self._pool, entry.apply
        metrics.batches.labels(pool).inc(apply.stop - apply.start)
        for kind in ("store", "remove"):
            blocks = sum(len(op.blocks) for op in apply.ops if op.kind == kind) // WIDTH
            metrics.blocks.labels(pool, kind).inc(blocks)
        for reason, count in entry.skipped.items():
            metrics.skipped.labels(pool, reason).inc(count)
        if apply.skip_from is not None:
            metrics.gaps.labels(pool).inc()
            metrics.missing.labels(pool).inc(apply.start - apply.skip_from)
        if entry.unreadable:
            metrics.bad_frames.labels(pool).inc(entry.unreadable)
        if entry.arrived:
            metrics.event_seconds.labels(pool).observe(now - entry.arrived)
