"""From received batches to one `Apply` entry. Pure."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from collector.ingest.sequence import Cursor
from collector.ingest.tracker import Take
from indexer.blocks import WIDTH
from indexer.engines.base import Dialect
from indexer.engines.events import Cleared, Event, Removed, Stored
from indexer.errors import DecodeError
from indexer.index.state import Apply, Op, OpKind, StreamKey

SUSPICION = "gap: "
"""How the `cause` of a suspect stream begins; any other one is what the self-check found."""


class Entry(NamedTuple):
    """What is to be written, and what to count once it is."""

    apply: Apply
    blocks: int = 0
    stored: tuple[Stored, ...] = ()
    """Stores of l1, for the self-check."""
    skipped: Mapping[str, int] = MappingProxyType({})
    unreadable: int = 0
    arrived: float = 0.0
    """When the oldest live batch arrived; 0 when all were replayed."""
    doubt: str = ""
    """Why the stream's content is in doubt from here on; empty when it is not."""


def build(key: StreamKey, cursor: Cursor, take: Take, dialect: Dialect, budget: int) -> Entry:
    """As many of the taken batches as have at most `budget` blocks, but at least one: a batch is never split,
    since the sequence moves in the call that applies it.

    An unreadable batch can't be had again in a better shape: it counts as a gap of one.
    """
    ops = _Ops()
    stored: list[Stored] = []
    stamps: list[bytes] = []
    skipped: Counter[str] = Counter()
    unreadable = blocks = 0
    for frame in take.frames:
        try:
            batch = dialect.decode(frame.payload)
        except DecodeError:
            unreadable += 1
            stamps.append(frame.stamp)
            continue
        size = sum(len(e.blocks) for e in batch.events if not isinstance(e, Cleared)) // WIDTH
        if stamps and blocks + size > budget:
            break
        blocks += size
        stamps.append(frame.stamp)
        skipped.update(batch.skipped)
        for event in batch.events:
            ops.add(event)
            if isinstance(event, Stored) and event.tier == "l1":
                stored.append(event)
    ops.close()
    first = take.frames[0].seq
    fields: dict[str, str | int] = {}
    if unreadable:
        fields |= {"gaps": unreadable, "missing": unreadable}
    if skipped:
        fields["skipped"] = skipped.total()
    return Entry(
        Apply(
            key,
            cursor.life,
            first,
            first + len(stamps),
            b"".join(stamps),
            tuple(ops.done),
            take.skip_from,
            fields,
        ),
        blocks,
        tuple(stored),
        skipped,
        unreadable,
        min((f.at for f in take.frames[: len(stamps)] if f.at > 0), default=0.0),
        _doubt(take, first, unreadable),
    )


class _Ops:
    """Operations in order. Engines send one event for each evicted block, so neighbours are joined."""

    def __init__(self) -> None:
        self.done: list[Op] = []
        self._like: tuple[OpKind, str, int] | None = None
        self._blocks: list[str] = []

    def add(self, event: Event) -> None:
        if isinstance(event, Removed):
            if event.tier is not None:
                self._append(("remove", event.tier, event.group), event.blocks)
            else:
                for tier in ("l1", "l2"):
                    self._append(("remove", tier, event.group), event.blocks)
        elif isinstance(event, Stored):
            self._append(("store", event.tier, event.group), event.blocks)
        else:
            self.close()
            self.done += [Op("clear", tier) for tier in event.tiers]

    def close(self) -> None:
        """No more of what was added last."""
        if self._like is not None:
            kind, tier, group = self._like
            self.done.append(Op(kind, tier, group, "".join(self._blocks)))
        self._like, self._blocks = None, []

    def _append(self, like: tuple[OpKind, str, int], blocks: str) -> None:
        if like != self._like:
            self.close()
            self._like = like
        self._blocks.append(blocks)


def _doubt(take: Take, first: int, unreadable: int) -> str:
    if take.skip_from is not None:
        return f"{SUSPICION}batches {take.skip_from} to {first - 1} were lost"
    if unreadable:
        return f"{SUSPICION}{unreadable} batches at {first} or later could not be read"
    if take.unproven:
        return f"{SUSPICION}the engine may have restarted before batch {first}; nothing can tell"
    return ""
