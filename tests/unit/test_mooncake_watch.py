"""A watch through a master's troubles, with recorded answers: a standby must not blank what a leader told."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from collector.mooncake.client import MasterClient
from collector.mooncake.completeness import Fixed
from collector.mooncake.master import MasterWatch
from collector.mooncake.trigger import listen
from collector.mooncake.view import View

DATA = Path(__file__).parent.parent / "data" / "mooncake" / "recorded.json.gz"
VERSION = "0.3.13.post1"
RECORDED = {
    row["name"]: row["answer"]
    for row in json.loads(gzip.decompress(DATA.read_bytes()))
    if row["version"] == VERSION
}
LEADER = {
    "/health": "health",
    "/metrics": "metrics",
    "/get_all_segments": "get_all_segments",
    "/get_all_keys": "get_all_keys",
    "/batch_query_keys": "batch_two_one_missing",
}
STANDBY = {
    "/health": "ha_standby_health",
    "/metrics": "ha_standby_metrics",
    "/get_all_segments": "ha_standby_segments",
    "/get_all_keys": "ha_standby_get_all_keys",
    "/batch_query_keys": "ha_standby_batch",
}
NEITHER = dict.fromkeys(LEADER, "unknown_path")


@asynccontextmanager
async def played() -> AsyncIterator[tuple[MasterWatch, dict[str, str]]]:
    """A watch, and the table of recorded answers that it gets: change it as you like."""
    table = dict(LEADER)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        path = request.split()[1].decode().partition("?")[0]
        writer.write(RECORDED[table[path]].encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, MasterClient(base, timeout=2) as client:
        view = View(lambda place: place.rpartition(":")[0], require_all=False, fixed=Fixed())
        yield (
            MasterWatch(
                client,
                view,
                instance_of=lambda place: place.rpartition(":")[0],
                known={},
                models=frozenset(),
                sweep_interval=60,
            ),
            table,
        )


@pytest.mark.parametrize("trouble", [STANDBY, NEITHER], ids=["standby", "another program"])
async def test_trouble_keeps_the_view(trouble: dict[str, str]) -> None:
    async with played() as (watch, table):
        assert await watch.poll()
        watch.view.settle()
        before = dict(watch.view.claims)
        assert before["ab" * 8] >= {"*"}
        table.update(trouble)
        for _ in range(3):
            assert not await watch.poll()
        watch.view.settle()
        assert watch.view.claims == before
        assert (watch.status.state, watch.status.failures) == ("stale", 3)
        assert watch.client.base in watch.status.error
        table.update(LEADER)
        assert await watch.poll()
        assert watch.status.state == "live"


async def test_a_standby_is_never_believed_from_the_start() -> None:
    async with played() as (watch, table):
        table.update(STANDBY)
        assert not await watch.poll()
        assert not watch.complete
        assert len(watch.view) == 0


async def test_unknown_keys_are_counted_with_a_sample() -> None:
    async with played() as (watch, _):
        assert await watch.poll()
        assert watch.status.unknown > 5
        assert watch.status.unknown_sample
        assert set(watch.status.models) == {
            "ascend:DeepSeek-R1",
            "ascend:/models/meta-llama/Llama-3.1-8B",
        }


async def test_events_of_a_master_wake_the_poller() -> None:
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    wake = asyncio.Event()
    async with listen("http://127.0.0.1:9003", port, wake), asyncio.timeout(10):
        while not wake.is_set():
            # A subscription takes a moment; what is published before it is lost.
            await publisher.send_multipart([b"", (1).to_bytes(8, "big"), b"\x93\x00\x90\x00"])
            await asyncio.sleep(0.02)
    publisher.close(linger=0)
    context.term()
