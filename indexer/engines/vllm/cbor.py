"""Canonical CBOR (RFC 8949 section 4.2.1) of what vLLM hashes: None, ints, strings and nested tuples.

Token runs take another way: thousands of ints at a time, in numpy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The bytes of a row (head, value) that make up its form of 1, 2, 3, 5 or 9 bytes: the head and the last ones.
_SIZES = np.array([1, 2, 3, 5, 9], np.int64)
_TAKEN = {
    width: np.array([[True] + [last < size for last in range(width, 0, -1)] for size in _SIZES], np.bool_)
    for width in (4, 8)
}

_UINT, _NEGATIVE, _BYTES, _TEXT, _ARRAY = range(5)


def head(major: int, value: int) -> bytes:
    """The head of an item: major type 0-7 and the shortest form of `value` (0 .. 2^64-1)."""
    if value < 24:
        return bytes((major << 5 | value,))
    for info, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * size:
            return bytes((major << 5 | info,)) + value.to_bytes(size, "big")
    raise OverflowError(f"{value} needs more than 64 bits")


def array_head(length: int) -> bytes:
    """The head of an array of `length` items."""
    return head(_ARRAY, length)


def bytes_head(length: int) -> bytes:
    """The head of a byte string of `length` bytes."""
    return head(_BYTES, length)


def encode(value: object) -> bytes:
    """`value` in canonical CBOR. Raises TypeError, OverflowError or UnicodeEncodeError for what has none."""
    if value is None:
        return b"\xf6"
    if isinstance(value, str):
        data = value.encode()
        return head(_TEXT, len(data)) + data
    if isinstance(value, bytes):
        return head(_BYTES, len(value)) + value
    if isinstance(value, tuple):
        return head(_ARRAY, len(value)) + b"".join(map(encode, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return head(_UINT, value) if value >= 0 else head(_NEGATIVE, -1 - value)
    raise TypeError(f"no canonical form for {type(value).__name__}")


def encode_blocks(ids: NDArray[Any], block_size: int) -> tuple[bytes, list[int]]:
    """The encodings of `ids` joined, and the offset at which each block's run ends.

    `ids` is uint32 or uint64, its length a multiple of `block_size`. Every id is laid out in its widest form,
    a head and big-endian bytes; then of each row only the bytes of its shortest form are taken. No Python
    runs for a single token, and no table limits the ids.
    """
    width = ids.dtype.itemsize
    rows = np.empty(len(ids), [("head", "u1"), ("value", f">u{width}")])
    form = (ids > 23).view(np.uint8) + (ids > 0xFF) + (ids > 0xFFFF)
    if width == 8:
        form += ids > 0xFFFFFFFF
    rows["value"] = ids
    rows["head"] = np.where(form == 0, ids, form + np.uint8(23))
    taken = np.compress(_TAKEN[width].take(form, axis=0).ravel(), rows.view(np.uint8))
    ends = _SIZES.take(form).reshape(-1, block_size).sum(axis=1, dtype=np.int64).cumsum()
    return taken.tobytes(), ends.tolist()
