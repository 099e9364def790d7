"""Turns the scripts' replies into the frozen values of `indexer.index.state`."""

from collections.abc import Iterator, Sequence
from typing import Any

from indexer.index.state import STAMP_NONE, Stats, StreamKey, StreamState, TierStats

_NOT_COUNTERS = frozenset(
    {"life", "incarnation", "next", "ts", "state", "seen", "since", "groups", "cause", "block_size"}
)


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The items of a flat list of key, value."""
    return zip(flat[::2], flat[1::2], strict=True)


def text(flat: Sequence[bytes]) -> dict[str, str]:
    """A flat list of key, value as a dict of texts; what is no UTF-8 is shown escaped."""
    return {k.decode(): v.decode(errors="backslashreplace") for k, v in pairs(flat)}


def stream(name: str, now_ms: int, flat: Sequence[bytes]) -> StreamState:
    """A stream from its hash."""
    raw = {k.decode(): v for k, v in pairs(flat)}

    def get(field: str) -> str:
        return str(raw.get(field, b""), "utf-8", "backslashreplace")

    seen, size = get("seen"), get("block_size")
    return StreamState(
        key=StreamKey.parse(name),
        life=get("life"),
        incarnation=get("incarnation"),
        next=int(get("next") or 0),
        stamp=raw.get("ts", STAMP_NONE),
        state=get("state"),
        seen_age=max(0, now_ms - int(seen)) / 1000 if seen else None,
        block_size=int(size) if size else None,
        cause=get("cause"),
        groups=tuple(sorted(int(group) for group in get("groups").split(",") if group)),
        counters={
            field: int(value)
            for field, value in raw.items()
            if field not in _NOT_COUNTERS and value.lstrip(b"-").isdigit()
        },
    )


def streams(reply: Sequence[Any]) -> list[StreamState]:
    """The reply of streams.lua, sorted by key."""
    now_ms = int(reply[0])
    states = [stream(name.decode(), now_ms, flat) for name, flat in pairs(reply[2:]) if flat]
    return sorted(states, key=lambda state: state.key)


def age(meta: dict[str, str], now_ms: int) -> float | None:
    """Seconds since the last write or confirmation; None: never."""
    confirmed = meta.get("confirmed")
    return max(0, now_ms - int(confirmed)) / 1000 if confirmed else None


def stats(reply: Sequence[Any], states: Sequence[StreamState]) -> Stats:
    """The reply of stats.lua."""
    now_ms, term, rev, token, left, standbys, meta_flat = reply[:7]
    meta = text(meta_flat)
    tiers = {
        reply[i].decode(): TierStats(
            blocks=reply[i + 1],
            holders={name.decode(): size for name, size in pairs(reply[i + 4])},
            free=reply[i + 2],
            retired=reply[i + 3],
        )
        for i in range(7, len(reply), 5)
    }
    return Stats(
        term=term,
        rev=rev,
        leader=token.decode().rpartition("/")[0],
        lease_left=left / 1000 if left >= 0 else None,
        age=age(meta, int(now_ms)),
        tiers=tiers,
        streams=tuple(states),
        standbys={name: value.endswith(":1") for name, value in text(standbys).items()},
        meta=meta,
    )
