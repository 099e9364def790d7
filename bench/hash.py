"""How fast blocks are hashed and events decoded: ours beside calling cbor2 for each block, in one run.

    python bench/hash.py

Ratios are of medians and hold on a busy machine, too; the absolute times do not. Nothing is cached between
runs and no table is built, so the first prompt costs what every other costs.
"""

import hashlib
import random
import statistics
import time
from array import array
from collections.abc import Callable, Sequence

import cbor2
import msgspec
from rich.console import Console
from rich.table import Table

from indexer.engines.base import Prompt
from indexer.engines.vllm.events import VllmDialect
from indexer.engines.vllm.hashing import VllmHashRule

VOCABULARY = 151_936
SECONDS_A_ROW = 1.5


def cbor2_a_block(none_hash: bytes, tokens: Sequence[int], size: int) -> list[bytes]:
    """The rule as it is written down: one serialisation and one digest a block."""
    digests = []
    parent = none_hash
    for start in range(0, len(tokens) - size + 1, size):
        block = (parent, tuple(tokens[start : start + size]), None)
        parent = hashlib.sha256(cbor2.dumps(block, canonical=True)).digest()
        digests.append(parent)
    return digests


def interleaved(*calls: Callable[[], object]) -> list[list[float]]:
    """Seconds of each call, taken in turns, so that a busy moment hits all alike."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + SECONDS_A_ROW
    while time.perf_counter() < end:
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return times


def spread(times: list[float]) -> str:
    """Median and the middle half, in microseconds."""
    low, middle, high = (1e6 * q for q in statistics.quantiles(times, n=4))
    return f"{middle:,.0f} us ({low:,.0f}-{high:,.0f})"


def hashing() -> Table:
    table = Table(
        "tokens", "block size", "input", "cbor2 a block", "ours", "ratio", title="sha256_cbor chain"
    )
    rule = VllmHashRule("sha256_cbor", "0")
    rng = random.Random(1)
    for count, size in ((8192, 128), (8192, 16), (32768, 128), (32768, 16)):
        tokens = [rng.randrange(VOCABULARY) for _ in range(count)]
        for name, given in (("list", tokens), ("array('I')", array("I", tokens))):
            prompt = Prompt(given, size)
            assert rule.digests(prompt) == cbor2_a_block(rule.none_hash, tokens, size)
            theirs, ours = interleaved(
                lambda tokens=tokens, size=size: cbor2_a_block(rule.none_hash, tokens, size),  # type: ignore[misc]
                lambda prompt=prompt: rule.chains(prompt),  # type: ignore[misc]
            )
            ratio = statistics.median(theirs) / statistics.median(ours)
            table.add_row(f"{count:,}", str(size), name, spread(theirs), spread(ours), f"{ratio:.2f}x")
    return table


def decoding() -> Table:
    table = Table(
        "events", "blocks an event", "tokens a block", "a batch", "blocks/s", title="event decoding"
    )
    rng = random.Random(2)
    dialect = VllmDialect()
    for form in ("array", "map"):
        for blocks in (1, 64):
            payload = _batch(rng, form, blocks)
            [times] = interleaved(lambda payload=payload: dialect.decode(payload))  # type: ignore[misc]
            rate = 64 / statistics.median(times)
            table.add_row(form, str(blocks), "16", spread(times), f"{rate:,.0f}")
    return table


def _batch(rng: random.Random, form: str, blocks: int) -> bytes:
    """A batch that stores 64 blocks of 16 tokens in events of `blocks`."""
    events: list[object] = []
    for _ in range(64 // blocks):
        hashes = [rng.getrandbits(64) for _ in range(blocks)]
        tokens = [rng.randrange(VOCABULARY) for _ in range(16 * blocks)]
        values = [hashes, rng.getrandbits(64), tokens, 16, None, "GPU", None, [None] * blocks]
        names = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"]
        names += ["lora_name", "extra_keys"]
        events.append(
            ["BlockStored", *values]
            if form == "array"
            else {"type": "BlockStored", **dict(zip(names, values, strict=True)), "group_idx": 0}
        )
    return msgspec.msgpack.encode([time.time(), events, 0])


if __name__ == "__main__":
    console = Console()
    console.print(hashing(), decoding())
