"""Puts blocks into an index the way a collector does, for tests of the query side."""

import struct
from collections.abc import Mapping, Sequence

from indexer.config import Redis
from indexer.engines import engine
from indexer.engines.base import Prompt
from indexer.index.connect import connect
from indexer.index.state import Apply, Op, StreamKey
from indexer.index.writer import IndexWriter


class Key:
    """The default blockKey."""

    engine = "vllm"
    python_hash_seed = "0"
    prefix_caching_hash_algo = "sha256_cbor"
    dialect = "auto"


RULE = engine(Key()).rule


def chain(token_ids: Sequence[int], block_size: int, cache_salt: str | None = None) -> str:
    """The prompt's packed blocks under the default blockKey."""
    return RULE.chains(Prompt(token_ids, block_size, cache_salt))[0]


async def fill(
    redis_url: str,
    streams: Mapping[tuple[str, int], Mapping[str, str]],
    l3: Mapping[str, str] | None = None,
    *,
    pool: str = "default",
    states: Mapping[tuple[str, int], str] | None = None,
    block_size: int = 0,
) -> None:
    """Store packed blocks: (ip, rank) -> tier -> blocks in one batch a stream; ip -> blocks for l3.

    A stream's state is `live` unless `states` says otherwise; `block_size` is what its engine told.
    """
    client = await connect(Redis(url=redis_url))
    try:
        writer = IndexWriter(client, pool, 5.0)
        lease = await writer.acquire("test", True, 5.0)
        assert lease is not None
        for (ip, rank), tiers in streams.items():
            key = StreamKey(ip, rank)
            state = (states or {}).get((ip, rank), "live")
            await writer.open(lease.token, key, None, "life-1", "a", 0, bytes(8), state)
            ops = tuple(Op("store", tier, 0, blocks) for tier, blocks in tiers.items())
            fields: dict[str, str | int] = {"block_size": str(block_size)} if block_size else {}
            entry = Apply(key, "life-1", 0, 1, struct.pack(">d", 1.0), ops, fields=fields)
            _, outcomes = await writer.apply(lease.token, [entry])
            assert [outcome.code for outcome in outcomes] == ["OK"]
        for ip, blocks in (l3 or {}).items():
            await writer.reconcile(lease.token, f"l3:{ip}", "", blocks, "")
        await writer.release(lease.token)
    finally:
        await client.aclose()
