"""Finding out what a master can do, without asking its version.

Asking a master where a key lies usually grants the key a lease, as a reader's Get would: it pushes the key
to the young end of the master's eviction order and forbids its removal for seconds. Only the batch call of
0.3.12 and later does not. So it matters which one there is.
"""

from enum import StrEnum

from collector.mooncake import answers
from collector.mooncake.client import MasterClient
from collector.mooncake.errors import MasterAnswerError


class Lookup(StrEnum):
    """How a master can be asked where keys lie."""

    SINGLE = "single"
    """One by one; each answer is a lease (up to 0.3.8)."""
    LEASING = "leasing"
    """In batches; each answer is a lease (0.3.9 to 0.3.11)."""
    READ_ONLY = "read-only"
    """In batches, without any trace (since 0.3.12)."""


# Not the name of any object: a lease that is granted to nothing.
_NO_KEY = "cache-indexer-probe"


async def probe(client: MasterClient) -> Lookup:
    """Ask a master that serves how it can be asked. Raises MasterError."""
    await client.check_health()
    answer = await client.batch_probe(_NO_KEY)
    if answer is None:
        return Lookup.SINGLE
    try:
        return Lookup.READ_ONLY if answers.batch_is_read_only(answer) else Lookup.LEASING
    except ValueError as error:
        raise MasterAnswerError(f"{client.base}/batch_query_keys: {error}") from error
