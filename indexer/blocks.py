"""Block ids: the low 64 bits of a chain hash.

As text a block is 16 lower-case hex digits (Redis, logs, command line). A run of blocks travels *packed*:
the 16-digit texts joined, so that Redis gets one argument and Lua cuts it with `string.sub`. Never a float,
and never a Lua number: neither holds 64 bits.
"""

MASK = (1 << 64) - 1
WIDTH = 16
"""Hex digits of a block."""


def block_of_int(value: int) -> str:
    """The block of an engine's integer hash; signed and unsigned 64-bit forms name the same block."""
    return f"{value & MASK:016x}"


def block_of_digest(digest: bytes) -> str:
    """The block of a full digest (vLLM's rule: its last 8 bytes). `digest` has at least 8 bytes."""
    return digest[-8:].hex()


def parse(value: str | int) -> str:
    """The block that a person or a client means: 16 hex digits, or an engine's integer hash, signed or not.

    Raises ValueError that quotes the value and says what is allowed.
    """
    if isinstance(value, int):
        if -(1 << 63) <= value <= MASK:
            return block_of_int(value)
    elif is_block(value.lower()):
        return value.lower()
    raise ValueError(f"{value!r} is neither 16 hex digits nor an integer within -2^63..2^64-1")


def is_block(text: str) -> bool:
    """Whether `text` is a block as this project writes it: 16 lower-case hex digits."""
    return len(text) == WIDTH and all(c in "0123456789abcdef" for c in text)


def unpack(packed: str) -> list[str]:
    """The blocks of a packed run, in order."""
    return [packed[i : i + WIDTH] for i in range(0, len(packed), WIDTH)]
