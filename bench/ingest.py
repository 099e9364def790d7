"""From an engine's ZMQ frame to the index: how fast, and how much.

    python bench/ingest.py [--streams 8] [--blocks 200000]

A publisher process sends vLLM batches over real sockets, a collector process writes them into a real embedded
Valkey, and this process looks. Three questions:

- idle: one small batch at a time; how long until a reader sees it (polled without pause);
- stores, removals: a backlog of batches from several streams; blocks a second until the last one is visible;
- beside them, what the same Valkey takes when the same calls come without sockets and decoding, in this run:
  the share of the machine that the way from the frame to the call costs.

Prints one JSON object.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

sys.path.insert(0, str(Path(__file__).parent.parent))

from indexer.blocks import unpack
from indexer.config import load
from indexer.config.pool import BlockKey
from indexer.engines import engine
from indexer.engines.base import Prompt
from indexer.index.connect import connect
from indexer.index.state import Apply, Op, StreamKey
from indexer.index.writer import IndexWriter
from tests import servers
from tests.fleet import Index, Process, ready
from tests.ports import free_port

BLOCKS_A_BATCH = 16
_encode = msgspec.msgpack.encode


_rule = engine(BlockKey()).rule


def tokens(stream: int, batch: int) -> list[int]:
    """A prompt of its own for each batch."""
    return [stream, batch, *range(BLOCKS_A_BATCH * 16 - 2)]


def hashes(stream: int, batch: int) -> list[int]:
    """Its blocks, as the engine names them."""
    (chain,) = _rule.chains(Prompt(tokens(stream, batch), 16))
    return [int(block, 16) for block in unpack(chain)]


def stored(stream: int, batch: int) -> list[Any]:
    """As an engine of version 0.18 sends it, token ids included."""
    ids = tokens(stream, batch)
    return ["BlockStored", hashes(stream, batch), None, ids, 16, None, "GPU", None, None]


def removed(stream: int, batch: int) -> list[Any]:
    """One event a block, as engines evict."""
    return [["BlockRemoved", [h], "GPU"] for h in hashes(stream, batch)]


def publish(ports: list[int], batches: int, commands: Any) -> None:
    """The engines' process: bursts on command."""
    context = zmq.Context()
    sockets = []
    for port in ports:
        socket = context.socket(zmq.PUB)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.bind(f"tcp://127.0.0.1:{port}")
        sockets.append(socket)
    seqs = [0] * len(ports)

    def send(stream: int, events: list[Any]) -> None:
        payload = _encode([time.time(), events, 0])
        sockets[stream].send_multipart([b"", seqs[stream].to_bytes(8, "big"), payload])
        seqs[stream] += 1

    while (command := commands.recv()) is not None:
        kind, stream, batch = command
        if kind == "one":
            commands.send(time.perf_counter())
            send(stream, [stored(stream, batch)])
            continue
        if kind == "store":
            payloads = [(s, [stored(s, b)]) for b in range(batches) for s in range(len(ports))]
        else:
            payloads = [(s, removed(s, b)) for b in range(batches) for s in range(len(ports))]
        commands.send(time.perf_counter())
        for stream, events in payloads:
            send(stream, events)
        commands.send(seqs)


async def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--singles", type=int, default=300)
    options = parser.parse_args()
    batches = options.blocks // BLOCKS_A_BATCH // options.streams
    blocks = batches * BLOCKS_A_BATCH * options.streams
    server = servers.start("valkey")
    ports = [free_port() for _ in range(options.streams)]
    here, there = multiprocessing.Pipe()
    publisher = multiprocessing.Process(target=publish, args=(ports, batches, there), daemon=True)
    publisher.start()
    names = [f"10.0.0.{i}" for i in range(options.streams)]
    content = {
        "redis": {"url": server.url},
        "log": {"level": "warning"},
        "collector": {"bufferBytes": 1 << 30},
        "discovery": {
            "source": "static",
            "static": {
                "engines": [
                    {"ip": n, "ranks": [{"events": f"tcp://127.0.0.1:{p}"}]}
                    for n, p in zip(names, ports, strict=True)
                ]
            },
        },
    }
    result: dict[str, Any] = {"streams": options.streams, "blocks": blocks, "blocks_a_batch": BLOCKS_A_BATCH}
    with tempfile.TemporaryDirectory() as directory:
        collector = Process(Path(directory), content)
        try:
            await ready(collector)
            await asyncio.sleep(1.0)
            index = Index(server)
            result["idle_ms"] = idle(index, names[0], here, options.singles)
            for kind in ("store", "remove"):
                busy = cpu(collector)
                result[f"{kind}_blocks_per_s"] = round(blocks / burst(index, names, here, kind))
                result[f"{kind}_collector_cpu_us_a_block"] = round((cpu(collector) - busy) / blocks * 1e6, 2)
            result["calls_only_blocks_per_s"] = {
                kind: round(rate) for kind, rate in (await calls_only(server, options.blocks)).items()
            }
        finally:
            collector.kill()
            here.send(None)
            publisher.join(5)
            server.close()
    print(json.dumps(result, indent=2))


def idle(index: Index, ip: str, commands: Any, count: int) -> dict[str, float]:
    """Milliseconds from before the send to the first read that shows the batch."""
    times = []
    for i in range(count):
        commands.send(("one", 0, 1_000_000 + i))
        began = commands.recv()
        while index.next(ip) <= i:
            pass
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.005)
    times.sort()
    return {"median": round(statistics.median(times), 2), "p99": round(times[int(len(times) * 0.99)], 2)}


def cpu(process: Process) -> float:
    """Seconds of processor time that a process has used (Linux; 0 elsewhere)."""
    stat = Path(f"/proc/{process.process.pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def burst(index: Index, names: list[str], commands: Any, kind: str) -> float:
    """Seconds from the first send to the moment when all is visible."""
    commands.send((kind, 0, 0))
    began = commands.recv()
    wanted = commands.recv()
    while [index.next(n) for n in names] != wanted:
        time.sleep(0.005)
    return time.perf_counter() - began


async def calls_only(server: servers.Server, blocks: int) -> dict[str, float]:
    """The same blocks in calls of 2,000, one after the other, into an index of its own."""
    client = await connect(load(None, {}, {"redis.url": server.url}).redis)
    writer = IndexWriter(client, "bench", 5.0)
    lease = await writer.acquire("bench", True, 600)
    assert lease is not None
    key, rates = StreamKey("10.9.9.9", 0), {}
    await writer.open(lease.token, key, None, "life", "", 0, bytes(8), "live")
    runs = []
    for first in range(0, blocks, 2000):
        numbers = (((1 << 60) + first + i) * 0x9E3779B97F4A7C15 & (2**64 - 1) for i in range(2000))
        runs.append("".join(f"{n:016x}" for n in numbers))
    at = 0
    for kind in ("store", "remove"):
        began = time.perf_counter()
        for run in runs:
            stamp = at.to_bytes(8, "big")
            await writer.apply(
                lease.token, [Apply(key, "life", at, at + 1, stamp, (Op(kind, "l1", 0, run),))]
            )
            at += 1
        rates[kind] = len(runs) * 2000 / (time.perf_counter() - began)
    await client.aclose()
    return rates


if __name__ == "__main__":
    asyncio.run(main())
