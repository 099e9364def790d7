"""`cache-indexer stats`: the index at a glance."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import typer
from rich.table import Table

from indexer.api.server import open_query
from indexer.cli.common import (
    ConfigOption,
    JsonOption,
    RedisOption,
    console,
    fail_with,
    load_config,
    print_json,
)
from indexer.config import Config
from indexer.errors import CacheIndexerError
from indexer.index.connect import connect
from indexer.index.masters import MasterNote, masters
from indexer.index.memory import Memory, memory
from indexer.index.state import Stats, StreamState
from indexer.runtime import run


class PoolStats(msgspec.Struct, frozen=True):
    """One pool's statistics."""

    pool: str
    instances: Sequence[str]
    stats: Stats
    memory: Memory | None


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def stats(config: ConfigOption = None, redis_url: RedisOption = None, json: JsonOption = False) -> None:
        """Show instances, blocks by tier, ranks, streams, who leads, and Redis' memory."""
        settings = load_config(config, redis_url)
        try:
            pools = run(_collect(settings))
        except CacheIndexerError as error:
            fail_with(error)
        if json:
            print_json([_plain(pool) for pool in pools])
        else:
            for pool in pools:
                _show(pool)


async def _collect(config: Config) -> list[PoolStats]:
    async with open_query(config) as query:
        pools = [
            (pool.name, await pool.reader.instances(), await pool.reader.stats()) for pool in query.pools
        ]
    client = await connect(config.redis, read=True)
    try:
        used = await memory(client)
    finally:
        await client.aclose()
    return [PoolStats(name, instances, stats, used) for name, instances, stats in pools]


def _plain(pool: PoolStats) -> dict[str, Any]:
    """For JSON: a stream's 8 raw bytes of timestamp become hex."""
    plain: dict[str, Any] = msgspec.to_builtins(pool, builtin_types=(bytes,))
    for stream in plain["stats"]["streams"]:
        stream["stamp"] = stream["stamp"].hex()
    return plain


def _show(pool: PoolStats) -> None:
    stats = pool.stats
    output = console()
    leader = stats.leader or "nobody"
    warm = sum(stats.standbys.values())
    age = "never written" if stats.age is None else f"{stats.age:.1f} s old"
    output.print(
        f"pool {pool.pool}: instances {len(pool.instances)}, index {age}; "
        f"leader {leader}, term {stats.term}, rev {stats.rev}, standbys {len(stats.standbys)} ({warm} warm); "
        f"Redis uses {_memory(pool.memory)}",
        markup=False,
        highlight=False,
    )
    tiers = Table("tier", "distinct blocks", "holders", "blocks held", "free slots", "retired slots")
    for name, tier in sorted(stats.tiers.items()):
        held = sum(tier.holders.values())
        tiers.add_row(name, *map(str, (tier.blocks, len(tier.holders), held, tier.free, tier.retired)))
    output.print(tiers)
    if stats.streams:
        output.print(_streams(stats.streams, stats))
    if known := masters(stats.meta):
        output.print(_masters(known))


def _memory(memory: Memory | None) -> str:
    if memory is None:
        return "an unknown amount of memory"
    limit = f" (limit {memory.limit / 2**20:.0f} MiB)" if memory.limit else ""
    return f"{memory.used / 2**20:.1f} MiB of memory{limit}"


def _masters(known: Mapping[str, MasterNote]) -> Table:
    table = Table("Mooncake master", "state", "age", "keys", "unknown keys", "look-up", "leases", "error")
    for base, note in known.items():
        age = "never" if note.age is None else f"{note.age:.1f} s"
        unknown = f"{note.unknown} ({note.unknown_sample})" if note.unknown else "0"
        counts = str(note.keys), unknown
        table.add_row(base, note.state, age, *counts, note.lookup, str(note.leases), note.error)
    return table


def _streams(streams: Sequence[StreamState], stats: Stats) -> Table:
    counters = ("gaps", "missing", "restarts")
    table = Table("instance", "rank", "state", "age", "next", "block size", "l1 blocks", *counters, "cause")
    for stream in streams:
        age = "never" if stream.seen_age is None else f"{stream.seen_age:.1f} s"
        held = stats.tiers["l1"].holders.get(f"l1:{stream.key.name}", 0) if "l1" in stats.tiers else 0
        counts = [str(stream.counters.get(name, 0)) for name in counters]
        table.add_row(
            stream.key.ip,
            str(stream.key.rank),
            stream.state,
            age,
            str(stream.next),
            str(stream.block_size or "?"),
            str(held),
            *counts,
            stream.cause,
        )
    return table
