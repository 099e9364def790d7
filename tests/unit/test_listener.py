"""What a listener counts: each batch that is not applied shows in a metric, and only where it matters."""

import struct
from collections.abc import AsyncIterator

import msgspec
import pytest
import zmq

from collector.ingest.buffer import Buffer
from collector.ingest.listener import Listener
from collector.ingest.plans import Take
from collector.ingest.sequence import Cursor
from collector.membership import Feed
from collector.metrics import Metrics
from indexer.engines.vllm.events import VllmDialect

POOL = "p"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def listener(metrics: Metrics) -> AsyncIterator[Listener]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    feed = Feed("10.0.0.1", 0, "tcp://127.0.0.1:1", None, None)
    made = Listener(POOL, feed, Buffer(3, 10_000), context, VllmDialect(), metrics, wipe=False, known=None)
    # The tests are its subscriber: its own never gets a turn.
    made.connecting()
    made.connected()
    yield made
    await made.close()
    context.term()


def hear(listener: Listener, *seqs: int) -> None:
    for seq in seqs:
        payload = msgspec.msgpack.encode([float(seq), [], 0])
        listener.message([b"", seq.to_bytes(8, "big"), payload])
    listener.count()


def counted(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"cache_indexer_collector_{name}_total", {"pool": POOL})


async def test_batches_that_came_before_are_counted_on_a_connection_and_across(
    listener: Listener, metrics: Metrics
) -> None:
    hear(listener, 0, 1, 1)
    assert counted(metrics, "duplicates") == 1
    listener.tracker.attach(Cursor("life", 2, struct.pack(">d", 1.0)))
    listener.connecting()
    listener.connected()
    hear(listener, 1, 2)
    assert isinstance(listener.tracker.plan(), Take)
    listener.count()
    assert counted(metrics, "duplicates") == 2


async def test_batches_of_an_earlier_life_are_counted(listener: Listener, metrics: Metrics) -> None:
    hear(listener, 1)
    listener.connecting()
    listener.connected()
    listener.tracker.attach(Cursor("life", 0, struct.pack(">d", 2.0)))
    assert listener.tracker.plan() is None
    listener.count()
    listener.count()
    assert counted(metrics, "stale_batches") == 1


async def test_what_a_full_buffer_gives_up_counts_for_a_leader_only(
    listener: Listener, metrics: Metrics
) -> None:
    hear(listener, *range(5))
    assert counted(metrics, "evicted_batches") == 0
    listener.tracker.attach(Cursor("life"))
    hear(listener, 5, 6)
    assert counted(metrics, "evicted_batches") == 2
