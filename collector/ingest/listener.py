"""One event stream as it is heard, by leader and standby alike: a subscriber feeding a tracker."""

import asyncio
from collections.abc import Callable

import zmq

from collector.aio import end
from collector.ingest.buffer import Buffer
from collector.ingest.frames import split
from collector.ingest.sequence import Cursor
from collector.ingest.subscriber import Subscriber
from collector.ingest.tracker import Tracker
from collector.membership import Feed
from collector.metrics import Metrics
from indexer import clock, log
from indexer.engines.base import Dialect
from indexer.errors import DecodeError
from indexer.index.state import StreamKey, StreamState

SETTLED_SECONDS = 0.5
"""After this long a connection's subscription has reached the publisher for certain."""
REACH_SECONDS = 2.0
"""Time to connect before an engine counts as out of reach."""
HEARD_STATES = ("live", "suspect", "mismatch")
"""States of a stream that its leader is connected to."""

_log = log.get(__name__)


class Listener:
    """Listens until closed. `wake` is called when there may be something new to do for a leader."""

    def __init__(
        self,
        pool: str,
        feed: Feed,
        buffer: Buffer,
        context: "zmq.Context[zmq.Socket[bytes]]",
        dialect: Dialect,
        metrics: Metrics,
        *,
        wipe: bool,
        known: StreamState | None,
    ) -> None:
        self.key = StreamKey(feed.ip, feed.rank)
        self.feed = feed
        self.tracker = Tracker(
            buffer, replay=feed.replay is not None, wipe=wipe, vouched=feed.incarnation is not None
        )
        self.wake: Callable[[], None] = lambda: None
        self._dialect = dialect
        self._frames = metrics.frames.labels(pool)
        self._bad_frames = metrics.bad_frames.labels(pool)
        self._counters = [c.labels(pool) for c in (metrics.duplicates, metrics.stale, metrics.evicted)]
        self._counted = [0, 0, 0]
        self._log = _log.bind(pool=pool, ip=feed.ip, rank=feed.rank)
        self._begun = clock.monotonic()
        self._linked_at: float | None = None
        self._closing = False
        self._first_epoch: int | None = None
        self._successor = ""
        self._seen: Cursor | None = None
        self._idle: Cursor | None = None
        self._mark: tuple[Cursor, float] | None = None
        if known is not None:
            # Before the first connection: what is published after it can't be what was applied before.
            self.observe(known, None)
        self._subscriber = Subscriber(context, feed.events, self)
        self._task = asyncio.create_task(self._subscriber.run())

    async def close(self) -> None:
        """Stop listening, for good."""
        self._closing = True
        await end((self._task,))
        self.count()

    def count(self) -> None:
        """Bring the metrics up to what was counted since the last call."""
        tracker, buffer = self.tracker, self.tracker.buffer
        now = [tracker.duplicates, tracker.stale, buffer.evicted]
        if tracker.cursor is None:
            self._counted[2] = buffer.evicted  # a standby's batches always go before it applies them
        for counter, total, before in zip(self._counters, now, self._counted, strict=True):
            counter.inc(total - before)
        self._counted = now

    # What the subscriber tells.

    def connecting(self) -> None:
        """See `Tracker.connecting`."""
        self.tracker.connecting()
        if self._successor:
            self.tracker.restart(self._successor)
            self._successor = ""

    def connected(self) -> None:
        """See `Tracker.connected`."""
        self._log.debug("connected", url=self.feed.events)
        self._linked_at = clock.monotonic()
        self._idle = self._mark = None
        if self._first_epoch is None:
            self._first_epoch = self.tracker.epoch
        self.tracker.connected()
        self.wake()

    def disconnected(self) -> None:
        """See `Tracker.disconnected`."""
        if self.tracker.linked and not self._closing:
            self._log.info("connection lost", url=self.feed.events)
        self._linked_at = None
        self.tracker.disconnected()
        self.wake()

    def message(self, parts: list[bytes]) -> None:
        """A message as it came; one that is no batch is counted and forgotten."""
        self._frames.inc()
        try:
            seq, payload = split(parts)
            stamp = self._dialect.stamp(payload)
        except DecodeError as error:
            self._bad_frames.inc()
            self._log.debug("not an event batch", error=str(error))
            return
        self.tracker.arrive(seq, stamp, payload, clock.monotonic())
        self.wake()

    # What discovery tells.

    def follow(self, feed: Feed) -> None:
        """The stream as discovery sees it now; where its events are is unchanged."""
        before, self.feed = self.feed, feed
        self.tracker.replay = feed.replay is not None
        self.tracker.vouched = feed.incarnation is not None
        if feed.incarnation is None or before.incarnation == feed.incarnation:
            return
        why = f"incarnation {before.incarnation} was followed by {feed.incarnation}"
        if self.tracker.linked and self.tracker.epoch == self._first_epoch:
            # This connection was made for the one before and is still with it, whatever became of that.
            self._successor, self._first_epoch = why, None
            self._subscriber.reconnect()
        else:
            self._first_epoch = self.tracker.epoch if self.tracker.linked else None
            self.tracker.restart(why)
        self.wake()

    # Standing by.

    def observe(self, state: StreamState, lease_left: float | None) -> None:
        """Where the stream stands in Redis now; `lease_left`: seconds that somebody still leads for."""
        cursor = Cursor(state.life, state.next, state.stamp)
        self._seen = cursor
        self.tracker.observe(cursor)
        now = clock.monotonic()
        if self._linked_at is None or now - self._linked_at < SETTLED_SECONDS:
            return
        if lease_left is None or state.state not in HEARD_STATES:
            self._mark = None
        elif self._mark is None or self._mark[0].life != state.life:
            self._mark = (cursor, now + lease_left)
        elif now > self._mark[1]:
            # Its leader was connected and at work after we had subscribed: it is with the same engine, and
            # had written all that came before our time. That nothing moves proves nothing by itself: a
            # dead leader's streams don't move either.
            self.tracker.vouch(state.life)
            self._idle = self._mark[0]

    @property
    def warm(self) -> bool:
        """Whether leading this stream from where it was last seen would lose nothing."""
        if self._seen is None:
            return True  # nothing is known that could be lost
        if self._linked_at is None:
            # An engine that can't be reached counts for nothing, once that is certain.
            return clock.monotonic() - self._begun > REACH_SECONDS
        return self.tracker.reaches(self._seen) or self._idle == self._seen
