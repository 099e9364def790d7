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

# In the order of array events, which end at the sliding window; what comes after exists in maps only.
_STORED = (
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
_REMOVED = ("type", "block_hashes", "medium", "group_idx", "locality", "ownership")
_FIELDS = {
    "BlockStored": (_STORED, frozenset(_STORED)),
    "BlockRemoved": (_REMOVED, frozenset(_REMOVED)),
    "AllBlocksCleared": (("type",), frozenset(("type",))),
}

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
    fields: dict[object, Any]
    if isinstance(raw, dict):
        fields = raw
        tag = raw.get("type")
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        names = _FIELDS[tag][0] if isinstance(tag, str) and tag in _FIELDS else ()
        fields = dict(zip(names, raw, strict=False))
        if names and len(raw) > len(names):
            skipped[UNKNOWN_FIELD] += len(raw) - len(names)
    else:
        raise _Skip(MALFORMED)
    if not isinstance(tag, str):
        raise _Skip(MALFORMED)
    if tag not in _FIELDS:
        raise _Skip(UNKNOWN_EVENT)
    known = _FIELDS[tag][1]
    if not fields.keys() <= known:
        skipped[UNKNOWN_FIELD] += len(fields.keys() - known)
    if tag == "BlockStored":
        return _stored(fields, skipped)
    if tag == "BlockRemoved":
        return _removed(fields, skipped)
    # It tells neither medium nor group: the whole device pool of this publisher, and nothing else.
    return Cleared(("l1",))


def _stored(fields: dict[object, Any], skipped: Counter[str]) -> Stored:
    tier = _tier(fields)
    group = _group(fields, skipped)
    kind = fields.get("kv_cache_spec_kind")
    if kind is not None and type(kind) is not str:
        skipped[UNKNOWN_FIELD] += 1
        kind = None
    if group != 0 if kind in (None, "unknown") else kind not in _FULL_ATTENTION:
        raise _Skip(OTHER_GROUP)
    hashes = _list(fields.get("block_hashes"))
    parent = fields.get("parent_block_hash")
    size = fields.get("block_size")
    extra_keys = fields.get("extra_keys")
    lora_name = fields.get("lora_name")
    if type(parent) not in (int, bytes, type(None)) or type(size) not in (int, type(None)):
        raise _Skip(MALFORMED)
    return Stored(
        tier,
        group,
        _packed(hashes),
        parent,
        tuple(hashes),
        _list(fields.get("token_ids", [])),
        size or 0,
        None if extra_keys is None else _list(extra_keys),
        lora_name if type(lora_name) is str else None,
        bool(fields.get("lookahead_token_ids")),
    )


def _removed(fields: dict[object, Any], skipped: Counter[str]) -> Removed:
    # A removal tells no kind of group. Where the group does not count nothing was stored: it removes nothing.
    return Removed(_tier(fields), _group(fields, skipped), _packed(_list(fields.get("block_hashes"))))


def _tier(fields: dict[object, Any]) -> str:
    medium = fields.get("medium")
    if fields.get("locality") == "REMOTE":
        raise _Skip(FOREIGN_MEDIUM)
    if medium is None:
        return "l1"
    if type(medium) is not str:
        raise _Skip(MALFORMED)
    if medium.upper() in _DEVICE:
        return "l1"
    if medium in _HOST:
        return "l2"
    raise _Skip(FOREIGN_MEDIUM)


def _group(fields: dict[object, Any], skipped: Counter[str]) -> int:
    group = fields.get("group_idx")
    if type(group) is int and group >= 0:
        return group
    if group is not None:  # in an array, some later release may mean another field by this place
        skipped[UNKNOWN_FIELD] += 1
    return 0


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise _Skip(MALFORMED)
    return value


def _packed(hashes: list[Any]) -> str:
    blocks = []
    for value in hashes:
        if type(value) is int:
            blocks.append(f"{value & MASK:016x}")
        elif type(value) is bytes and len(value) >= 8:
            blocks.append(value[-8:].hex())
        else:
            raise _Skip(MALFORMED)
    return "".join(blocks)
