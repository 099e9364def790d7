"""Engines written down by hand: in the configuration, or on the command line."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from collector.discovery.base import EngineTarget, Master, Rank, Snapshot
from indexer.config import Static
from indexer.errors import ConfigError


def snapshot_of(static: Static) -> Snapshot:
    """The snapshot that says exactly what `static` says."""
    return Snapshot(
        engines=tuple(
            EngineTarget(e.ip, e.incarnation, tuple(Rank(r.events, r.replay) for r in e.ranks))
            for e in static.engines
        ),
        masters=tuple(Master(m.http.rstrip("/")) for m in static.mooncake_masters),
    )


class StaticSource:
    """A list that never changes."""

    def __init__(self, static: Static) -> None:
        self._snapshot = snapshot_of(static)

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the one snapshot, then wait for ever."""
        yield self._snapshot
        await asyncio.Event().wait()


def parse_engine(text: str) -> dict[str, Any]:
    """Turn `IP=EVENTS[,replay=URL][,EVENTS[,replay=URL]]...` into an entry of `discovery.static.engines`.

    Every URL without a keyword begins the next rank; `replay=` belongs to the rank before it. Raises
    ConfigError naming the part that doesn't fit.
    """
    ip, equals, rest = text.partition("=")
    ip = ip.strip().strip("[]")
    if not equals or not ip or "/" in ip:
        raise ConfigError(f"--engine {text!r}: expected IP=tcp://HOST:PORT[,replay=tcp://HOST:PORT]")
    ranks: list[dict[str, str]] = []
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, _, url = part.rpartition("=")
        if key not in ("", "replay") or not url.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"--engine {text!r}: {part!r} is neither tcp://HOST:PORT nor replay=tcp://...")
        if key == "":
            ranks.append({"events": url})
        elif not ranks or "replay" in ranks[-1]:
            raise ConfigError(f"--engine {text!r}: {part!r} must follow the events URL of its rank")
        else:
            ranks[-1]["replay"] = url
    return {"ip": ip, "ranks": ranks}
