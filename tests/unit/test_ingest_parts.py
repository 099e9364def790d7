"""Buffer and entries: bounds hold, and what is joined means the same."""

from hypothesis import given
from hypothesis import strategies as st

from collector.ingest.buffer import Buffer
from collector.ingest.entries import SUSPICION, build
from collector.ingest.frames import REPLAYED, Frame
from collector.ingest.sequence import Cursor
from collector.ingest.tracker import Take
from indexer.blocks import unpack
from indexer.engines.events import Batch, Cleared, Event, Removed, Stored
from indexer.errors import DecodeError
from indexer.index.state import StreamKey

KEY = StreamKey("10.0.0.1", 0)
CURSOR = Cursor("life", 5)


@given(
    st.lists(st.tuples(st.sampled_from(["append", "done", "drop", "keep", "rewind"]), st.integers(0, 40))),
    st.integers(1, 6),
    st.integers(1, 100),
)
def test_a_buffer_keeps_its_bounds_and_its_order(
    steps: list[tuple[str, int]], batches: int, size: int
) -> None:
    buffer = Buffer(batches, size)
    seq = 0
    for step, length in steps:
        if step in ("append", "keep"):
            if step == "keep" and buffer.waiting:
                continue  # replayed batches come before those that wait
            getattr(buffer, step)(Frame(0, seq, b"", bytes(length)))
            seq += 1
        elif step == "rewind" or buffer.waiting:
            getattr(buffer, step)()
        frames = list(buffer.frames())
        assert [f.seq for f in frames] == sorted(f.seq for f in frames)
        assert buffer.bytes == sum(len(f.payload) for f in frames)
        assert len(frames) <= batches
        assert buffer.bytes <= size or len(frames) == 1


def test_a_full_buffer_gives_up_applied_batches_first() -> None:
    buffer = Buffer(3, 1000)
    for seq in range(3):
        buffer.append(Frame(0, seq, b"", b"x"))
    buffer.done()
    buffer.append(Frame(0, 3, b"", b"x"))
    assert [f.seq for f in buffer.frames()] == [1, 2, 3]
    assert buffer.evicted == 0
    buffer.append(Frame(0, 4, b"", b"x"))
    assert [f.seq for f in buffer.waiting] == [2, 3, 4]
    assert buffer.evicted == 1


def test_replayed_batches_can_be_taken_out() -> None:
    buffer = Buffer(10, 1000)
    buffer.keep(Frame(0, 0, b"", b"xx", REPLAYED))
    buffer.append(Frame(0, 1, b"", b"x", 1.0))
    buffer.forget_replayed()
    assert [f.seq for f in buffer.frames()] == [1]
    assert buffer.bytes == 1


class Scripted:
    """A dialect whose batches a test made: the payload is their number."""

    def __init__(self, batches: list[tuple[Event, ...] | None]) -> None:
        self._batches = batches

    def stamp(self, payload: bytes) -> bytes:
        return bytes(8)

    def decode(self, payload: bytes) -> Batch:
        events = self._batches[int(payload)]
        if events is None:
            raise DecodeError("scripted")
        return Batch(bytes(8), 0, events, {"unknown_event": 1} if not events else {})


def take(count: int, **options: object) -> Take:
    return Take(
        tuple(Frame(0, 5 + i, i.to_bytes(8, "big"), str(i).encode()) for i in range(count)),
        **options,  # type: ignore[arg-type]
    )


def packed(*numbers: int) -> str:
    return "".join(f"{n:016x}" for n in numbers)


runs = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(lambda ns: packed(*ns))
tiers = st.sampled_from(["l1", "l2"])
events = st.one_of(
    st.builds(Stored, tiers, st.integers(0, 1), runs),
    st.builds(Removed, st.one_of(tiers, st.none()), st.integers(0, 1), runs),
    st.builds(Cleared, st.lists(tiers, max_size=2, unique=True).map(tuple)),
)
Held = set[tuple[str, int, str]]


def by_events(batches: list[tuple[Event, ...]]) -> Held:
    held: Held = set()
    for event in (e for batch in batches for e in batch):
        if isinstance(event, Cleared):
            held = {h for h in held if h[0] not in event.tiers}
            continue
        named = ("l1", "l2") if event.tier is None else (event.tier,)
        blocks = {(tier, event.group, b) for tier in named for b in unpack(event.blocks)}
        held = held | blocks if isinstance(event, Stored) else held - blocks
    return held


@given(st.lists(st.lists(events, max_size=5).map(tuple), min_size=1, max_size=4))
def test_joined_operations_mean_what_the_events_meant(batches: list[tuple[Event, ...]]) -> None:
    entry = build(KEY, CURSOR, take(len(batches)), Scripted(list(batches)), 1000)
    held: Held = set()
    for op in entry.apply.ops:
        blocks = {(op.tier, op.group, b) for b in unpack(op.blocks)}
        if op.kind == "clear":
            held = {h for h in held if h[0] != op.tier}
        else:
            held = held | blocks if op.kind == "store" else held - blocks
    assert held == by_events(batches)
    assert (entry.apply.start, entry.apply.stop) == (5, 5 + len(batches))
    assert len(entry.apply.stamps) == 8 * len(batches)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 60))
def test_an_entry_keeps_to_its_budget_but_takes_at_least_one_batch(sizes: list[int], budget: int) -> None:
    batches: list[tuple[Event, ...] | None] = [(Stored("l1", 0, packed(*range(n))),) for n in sizes]
    entry = build(KEY, CURSOR, take(len(sizes)), Scripted(batches), budget)
    count = entry.apply.stop - entry.apply.start
    assert entry.blocks == sum(sizes[:count])
    assert entry.blocks <= budget or count == 1
    assert count == len(sizes) or entry.blocks + sizes[count] > budget


def test_an_unreadable_batch_is_a_gap_of_one() -> None:
    stored = (Stored("l1", 0, packed(1)),)
    entry = build(KEY, CURSOR, take(3), Scripted([stored, None, ()]), 100)
    assert (entry.apply.start, entry.apply.stop, entry.unreadable) == (5, 8, 1)
    assert entry.apply.fields == {"gaps": 1, "missing": 1, "skipped": 1}
    assert entry.doubt.startswith(SUSPICION)


def test_what_was_given_up_or_not_proven_is_said() -> None:
    scripted = Scripted([()])
    assert "3 to 4" in build(KEY, CURSOR, take(1, skip_from=3), scripted, 9).doubt
    assert "restarted" in build(KEY, CURSOR, take(1, unproven=True), scripted, 9).doubt
    assert build(KEY, CURSOR, take(1), scripted, 9).doubt == ""
