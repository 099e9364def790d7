"""The rules one by one; their interplay is in test_tracker_model."""

import struct

import pytest

from collector.ingest.frames import END, SEQ_LIMIT, split
from collector.ingest.sequence import Cursor, Verdict, judge
from indexer.errors import DecodeError


def at(seconds: float) -> bytes:
    return struct.pack(">d", seconds)


CURSOR = Cursor("life", 10, at(100.0))


@pytest.mark.parametrize(
    ("seq", "stamp", "trusted", "newest", "known", "verdict"),
    [
        # On a connection that is known to be with this life, numbers can be believed.
        (10, 101.0, True, True, 0, Verdict.APPLY),
        (10, 99.0, True, True, 0, Verdict.APPLY),  # its clock was set back meanwhile
        (9, 100.0, True, True, 0, Verdict.DUPLICATE),
        (3, 200.0, True, True, 0, Verdict.DUPLICATE),
        (12, 101.0, True, True, 0, Verdict.GAP),
        # On another one they can't.
        (9, 100.0, False, True, 0, Verdict.PROOF),
        (9, 101.0, False, True, 0, Verdict.RESTART),
        (3, 101.0, False, True, 0, Verdict.RESTART),
        (3, 101.0, False, False, 0, Verdict.RESTART),
        (3, 99.0, False, True, 0, Verdict.DUPLICATE),
        (10, 101.0, False, True, 0, Verdict.UNPROVEN),
        (12, 101.0, False, True, 0, Verdict.UNPROVEN),
        (12, 99.0, False, True, 0, Verdict.UNPROVEN),
        (12, 99.0, False, False, 0, Verdict.STALE),
        # What was applied before the connection began can't have been published after it.
        (3, 99.0, False, True, 4, Verdict.RESTART),
        (9, 99.0, False, True, 10, Verdict.RESTART),
        (3, 99.0, False, True, 3, Verdict.DUPLICATE),
    ],
)
def test_a_batch_is_judged(
    seq: int, stamp: float, trusted: bool, newest: bool, known: int, verdict: Verdict
) -> None:
    assert judge(CURSOR, seq, at(stamp), trusted=trusted, newest=newest, known=known) is verdict


@pytest.mark.parametrize(
    ("seq", "stamp", "newest", "verdict"),
    [
        (0, 101.0, True, Verdict.APPLY),
        (2, 101.0, True, Verdict.GAP),
        (0, 50.0, True, Verdict.APPLY),  # clock set back: the newest connection is the new life's
        (7, 100.0, False, Verdict.STALE),
        (7, 50.0, False, Verdict.STALE),
    ],
)
def test_a_new_life_has_a_floor(seq: int, stamp: float, newest: bool, verdict: Verdict) -> None:
    fresh = Cursor("new", 0, at(100.0))
    assert judge(fresh, seq, at(stamp), trusted=False, newest=newest, known=0) is verdict


@pytest.mark.parametrize("parts", [[b"t", b"x"], [b"", b"", b"t", b"x"]], ids=["live", "replayed"])
def test_messages_are_read_from_the_right(parts: list[bytes]) -> None:
    message = [*parts[:-1], (7).to_bytes(8, "big"), b"payload"]
    assert split(message) == (7, b"payload")


@pytest.mark.parametrize(
    "parts",
    [[], [b"x"], [b"t", b"1234567", b"x"], [b"t", END, b"x"], [b"t", SEQ_LIMIT.to_bytes(8, "big"), b""]],
)
def test_what_is_no_batch_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        split(parts)
