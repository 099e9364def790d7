"""L3 of one pool while this process leads: watches every master, writes the union of what they hold.

Only the leader polls: a poll of a master that grants leases is not free, and one is enough.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack

from collector.discovery.base import Master
from collector.mooncake.client import MasterClient
from collector.mooncake.completeness import Fixed
from collector.mooncake.errors import MasterError
from collector.mooncake.gently import STEP
from collector.mooncake.master import MasterWatch, Status
from collector.mooncake.mirror import Mirror
from collector.mooncake.places import Instances
from collector.mooncake.trigger import listen
from collector.mooncake.view import View
from indexer import clock, log
from indexer.config.tree import IngestL3
from indexer.errors import FencedError, IndexFullError, IndexUnavailableError

_log = log.get(__name__)


class Poller:
    """Runs until cancelled. `grace`: seconds for which the blocks of a master that is no longer listed stay.
    `segments_timeout`: see `MasterClient`.

    `on_change` is called after each poll, for whoever shows the state (see `statuses`).
    """

    def __init__(
        self,
        mirror: Mirror,
        config: IngestL3,
        *,
        grace: float,
        segments_timeout: float | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._mirror = mirror
        self._config = config
        self._grace = grace
        self._segments_timeout = segments_timeout
        self._on_change = on_change
        self._instances = Instances()
        self._known: dict[str, frozenset[str]] = {}
        self._watches: dict[str, MasterWatch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._missing: dict[str, float] = {}
        self._wanted: tuple[Master, ...] = ()
        self._seen_targets = False
        self._started = clock.monotonic()
        self._writing = asyncio.Lock()
        self._retarget = asyncio.Event()

    def target(self, masters: Sequence[Master], instances: Iterable[str], *, complete: bool) -> None:
        """The fleet as discovery sees it. Not `complete`: an absent master proves nothing."""
        self._seen_targets |= complete
        present = {master.http for master in masters}
        now = clock.monotonic()
        self._wanted = tuple(masters)
        for base in self._watches:
            if base in present or not complete:
                self._missing.pop(base, None)
            else:
                self._missing.setdefault(base, now)
        if self._instances.follow(instances):
            self._rename()
        self._retarget.set()

    @property
    def wanted(self) -> tuple[Master, ...]:
        """The masters of the last `target`."""
        return self._wanted

    def distrust(self) -> None:
        """Redis went back in time: compare everything, whatever the masters say."""
        self._mirror.distrust()
        self._retarget.set()

    def statuses(self) -> dict[str, Status]:
        """The state of each master by its URL."""
        return {base: watch.status for base, watch in self._watches.items()}

    def required(self) -> dict[str, list[str]]:
        """The parts that a block of each connector and model needs, as text."""
        return {
            space: sorted("/".join(filter(None, (part.lane, part.stage, part.slab))) for part in parts)
            for watch in self._watches.values()
            for space, parts in watch.view.spaces().items()
        }

    async def run(self) -> None:
        """Poll and write until cancelled; may be called again. FencedError: another process leads."""
        await self._load()
        fenced: FencedError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._retarget.clear()
                    self._start_watches(group)
                    self._end_watches()
                    await self._settle(*self._watches.values())
                    await self._write()
                    await _heard(self._retarget, self._config.poll_interval)
        except* FencedError as group_error:
            fenced = next(e for e in group_error.exceptions if isinstance(e, FencedError))
        finally:
            self._tasks.clear()
        if fenced is not None:
            raise fenced

    async def _load(self) -> None:
        while True:
            try:
                await self._mirror.load()
            except IndexUnavailableError as error:
                _log.warning("L3: the index is not readable yet", error=str(error))
                await asyncio.sleep(1)
            else:
                self._known = self._mirror.blocks()
                return

    def _start_watches(self, group: asyncio.TaskGroup) -> None:
        for master in self._wanted:
            if master.http in self._tasks:
                continue
            if master.http not in self._watches:
                self._watches[master.http] = self._new_watch(master)
            self._tasks[master.http] = group.create_task(self._watch(master, self._watches[master.http]))

    def _new_watch(self, master: Master) -> MasterWatch:
        view = View(
            self._instances.name,
            require_all=self._config.completeness == "all",
            fixed=Fixed(tp=self._config.expected_ranks.tp, pp=self._config.expected_ranks.pp),
        )
        return MasterWatch(
            MasterClient(master.http, self._config.http_timeout, self._segments_timeout),
            view,
            instance_of=self._instances.name,
            known=self._known,
            models=frozenset(self._config.models),
            sweep_interval=self._config.sweep_interval,
        )

    def _end_watches(self) -> None:
        now = clock.monotonic()
        for base, since in list(self._missing.items()):
            if now - since >= self._grace:
                _log.info("L3: master is gone for good", master=base)
                self._tasks.pop(base).cancel()
                watch = self._watches.pop(base)
                del self._missing[base]
                self._mirror.touch(watch.view.claims)

    async def _watch(self, master: Master, watch: MasterWatch) -> None:
        wake = asyncio.Event()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(watch.client)
            if self._config.kv_events_port:
                await stack.enter_async_context(listen(master.http, self._config.kv_events_port, wake))
            while True:
                before = watch.status.state
                await watch.poll()
                if watch.status.state != before:
                    _log.info(
                        "L3: master is now " + watch.status.state,
                        master=master.http,
                        error=watch.status.error,
                    )
                await self._follow_names(watch)
                await self._settle(watch)
                await self._write()
                wake.clear()
                await _heard(wake, self._config.poll_interval)

    async def _write(self) -> None:
        """Write what is waiting; what Redis refuses now waits for the next time."""
        removing = (
            self._seen_targets
            and all(watch.complete for watch in self._watches.values())
            # No master at all proves something only when none turned up for a while.
            and (bool(self._watches) or clock.monotonic() - self._started >= self._grace)
        )
        if removing:
            self._known = {}
        async with self._writing:
            try:
                await self._mirror.write([w.view for w in self._watches.values()], removing=removing)
            except (IndexUnavailableError, IndexFullError) as error:
                _log.warning("L3: the index did not take the changes", error=str(error))
        self._on_change()

    async def _follow_names(self, watch: MasterWatch) -> None:
        """Learn which instance is where, beyond what addresses themselves tell."""
        changed = await self._instances.resolve()
        if self._instances.by_port and watch.status.state == "live":
            try:
                names = await watch.client.segment_endpoints()
                changed |= self._instances.segments(watch.client.base, names)
            except MasterError as error:
                _log.debug("L3: no details of segments", master=watch.client.base, error=str(error))
        if changed:
            self._rename()

    def _rename(self) -> None:
        for watch in self._watches.values():
            watch.view.rename()
        self._retarget.set()

    async def _settle(self, *watches: MasterWatch) -> None:
        for watch in watches:
            while not watch.view.settled:
                self._mirror.touch(watch.view.settle(STEP))
                await asyncio.sleep(0)


async def _heard(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
