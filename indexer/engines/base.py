"""What the rest of the project knows of an engine: a hash rule, an event dialect and a self-check.

An engine is a package beside this module (`vllm/`) with a `build(key)` function and one line in the registry
of `indexer.engines`. Nothing outside that package asks which engine it is.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from indexer.engines.events import Batch, Stored


class BlockKey(Protocol):
    """How a pool's engines hash: the `blockKey` section of the configuration has this shape."""

    @property
    def engine(self) -> str:
        """Name in the registry, such as `vllm`."""

    @property
    def python_hash_seed(self) -> str | None:
        """The engines' PYTHONHASHSEED as the raw string; None when it is unset there."""

    @property
    def prefix_caching_hash_algo(self) -> str:
        """The engine's own name of the algorithm."""

    @property
    def dialect(self) -> str:
        """`auto`, or an engine version such as `0.18.0`."""


class MmItem(Struct, frozen=True):
    """A multimodal item of a prompt: its placeholder covers tokens offset .. offset + length - 1."""

    identifier: str
    offset: int
    length: int


class Prompt(Struct, frozen=True):
    """Everything of a request that goes into block hashes. Empty strings count as absent."""

    token_ids: Sequence[int]
    block_size: int
    cache_salt: str | None = None
    lora_name: str | None = None
    lora_path: str | None = None
    mm: tuple[MmItem, ...] = ()


class HashRule(Protocol):
    """An engine's rule from a prompt to the hashes of its `len(token_ids) // block_size` blocks."""

    def chains(self, prompt: Prompt) -> list[str]:
        """The prompt's blocks as packed runs (`indexer.blocks`).

        More than one only when the engine's version is not told and versions hash this prompt differently:
        alternatives, of which a caller wants the best match. Raises HashError.
        """

    def digests(self, prompt: Prompt) -> list[bytes]:
        """Full digests, one a block, by the newest version that the rule allows. Raises HashError."""


class Dialect(Protocol):
    """An engine's event encoding."""

    def decode(self, payload: bytes) -> Batch:
        """The batch in a frame's last part. What single events hold that is not understood is counted in
        `Batch.skipped`; raises DecodeError when the frame is no batch at all."""

    def stamp(self, payload: bytes) -> bytes:
        """The batch's time as `Batch.stamp`, without decoding its events. Raises DecodeError."""


class Verdict(Struct, frozen=True):
    """Outcome of a self-check. `cause` is empty when ok; else "seed: ...", "algorithm: ...",
    "block size: ...", "dialect: ...", "look-ahead: ..." or "unknown: ...", for people."""

    ok: bool
    cause: str = ""


class Checker(Protocol):
    """Compares what one stream stores with what the rule computes. Keeps bounded state."""

    def check(self, stored: Stored) -> Verdict | None:
        """None when the event does not tell enough to recompute its hashes."""


class Engine(Struct, frozen=True):
    """An engine with one hash configuration."""

    name: str
    rule: HashRule
    dialect: Dialect
    checker: Callable[[], Checker]
    """Makes a fresh Checker, one for each stream."""
