"""Engines from a watched file whose content is what `discovery.static` would hold.

The file is read whole again and again, and compared by content: that sees an edit in place, a rename over
it, and the symlink swap by which Kubernetes updates a ConfigMap volume, where modification times mislead.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
from msgspec import structs

from collector.discovery.base import Snapshot
from collector.discovery.static import snapshot_of
from indexer.config import load_static
from indexer.errors import ConfigError

LOOK_EVERY = 1.0
"""Seconds between two looks at the file, at most: an edit should be acted on within about a second."""

log = structlog.get_logger(__name__)


class FileSource:
    """The engines of one file. `interval`: seconds between looks at it, capped at `LOOK_EVERY`."""

    def __init__(self, path: str, interval: float = LOOK_EVERY) -> None:
        self._path = Path(path)
        self._interval = min(interval, LOOK_EVERY)

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the content, then each new one; after a broken edit its error, with the last good engines."""
        good = Snapshot()
        seen: bytes | str | None = None
        while True:
            content = await asyncio.to_thread(self._content)
            if content != seen:
                seen = content
                try:
                    good = await asyncio.to_thread(self._load, content)
                except ConfigError as error:
                    log.error(
                        "engine list refused, the last good one stays",
                        file=str(self._path),
                        error=str(error),
                        engines_kept=len(good.engines),
                    )
                    yield structs.replace(good, complete=False, error=str(error))
                else:
                    log.info("engine list read", file=str(self._path), engines=len(good.engines))
                    yield good
            await asyncio.sleep(self._interval)

    def _content(self) -> bytes | str:
        """What stands in the file now, or why it can't be read; only compared."""
        try:
            return self._path.read_bytes()
        except OSError as error:
            return str(error)

    def _load(self, content: bytes | str) -> Snapshot:
        if isinstance(content, bytes) and not content.strip():
            # An editor that truncates before it writes must not look like an empty fleet.
            raise ConfigError(f"{self._path}: is empty; write `engines: []` for no engines")
        return snapshot_of(load_static(self._path))
