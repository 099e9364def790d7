"""vLLM's four `--prefix-caching-hash-algo`: how a block is serialised and which digest is taken."""

import hashlib
import pickle
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from indexer.engines.vllm import cbor
from indexer.engines.vllm.extra_keys import Extra
from indexer.errors import HashError

Digest = Callable[[bytes], bytes]


class Algorithm(Struct, frozen=True):
    """One hash algorithm. `cryptographic` ones have a fixed default seed from vLLM 0.29 on."""

    name: str
    digest: Digest
    size: int
    """Bytes of a digest."""
    cryptographic: bool
    serialise: Callable[[object], bytes]
    chain_: Callable[[Digest, bytes, NDArray[Any], int, Sequence[Extra] | None], list[bytes]]

    def none_hash(self, seed: str) -> bytes:
        """The parent of a prompt's first block. Raises HashError when the seed is not Unicode text."""
        return self.digest(_encodable("seed", self.serialise, seed))

    def chain(
        self, parent: bytes, ids: NDArray[Any], block_size: int, extras: Sequence[Extra] | None
    ) -> list[bytes]:
        """Digests of the full blocks of `ids` (uint32 or uint64), after `parent`; `extras` has one a block."""
        return _encodable("extra key", self.chain_, self.digest, parent, ids, block_size, extras)


def _encodable(what: str, function: Callable[..., Any], *args: object) -> Any:
    try:
        return function(*args)
    except UnicodeEncodeError as error:
        raise HashError(f"{what}: not Unicode text: {error.object!r}") from None


def _cbor_chain(
    digest: Digest, parent: bytes, ids: NDArray[Any], block_size: int, extras: Sequence[Extra] | None
) -> list[bytes]:
    count = len(ids) // block_size
    data, ends = cbor.encode_ids(ids[: count * block_size])
    head = cbor.array_head(block_size)
    digests = []
    start = 0
    for block, end in enumerate(ends[block_size - 1 :: block_size].tolist()):
        extra = b"\xf6" if extras is None else cbor.encode(extras[block])
        parent = digest(b"\x83" + cbor.encode(parent) + head + data[start:end] + extra)
        digests.append(parent)
        start = end
    return digests


def _pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _pickle_chain(
    digest: Digest, parent: bytes, ids: NDArray[Any], block_size: int, extras: Sequence[Extra] | None
) -> list[bytes]:
    tokens = ids.tolist()
    digests = []
    for block in range(len(tokens) // block_size):
        run = tuple(tokens[block * block_size : (block + 1) * block_size])
        parent = digest(_pickle((parent, run, None if extras is None else extras[block])))
        digests.append(parent)
    return digests


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xxh3_128() -> Digest:
    try:
        import xxhash
    except ImportError:
        raise HashError(
            "prefixCachingHashAlgo: xxhash algorithms need the xxhash package: pip install 'cache-indexer[xxhash]'"
        ) from None
    return xxhash.xxh3_128_digest


NAMES = ("sha256_cbor", "sha256", "xxhash_cbor", "xxhash")
"""The algorithms, the recommended first."""


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises HashError: unknown, or its package is missing."""
    if name not in NAMES:
        raise HashError(f"prefixCachingHashAlgo: {name!r} is unknown; known: {', '.join(NAMES)}")
    cryptographic = name.startswith("sha256")
    digest, size = (_sha256, 32) if cryptographic else (_xxh3_128(), 16)
    if name.endswith("_cbor"):
        return Algorithm(name, digest, size, cryptographic, cbor.encode, _cbor_chain)
    return Algorithm(name, digest, size, cryptographic, _pickle, _pickle_chain)


def as_ids(token_ids: Sequence[int]) -> NDArray[Any]:
    """`token_ids` as a uint32 array, or uint64 where an id needs it. Raises HashError."""
    try:
        try:
            return np.frombuffer(array("I", token_ids), np.uint32)
        except OverflowError:
            return np.frombuffer(array("Q", token_ids), np.uint64)
    except (OverflowError, TypeError):
        raise HashError(_bad_id(token_ids)) from None


def _bad_id(token_ids: Sequence[int]) -> str:
    for index, value in enumerate(token_ids):
        if not isinstance(value, int) or not 0 <= value < 1 << 64:
            return f"token_ids[{index}]: {value!r} is not an integer from 0 to 2^64-1"
    return "token_ids: not a sequence of integers from 0 to 2^64-1"
