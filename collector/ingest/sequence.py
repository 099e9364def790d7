"""Where a batch stands in its stream: the rules alone, without sockets, Redis or clocks.

A sequence number proves nothing by itself: an engine that restarted counts from 0 again, and may be past
our `next` by the time we hear of it. What does prove something:

- One connection leads to one engine process. Once any frame of a connection is known to belong to the life
  that Redis has, all of them do, and their sequence numbers can be believed (`trusted`).
- The batch before `next` is known by its time as well. The same number with the same time is the same
  batch; with another time it is another life.
- Cause comes before effect. A batch published after a connection began cannot be one that was applied
  before it began, whatever its time says: it is how a restart with the clock set back shows (`known`).
- Inside one life time does not go back, so an old number with a newer time is another life, too.
"""

from enum import Enum, auto

from msgspec import Struct

from indexer.index.state import STAMP_NONE


class Cursor(Struct, frozen=True):
    """Where Redis stands: batches before `next` of `life` are applied.

    `stamp` is the time of batch `next - 1`, 8 bytes big-endian double, which sort as the numbers they are.
    At `next` 0 it is the life's floor: nothing of an earlier life is newer.
    """

    life: str
    next: int = 0
    stamp: bytes = STAMP_NONE


class Verdict(Enum):
    """What a batch is, seen from a cursor."""

    APPLY = auto()
    """The next one."""
    DUPLICATE = auto()
    """Applied before."""
    PROOF = auto()
    """The very batch before `next`: applied before, and its connection is with the cursor's life."""
    STALE = auto()
    """Left over from an older life."""
    GAP = auto()
    """Of this life, but others are missing before it."""
    UNPROVEN = auto()
    """At or after `next`, on a connection that may be with another life: verify first."""
    RESTART = auto()
    """Of a later life than the cursor's."""


def judge(cursor: Cursor, seq: int, stamp: bytes, *, trusted: bool, newest: bool, known: int) -> Verdict:
    """What batch `seq`, `stamp` is.

    `trusted`: its connection is known to be with the cursor's life; `newest`: no later connection was made;
    `known`: the highest `next` of this very life that this process knew before that connection began.
    """
    expected = cursor.next
    if trusted or expected == 0:
        if not trusted and not newest and stamp <= cursor.stamp:
            return Verdict.STALE
        if seq < expected:
            return Verdict.DUPLICATE
        return Verdict.APPLY if seq == expected else Verdict.GAP
    if seq == expected - 1 and stamp == cursor.stamp:
        return Verdict.PROOF
    if seq < expected:
        if stamp > cursor.stamp or seq < known:
            return Verdict.RESTART
        return Verdict.DUPLICATE
    if not newest and stamp <= cursor.stamp:
        return Verdict.STALE
    return Verdict.UNPROVEN
