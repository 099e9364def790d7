"""From received batches to one `Apply` entry. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from collector.ingest.plans import Take
from collector.ingest.sequence import Cursor
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
    ops: list[Op] = []
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
        added = _ops(batch.events)
        size = sum(len(op.blocks) for op in added) // WIDTH
        if stamps and blocks + size > budget:
            break
        blocks += size
        ops += added
        stamps.append(frame.stamp)
        if batch.skipped:
            skipped.update(batch.skipped)
        stored += [e for e in batch.events if isinstance(e, Stored) and e.tier == "l1"]
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
            tuple(ops),
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


def _ops(events: Iterable[Event]) -> list[Op]:
    """Operations in order. Engines send one event for each evicted block, so neighbours are joined."""
    ops: list[Op] = []
    for (kind, tiers, group), run in groupby(events, _target):
        blocks = "".join([event.blocks for event in run if not isinstance(event, Cleared)])
        if isinstance(tiers, str):
            ops.append(Op(kind, tiers, group, blocks))
        else:
            ops += [Op(kind, tier, group, blocks) for tier in tiers]
    return ops


def _target(event: Event) -> tuple[OpKind, str | tuple[str, ...], int]:
    if isinstance(event, Removed):
        return "remove", event.tier or ("l1", "l2"), event.group
    if isinstance(event, Stored):
        return "store", event.tier, event.group
    return "clear", event.tiers, 0


def _doubt(take: Take, first: int, unreadable: int) -> str:
    if take.skip_from is not None:
        return f"{SUSPICION}batches {take.skip_from} to {first - 1} were lost"
    if unreadable:
        return f"{SUSPICION}{unreadable} batches at {first} or later could not be read"
    if take.unproven:
        return f"{SUSPICION}the engine may have restarted before batch {first}; nothing can tell"
    return ""
