"""vLLM's KV events: msgpack arrays up to 0.23, maps from 0.24 on, mixed at will.

Decoded generically, not into typed structs: those reject a whole batch for one unknown tag, and an engine
never sends a block twice. What single events hold that is not understood is counted and left out.
"""

import math
import struct
from collections import Counter
from typing import Any

import msgspec

from indexer.blocks import MASK
from indexer.engines.events import (
    FOREIGN_MEDIUM,
    MALFORMED,
    OTHER_GROUP,
    UNKNOWN_EVENT,
    UNKNOWN_FIELD,
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
)
from indexer.errors import DecodeError


class _Layout:
    """The fields of a kind of event."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.known = frozenset(names)


# In the order of array events, which end at the sliding window; what comes after exists in maps only.
_STORED = _Layout(
    *(
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    ),
    *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    *("locality", "ownership", "session_id", "lookahead_token_ids"),
)
_REMOVED = _Layout("type", "block_hashes", "medium", "group_idx", "locality", "ownership")
_CLEARED = _Layout("type")

_DEVICE = {"GPU", "NPU"}
# Case matters: lower-case `cpu` comes from AscendStore, Mooncake and LMCache connectors. Their blocks lie in
# a store that has its own index (tier l3) or are hashed by other rules, and most never tell a removal.
_HOST = {"CPU", "CPU_PINNED"}

# Groups in which a prefix needs every block; others keep only a window or a state.
_FULL_ATTENTION = {"full_attention", "mla_attention", "sink_full_attention"}

_generic = msgspec.msgpack.Decoder().decode
_raw_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_raw_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_UNDECODABLE = (msgspec.DecodeError, TypeError, ValueError, OverflowError, RecursionError, MemoryError)


class _Skip(Exception):
    """An event is left out; the argument is one of REASONS."""


class VllmDialect:
    """Decodes the frames of vLLM's event publisher."""

    def decode(self, payload: bytes) -> Batch:
        """See Dialect."""
        ts, raw_events, rank = _batch(payload)
        if not isinstance(raw_events, list):
            raise DecodeError("event batch: its events are no array")
        skipped: Counter[str] = Counter()
        events = []
        for raw in raw_events:
            try:
                events.append(_event(raw, skipped))
            except _Skip as skip:
                skipped[skip.args[0]] += 1
        return Batch(_stamp(ts), rank if type(rank) is int else None, tuple(events), skipped)

    def stamp(self, payload: bytes) -> bytes:
        """See Dialect."""
        # What all releases send: an array of three that starts with a double, here finite and not negative.
        if payload[:2] == b"\x93\xcb" and len(payload) >= 10 and payload[2] < 0x7F:
            return payload[2:10]
        return _stamp(_batch(payload)[0])


def _batch(payload: bytes) -> tuple[object, object, object]:
    """Time, events and rank of a batch (an array, or a map), decoded but not checked."""
    try:
        batch = _generic(payload)
    except _UNDECODABLE:
        batch = _apart(payload)
    if isinstance(batch, list) and len(batch) >= 2:
        return batch[0], batch[1], batch[2] if len(batch) > 2 else None
    if isinstance(batch, dict):
        return batch.get("ts"), batch.get("events"), batch.get("data_parallel_rank")
    raise DecodeError("event batch: neither [time, events, rank] nor a map")


def _apart(payload: bytes) -> object:
    """The batch with each event decoded by itself: None stands for what cannot be decoded."""
    try:
        try:
            parts = _raw_list(payload)
        except msgspec.ValidationError:
            return {
                key: _events_apart(raw) if key == "events" else _lenient(raw)
                for key, raw in _raw_map(payload).items()
            }
        return [_events_apart(raw) if index == 1 else _lenient(raw) for index, raw in enumerate(parts)]
    except _UNDECODABLE as error:
        raise DecodeError(f"event batch: not msgpack: {error}") from None


def _events_apart(raw: msgspec.Raw) -> object:
    return [_lenient(event) for event in _raw_list(raw)]


def _lenient(raw: msgspec.Raw) -> object:
    try:
        return _generic(raw)
    except _UNDECODABLE:
        return None


def _stamp(ts: object) -> bytes:
    if isinstance(ts, float | int) and not isinstance(ts, bool):
        value = float(ts) + 0.0  # + 0.0: minus zero becomes zero
        if math.isfinite(value) and value >= 0:
            return struct.pack(">d", value)
    raise DecodeError(f"event batch: its time is no finite number of seconds: {str(ts)[:40]!r}")


def _event(raw: object, skipped: Counter[str]) -> Event:
    tag: object
    if type(raw) is dict:
        tag = raw.get("type")
    elif type(raw) is list and raw:
        tag = raw[0]
    else:
        raise _Skip(MALFORMED)
    if type(tag) is not str:
        raise _Skip(MALFORMED)
    if tag == "BlockRemoved":
        return _evicted(raw) or _removed(_fields(raw, _REMOVED, skipped), skipped)
    if tag == "BlockStored":
        return _stored(_fields(raw, _STORED, skipped), skipped)
    if tag == "AllBlocksCleared":
        # It tells neither medium nor group: the whole device pool of this publisher, and nothing else.
        _fields(raw, _CLEARED, skipped)
        return Cleared(("l1",))
    raise _Skip(UNKNOWN_EVENT)


def _evicted(raw: Any) -> Removed | None:
    """The removal of one block from the GPU, in the very shapes that engines send; None: look closer.

    There is one such event for each evicted block: a short cut that takes a third of the long way.
    """
    try:
        if type(raw) is dict:
            hashes, medium, group = raw["block_hashes"], raw["medium"], raw["group_idx"]
            plain = len(raw) == 4
        elif len(raw) == 3:
            (_, hashes, medium), group, plain = raw, 0, True
        else:
            (_, hashes, medium, group), plain = raw, True
    except (KeyError, ValueError):
        return None
    if (
        plain
        and medium == "GPU"
        and type(group) is int
        and group >= 0
        and type(hashes) is list
        and len(hashes) == 1
    ):
        return Removed("l1", group, _block(hashes[0]))
    return None


def _fields(event: Any, layout: _Layout, skipped: Counter[str]) -> list[Any]:
    """The values of the layout's fields, in its order; None where one is not told."""
    names = layout.names
    if type(event) is list:
        missing = len(names) - len(event)
        if missing >= 0:
            return event + [None] * missing
        skipped[UNKNOWN_FIELD] -= missing
        return event[:missing]
    if not event.keys() <= layout.known:
        skipped[UNKNOWN_FIELD] += len(event.keys() - layout.known)
    return list(map(event.get, names))


def _removed(fields: list[Any], skipped: Counter[str]) -> Removed:
    _, hashes, medium, group, locality, _ = fields
    # A removal tells no kind of group. Where the group does not count nothing was stored: it removes nothing.
    return Removed(_tier(medium, locality), _group(group, skipped), _packed(_list(hashes)))


def _stored(fields: list[Any], skipped: Counter[str]) -> Stored:
    _, hashes, parent, token_ids, size, _, medium, lora_name, extra_keys, group, kind, _, locality, *_ = (
        fields
    )
    tier = _tier(medium, locality)
    group = _group(group, skipped)
    if kind is not None and type(kind) is not str:
        skipped[UNKNOWN_FIELD] += 1
        kind = None
    if group != 0 if kind in (None, "unknown") else kind not in _FULL_ATTENTION:
        raise _Skip(OTHER_GROUP)
    hashes = _list(hashes)
    if type(parent) not in (int, bytes, type(None)) or type(size) not in (int, type(None)):
        raise _Skip(MALFORMED)
    return Stored(
        tier,
        group,
        _packed(hashes),
        parent,
        tuple(hashes),
        [] if token_ids is None else _list(token_ids),
        size or 0,
        None if extra_keys is None else _list(extra_keys),
        lora_name if type(lora_name) is str else None,
        bool(fields[-1]),
    )


def _tier(medium: object, locality: object) -> str:
    if locality == "REMOTE":
        raise _Skip(FOREIGN_MEDIUM)
    if medium is None or medium == "GPU":
        return "l1"
    if type(medium) is not str:
        raise _Skip(MALFORMED)
    if medium.upper() in _DEVICE:
        return "l1"
    if medium in _HOST:
        return "l2"
    raise _Skip(FOREIGN_MEDIUM)


def _group(group: object, skipped: Counter[str]) -> int:
    if group is None:
        return 0
    if type(group) is int and group >= 0:
        return group
    # In an array, some later release may mean another field by this place.
    skipped[UNKNOWN_FIELD] += 1
    return 0


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise _Skip(MALFORMED)
    return value


def _packed(hashes: list[Any]) -> str:
    return "".join(map(_block, hashes))


def _block(value: object) -> str:
    if type(value) is int:
        return (value & MASK).to_bytes(8, "big").hex()
    if type(value) is bytes and len(value) >= 8:
        return value[-8:].hex()
    raise _Skip(MALFORMED)
