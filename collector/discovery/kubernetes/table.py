"""The pods that match one selector: a list, and the events that came after it. Pure: no clock, no I/O."""

from collections.abc import Callable, Iterable

from collector.discovery.base import EngineTarget, Gone
from collector.discovery.kubernetes.pods import Reading
from collector.discovery.kubernetes.wire import Pod


class Table:
    """Keeps pods by UID, so that a name or an address that is used again is never mixed up.

    A list is the truth as of its version. A watch that goes on from before it still brings older events;
    they change nothing here.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self._listed = 0

    def replace(self, pods: Iterable[Pod], version: str, *, fresh: bool) -> None:
        """Take a complete list in. `fresh`: no watch will tell what happened before it."""
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self._listed = int(version)

    def apply(self, kind: str, pod: Pod) -> bool:
        """Take an event in; `kind` as in the API: ADDED, MODIFIED, DELETED. Answers whether it was news."""
        if int(pod.metadata.resource_version) <= self._listed:
            return False
        if kind == "DELETED":
            self.pods.pop(pod.metadata.uid, None)
        else:
            self.pods[pod.metadata.uid] = pod
        return True


class Engines(Table):
    """Also tells which of the engines once announced have certainly ended.

    A pod that only leaves the selector is no such end, though the API calls that DELETED too: its engine may
    well be alive, and labels are put back.
    """

    def __init__(self, read: Callable[[Pod], Reading]) -> None:
        super().__init__()
        self._read = read
        self._announced: dict[str, EngineTarget] = {}
        self._gone: dict[Gone, None] = {}

    def replace(self, pods: Iterable[Pod], version: str, *, fresh: bool) -> None:
        """As in Table. What a fresh list lacks may be gone or not: no end can be told of it any more."""
        super().replace(pods, version, fresh=fresh)
        for pod in self.pods.values():
            self._look(pod)
        if fresh:
            self._announced = {uid: t for uid, t in self._announced.items() if uid in self.pods}

    def apply(self, kind: str, pod: Pod) -> bool:
        """As in Table; but a deletion is final, so that it counts even when it is no news."""
        news = super().apply(kind, pod)
        if news or pod.metadata.deletion_timestamp is not None:
            self._look(pod)
        return news

    def announce(self) -> tuple[tuple[EngineTarget, ...], tuple[Gone, ...], dict[str, str]]:
        """The engines, oldest pod first; those that ended since the last call; and pod name -> problem."""
        targets, problems = [], {}
        oldest = sorted(self.pods.values(), key=lambda p: (p.metadata.creation_timestamp, p.metadata.name))
        for pod in oldest:
            reading = self._read(pod)
            if reading.problem is not None:
                problems[pod.metadata.name] = reading.problem
            if reading.target is None:
                continue
            before = self._announced.get(pod.metadata.uid)
            if before is not None and before.ip != reading.target.ip:
                self._end(before)
            self._announced[pod.metadata.uid] = reading.target
            targets.append(reading.target)
        gone, self._gone = tuple(self._gone), {}
        return tuple(targets), gone, problems

    def _look(self, pod: Pod) -> None:
        if self._read(pod).ended and (target := self._announced.pop(pod.metadata.uid, None)) is not None:
            self._end(target)

    def _end(self, target: EngineTarget) -> None:
        if target.incarnation is not None:
            self._gone[Gone(target.ip, target.incarnation)] = None
