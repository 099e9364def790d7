"""One stream as it is heard: connections, their batches, and what those follow. Pure: no sockets.

`epoch` numbers the connections of this process, each of which leads to one engine process.
"""

from collector.ingest.buffer import Buffer
from collector.ingest.frames import Frame
from collector.ingest.sequence import Cursor

EPOCHS = 1000
"""Connections whose last sequence is remembered."""


class Hearing:
    """What leader and standby alike know of a stream. Batches go to `buffer`."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.linked = False
        self.epoch = 0
        self.duplicates = 0
        self._vouched_for: tuple[str, int] | None = None
        self._known = self._known_at_start = Cursor("")
        self._last: tuple[int, bytes] | None = None
        self._contiguous = 0
        self._ends: dict[int, int] = {}

    # Connections and live batches.

    def connecting(self) -> None:
        """A new connection is about to be tried; the old one, if any, is over and drained."""
        self.linked = False
        self._begin()

    def connected(self) -> None:
        """The connection that was tried stands."""
        self.linked = True

    def disconnected(self) -> None:
        """The connection is gone; its batches were handed over before."""
        self.linked = False

    def arrive(self, seq: int, stamp: bytes, payload: bytes, at: float = 0.0) -> None:
        """A live batch; one that came before on this connection is only counted."""
        if self._last is not None and seq <= self._last[0]:
            if stamp <= self._last[1]:
                self.duplicates += 1
                return
            # The publisher behind the connection restarted: a proxy stands between, or it kept its socket.
            self._begin()
        if self._last is None or seq != self._last[0] + 1:
            self._contiguous = seq
        self._last = (seq, stamp)
        self._ends[self.epoch] = seq + 1
        self.buffer.append(Frame(self.epoch, seq, stamp, payload, at))

    def _begin(self) -> None:
        self.epoch += 1
        self._last = None
        self._known_at_start = self._known
        self._ends.pop(self.epoch - EPOCHS, None)

    # Standing by.

    def observe(self, cursor: Cursor) -> None:
        """Where Redis stands, as read just now."""
        self._known = cursor

    def vouch(self, life: str) -> None:
        """A leader hears the engine of `life` while the newest connection stands: they share an engine."""
        if self.linked:
            self._vouched_for = (life, self.epoch)

    def reaches(self, cursor: Cursor) -> bool:
        """Whether the newest connection's batches go on from `cursor`, or from before it, without a hole."""
        if cursor.next == 0:
            return True
        if self._last is None:
            return False
        oldest = next(self.buffer.frames())
        start = max(self._contiguous, oldest.seq) if oldest.epoch == self.epoch else self._contiguous
        return start <= cursor.next
