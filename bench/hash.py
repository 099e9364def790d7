"""How fast blocks are hashed and events decoded: ours beside calling cbor2 for each block, in one run.

    python bench/hash.py [--quick]

A ratio is the median over pairs of neighbouring calls: it holds on a busy machine, too; the absolute times do
not. Nothing is cached between runs and no table is built, so the first prompt costs what every other costs.
"""

import argparse
import hashlib
import random
import statistics
import sys
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


def cbor2_a_block(none_hash: bytes, tokens: Sequence[int], size: int) -> list[bytes]:
    """The rule as it is written down: one serialisation and one digest a block."""
    digests = []
    parent = none_hash
    for start in range(0, len(tokens) - size + 1, size):
        block = (parent, tuple(tokens[start : start + size]), None)
        parent = hashlib.sha256(cbor2.dumps(block, canonical=True)).digest()
        digests.append(parent)
    return digests


def interleaved(seconds: float, *calls: Callable[[], object]) -> list[list[float]]:
    """Seconds of each call, taken in turns for so long, so that a busy moment hits all alike."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds
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


def hashing(seconds: float) -> Table:
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
                seconds,
                lambda tokens=tokens, size=size: cbor2_a_block(rule.none_hash, tokens, size),  # type: ignore[misc]
                lambda prompt=prompt: rule.chains(prompt),  # type: ignore[misc]
            )
            ratio = statistics.median(t / o for t, o in zip(theirs, ours, strict=True))
            table.add_row(f"{count:,}", str(size), name, spread(theirs), spread(ours), f"{ratio:.2f}x")
    return table


def decoding(seconds: float) -> Table:
    table = Table("events", "blocks an event", "a batch", "blocks/s", title="decoding 64 blocks of 16 tokens")
    rng = random.Random(2)
    dialect = VllmDialect()
    for kind in ("stored", "removed"):
        for form in ("array", "map"):
            for blocks in (1, 64):
                payload = _batch(rng, kind, form, blocks)
                [times] = interleaved(seconds, lambda payload=payload: dialect.decode(payload))  # type: ignore[misc]
                rate = 64 / statistics.median(times)
                table.add_row(f"{kind}, {form}", str(blocks), spread(times), f"{rate:,.0f}")
    return table


def _batch(rng: random.Random, kind: str, form: str, blocks: int) -> bytes:
    """A batch that stores or removes 64 blocks in events of `blocks`."""
    events: list[object] = []
    for _ in range(64 // blocks):
        hashes = [rng.getrandbits(64) for _ in range(blocks)]
        named: dict[str, object] = {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
        if kind == "stored":
            tokens = [rng.randrange(VOCABULARY) for _ in range(16 * blocks)]
            named = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": rng.getrandbits(64)}
            named |= {"token_ids": tokens, "block_size": 16, "lora_id": None, "medium": "GPU"}
            named |= {"lora_name": None, "extra_keys": [None] * blocks}
        events.append(list(named.values()) if form == "array" else {**named, "group_idx": 0})
    return msgspec.msgpack.encode([time.time(), events, 0])


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="0.4 s a row instead of 1.5 s")
    seconds = 0.4 if parser.parse_args().quick else 1.5
    Console(width=None if sys.stdout.isatty() else 110).print(hashing(seconds), decoding(seconds))


if __name__ == "__main__":
    main()
