"""Events of any engine, after its dialect decoded them. Blocks are packed runs (`indexer.blocks`)."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

UNKNOWN_EVENT = "unknown_event"
UNKNOWN_FIELD = "unknown_field"
FOREIGN_MEDIUM = "foreign_medium"
OTHER_GROUP = "other_group"
MALFORMED = "malformed"
REASONS = (UNKNOWN_EVENT, UNKNOWN_FIELD, FOREIGN_MEDIUM, OTHER_GROUP, MALFORMED)
"""All keys of `Batch.skipped`: a closed set, so that it can label a metric."""

RawHash = int | bytes
"""A block hash as sent: an integer (signed or unsigned) or a full digest."""


class Stored(Struct, frozen=True):
    """Blocks now lie in `tier`. Everything after `blocks` is there for the self-check only."""

    tier: str
    """`l1` or `l2`."""
    group: int
    """KV-cache group of a hybrid model; 0 for all others."""
    blocks: str
    parent: RawHash | None = None
    """Hash before the first; None at the start of a prompt (or where the engine does not tell)."""
    hashes: tuple[RawHash, ...] = ()
    token_ids: Sequence[object] = ()
    """As sent: not checked to be integers. Empty where the engine does not tell."""
    block_size: int = 0
    """Tokens a block; 0 where the engine does not tell."""
    extra_keys: Sequence[object] | None = None
    """One entry a block, as sent; None where the engine does not tell."""
    lora_name: str | None = None
    lookahead: bool = False
    """The engine hashes tokens after the block, too, which a prompt alone cannot follow."""


class Removed(Struct, frozen=True, gc=False):
    """Blocks left `tier` (None: every tier of this engine). A group that never stored may be named here."""

    tier: str | None
    group: int
    blocks: str


class Cleared(Struct, frozen=True):
    """Everything left these tiers, in all groups."""

    tiers: tuple[str, ...]


Event = Stored | Removed | Cleared


class Batch(Struct, frozen=True):
    """What one frame carries, in order."""

    stamp: bytes
    """Engine time of the batch: 8 bytes, big-endian IEEE double, finite and not negative."""
    rank: int | None
    """Data-parallel rank as told, else None."""
    events: tuple[Event, ...]
    skipped: Mapping[str, int]
    """Reason (one of REASONS) -> how often. UNKNOWN_FIELD counts fields, not events."""
