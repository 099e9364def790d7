"""What following a Mooncake master costs: the master, us, and Redis.

    make mooncake && .venv/bin/python bench/mooncake.py [--keys 100000] [version ...]

A real master with two real clients holds the keys of four ranks a block. Rows: the first poll (everything is
listed, located and written to the index), an unchanged poll, and a poll after 1 % of the keys changed. CPU
seconds are the reliable figures on a busy machine; the master's clock ticks are 10 ms, so unchanged polls are
averaged over many.
"""

import argparse
import asyncio
import hashlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.table import Table

from collector.leadership import Reign
from collector.mooncake.client import MasterClient
from collector.mooncake.completeness import Fixed
from collector.mooncake.master import MasterWatch
from collector.mooncake.mirror import Mirror
from collector.mooncake.places import Instances
from collector.mooncake.view import View
from indexer.cli.common import console
from indexer.index.reader import IndexReader
from indexer.index.writer import IndexWriter
from tests import mooncake_servers, servers
from tests.mooncake_servers import Master, Pod

IPS = ("127.0.0.11", "127.0.0.12")
RANKS = 4
VALUE = 64
"""Bytes of an object; only their number matters here."""
UNCHANGED = 50


def keys(first: int, count: int) -> list[str]:
    """`count` keys from block `first` on, of vllm-ascend's shape (about 120 characters)."""
    return [
        f"DeepSeek-R1@pcp0@dcp0@head_or_tp_rank:{rank}@pp_rank:0@"
        + hashlib.sha256(str(first + number).encode()).hexdigest()
        for number in range(count // RANKS)
        for rank in range(RANKS)
    ]


async def measure(version: str, count: int, table: Table) -> None:
    """Add one version's rows."""
    directory = Path(tempfile.mkdtemp(prefix="mooncake-"))
    master = Master(version, directory, default_kv_lease_ttl="1").start()
    pods = [Pod(master, ip, directory, 256 << 20) for ip in IPS]
    redis = servers.start("valkey")
    client = redis.aclient()
    try:
        writer, reader = IndexWriter(client, "p", 5), IndexReader(client, "p", 5)
        lease = await writer.acquire("bench", warm=True, ttl=600)
        assert lease is not None
        mirror = Mirror(writer, reader, Reign("p", lease))
        await mirror.load()
        for pod in pods:
            pod.put_batch(keys(0 if pod is pods[0] else count, count // 2), size=VALUE)
        await asyncio.sleep(1)

        instances = Instances()
        instances.follow(IPS)
        view = View(instances.name, require_all=True, fixed=Fixed())
        async with MasterClient(master.http, 5) as http:
            watch = MasterWatch(
                http,
                view,
                instance_of=instances.name,
                known={},
                models=frozenset(),
                sweep_interval=3600,
            )

            async def poll() -> None:
                assert await watch.poll(), watch.status
                mirror.touch(view.settle())
                await mirror.write([view], removing=True)

            async def unchanged() -> None:
                for _ in range(UNCHANGED):
                    await poll()

            async def row(name: str, work: Callable[[], Awaitable[None]], times: int = 1) -> None:
                wall, ours, theirs = time.perf_counter(), time.process_time(), master.cpu_seconds()
                await work()
                figures = (
                    time.perf_counter() - wall,
                    master.cpu_seconds() - theirs,
                    time.process_time() - ours,
                )
                cells = (f"{1000 * figure / times:.1f}" for figure in figures)
                table.add_row(version, watch.status.lookup, name, f"{watch.status.keys:,}", *cells)

            await row("first", poll)
            await poll()
            await poll()
            await row("unchanged", unchanged, UNCHANGED)
            pods[0].put_batch(keys(9_000_000, count // 100), size=VALUE)
            await row("1 % new", poll)
            await poll()
            await asyncio.sleep(0.1)
            assert set(pods[0].remove(keys(9_000_000, count // 100))) == {0}
            await row("1 % gone", poll)
    finally:
        await client.aclose()
        redis.close()
        for pod in pods:
            pod.kill()
        master.kill()


def main() -> None:
    """Run it for the versions named, or for all that are installed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--keys", type=int, default=100_000)
    options.add_argument("versions", nargs="*")
    given = options.parse_args()
    versions = given.versions or [v for v in mooncake_servers.VERSIONS if mooncake_servers.installed(v)]
    if not versions:
        raise SystemExit(mooncake_servers.missing(mooncake_servers.VERSIONS[-1]))
    table = Table("version", "look-up", "poll", "keys", "wall ms", "master CPU ms", "our CPU ms")
    for version in versions:
        asyncio.run(measure(version, given.keys, table))
    console().print(table)


if __name__ == "__main__":
    main()
