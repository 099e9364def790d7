"""Following one Mooncake master: poll after poll into a view."""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

from msgspec import Struct, field

from collector.mooncake import answers
from collector.mooncake.client import MasterClient
from collector.mooncake.errors import MasterError
from collector.mooncake.gate import Gate, Gauges
from collector.mooncake.gently import gently
from collector.mooncake.hosts import endpoint, is_address
from collector.mooncake.keys import BlockKey, ForeignKey, parse
from collector.mooncake.locate import locate
from collector.mooncake.probe import Lookup, probe
from collector.mooncake.trust import Seen, Trust
from collector.mooncake.view import Places, View
from indexer import clock
from indexer.holders import POOL_WIDE

KNOWN = "known:"
"""Prefix of a place that is not an endpoint but an instance, remembered by the index in Redis."""


class Status(Struct):
    """One master's state, for people and metrics. Times are of the monotonic clock."""

    state: str = "new"
    """new (never polled), live, holding (an empty answer that is not believed yet), stale (no answer)."""
    error: str = ""
    lookup: str = ""
    polled: float | None = None
    """When the last poll that was believed ended."""
    seconds: float = 0.0
    """How long the last poll took."""
    keys: int = 0
    unplaced: int = 0
    unknown: int = 0
    unknown_sample: str = ""
    foreign: dict[str, int] = field(default_factory=dict)
    models: dict[str, int] = field(default_factory=dict)
    """Keys of each connector and model."""
    polls: int = 0
    failures: int = 0
    listings: int = 0
    leases: int = 0
    """Look-ups that were answered by a master whose look-ups grant leases."""


class MasterWatch:
    """Polls one master.

    `known` names the holders that the index in Redis has for a block: at the first poll of a master whose
    look-ups grant leases, keys of known blocks are not asked for again. `models`: which to count, none given:
    all. `sweep_interval` in seconds.
    """

    def __init__(
        self,
        client: MasterClient,
        view: View,
        *,
        instance_of: Callable[[str], str],
        known: dict[str, frozenset[str]],
        models: frozenset[str],
        sweep_interval: float,
    ) -> None:
        self.view = view
        self.status = Status()
        self.client = client
        self._instance_of = instance_of
        self._known: dict[str, frozenset[str]] | None = known
        self._models = models
        self._sweep_interval = sweep_interval
        self._lookup: Lookup | None = None
        self._gate = Gate()
        self._believed: Gauges | None = None
        instances = frozenset().union(*known.values()) - {POOL_WIDE}
        self._trust = Trust(bool(known), bool(instances))
        self._segments: set[str] | None = None
        self._digest: bytes | None = None
        self._any_keys = False
        self._listed = 0.0
        self._swept: float | None = None
        self._others: dict[str, ForeignKey | None] = {}

    @property
    def complete(self) -> bool:
        """Whether a whole poll was believed once: then what the view lacks, the master lacks."""
        return self.status.polled is not None

    async def poll(self) -> bool:
        """One poll; True when it was believed and went through to the end. Never raises MasterError."""
        status = self.status
        started = clock.monotonic()
        status.polls += 1
        try:
            believed = await self._poll(started)
        except MasterError as error:
            # What it told before stays; a new connection may meet another master behind the same address.
            status.state, status.error = "stale", str(error)
            status.failures += 1
            self._lookup = None
            self._gate.reset()
            return False
        finally:
            status.seconds = clock.monotonic() - started
        status.state, status.error = ("live", "") if believed else ("holding", "it lists nothing any more")
        if believed:
            status.polled = clock.monotonic()
            self._known = None
        status.keys = len(self.view)
        return believed

    async def _poll(self, now: float) -> bool:
        if self._lookup is None:
            self._lookup = await probe(self.client)
            self.status.lookup = self._lookup.value
        # In this order: what changes between two of these calls is seen by the next poll at the latest, and a
        # key that is listed was stored in a segment that is listed.
        gauges = await self.client.gauges()
        unchanged = self._unchanged(gauges, now)
        body = None if unchanged else await self._list()
        segments = set(await self.client.segments())
        same_run = self._believed is not None and bool(gauges.values) and gauges.same_run(self._believed)
        any_keys = self._any_keys if body is None else bool(body)
        seen = Seen(keys=any_keys, segments=bool(segments), same_run=same_run)
        if not self._trust.believe(seen, now):
            self._gate.reset()
            return False
        if self._believed is not None and not same_run:
            # Another process now, perhaps another version.
            self._lookup = await probe(self.client)
            self.status.lookup = self._lookup.value
        self._believed = gauges
        if body is not None:
            self._listed, self._any_keys = now, any_keys
            digest = blake2b(body).digest()
            if digest != self._digest:
                await self._take(body)
                self._digest = digest
        self._follow_segments(segments)
        self._place_the_obvious(gauges)
        await self._place(now)
        return True

    def _unchanged(self, gauges: Gauges, now: float) -> bool:
        return self._gate.holds(gauges) and now - self._listed < self._sweep_interval

    async def _list(self) -> bytes:
        self.status.listings += 1
        return await self.client.keys()

    async def _take(self, body: bytes) -> None:
        """Bring the view's keys in line with a listing."""
        listed = set(answers.lines(body))
        async for gone in gently(key for key in list(self.view.keys) if key not in listed):
            self.view.remove(gone)
        self._others = {key: named for key, named in self._others.items() if key in listed}
        async for key in gently(listed):
            if key not in self.view and key not in self._others:
                self._add(key)
        self._count()

    def _add(self, key: str) -> None:
        named = parse(key)
        if isinstance(named, BlockKey) and self._models and self._models.isdisjoint(named.model.split("@")):
            named = ForeignKey("other model")
        if not isinstance(named, BlockKey):
            self._others[key] = named
            return
        self.view.add(key, named)
        if self._known and self._lookup is not Lookup.READ_ONLY and named.block in self._known:
            self.view.place(key, frozenset(KNOWN + holder for holder in self._known[named.block]))

    def _count(self) -> None:
        unknown = sorted(key for key, named in self._others.items() if named is None)
        self.status.unknown = len(unknown)
        self.status.unknown_sample = unknown[0][:200] if unknown else ""
        foreign = Counter(named.family for named in self._others.values() if named is not None)
        self.status.foreign = dict(foreign)
        self.status.models = self.view.counts()

    def _follow_segments(self, segments: set[str]) -> None:
        """Forget places in memory that is not mounted any more."""
        before, self._segments = self._segments, segments
        hosts = {endpoint(name).host for name in segments}
        if before is None:
            if not all(is_address(host) for host in hosts):
                return  # Names may not have been resolved yet; a place too many beats losing one for good.
            instances = {self._instance_of(name) for name in segments} | {POOL_WIDE}
            self.view.drop(lambda place: place.startswith(KNOWN) and place[len(KNOWN) :] not in instances)
            return
        gone = before - segments
        if not gone:
            return
        gone_hosts = {endpoint(name).host for name in gone} - hosts
        gone_instances = {self._instance_of(name) for name in gone} - {
            self._instance_of(name) for name in segments
        }

        def lost(place: str) -> bool:
            if place.startswith(KNOWN):
                return place[len(KNOWN) :] in gone_instances
            # Where a client's segment bears its endpoint's name, one of several on a host can be told.
            return place in gone or endpoint(place).host in gone_hosts

        self.view.drop(lost)

    def _place_the_obvious(self, gauges: Gauges) -> None:
        """Spare leases: a key that was stored while only one instance had memory mounted can only be there.

        Not so for the keys of the first listing, which may be on disk only.
        """
        if self._lookup is Lookup.READ_ONLY or not self.complete or gauges.disk:
            return
        instances = {self._instance_of(name) for name in self._segments or ()}
        if len(instances) == 1:
            place = frozenset({KNOWN + instances.pop()})
            for key in self.view.unplaced:
                self.view.place(key, place)

    async def _place(self, now: float) -> None:
        assert self._lookup is not None
        keys = self.view.unplaced
        # The first listing is located in full anyway.
        due = self._swept is None or now - self._swept >= self._sweep_interval
        sweep = self._lookup is Lookup.READ_ONLY and due
        if sweep:
            keys = list(self.view.keys)
        async for found in locate(self.client, self._lookup, keys):
            if self._lookup is not Lookup.READ_ONLY:
                self.status.leases += len(found)
            self._settle(found)
        if sweep:
            self._swept = now
        self.status.unplaced = len(self.view.unplaced)

    def _settle(self, found: dict[str, Places]) -> None:
        for key, places in found.items():
            self.view.place(key, places)
