"""Engines from a watched file whose content is what `discovery.static` would hold.

The file is read whole again and again, and compared by content: that sees an edit in place, a rename over
it, and the symlink swap by which Kubernetes updates a ConfigMap volume, where modification times mislead.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import structlog
import yaml

from collector.discovery.base import Snapshot
from collector.discovery.static import snapshot_of
from indexer.config.tree import Static
from indexer.errors import ConfigError

LOOK_EVERY = 1.0
"""Seconds between two looks at the file, at most: an edit should be acted on within about a second."""

log = structlog.get_logger(__name__)


def parse(content: bytes) -> Static:
    """Parse the file's content (YAML, so JSON too); ConfigError names what is wrong.

    Empty content is refused: an editor that truncates before it writes must not look like an empty fleet.
    """
    try:
        tree = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        raise ConfigError("the file is empty; write `engines: []` for no engines")
    try:
        return msgspec.convert(tree, Static)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


class FileSource:
    """The engines of one file. `interval`: seconds between looks at it, capped at `LOOK_EVERY`."""

    def __init__(self, path: str, interval: float = LOOK_EVERY) -> None:
        self._path = Path(path)
        self._interval = min(interval, LOOK_EVERY)

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the content, then each new one; after a broken edit its error, with the last good engines."""
        good: Snapshot | None = None
        seen: bytes | str | None = None
        while True:
            content = await asyncio.to_thread(self._read)
            if content != seen:
                seen = content
                taken = self._take(content)
                if isinstance(taken, Snapshot):
                    good = taken
                    log.info("engine list read", file=str(self._path), engines=len(good.engines))
                    yield good
                else:
                    kept = len(good.engines) if good else 0
                    log.error(
                        "engine list refused, the last good one stays",
                        file=str(self._path),
                        error=taken,
                        engines_kept=kept,
                    )
                    yield msgspec.structs.replace(good or Snapshot(), complete=False, error=taken)
            await asyncio.sleep(self._interval)

    def _read(self) -> bytes | str:
        """The content, or in words why there is none."""
        try:
            return self._path.read_bytes()
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"

    def _take(self, content: bytes | str) -> Snapshot | str:
        if isinstance(content, str):
            return content
        try:
            return snapshot_of(parse(content))
        except ConfigError as error:
            return str(error)
