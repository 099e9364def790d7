"""One pool's collector: who is in the fleet, a listener for each stream, and the work of a leader."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import zmq

from collector.aio import until_first
from collector.discovery.base import Source
from collector.ingest.buffer import Buffer
from collector.ingest.listener import Listener
from collector.ingest.stream import Stream
from collector.ingest.tools import Tools
from collector.ingest.writer import Writer
from collector.leadership import Leadership, Reign
from collector.membership import Feed, Roster, View
from collector.metrics import Metrics
from collector.sweeper import sweep
from collector.tidying import Tidying
from indexer import clock, log
from indexer.config import Config, Pool
from indexer.engines import engine
from indexer.errors import IndexUnavailableError
from indexer.index.state import StreamKey, StreamState
from indexer.index.writer import IndexWriter

OBSERVE_SECONDS = 1.0
TICK_SECONDS = 1.0
REPLAYS = 4
READY_SECONDS = 30.0
"""Longest that readiness waits for warmth: engines may have nothing to say."""
MIN_BUFFER_BYTES = 1 << 20
STATES = ("connecting", "live", "suspect", "mismatch", "lost")

_log = log.get(__name__)


class Duty(Protocol):
    """Further work of a leader, such as following Mooncake masters. One is made for each reign, and a new one
    when Redis went back in time."""

    async def run(self) -> None:
        """Work until cancelled. FencedError: another one leads."""

    def see(self, view: View) -> None:
        """The fleet changed."""


class PoolCollector:
    """Runs until cancelled; `duties` make further work for a leader."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        index: IndexWriter,
        source: Source,
        member: str,
        context: "zmq.Context[zmq.Socket[bytes]]",
        metrics: Metrics,
        duties: tuple[Callable[[Reign], Duty], ...] = (),
    ) -> None:
        self.name = pool.name
        self._config = config
        self._index = index
        self._source = source
        self._metrics = metrics
        self._make_duties = duties
        self._roster = Roster(pool.discovery.grace)
        self._view = View()
        self._listeners: dict[StreamKey, Listener] = {}
        self._states: dict[StreamKey, StreamState] = {}
        self._observed = -OBSERVE_SECONDS
        self._looked = False
        self._begun = clock.monotonic()
        self._tools = Tools(
            pool.name,
            engine(pool.block_key),
            context,
            config.ingest.l1,
            metrics,
            index,
            asyncio.Semaphore(REPLAYS),
            set(),
        )
        self._leadership = Leadership(
            index,
            pool.name,
            member,
            config.collector.lease_duration,
            metrics,
            warm=lambda: self.warm,
            observe=self._observe,
            lead=self._lead,
        )
        # Only while leading:
        self._streams: dict[StreamKey, Stream] = {}
        self._writer: Writer | None = None
        self._reign: Reign | None = None
        self._duties: list[Duty] = []

    @property
    def leading(self) -> bool:
        """Whether this process writes the pool."""
        return self._leadership.leading

    @property
    def warm(self) -> bool:
        """Whether taking over now would lose nothing: nothing of any stream that can be heard."""
        known = self._looked and self._view.complete
        return known and all(listener.warm for listener in self._listeners.values())

    @property
    def ready(self) -> bool:
        """Leading, or fit to."""
        return self.leading or self.warm or clock.monotonic() - self._begun > READY_SECONDS

    async def run(self) -> None:
        """Until cancelled; then leadership is given back."""
        try:
            # Where streams stand must be known before they are heard, else a restart may look like an echo.
            await self._first_look()
            await until_first(self._discover(), self._leadership.run(), self._watch_clock())
        finally:
            for listener in self._listeners.values():
                await listener.close()

    async def _first_look(self) -> None:
        try:
            await self._read_states()
        except IndexUnavailableError as error:
            _log.warning("Redis does not answer yet", pool=self.name, error=str(error))

    # The fleet.

    async def _discover(self) -> None:
        async for snapshot in self._source.snapshots():
            await self._follow(self._roster.observe(snapshot, clock.monotonic()))

    async def _watch_clock(self) -> None:
        """Grace times run out without a snapshot."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self._follow(self._roster.view(clock.monotonic()))
            self._show()

    async def _follow(self, view: View) -> None:
        if view == self._view:
            return
        for refused in set(view.refused) - set(self._view.refused):
            _log.error(
                "two engines claim one address, the second is refused",
                pool=self.name,
                ip=refused.ip,
                refused=refused.incarnation,
                keeps=refused.holder,
            )
        self._view = view
        feeds = {StreamKey(feed.ip, feed.rank): feed for feed in view.feeds}
        for key in [k for k, old in self._listeners.items() if _elsewhere(old.feed, feeds.get(k))]:
            self._stop_stream(key)
            await self._listeners.pop(key).close()
        for key, feed in feeds.items():
            if key in self._listeners:
                self._listeners[key].follow(feed)
            else:
                self._listeners[key] = self._listen(key, feed)
                self._start_stream(key)
        share = max(MIN_BUFFER_BYTES, self._config.collector.buffer_bytes // max(1, len(feeds)))
        for listener in self._listeners.values():
            listener.tracker.buffer.max_bytes = share
        for duty in self._duties:
            duty.see(view)

    def _listen(self, key: StreamKey, feed: Feed) -> Listener:
        limits = self._config.collector
        return Listener(
            self.name,
            feed,
            Buffer(limits.buffer_batches, limits.buffer_bytes),
            self._tools.context,
            self._tools.engine.dialect,
            self._metrics,
            wipe=self._config.ingest.l1.on_gap == "wipe",
            known=self._states.get(key),
        )

    # Standing by.

    async def _observe(self, lease_left: float | None) -> None:
        now = clock.monotonic()
        if lease_left is not None and now - self._observed < OBSERVE_SECONDS:
            return
        self._observed = now
        await self._read_states()
        for key, listener in self._listeners.items():
            if (state := self._states.get(key)) is not None:
                listener.observe(state, lease_left)

    async def _read_states(self) -> None:
        self._states = {state.key: state for state in await self._index.streams()}
        self._looked = True

    # Leading.

    async def _lead(self, reign: Reign) -> None:
        while True:
            reign.went_back.clear()
            await self._read_states()
            writer = Writer(self.name, self._index, reign, self._metrics)
            self._reign, self._writer = reign, writer
            self._duties = [make(reign) for make in self._make_duties]
            tidying = Tidying(self.name, self._index, reign, self._roster, self._streams, self._forget)
            try:
                for key in self._listeners:
                    self._start_stream(key)
                for duty in self._duties:
                    duty.see(self._view)
                await until_first(
                    writer.run(),
                    sweep(self.name, self._index, reign, self._metrics),
                    tidying.run(),
                    self._until_back(reign),
                    *(duty.run() for duty in self._duties),
                )
            finally:
                for key in list(self._streams):
                    self._stop_stream(key)
                self._reign = self._writer = None
                self._duties = []

    async def _until_back(self, reign: Reign) -> None:
        await reign.went_back.wait()
        self._metrics.went_back.labels(self.name).inc()
        _log.error("Redis went back in time; everything is read and written again", pool=self.name)

    def _start_stream(self, key: StreamKey) -> None:
        reign, writer = self._reign, self._writer
        if reign is None or writer is None or key in self._streams:
            return
        stream = Stream(self._listeners[key], self._states.get(key), reign, self._tools, writer.wake)
        self._streams[key] = stream
        writer.add(stream)

    def _stop_stream(self, key: StreamKey) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            stream.close()
            if self._writer is not None:
                self._writer.remove(stream)

    def _forget(self, key: StreamKey) -> None:
        self._states.pop(key, None)

    def _show(self) -> None:
        """The gauges, which are looked at now and then."""
        counts = dict.fromkeys(STATES, 0)
        for stream in self._streams.values():
            counts[stream.state] += 1
        for state, count in counts.items():
            self._metrics.streams.labels(self.name, state).set(count)
        for listener in self._listeners.values():
            listener.count()
        buffers = [listener.tracker.buffer for listener in self._listeners.values()]
        self._metrics.buffer_fill.labels(self.name).set(max((b.fill for b in buffers), default=0.0))


def _elsewhere(old: Feed, new: Feed | None) -> bool:
    return new is None or old.events != new.events
