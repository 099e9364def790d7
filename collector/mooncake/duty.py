"""L3 as a part of a leader's work, and what it shows of itself."""

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from collector.aio import until_first
from collector.leadership import Reign
from collector.membership import View as Fleet
from collector.mooncake.master import Status
from collector.mooncake.mirror import Mirror
from collector.mooncake.poller import Poller
from indexer import clock, log
from indexer.config import Pool
from indexer.config.tree import IngestL3
from indexer.errors import IndexFullError, IndexUnavailableError
from indexer.index.masters import MasterNote, field
from indexer.index.reader import IndexReader
from indexer.index.writer import IndexWriter

_log = log.get(__name__)


class MooncakeDuty:
    """The work of one reign: polls the pool's masters and says in `meta` how they are."""

    def __init__(self, index: IndexWriter, reader: IndexReader, reign: Reign, pool: Pool, config: IngestL3):
        self.reign = reign
        self.poller = Poller(
            Mirror(index, reader, reign),
            config,
            grace=pool.discovery.grace,
            segments_timeout=pool.discovery.segments_fetch_timeout,
        )
        self._index = index
        self._reader = reader
        self._interval = min(config.poll_interval, 10.0)

    def see(self, view: Fleet) -> None:
        """The fleet changed."""
        self.poller.target(view.masters, view.instances, complete=view.complete)

    async def run(self) -> None:
        """Work until cancelled. FencedError: another one leads."""
        await until_first(self.poller.run(), self._note())

    async def _note(self) -> None:
        noted: set[str] | None = None
        while True:
            fields = dict(field(base, note) for base, note in self._notes().items())
            try:
                if noted is None:
                    noted = {name for name in await self._reader.meta() if name.startswith("l3:")}
                gone = dict.fromkeys(noted - fields.keys(), "")
                if fields or gone:
                    before = self.reign.rev
                    self.reign.saw(before, await self._index.note(self.reign.token, fields | gone))
                    noted = set(fields)
            except (IndexUnavailableError, IndexFullError) as error:
                _log.debug("L3: the state was not noted", error=str(error))
            await asyncio.sleep(self._interval)

    def _notes(self) -> dict[str, MasterNote]:
        required = {space: tuple(parts) for space, parts in self.poller.required().items()}
        return {
            base: MasterNote(
                state=status.state,
                age=age(status),
                error=status.error,
                lookup=status.lookup,
                keys=status.keys,
                unplaced=status.unplaced,
                unknown=status.unknown,
                unknown_sample=status.unknown_sample,
                foreign=status.foreign,
                models=status.models,
                required={space: required[space] for space in status.models if space in required},
                leases=status.leases,
                poll_seconds=round(status.seconds, 4),
            )
            for base, status in self.poller.statuses().items()
        }


class MooncakeDuties:
    """Makes the duty of each reign of one pool.

    When Redis went back in time in the middle of a reign, the duty goes on with the views that it has: they
    are still true, and looking everything up again would lease it.
    """

    def __init__(self, index: IndexWriter, reader: IndexReader, pool: Pool, config: IngestL3) -> None:
        self._index, self._reader, self._pool, self._config = index, reader, pool, config
        self._duty: MooncakeDuty | None = None

    def __call__(self, reign: Reign) -> MooncakeDuty:
        if self._duty is not None and self._duty.reign is reign:
            self._duty.poller.distrust()
        else:
            self._duty = MooncakeDuty(self._index, self._reader, reign, self._pool, self._config)
        return self._duty

    def statuses(self) -> dict[str, Status]:
        """The masters' state while this process leads; else nothing."""
        if self._duty is None or self._duty.reign.over.is_set():
            return {}
        return self._duty.poller.statuses()


def age(status: Status) -> float | None:
    """Seconds since the last poll that was believed; None: never."""
    return None if status.polled is None else round(clock.monotonic() - status.polled, 3)


class MooncakeMetrics:
    """Shows the masters of all pools, as they are when Prometheus asks."""

    def __init__(self) -> None:
        self.pools: dict[str, MooncakeDuties] = {}

    def collect(self) -> Iterable[Metric]:
        """For prometheus_client's registry."""
        shown: dict[str, tuple[str, Callable[[Status], float | None]]] = {
            "live": ("1 while the master answers and is believed.", lambda s: float(s.state == "live")),
            "age_seconds": ("Since the last poll that was believed.", age),
            "poll_seconds": ("Time of the last poll.", lambda s: s.seconds),
            "polls": ("Polls begun by this leader.", lambda s: s.polls),
            "failed_polls": ("Polls that told nothing.", lambda s: s.failures),
            "listings": ("Polls that needed the list of keys.", lambda s: s.listings),
            "keys": ("Keys of blocks.", lambda s: s.keys),
            "unplaced_keys": ("Such keys whose place is not known yet.", lambda s: s.unplaced),
            "unknown_keys": ("Keys of a shape that is not known.", lambda s: s.unknown),
            "foreign_keys": ("Keys of other kinds of objects.", lambda s: sum(s.foreign.values())),
            "leases": ("Look-ups that may have granted a lease.", lambda s: s.leases),
            "leasing": ("1 for a master whose look-ups grant leases.", _leasing),
        }
        for name, (text, value) in shown.items():
            family = GaugeMetricFamily(f"cache_indexer_collector_l3_{name}", text, labels=["pool", "master"])
            for pool, duties in self.pools.items():
                for master, status in duties.statuses().items():
                    number = value(status)
                    if number is not None:
                        family.add_metric([pool, master], number)
            yield family


def _leasing(status: Status) -> float | None:
    return float(status.lookup != "read-only") if status.lookup else None
