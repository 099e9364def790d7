"""vLLM's four `--prefix-caching-hash-algo`: how a block is serialised and which digest is taken."""

import hashlib
import pickle
from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from indexer.engines.vllm import cbor
from indexer.engines.vllm.extra_keys import Extra
from indexer.errors import HashError


class _Hash(Protocol):
    def digest(self) -> bytes: ...


# hashlib's and xxhash's own constructors: a wrapper around them would cost a Python call for every block.
New = Callable[[bytes], _Hash]
Chain = Callable[[New, bytes, NDArray[Any], int, Sequence[Extra] | None], list[bytes]]
P = ParamSpec("P")
T = TypeVar("T")


class Algorithm(Struct, frozen=True):
    """One hash algorithm."""

    name: str
    new: New
    size: int
    """Bytes of a digest."""
    cryptographic: bool
    """Those have a fixed default seed from vLLM 0.29 on."""
    serialise: Callable[[object], bytes]
    run: Chain

    def none_hash(self, seed: str) -> bytes:
        """The parent of a prompt's first block. Raises HashError when the seed is not Unicode text."""
        return self.new(_encodable("seed", self.serialise, seed)).digest()

    def chain(
        self, parent: bytes, ids: NDArray[Any], block_size: int, extras: Sequence[Extra] | None
    ) -> list[bytes]:
        """Digests of the full blocks of `ids` (uint32 or uint64), after `parent`.

        `extras` has one extra key a block, or is None when no block has one. Raises HashError when a key is
        not Unicode text.
        """
        if len(ids) < block_size:
            return []
        return _encodable("extra key", self.run, self.new, parent, ids, block_size, extras)


def _encodable(what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return function(*args, **kwargs)
    except UnicodeEncodeError as error:
        raise HashError(what, f"not Unicode text: {error.object!r}") from None


def _cbor_chain(
    new: New, parent: bytes, ids: NDArray[Any], block_size: int, extras: Sequence[Extra] | None
) -> list[bytes]:
    count = len(ids) // block_size
    data, ends = cbor.encode_blocks(ids[: count * block_size], block_size)
    head = cbor.array_head(block_size)
    keys = repeat(b"\xf6") if extras is None else map(cbor.encode, extras)
    opening = b"\x83" + cbor.bytes_head(len(parent))
    digests: list[bytes] = []
    start = 0
    for end, key in zip(ends, keys, strict=False):
        parent = new(b"".join((opening, parent, head, data[start:end], key))).digest()
        if not digests:  # an overridden NONE_HASH may have another length than a digest
            opening = b"\x83" + cbor.bytes_head(len(parent))
        digests.append(parent)
        start = end
    return digests


def _pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _pickle_chain(
    new: New, parent: bytes, ids: NDArray[Any], block_size: int, extras: Sequence[Extra] | None
) -> list[bytes]:
    tokens = ids.tolist()
    digests = []
    for block in range(len(tokens) // block_size):
        run = tuple(tokens[block * block_size : (block + 1) * block_size])
        parent = new(_pickle((parent, run, None if extras is None else extras[block]))).digest()
        digests.append(parent)
    return digests


def _xxh3_128() -> New:
    try:
        import xxhash
    except ImportError:
        raise HashError(
            "algo", "xxhash and xxhash_cbor need the extra: pip install 'cache-indexer[xxhash]'"
        ) from None
    return xxhash.xxh3_128


NAMES = ("sha256_cbor", "sha256", "xxhash_cbor", "xxhash")
"""The algorithms, the recommended first."""


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises HashError: unknown, or its package is missing."""
    if name not in NAMES:
        raise HashError("algo", f"{name!r} is unknown; known: {', '.join(NAMES)}")
    cryptographic = name.startswith("sha256")
    new, size = (hashlib.sha256, 32) if cryptographic else (_xxh3_128(), 16)
    if name.endswith("_cbor"):
        return Algorithm(name, new, size, cryptographic, cbor.encode, _cbor_chain)
    return Algorithm(name, new, size, cryptographic, _pickle, _pickle_chain)


def as_ids(token_ids: Sequence[int]) -> NDArray[Any]:
    """`token_ids` as a uint32 array, or uint64 where an id needs it. Raises HashError."""
    try:
        try:
            return np.frombuffer(array("I", token_ids), np.uint32)
        except OverflowError:
            return np.frombuffer(array("Q", token_ids), np.uint64)
    except (OverflowError, TypeError):
        raise _bad_id(token_ids) from None


def _bad_id(token_ids: Sequence[int]) -> HashError:
    for index, value in enumerate(token_ids):
        if not isinstance(value, int) or not 0 <= value < 1 << 64:
            return HashError(f"token_ids[{index}]", f"{value!r} is not an integer from 0 to 2^64-1")
    return HashError("token_ids", "not a sequence of integers from 0 to 2^64-1")
