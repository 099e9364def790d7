"""vLLM's event dialect: recorded payloads of every release, tolerance, and arbitrary bytes."""

import gzip
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.blocks import block_of_digest, block_of_int
from indexer.engines.events import (
    FOREIGN_MEDIUM,
    MALFORMED,
    OTHER_GROUP,
    REASONS,
    UNKNOWN_EVENT,
    UNKNOWN_FIELD,
    Batch,
    Cleared,
    Removed,
    Stored,
)
from indexer.engines.vllm.events import VllmDialect
from indexer.errors import DecodeError
from tests.captures import DATA

DIALECT = VllmDialect()
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in gzip.decompress((DATA / "events.jsonl.gz").read_bytes()).splitlines()
]
RECORDED = [row for row in ROWS if isinstance(row["expect"], dict)]
TIERS = {None: "l1", "GPU": "l1", "NPU": "l1", "CPU": "l2"}  # every other medium is foreign


def decode(*events: object, ts: float = 1.5, rank: object = 0) -> Batch:
    return DIALECT.decode(msgspec.msgpack.encode([ts, list(events), rank]))


def plain(value: Any) -> Any:
    """A value of the recorded expectations, in which {"bytes_hex": ...} stands for bytes."""
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes_hex"])
    return [plain(item) for item in value] if isinstance(value, list) else value


def expected_event(event: dict[str, Any]) -> Any:
    if event["type"] == "AllBlocksCleared":
        return Cleared(("l1",))
    if event["medium"] not in TIERS:
        return None
    hashes = plain(event["block_hashes"])
    packed = "".join(block_of_int(h) if isinstance(h, int) else block_of_digest(h) for h in hashes)
    tier, group = TIERS[event["medium"]], event.get("group_idx") or 0
    if event["type"] == "BlockRemoved":
        return Removed(tier, group, packed)
    if event.get("kv_cache_spec_kind") == "sliding_window":
        return None
    return Stored(
        tier,
        group,
        packed,
        plain(event["parent_block_hash"]),
        tuple(hashes),
        event["token_ids"],
        event["block_size"],
        plain(event.get("extra_keys")),
        event.get("lora_name"),
        bool(event.get("lookahead_token_ids")),
    )


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['version']} {row['note']}")
def test_recorded_payload(row: dict[str, Any]) -> None:
    payload = bytes.fromhex(row["payload_hex"])
    batch = DIALECT.decode(payload)
    expect = row["expect"]
    events = [expected_event(event) for event in expect["events"]]
    assert list(batch.events) == [event for event in events if event is not None]
    assert sum(batch.skipped.values()) == events.count(None)
    assert batch.rank == expect["data_parallel_rank"]
    assert struct.unpack(">d", batch.stamp) == (expect["ts"],)
    assert DIALECT.stamp(payload) == batch.stamp


STORED = Stored("l1", 0, f"{1:016x}", None, (1,), [1, 2], 2)
REMOVED = Removed("l1", 0, f"{1:016x}")
TOLERANCE: dict[str, tuple[list[Any], dict[str, int]]] = {
    # Places 9 and 10 are a group and its kind since 0.20 and 0.22; these values are neither.
    "unknown trailing array fields on event and batch": ([STORED], {UNKNOWN_FIELD: 2}),
    "old 0.11-like short BlockStored without medium": ([STORED], {}),
    "batch without dp rank element": ([Cleared(("l1",))], {}),
    "map event with unknown key": ([STORED], {UNKNOWN_FIELD: 1}),
    "map event, key order shuffled, tag last": ([REMOVED], {}),
    "unknown event type (array)": ([], {UNKNOWN_EVENT: 1}),
    "unknown event type (map)": ([], {UNKNOWN_EVENT: 1}),
    "mixed array and map events in one batch": ([STORED, REMOVED], {}),
    "negative int hash": ([Removed("l1", 0, "f" * 16)], {}),
}


@pytest.mark.parametrize("row", [r for r in ROWS if r["version"] == "hand-made"], ids=lambda row: row["note"])
def test_tolerance(row: dict[str, Any]) -> None:
    events, skipped = TOLERANCE[row["note"]]
    payload = bytes.fromhex(row["payload_hex"])
    batch = DIALECT.decode(payload)
    assert list(batch.events) == events
    assert batch.skipped == skipped
    assert DIALECT.stamp(payload) == batch.stamp


def test_all_rows_are_tested() -> None:
    assert len(RECORDED) == 127
    assert {row["note"] for row in ROWS if row not in RECORDED} == TOLERANCE.keys()


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, "l1"), ("GPU", "l1"), ("gpu", "l1"), ("Gpu", "l1"), ("npu", "l1"),
        ("CPU", "l2"), ("CPU_PINNED", "l2"),
        ("cpu", None), ("Cpu", None), ("STORAGE", None), ("DISK", None), ("", None),
    ],
)  # fmt: skip
def test_medium_decides_the_tier(medium: str | None, tier: str | None) -> None:
    for removed in (
        ["BlockRemoved", [1], medium],
        {"type": "BlockRemoved", "block_hashes": [1], "medium": medium},
    ):
        batch = decode(["BlockStored", [1], None, [1, 2], 2, None, medium], removed)
        assert [e.tier for e in batch.events] == ([tier] * 2 if tier else [])
        assert batch.skipped == ({} if tier else {FOREIGN_MEDIUM: 2})


def test_blocks_on_another_host_are_not_this_engines() -> None:
    event = {"type": "BlockStored", "block_hashes": [1], "medium": "CPU", "locality": "REMOTE"}
    assert decode(event).skipped == {FOREIGN_MEDIUM: 1}
    assert len(decode({**event, "locality": "LOCAL"}).events) == 1


@pytest.mark.parametrize(
    ("kind", "group", "counts"),
    [
        (None, None, True), (None, 0, True), (None, 1, False), ("unknown", 1, False), ("unknown", 0, True),
        ("full_attention", 1, True), ("mla_attention", 2, True), ("sink_full_attention", 0, True),
        ("sliding_window", 0, False), ("mamba", 0, False), ("chunked_local_attention", 1, False),
        ("something_new", 0, False),
    ],
)  # fmt: skip
def test_only_groups_that_a_prefix_needs_in_full_count(kind: Any, group: Any, counts: bool) -> None:
    event = {"type": "BlockStored", "block_hashes": [1], "group_idx": group, "kv_cache_spec_kind": kind}
    batch = decode(event)
    assert [e.group for e in batch.events] == ([group or 0] if counts else [])
    assert batch.skipped == ({} if counts else {OTHER_GROUP: 1})


def test_offloading_placeholders() -> None:
    digest = bytes(range(32))
    batch = decode(
        {"type": "BlockStored", "block_hashes": [digest, 7], "parent_block_hash": None, "token_ids": [],
         "block_size": 0, "lora_id": None, "medium": "CPU", "lora_name": None},
        ["BlockStored", [5], None, [1, 2], 2, None, "GPU"],
    )  # fmt: skip
    assert batch.events[0] == Stored("l2", 0, digest[-8:].hex() + f"{7:016x}", None, (digest, 7), [])
    assert batch.events[1].tier == "l1"


def test_signed_and_unsigned_integers_name_the_same_block() -> None:
    batch = decode(["BlockRemoved", [-1, 2**64 - 1, -(2**63), 2**63, 0]])
    assert batch.events[0].blocks == "f" * 32 + ("8" + "0" * 15) * 2 + "0" * 16


@given(
    st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.booleans() | st.none(),
    st.sampled_from(["GPU", "gpu", "CPU", "cpu", None, 7]),
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=1),
)
def test_the_usual_shapes_of_a_removal_mean_what_any_other_shape_does(
    block: Any, medium: Any, group: Any
) -> None:
    named = {"type": "BlockRemoved", "block_hashes": [block], "medium": medium, "group_idx": group}
    usual = [named, list(named.values())]
    for event, other in zip(usual, [{**named, "locality": None}, [*usual[1], None]], strict=True):
        assert decode(event) == decode(other)
    assert decode(usual[1][:3]) == decode([*usual[1][:3], None])


BROKEN: list[Any] = [
    None, 7, "BlockStored", [], {}, ["BlockStored"], [None, 1], {"type": 7}, {"type": ["a"]},
    ["BlockStored", 5], ["BlockStored", [1.5], None, [1], 1], ["BlockRemoved", [True]],
    ["BlockRemoved", ["1"]], ["BlockRemoved", [b"short"]], ["BlockRemoved", [1], 5],
    ["BlockStored", [1], "parent", [1], 1], ["BlockStored", [1], None, "ids", 1],
    ["BlockStored", [1], None, [1], "one"], ["BlockStored", [1], None, [1], 1, 0, "GPU", "l", "keys"],
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
def test_a_malformed_event_is_counted_and_its_neighbours_live(broken: Any) -> None:
    batch = decode(["BlockRemoved", [1], "GPU"], broken, ["AllBlocksCleared"])
    assert batch.events == (REMOVED, Cleared(("l1",)))
    assert batch.skipped == {MALFORMED: 1}


@pytest.mark.parametrize(
    "broken",
    [
        b"\x81\x90\x01",
        b"\xa2\xff\xff",
        b"\x92\xa3\xc3\x28\x41\x01",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xd4\x05\x00",
    ],
    ids=["array as a key", "no UTF-8", "no UTF-8 inside", "timestamp", "extension"],
)
@pytest.mark.parametrize("envelope", ["array", "map"])
def test_what_cannot_be_decoded_loses_no_neighbour(broken: bytes, envelope: str) -> None:
    neighbour = msgspec.msgpack.encode(["AllBlocksCleared"])
    events = b"\x93" + neighbour + broken + neighbour
    payload = (
        b"\x93\xcb" + struct.pack(">d", 1.5) + events + b"\x03"
        if envelope == "array"
        else b"\x83\xa2ts\xcb"
        + struct.pack(">d", 1.5)
        + b"\xa6events"
        + events
        + b"\xb2data_parallel_rank\x03"
    )
    batch = DIALECT.decode(payload)
    assert batch.events == (Cleared(("l1",)),) * 2
    assert batch.skipped == {MALFORMED: 1}
    assert (batch.rank, batch.stamp) == (3, struct.pack(">d", 1.5))
    assert DIALECT.stamp(payload) == batch.stamp


def test_a_batch_may_be_a_map() -> None:
    payload = msgspec.msgpack.encode(
        {"ts": 2, "events": [["AllBlocksCleared"]], "data_parallel_rank": 4, "new": 1}
    )
    assert DIALECT.decode(payload) == Batch(struct.pack(">d", 2.0), 4, (Cleared(("l1",)),), {})
    assert DIALECT.stamp(payload) == struct.pack(">d", 2.0)


@pytest.mark.parametrize(
    "frame",
    [
        [], [1.5], {"events": []}, {"ts": 1.5}, [1.5, None, 0], 7, "text", None,
        [None, [], 0], ["1.5", [], 0], [True, [], 0], [-1.0, [], 0], [float("nan"), [], 0],
        [float("inf"), [], 0],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_batch_is_refused(frame: Any) -> None:
    with pytest.raises(DecodeError):
        DIALECT.decode(msgspec.msgpack.encode(frame))


@pytest.mark.parametrize("ts", [float("nan"), float("inf"), float("-inf"), -0.5, -1, None, "x"])
def test_a_time_that_does_not_order_batches_is_refused(ts: Any) -> None:
    payload = msgspec.msgpack.encode([ts, [], 0])
    for read in (DIALECT.stamp, DIALECT.decode):
        with pytest.raises(DecodeError, match="time"):
            read(payload)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x93", b"\x93\xcb\x00", b"\xdd\xff\xff\xff\xff", b"\x91" * 10**5]
)
def test_frames_that_are_not_msgpack_are_refused(payload: bytes) -> None:
    for read in (DIALECT.stamp, DIALECT.decode):
        with pytest.raises(DecodeError):
            read(payload)


JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "GPU", "CPU", "cpu", "type", "x"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=25,
)


def check_total(payload: bytes) -> None:
    """Bytes give a batch or a DecodeError, and the two ways to read the time agree."""
    try:
        batch = DIALECT.decode(payload)
    except DecodeError:
        return
    assert batch.skipped.keys() <= set(REASONS)
    assert all(len(e.blocks) % 16 == 0 for e in batch.events if not isinstance(e, Cleared))
    assert DIALECT.stamp(payload) == batch.stamp


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"\x93\xcb" + tail))
def test_any_bytes(payload: bytes) -> None:
    check_total(payload)


@given(st.lists(JSONISH, max_size=6), st.floats() | st.integers(0, 2**64 - 1), JSONISH)
def test_any_events(events: list[Any], ts: float, rank: Any) -> None:
    check_total(msgspec.msgpack.encode([ts, events, rank]))


@given(st.sampled_from(RECORDED), st.data())
def test_a_recorded_payload_with_bytes_changed(row: dict[str, Any], data: st.DataObject) -> None:
    payload = bytearray.fromhex(row["payload_hex"])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    check_total(
        bytes(payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload)
    )


@given(st.lists(JSONISH, max_size=5), st.integers(0, 5))
def test_a_good_event_lives_among_any_others(events: list[Any], place: int) -> None:
    mark = 0x0123456789ABCDEF
    events.insert(place, ["BlockRemoved", [mark], "GPU", 0])
    assert Removed("l1", 0, f"{mark:016x}") in decode(*events).events
