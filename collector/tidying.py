"""What a leader sees to now and then: streams of engines that are gone, and what the self-checks found."""

import asyncio
from collections.abc import Callable, Mapping

from collector.ingest.sequence import Cursor
from collector.ingest.stream import Stream
from collector.leadership import Reign
from collector.membership import Roster
from indexer import clock, log
from indexer.errors import IndexUnavailableError, LifeError
from indexer.index.state import StreamKey, StreamState
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
                await self._look()
                await self._note()
            except IndexUnavailableError as error:
                _log.debug("tidying was not answered", pool=self._pool, error=str(error))
            await asyncio.sleep(TIDY_SECONDS)

    async def _look(self) -> None:
        written = {key: stream.cursor for key, stream in self._streams.items()}
        states = {state.key: state for state in await self._index.streams()}
        if any(self._lost(key, cursor, states.get(key)) for key, cursor in written.items()):
            # The write counter shows that too, unless writes went unanswered: they may have made up for it.
            self._reign.went_back.set()
        else:
            await self._retire(states)

    def _lost(self, key: StreamKey, written: Cursor | None, found: StreamState | None) -> bool:
        """Whether Redis forgot what it had confirmed of a stream that is in the same life as before."""
        stream = self._streams.get(key)
        if written is None or stream is None or stream.cursor is None or stream.cursor.life != written.life:
            return False
        return found is None or found.life != written.life or found.next < written.next

    async def _retire(self, states: Mapping[StreamKey, StreamState]) -> None:
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
