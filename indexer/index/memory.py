"""What Redis itself says of its memory; for people."""

from typing import Any

import redis.exceptions
from msgspec import Struct


class Memory(Struct, frozen=True):
    """Bytes in use, and the limit (0: none)."""

    used: int
    limit: int


async def memory(client: Any) -> Memory | None:
    """The server's memory; None where it can't be told: a cluster (many servers), or INFO is not allowed."""
    try:
        info = await client.info("memory")
    except redis.exceptions.ResponseError:
        return None
    if "used_memory" not in info:
        return None
    return Memory(int(info["used_memory"]), int(info.get("maxmemory", 0)))
