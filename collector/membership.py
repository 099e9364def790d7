"""Who belongs to the fleet: one snapshot after another turned into streams to follow and streams to retire.

Pure: no clock, no I/O; the caller passes `now` (seconds of one monotonic clock). Every collector keeps a
`Roster`; only the leader acts on `retire`.

Losing blocks is expensive, because engines never announce a live block again; keeping dead ones for a few
seconds is cheap. Hence absence proves nothing before the grace time, whatever the reason, and nothing at all
while the source itself says that it cannot see everything. What does count at once is an explicit deletion,
and only for the very incarnation that it names: the address may belong to the next engine already.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from collector.discovery.base import EngineTarget, Master, Snapshot

StreamId = tuple[str, int]
"""(instance, rank)."""


class Feed(Struct, frozen=True):
    """A stream to follow. `incarnation` None: the source can't tell one engine process from the next."""

    ip: str
    rank: int
    events: str
    replay: str | None
    incarnation: str | None


class Refused(Struct, frozen=True):
    """An engine that claims an address which another one holds; nothing of it is followed."""

    ip: str
    incarnation: str | None
    holder: str | None
    """Incarnation of the engine that keeps the address."""


class View(Struct, frozen=True):
    """The fleet as it stands now.

    `instances` also names hosts without ranks (their Mooncake memory counts). An engine that is no longer
    listed, or a rank that it no longer has, stays until its grace time is over: it may well be alive.
    """

    feeds: tuple[Feed, ...] = ()
    instances: tuple[str, ...] = ()
    masters: tuple[Master, ...] = ()
    refused: tuple[Refused, ...] = ()
    complete: bool = False
    error: str | None = None


class Retirement(Struct, frozen=True):
    """A stream whose blocks and hash must go. `why` is for the log."""

    ip: str
    rank: int
    why: str


class Roster:
    """Remembers engines over snapshots. `grace`: seconds that an engine may be absent before it is gone."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._held: dict[str, EngineTarget] = {}
        self._masters: tuple[Master, ...] = ()
        self._refused: tuple[Refused, ...] = ()
        self._complete = False
        self._error: str | None = "no snapshot yet"
        # Absent instances (whether once held or only known from Redis), and shrunk or unknown ranks.
        self._absent: dict[str, float] = {}
        self._spare: dict[StreamId, float] = {}
        # (instance, incarnation) that was deleted, or followed by another one on its address.
        self._deleted: dict[tuple[str, str], float] = {}

    def observe(self, snapshot: Snapshot, now: float) -> View:
        """Take in a snapshot and answer the fleet as of `now`."""
        self._complete, self._error = snapshot.complete, snapshot.error
        listed, self._refused = self._claims(snapshot.engines)
        for gone in snapshot.gone:
            self._deleted[gone.ip, gone.incarnation] = now
            held = self._held.get(gone.ip)
            if held is not None and held.incarnation == gone.incarnation:
                del self._held[gone.ip]
                self._absent.setdefault(gone.ip, now)
        for ip, target in listed.items():
            before = self._held.get(ip)
            if before and before.incarnation and before.incarnation != target.incarnation:
                self._deleted[ip, before.incarnation] = now
            if target.incarnation:
                self._deleted.pop((ip, target.incarnation), None)
            self._held[ip] = self._with_spares(target, before, now)
            self._absent.pop(ip, None)
        if snapshot.complete:
            for ip in self._held.keys() - listed.keys():
                self._absent.setdefault(ip, now)
            self._masters = snapshot.masters
        elif snapshot.masters:
            self._masters = tuple(dict.fromkeys((*self._masters, *snapshot.masters)))
        return self.view(now)

    def view(self, now: float) -> View:
        """The fleet as of `now`, without news from the source: call it now and then, grace times run out."""
        self._expire(now)
        engines = self._held.values()
        return View(
            feeds=tuple(
                Feed(e.ip, number, rank.events, rank.replay, e.incarnation)
                for e in engines
                for number, rank in enumerate(e.ranks)
            ),
            instances=tuple(self._held),
            masters=self._masters,
            refused=self._refused,
            complete=self._complete,
            error=self._error,
        )

    def retire(self, streams: Mapping[StreamId, str | None], now: float) -> list[Retirement]:
        """Which of the streams found in Redis, with the incarnation each has there, must go as of `now`.

        Ask again with what Redis then has until nothing is left: an answer changes nothing here, so a leader
        that dies between asking and acting leaves the rest to the next one.
        """
        self._expire(now)
        result = []
        for (ip, rank), incarnation in streams.items():
            if self._holds(ip, rank):
                continue
            if incarnation is not None and (ip, incarnation) in self._deleted:
                result.append(Retirement(ip, rank, f"engine {incarnation} is gone"))
                continue
            # An incarnation that was never listed here may also be newer than this list: it gets its time.
            since = (
                self._spare.setdefault((ip, rank), now)
                if ip in self._held
                else self._absent.setdefault(ip, now)
            )
            if self._over(since, now):
                result.append(Retirement(ip, rank, f"not listed for {now - since:.0f} s"))
        return result

    def _with_spares(self, target: EngineTarget, before: EngineTarget | None, now: float) -> EngineTarget:
        """`target`, and after its ranks those that the same engine had before: they get a grace time, too."""
        count = len(target.ranks)
        for rank in range(count):
            self._spare.pop((target.ip, rank), None)
        if before is None or before.incarnation != target.incarnation:
            return target
        for rank in range(count, len(before.ranks)):
            self._spare.setdefault((target.ip, rank), now)
        return structs.replace(target, ranks=target.ranks + before.ranks[count:])

    def _expire(self, now: float) -> None:
        for ip in [ip for ip in self._held if self._over(self._absent.get(ip), now)]:
            del self._held[ip]
        for ip, rank in sorted(self._spare, reverse=True):
            held = self._held.get(ip)
            if held and len(held.ranks) == rank + 1 and self._over(self._spare[ip, rank], now):
                self._held[ip] = structs.replace(held, ranks=held.ranks[:rank])
        self._deleted = {key: at for key, at in self._deleted.items() if now - at <= self._grace}
        # Old marks go, so that pod churn doesn't fill a standby's memory; what is held keeps its mark.
        old = now - 10 * self._grace
        self._absent = {ip: at for ip, at in self._absent.items() if at >= old or ip in self._held}
        self._spare = {key: at for key, at in self._spare.items() if at >= old or self._holds(*key)}

    def _holds(self, ip: str, rank: int) -> bool:
        held = self._held.get(ip)
        return held is not None and rank < len(held.ranks)

    def _over(self, since: float | None, now: float) -> bool:
        # An incomplete view can't confirm an absence, so nobody's grace ends while it lasts.
        return since is not None and self._complete and now - since >= self._grace

    def _claims(self, engines: Iterable[EngineTarget]) -> tuple[dict[str, EngineTarget], tuple[Refused, ...]]:
        """One engine an address: the one that holds it already, else the first listed."""
        claims: dict[str, list[EngineTarget]] = {}
        for engine in engines:
            claims.setdefault(engine.ip, []).append(engine)
        listed: dict[str, EngineTarget] = {}
        refused: list[Refused] = []
        for ip, rivals in claims.items():
            held = self._held.get(ip)
            keeper = next((e for e in rivals if held and e.incarnation == held.incarnation), rivals[0])
            listed[ip] = keeper
            refused += [Refused(ip, e.incarnation, keeper.incarnation) for e in rivals if e is not keeper]
        return listed, tuple(refused)
