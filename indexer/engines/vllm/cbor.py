"""Canonical CBOR (RFC 8949 section 4.2.1) of what vLLM hashes: None, ints, strings and nested tuples.

Token runs take another way: thousands of ints at a time, in numpy, by one ragged gather.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def encode_ids(ids: NDArray[Any]) -> tuple[bytes, NDArray[np.int64]]:
    """The encodings of `ids` (uint32 or uint64) joined, and the offset at which each one ends.

    Every id is laid out in its widest form, head and big-endian bytes, in a row of 5 or 9; a mask then
    keeps of each row what the shortest form has.
    """
    width = ids.dtype.itemsize
    rows = np.empty((len(ids), 1 + width), np.uint8)
    rows[:, 1:] = ids.astype(ids.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, width)
    keep = np.empty(rows.shape, np.bool_)
    keep[:, 0] = True
    # Bytes 1.. from the left; the last one is needed above 23, two above 255, four above 65535, eight above 2^32-1.
    forms = [(23, 1), (0xFF, 2), (0xFFFF, 4)] + ([(0xFFFFFFFF, 8)] if width == 8 else [])
    size = np.zeros(len(ids), np.int64)
    done = 0
    form = np.zeros(len(ids), np.uint8)
    for above, used in forms:
        wide = ids > above
        keep[:, 1 + width - used : 1 + width - done] = wide[:, None]
        form += wide
        size += wide * np.int64(used - done)
        done = used
    rows[:, 0] = np.where(form == 0, ids, 23 + form)
    return rows[keep].tobytes(), np.cumsum(size + 1)
