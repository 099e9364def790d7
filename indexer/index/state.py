"""What travels between the index and its users: frozen values, no Redis in here."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

OpKind = Literal["store", "remove", "clear"]
OutcomeCode = Literal["OK", "DUP", "GAP", "LIFE", "NONE"]

STAMP_NONE = bytes(8)
"""The stamp of a stream of which no batch is known: the double 0.0."""


class StreamKey(Struct, frozen=True, order=True):
    """One event publisher: a data-parallel rank of an instance."""

    ip: str
    rank: int

    @property
    def name(self) -> str:
        """As it stands in key names, `<ip>:<rank>`; an address may hold colons, so parse from the right."""
        return f"{self.ip}:{self.rank}"

    @classmethod
    def parse(cls, name: str) -> "StreamKey":
        """The inverse of `name`; raises ValueError."""
        ip, _, rank = name.rpartition(":")
        if not ip or not rank.isdecimal():
            raise ValueError(f"not a stream name: {name!r}")
        return cls(ip, int(rank))


class StreamState(Struct, frozen=True):
    """A stream as Redis knows it.

    `next` is the sequence number expected next, `stamp` the 8 raw bytes (big-endian double) of batch
    `next - 1`'s timestamp, `seen_age` the seconds since the last applied batch (None: never one),
    `groups` the KV-cache groups that stored blocks in this life, `counters` everything that only counts
    (batches, stored, removed, cleared, gaps, missing, restarts, skipped, ...).
    """

    key: StreamKey
    life: str
    incarnation: str
    next: int
    stamp: bytes
    state: str
    seen_age: float | None = None
    block_size: int | None = None
    cause: str = ""
    groups: tuple[int, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)


class Op(Struct, frozen=True, array_like=True, gc=False):
    """One change of a stream's holders. `blocks` is packed; "clear" wipes the tier in all groups."""

    kind: OpKind
    tier: str
    group: int = 0
    blocks: str = ""


class Apply(Struct, frozen=True):
    """Batches `start`..`stop - 1` of one stream, with what they change, in order.

    `stamps` holds 8 bytes for each batch. `start == stop` changes only `fields`. `skip_from` is the believed
    `next` when a gap is knowingly jumped (`start > skip_from`). In `fields` a str is set, an int is added.
    """

    key: StreamKey
    life: str
    start: int
    stop: int
    stamps: bytes = b""
    ops: tuple[Op, ...] = ()
    skip_from: int | None = None
    fields: Mapping[str, str | int] = field(default_factory=dict)


class Outcome(Struct, frozen=True):
    """What became of an `Apply`, and where the stream stands now.

    OK: applied. DUP: all of it was there already. GAP: batches are missing before `start`. LIFE: the stream
    is in another life, or the timestamps say that the batches are. NONE: no such stream.
    """

    code: OutcomeCode
    next: int = 0
    stamp: bytes = STAMP_NONE
    life: str = ""


class Lease(Struct, frozen=True):
    """Leadership: every write shows `token`; `term` names it for people; `rev` is the write counter."""

    token: str
    term: int
    rev: int


class Renewal(Struct, frozen=True):
    """A renewed lease. A `rev` lower than one seen before: Redis went back in time."""

    rev: int
    warm_standbys: int


class Swept(Struct, frozen=True):
    """One step of the sweeper: bits cleared, slots freed, retired slots that still wait."""

    rev: int
    cleared: int
    freed: int
    pending: int


class TierStats(Struct, frozen=True):
    """Sizes of a tier: distinct blocks, and slots in each of their three states."""

    blocks: int
    holders: Mapping[str, int]
    free: int
    retired: int


class Stats(Struct, frozen=True):
    """The index at a glance. `leader` is the member that leads ("" none), `age` as in `Matches.age`."""

    term: int
    rev: int
    leader: str
    lease_left: float | None
    age: float | None
    tiers: Mapping[str, TierStats]
    streams: tuple[StreamState, ...]
    standbys: Mapping[str, bool]
    meta: Mapping[str, str]
