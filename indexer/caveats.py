"""Why a lookup's numbers may say less than they seem to: what a person should know beside a zero."""

from collections.abc import Mapping, Sequence

from indexer.index.masters import masters
from indexer.index.state import StreamState

STALE_SECONDS = 60.0
"""An index that was neither moved nor confirmed for so long has no working collector."""

_STATES = {
    "connecting": "was never heard; what it holds is not known",
    "suspect": "lost events that could not be had again; it may hold more or less than shown",
    "lost": "the connection is gone; what it holds now is not known",
}


def caveats(
    age: float | None,
    streams: Mapping[str, Sequence[StreamState]],
    meta: Mapping[str, str],
    block_size: int | None,
) -> list[str]:
    """Warnings for people, the general ones first.

    `age` as in Matches; `streams` of each instance asked about; `meta` of the pool; `block_size` as asked
    with, None when the question did not tell.
    """
    found = []
    if age is None:
        found.append("the index was never written: is a collector running?")
    elif age > STALE_SECONDS:
        found.append(f"the index is stale: no collector moved or confirmed it for {age:.0f} s")
    if mismatch := meta.get("mismatch"):
        found.append(f"block hashes of engines do not follow from blockKey: {mismatch}")
    for master, noted in masters(meta).items():
        if noted.state != "live":
            since = "never polled" if noted.age is None else f"{noted.age:.0f} s without a poll to believe"
            cause = noted.error or "no answer yet"
            found.append(f"Mooncake master {master} is {noted.state} ({since}): {cause}")
    every = [stream for own in streams.values() for stream in own]
    sizes = sorted({s.block_size for s in every if s.block_size})
    if block_size and sizes and sizes != [block_size]:
        told = ", ".join(map(str, sizes))
        found.append(f"block_size {block_size} was asked, but engines told {told}: other sizes never match")
    for stream in every:
        if stream.state == "mismatch":
            cause = stream.cause or "its hashes do not follow from blockKey"
            found.append(f"stream {stream.key.name} is in mismatch: {cause}")
        elif note := _STATES.get(stream.state):
            found.append(f"stream {stream.key.name} is {stream.state}: {note}")
        if len(stream.groups) > 1:
            groups = ", ".join(map(str, stream.groups))
            found.append(
                f"stream {stream.key.name} has KV-cache groups {groups}: a block counts where all hold it"
            )
    return found
