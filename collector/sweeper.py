"""Clears what retired holders left in the bitmaps, a little at a time, which frees their slots."""

import asyncio

from collector.leadership import Reign
from collector.metrics import Metrics
from indexer import log
from indexer.errors import IndexUnavailableError
from indexer.index.writer import IndexWriter

PAUSE_SECONDS = 0.05
"""Between two steps while there is something to do: lookups come first."""
IDLE_SECONDS = 5.0

_log = log.get(__name__)


async def sweep(pool: str, index: IndexWriter, reign: Reign, metrics: Metrics) -> None:
    """Run until cancelled. FencedError: another one leads."""
    while True:
        pause = IDLE_SECONDS
        before = reign.rev
        try:
            swept = await index.sweep(reign.token)
            reign.saw(before, swept.rev)
            metrics.swept.labels(pool).inc(swept.cleared)
            if swept.freed:
                _log.debug("slots freed", pool=pool, freed=swept.freed, pending=swept.pending)
            if swept.pending:
                pause = PAUSE_SECONDS
        except IndexUnavailableError as error:
            _log.debug("sweep was not answered", pool=pool, error=str(error))
        await asyncio.sleep(pause)
