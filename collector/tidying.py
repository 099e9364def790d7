"""What a leader sees to now and then: streams of engines that are gone, and what the self-checks found."""

import asyncio
from collections.abc import Callable, Mapping

from collector.ingest.stream import Stream
from collector.leadership import Reign
from collector.membership import Roster
from indexer import clock, log
from indexer.errors import IndexUnavailableError, LifeError
from indexer.index.state import StreamKey
from indexer.index.writer import IndexWriter

TIDY_SECONDS = 1.0

_log = log.get(__name__)


class Tidying:
    """Runs for one reign. `streams`: those being written; `retired` is told of each stream that went."""

    def __init__(
        self,
        pool: str,
        index: IndexWriter,
        reign: Reign,
        roster: Roster,
        streams: Mapping[StreamKey, Stream],
        retired: Callable[[StreamKey], None],
    ) -> None:
        self._pool = pool
        self._index = index
        self._reign = reign
        self._roster = roster
        self._streams = streams
        self._retired = retired
        self._noted: str | None = None

    async def run(self) -> None:
        """Until cancelled. FencedError: another one leads."""
        while True:
            try:
                await self._retire()
                await self._note()
            except IndexUnavailableError as error:
                _log.debug("tidying was not answered", pool=self._pool, error=str(error))
            await asyncio.sleep(TIDY_SECONDS)

    async def _retire(self) -> None:
        states = {state.key: state for state in await self._index.streams()}
        known = {(key.ip, key.rank): state.incarnation or None for key, state in states.items()}
        for gone in self._roster.retire(known, clock.monotonic()):
            key = StreamKey(gone.ip, gone.rank)
            if key in self._streams:
                continue
            before = self._reign.rev
            try:
                rev = await self._index.end(self._reign.token, key, states[key].life)
            except LifeError:
                continue
            self._reign.saw(before, rev)
            self._retired(key)
            _log.info("stream retired", pool=self._pool, ip=gone.ip, rank=gone.rank, why=gone.why)

    async def _note(self) -> None:
        """Say in `meta` which streams do not fit the configuration."""
        wrong = {key.name: s.check.cause for key, s in sorted(self._streams.items()) if s.check.cause}
        text = "; ".join(f"{name}: {cause}" for name, cause in list(wrong.items())[:3])
        if len(wrong) > 3:
            text += f"; and {len(wrong) - 3} more"
        if text != self._noted:
            before = self._reign.rev
            self._reign.saw(before, await self._index.note(self._reign.token, {"mismatch": text}))
            self._noted = text
