"""From an engine's ZMQ frame to the index: how fast, and how much.

    python bench/ingest.py [--quick] [--streams 8] [--blocks 200000] [--rounds 5]

A publisher process sends vLLM batches over real sockets, a collector process writes them into a real embedded
Valkey, and this process looks:

- idle: one small batch at a time; how long until a reader sees it (polled without pause);
- store, remove: a backlog of batches from several streams; blocks a second until the last one is visible. A
  batch stores its blocks in one event and removes them in one event each, as engines do;
- calls only: what the same Valkey takes in calls that are made up beforehand, without sockets and decoding.

Rounds take turns, so that a busy moment hits all alike. Beside the wall time, which the rest of the machine
changes, stands the processor time of collector and Valkey, which it changes less. Lost batches are an error.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from indexer.blocks import unpack
from indexer.config import load
from indexer.config.pool import BlockKey
from indexer.engines import engine
from indexer.engines.base import Prompt
from indexer.index.connect import connect
from indexer.index.state import Apply, Op, OpKind, StreamKey
from indexer.index.writer import IndexWriter
from tests import servers
from tests.fleet import Index, Process, ready
from tests.ports import free_port

BLOCKS_A_BATCH = 16
GOAL = 100_000
"""Blocks a second, stored and removed."""

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
    made: dict[str, list[tuple[int, list[Any]]]] = {}

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
        if kind not in made:
            places = [(s, b) for b in range(batches) for s in range(len(ports))]
            made[kind] = [(s, [stored(s, b)] if kind == "store" else removed(s, b)) for s, b in places]
        commands.send(time.perf_counter())
        for stream, events in made[kind]:
            send(stream, events)
        commands.send(seqs)


class Round(NamedTuple):
    """One backlog: blocks a second, and microseconds of processor time a block."""

    rate: float
    collector: float
    valkey: float


async def main() -> int:
    """Run it; 1 when a median misses the goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three rounds of 100,000 blocks")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--singles", type=int, default=200)
    options = parser.parse_args()
    if options.quick:
        options.blocks, options.rounds = 100_000, 3
    batches = options.blocks // BLOCKS_A_BATCH // options.streams
    blocks = batches * BLOCKS_A_BATCH * options.streams
    server = servers.start("valkey")
    ports = [free_port() for _ in range(options.streams)]
    here, there = multiprocessing.Pipe()
    publisher = multiprocessing.Process(target=publish, args=(ports, batches, there), daemon=True)
    publisher.start()
    names = [f"10.0.0.{i}" for i in range(options.streams)]
    engines = [
        {"ip": n, "ranks": [{"events": f"tcp://127.0.0.1:{p}"}]} for n, p in zip(names, ports, strict=True)
    ]
    content = {
        "redis": {"url": server.url},
        "log": {"level": "warning"},
        "collector": {"bufferBytes": 1 << 30},
        "discovery": {"source": "static", "static": {"engines": engines}},
    }
    rounds: dict[str, list[Round]] = {"store": [], "remove": []}
    bare: dict[str, list[float]] = {"store": [], "remove": []}
    with tempfile.TemporaryDirectory() as directory:
        collector = Process(Path(directory), content)
        try:
            await ready(collector)
            await asyncio.sleep(1.0)
            index = Index(server)
            waits = idle(index, names[0], here, options.singles)
            calls = await Calls.prepare(server, options.blocks)
            for _ in range(options.rounds):
                for kind, own in rounds.items():
                    before = cpu(collector.process.pid), cpu(server.pid)
                    seconds = burst(index, names, here, kind)
                    after = cpu(collector.process.pid), cpu(server.pid)
                    spent = [1e6 * (b - a) / blocks for a, b in zip(before, after, strict=True)]
                    own.append(Round(blocks / seconds, *spent))
                    bare[kind].append(await calls.rate(kind))
            lost = {name: n for name in names if (n := int(index.stream(name).get("missing", 0)))}
            await calls.close()
        finally:
            collector.kill()
            here.send(None)
            publisher.join(5)
            server.close()
    if lost:
        raise SystemExit(f"batches were lost, the figures mean nothing: {lost}")
    print(f"idle, from before the send to the first read that shows it: {spread(waits, 2)} ms")
    table = Table(
        "", "blocks/s", "collector us", "Valkey us", "calls only, blocks/s", "of that",
        title=f"median (middle half), {options.rounds} rounds, {blocks:,} blocks, {options.streams} streams",
    )  # fmt: skip
    for kind, own in rounds.items():
        rates, collectors, valkeys = (list(column) for column in zip(*own, strict=True))
        share = statistics.median(rates) / statistics.median(bare[kind])
        table.add_row(
            kind, spread(rates), spread(collectors, 1), spread(valkeys, 1), spread(bare[kind]), f"{share:.0%}"
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    slowest = min(statistics.median(r.rate for r in own) for own in rounds.values())
    print(f"slowest median: {slowest:,.0f} blocks/s (goal: {GOAL:,})")
    return int(slowest < GOAL)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median and the middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def idle(index: Index, ip: str, commands: Any, count: int) -> list[float]:
    """Milliseconds from before the send to the first read that shows the batch."""
    times = []
    for i in range(count):
        commands.send(("one", 0, 1_000_000 + i))
        began = commands.recv()
        while index.next(ip) <= i:
            pass
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.005)
    return times


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has used (Linux; 0 elsewhere)."""
    stat = Path(f"/proc/{pid}/stat")
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


class Calls:
    """Blocks in calls of 2,000, one after the other, into an index of its own."""

    @classmethod
    async def prepare(cls, server: servers.Server, blocks: int) -> "Calls":
        """Make up the calls, and lead."""
        self = cls()
        self._client = await connect(load(None, {}, {"redis.url": server.url}).redis)
        self._writer = IndexWriter(self._client, "bench", 5.0)
        lease = await self._writer.acquire("bench", True, 600)
        assert lease is not None
        self._token, self._key, self._at = lease.token, StreamKey("10.9.9.9", 0), 0
        await self._writer.open(self._token, self._key, None, "life", "", 0, bytes(8), "live")
        rng = random.Random(1)
        self._runs = [
            "".join(f"{rng.getrandbits(64):016x}" for _ in range(2000)) for _ in range(blocks // 2000)
        ]
        return self

    async def rate(self, kind: OpKind) -> float:
        """Blocks a second."""
        began = time.perf_counter()
        for run in self._runs:
            stamp, ops = self._at.to_bytes(8, "big"), (Op(kind, "l1", 0, run),)
            entry = Apply(self._key, "life", self._at, self._at + 1, stamp, ops)
            await self._writer.apply(self._token, [entry])
            self._at += 1
        return len(self._runs) * 2000 / (time.perf_counter() - began)

    async def close(self) -> None:
        """Done."""
        await self._client.aclose()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
