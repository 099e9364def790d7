"""How long a lookup takes: ours beside the access patterns of other Redis-backed indexes, in one run.

    python bench/lookup.py [--quick] [--server valkey|redis7|redis8]

N candidates and B blocks; hit: every candidate holds all of them; spread: candidate i holds the first i/N;
miss: nobody holds any. Patterns take turns, so that a busy moment hits all alike: ratios are the result,
absolute times depend on the machine. Every answer is checked. Ours is the whole `IndexReader.lookup` on an
event loop; the index also holds 20,000 blocks that nobody asks for. Status 1 when a peer is less than 20
times slower at N 64, B 256, hit.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.peers import LAYOUTS, PEERS, Held, Lengths, Pattern
from indexer.config.tree import Redis
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.index.state import STAMP_NONE, Apply, Op, StreamKey
from indexer.index.writer import IndexWriter
from indexer.runtime import run
from tests.servers import FLAVOURS, Server, start

GOAL = 20.0
GOAL_CELL = (64, 256, "hit")
QUICK = [(8, 64, "hit"), (64, 256, "hit"), (64, 256, "spread"), (64, 256, "miss"), (256, 1024, "hit")]
FULL = [(n, b, mode) for n in (8, 64, 256) for b in (64, 256, 1024) for mode in ("hit", "spread", "miss")]
TURNS = 15
COUNTED = 10
"""Calls over which Redis's own time is averaged."""
OTHERS = 20_000

Call = Callable[[], Awaitable[Lengths]]


class Ours:
    """The index of this project, filled and asked through its own reader and writer."""

    name = "ours"
    commands = ("evalsha_ro", "evalsha")

    def __init__(self, client: Any) -> None:
        self._client = client
        self._reader = IndexReader(client, "default", 5)

    async def fill(self, blocks: Sequence[int], held: Held) -> None:
        writer = IndexWriter(self._client, "default", 5)
        lease = await writer.acquire("bench", True, 600)
        assert lease is not None
        rng = random.Random(1)
        noise = Op("store", "l1", 0, "".join(f"{rng.getrandbits(64):016x}" for _ in range(OTHERS)))
        chain = "".join(f"{block:016x}" for block in blocks)
        for n, (pod, length) in enumerate(held.items()):
            key = StreamKey(pod, 0)
            await writer.open(lease.token, key, None, "a", "", 0, STAMP_NONE, "live")
            ops = (Op("store", "l1", 0, chain[: 16 * length]), *((noise,) if n == 0 else ()))
            await writer.apply(lease.token, [Apply(key, "a", 0, 1, STAMP_NONE, ops)])

    async def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths:
        chain = "".join(f"{block:016x}" for block in blocks)
        matches = await self._reader.lookup([chain], ["l1"], pods)
        return {pod: matches.blocks("l1", pod) for pod in pods}


def lengths(n: int, b: int, mode: str) -> Held:
    """How many blocks each pod holds."""
    pods = [f"10.0.{i // 250}.{i % 250}" for i in range(n)]
    hold = {"hit": lambda i: b, "spread": lambda i: (i + 1) * b // n, "miss": lambda i: 0}[mode]
    return {pod: hold(i) for i, pod in enumerate(pods)}


async def in_turns(calls: Sequence[Call], seconds: float) -> list[list[float]]:
    """Seconds of each call. All get the same time, in short turns, as a router asks: again and again."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for call, own in zip(calls, times, strict=True):
            end = time.perf_counter() + seconds / TURNS / len(calls)
            while True:
                start_at = time.perf_counter()
                await call()
                now = time.perf_counter()
                own.append(now - start_at)
                if now >= end:
                    break
    return times


def redis_time(server: Server, commands: Sequence[str]) -> float:
    """Microseconds that Redis spent in the commands since the last reset."""
    stats = server.client().info("commandstats")
    return float(sum(stats.get(f"cmdstat_{command}", {}).get("usec", 0) for command in commands))


class Result(NamedTuple):
    """One pattern in one cell: seconds of each call, and of these Redis's own microseconds on average."""

    name: str
    times: list[float]
    in_redis: float

    @property
    def median(self) -> float:
        return statistics.median(self.times)


async def cell(server: Server, n: int, b: int, mode: str, seconds: float) -> list[Result]:
    """All patterns, ours first."""
    rng = random.Random(n * b)
    blocks = [rng.getrandbits(64) for _ in range(b)]
    held = lengths(n, b, mode)
    pods = list(held)
    client = await connect(Redis(url=server.url, timeout=30))  # type: ignore[arg-type]
    blocking = server.client(protocol=3)
    ours = Ours(client)
    patterns: list[Pattern] = [make(blocking) for make in (*PEERS, *LAYOUTS)]
    server.wipe()
    await ours.fill(blocks, held)
    for pattern in patterns:
        pattern.fill(blocks, held)

    def blocking_call(pattern: Pattern) -> Call:
        async def call() -> Lengths:
            return pattern.lookup(blocks, pods)

        return call

    calls: list[Call] = [lambda: ours.lookup(blocks, pods), *map(blocking_call, patterns)]
    in_redis = []
    for of, call in zip([ours, *patterns], calls, strict=True):
        answer = await call()
        assert {pod: answer.get(pod, 0) for pod in pods} == held, of.name
        server.client().config_resetstat()
        for _ in range(COUNTED):
            await call()
        in_redis.append(redis_time(server, of.commands) / COUNTED)
    times = await in_turns(calls, seconds)
    await client.aclose()
    blocking.close()
    names = ["ours", *(pattern.name for pattern in patterns)]
    return [Result(*row) for row in zip(names, times, in_redis, strict=True)]


def shown(result: Result, ours: Result) -> str:
    """One field of the table."""
    low, middle, high = (1e3 * q for q in statistics.quantiles(result.times, n=4))
    lines = [f"{middle:.2f} ({low:.2f}-{high:.2f})", f"Redis {result.in_redis / 1e3:.3f}"]
    if result is not ours:
        lines.append(f"{result.median / ours.median:.1f}x")
    return "\n".join(lines)


async def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="five cells, under two minutes")
    parser.add_argument("--server", choices=list(FLAVOURS), default="valkey")
    options = parser.parse_args()
    server = start(options.server)
    table = Table(title="median (middle half) in ms; Redis's own part; ratio to ours")
    reached: dict[str, float] = {}
    try:
        for n, b, mode in QUICK if options.quick else FULL:
            ours, *others = await cell(server, n, b, mode, 5.0)
            if not table.columns:
                for heading in ("N x B", *(result.name for result in (ours, *others))):
                    table.add_column(heading)
            fields = [shown(result, ours) for result in (ours, *others)]
            table.add_row(f"{n} x {b}\n{mode}", *fields, end_section=True)
            if (n, b, mode) == GOAL_CELL:
                reached = {other.name: other.median / ours.median for other in others[: len(PEERS)]}
            print(f"{n} x {b} {mode} done", file=sys.stderr)
    finally:
        server.close()
    Console(width=None if sys.stdout.isatty() else 190).print(table)
    for name, ratio in reached.items():
        print(f"N 64, B 256, hit: {name} takes {ratio:.1f} times as long as ours (goal: {GOAL:.0f})")
    return int(min(reached.values()) < GOAL)


if __name__ == "__main__":
    sys.exit(run(main()))
