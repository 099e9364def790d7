"""What the replay socket answers about one stream, and whether to believe it. Pure, as the tracker.

The socket may lead to another engine process than the live connection does (behind a proxy, or while an
engine restarts), so an answer is held against what was applied and what was heard.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from collector.ingest.frames import REPLAYED, Batch, Frame
from collector.ingest.sequence import Cursor


class Answer(Enum):
    """What the beginning of an answer shows."""

    FITS = auto()
    """It goes on from the batch that was applied last."""
    SILENT = auto()
    """It does not reach back to that batch, so it shows nothing."""
    RESTARTED = auto()
    """It has another batch in that place: the engine is in a later life than the cursor's."""
    FOREIGN = auto()
    """It is not from the engine that the live connection is with."""


class Refill:
    """Batches of the answers at one cursor, as far as they wait to be applied."""

    def __init__(self) -> None:
        self.waiting: deque[Frame] = deque()
        self.asked: int | None = None
        """The connection during which the question that runs was asked."""
        self._verified = False
        self._stamps: dict[int, bytes] = {}
        self._hopeless: Cursor | None = None

    def reset(self) -> None:
        """The cursor is another one."""
        self.waiting.clear()
        self.asked = self._hopeless = None

    # Questions.

    def ask(self, epoch: int) -> None:
        """A question goes out."""
        self.asked, self._verified = epoch, False
        self._stamps.clear()

    def over(self) -> int | None:
        """The answer is over; returns the connection during which it was asked for."""
        asked, self.asked = self.asked, None
        return asked

    def give_up(self, cursor: Cursor | None) -> None:
        """No more questions at this cursor."""
        self._hopeless = cursor

    def hopeless(self, cursor: Cursor | None) -> bool:
        """Whether it was given up at this cursor."""
        return cursor is not None and self._hopeless == cursor

    # Answers.

    def judge(
        self, cursor: Cursor, batches: Sequence[Batch], heard: Iterable[Frame], *, proven: bool
    ) -> Answer:
        """What the first `batches` of an answer show; later ones follow from them.

        `heard`: batches of the newest connection; `proven`: that is known to be with the cursor's life.
        """
        if self._verified:
            return Answer.FITS
        self._verified = True
        stamps = {seq: stamp for seq, stamp, _ in batches}
        foreign = any(stamps.get(frame.seq, frame.stamp) != frame.stamp for frame in heard)
        before = stamps.get(cursor.next - 1)
        if before is not None and before != cursor.stamp and not foreign and not proven:
            return Answer.RESTARTED
        if foreign or before not in (None, cursor.stamp):
            return Answer.FOREIGN
        return Answer.SILENT if before is None and cursor.next > 0 else Answer.FITS

    def add(self, cursor: Cursor, batches: Sequence[Batch]) -> None:
        """Batches of an answer that is believed, those that are new."""
        assert self.asked is not None
        expected = self.waiting[-1].seq + 1 if self.waiting else cursor.next
        for seq, stamp, payload in batches:
            if seq >= expected:
                self.waiting.append(Frame(self.asked, seq, stamp, payload, REPLAYED))
                self._stamps[seq] = stamp

    def contradicts(self, frame: Frame) -> bool:
        """Whether something else was replayed in the place of a batch that was heard."""
        return self._stamps.get(frame.seq, frame.stamp) != frame.stamp

    def disown(self) -> None:
        """What was replayed was not this engine's."""
        self._stamps.clear()
