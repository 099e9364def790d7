"""Arranges `Apply` entries for the script: how many go in a call, and how they are written."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from indexer.blocks import WIDTH
from indexer.index.state import Apply, Op

_encode = msgspec.msgpack.Encoder().encode


def calls(entries: Sequence[Apply], limit: int) -> Iterator[list[Apply]]:
    """Groups of consecutive entries with at most about `limit` blocks; a bigger entry goes alone."""
    group: list[Apply] = []
    size = 0
    for entry in entries:
        # An entry costs about as much as five blocks, even without any.
        blocks = 5 + sum(len(op.blocks) for op in entry.ops) // WIDTH
        if group and size + blocks > limit:
            yield group
            group, size = [], 0
        group.append(entry)
        size += blocks
    if group:
        yield group


def arguments(entries: Sequence[Apply]) -> tuple[Any, ...]:
    """ARGV of apply.lua from the third on. Redis's msgpack knows no binary strings: stamps go as hex."""
    stores = any(op.kind == "store" for entry in entries for op in entry.ops)
    return int(stores), _encode([_row(entry) for entry in entries])


def _row(entry: Apply) -> tuple[Any, ...]:
    if len(entry.stamps) != 8 * (entry.stop - entry.start):
        raise ValueError(
            f"{entry.key.name}: batches {entry.start}..{entry.stop} have {len(entry.stamps)} bytes of stamps"
        )
    fields = entry.fields.items()
    return (
        entry.key.name,
        entry.life,
        entry.start,
        entry.stop,
        entry.stamps.hex(),
        _joined(entry.ops),
        -1 if entry.skip_from is None else entry.skip_from,
        [part for item in fields if isinstance(item[1], str) for part in item],
        [part for item in fields if isinstance(item[1], int) for part in item],
    )


def _joined(ops: Sequence[Op]) -> list[tuple[str, str, int, str]]:
    """Neighbouring ops of one kind and holder as one: fewer, bigger commands inside the script."""
    rows: list[tuple[str, str, int, list[str]]] = []
    for op in ops:
        if rows and rows[-1][:3] == (op.kind, op.tier, op.group):
            rows[-1][3].append(op.blocks)
        else:
            rows.append((op.kind, op.tier, op.group, [op.blocks]))
    return [(kind, tier, group, "".join(blocks)) for kind, tier, group, blocks in rows]
