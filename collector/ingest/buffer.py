"""The last batches of one stream: those that wait to be applied and those that were, in order.

A standby only ever has waiting ones, so that it can go on where a dead leader stopped. A leader keeps the
applied ones for the day when Redis goes back in time. Both count against one bound; the oldest go first.
"""

from collections import deque
from collections.abc import Iterator

from collector.ingest.frames import REPLAYED, Frame


class Buffer:
    """Bounded by batches and by bytes of payload. One batch is always kept."""

    def __init__(self, batches: int, size: int) -> None:
        self._max_batches = batches
        self.max_bytes = size
        """May change at any time; counts from the next batch on."""
        self.kept: deque[Frame] = deque()
        self.waiting: deque[Frame] = deque()
        self.bytes = 0
        self.evicted = 0
        """Batches that went before they were applied (here or, for a standby, anywhere that we know of)."""

    def __len__(self) -> int:
        return len(self.kept) + len(self.waiting)

    @property
    def fill(self) -> float:
        """How full it is, 0..1."""
        return max(len(self) / self._max_batches, min(1.0, self.bytes / self.max_bytes))

    def frames(self) -> Iterator[Frame]:
        """All of them, oldest first."""
        yield from self.kept
        yield from self.waiting

    def append(self, frame: Frame) -> None:
        """A new batch that waits."""
        self.waiting.append(frame)
        self._grow(frame)

    def keep(self, frame: Frame) -> None:
        """A batch that was applied and did not come out of `waiting` (a replayed one)."""
        self.kept.append(frame)
        self._grow(frame)

    def done(self) -> None:
        """The oldest waiting batch needs no more work, but is worth keeping."""
        self.kept.append(self.waiting.popleft())

    def drop(self) -> None:
        """The oldest waiting batch is worth nothing."""
        self.bytes -= len(self.waiting.popleft().payload)

    def forget(self) -> None:
        """What was applied is not worth keeping any more."""
        self.kept.clear()
        self.bytes = sum(len(frame.payload) for frame in self.waiting)

    def forget_replayed(self) -> None:
        """Batches that came from a replay socket were not this engine's."""
        for frames in (self.kept, self.waiting):
            own = [frame for frame in frames if frame.at != REPLAYED]
            frames.clear()
            frames.extend(own)
        self.bytes = sum(len(frame.payload) for frame in self.frames())

    def rewind(self) -> None:
        """Everything waits again."""
        self.kept.extend(self.waiting)
        self.kept, self.waiting = deque(), self.kept

    def _grow(self, frame: Frame) -> None:
        self.bytes += len(frame.payload)
        while len(self) > 1 and (len(self) > self._max_batches or self.bytes > self.max_bytes):
            if self.kept:
                self.bytes -= len(self.kept.popleft().payload)
            else:
                self.bytes -= len(self.waiting.popleft().payload)
                self.evicted += 1
