"""What a stream's publisher sends, as far as sequence and time go; the events inside are the dialect's.

A live message is `[topic, sequence (8 bytes, big-endian), payload]`; replays are the same behind an empty
delimiter, with or without the topic, so both are read from the right.
"""

from collections.abc import Sequence
from typing import NamedTuple

from indexer.errors import DecodeError

SEQ_LIMIT = 1 << 53
"""Sequences from here on are refused: Lua numbers hold integers exactly only below."""
END = b"\xff" * 8
"""The sequence of a replay's end marker (-1)."""


REPLAYED = -1.0
"""`Frame.at` of a batch that came from a replay socket."""


class Frame(NamedTuple):
    """One batch as received. `epoch` numbers the connection it came by, `stamp` is its time (8 bytes), `at`
    the monotonic moment of its arrival."""

    epoch: int
    seq: int
    stamp: bytes
    payload: bytes
    at: float = 0.0


Batch = tuple[int, bytes, bytes]
"""A batch as the replay socket sends it: (sequence, stamp, payload)."""


def split(parts: Sequence[bytes]) -> tuple[int, bytes]:
    """(sequence, payload) of a message's parts; raises DecodeError."""
    if len(parts) < 2:
        raise DecodeError(f"a message of {len(parts)} parts")
    raw = parts[-2]
    if len(raw) != 8:
        raise DecodeError(f"a sequence of {len(raw)} bytes")
    seq = int.from_bytes(raw, "big")
    if seq >= SEQ_LIMIT:
        raise DecodeError(f"sequence {seq} is out of range")
    return seq, parts[-1]
