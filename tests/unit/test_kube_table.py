"""The table of pods against a model: whatever lists and watches say, in whatever interleaving."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from collector.discovery.base import Gone
from collector.discovery.kubernetes import wire
from collector.discovery.kubernetes.pods import read_engine
from collector.discovery.kubernetes.table import Engines
from indexer.config.pool import VllmPorts

NAMES = ["a", "b"]
PORTS = VllmPorts()


class Cluster(RuleBasedStateMachine):
    """A server with a history, and a reader that follows it by lists and by a watch from its own version.

    The reader gets every event in order but may fall behind, and may list the present in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, dict[str, object]] = {}
        self.version = 1
        self.log: list[tuple[int, str, wire.Pod]] = []
        self.read_up_to = 1
        self.engines = Engines(lambda pod: read_engine(pod, PORTS))
        self.engines.replace([], "1", fresh=True)
        self.dead: set[str] = set()
        self.gone: list[Gone] = []
        self.listed: set[str] = set()
        self.latest: dict[str, int] = {}

    def pod(self, name: str) -> wire.Pod:
        """As the API has it now."""
        held = self.pods[name]
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        raw = {
            "metadata": {"name": name, "uid": held["uid"], "resourceVersion": str(self.version)}
            | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if held["dying"] else {}),
            "spec": {"containers": [{"name": "e", "ports": [{"name": "zmq-pub", "containerPort": 1}]}]},
            "status": {
                "phase": "Running",
                "podIP": f"10.0.0.{NAMES.index(name)}",
                "containerStatuses": [
                    {
                        "name": "e",
                        "restartCount": held["restarts"],
                        "state": running if held["up"] else {"waiting": {}},
                    }
                ],
            },
        }
        return wire.pod.decode(msgspec.json.encode(raw))

    def incarnation(self, name: str) -> str | None:
        return (t := read_engine(self.pod(name), PORTS).target) and t.incarnation

    def write(self, name: str, kind: str) -> None:
        self.version += 1
        self.log.append((self.version, kind, self.pod(name)))

    def end(self, name: str) -> None:
        if (run := self.incarnation(name)) is not None:
            self.dead.add(run)

    @rule(name=st.sampled_from(NAMES))
    def create(self, name: str) -> None:
        if name not in self.pods:
            uid = f"{name}{self.version}"
            self.pods[name] = {"uid": uid, "restarts": 0, "up": True, "dying": False, "in": True}
            self.write(name, "ADDED")

    @rule(name=st.sampled_from(NAMES))
    def crash_or_restart(self, name: str) -> None:
        held = self.pods.get(name)
        if held and held["in"] and not held["dying"]:
            if held["up"]:
                self.end(name)
            else:
                held["restarts"] = int(str(held["restarts"])) + 1
            held["up"] = not held["up"]
            self.write(name, "MODIFIED")

    @rule(name=st.sampled_from(NAMES))
    def crash_and_restart(self, name: str) -> None:
        for _ in range(2):
            self.crash_or_restart(name)

    @rule(name=st.sampled_from(NAMES))
    def relabel(self, name: str) -> None:
        held = self.pods.get(name)
        if held and not held["dying"]:
            held["in"] = not held["in"]
            self.write(name, "ADDED" if held["in"] else "DELETED")

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        held = self.pods.get(name)
        if held and held["in"] and not held["dying"]:
            self.end(name)
            held["dying"] = True
            self.write(name, "MODIFIED")

    @rule(name=st.sampled_from(NAMES))
    def bury(self, name: str) -> None:
        held = self.pods.get(name)
        if held and held["dying"]:
            self.write(name, "DELETED")
            del self.pods[name]

    @rule(steps=st.integers(1, 4))
    def watch(self, steps: int) -> None:
        for version, kind, pod in [entry for entry in self.log if entry[0] > self.read_up_to][:steps]:
            self.engines.apply(kind, pod)
            self.read_up_to = version
        self.announce()

    @rule()
    def resync(self) -> None:
        inside = [self.pod(name) for name, held in self.pods.items() if held["in"]]
        self.engines.replace(inside, str(self.version), fresh=False)
        self.announce()
        assert self.listed == {i for pod in inside if (i := self.run_of(pod))}, "a list is the truth"

    @rule()
    def expire(self) -> None:
        self.read_up_to = self.version
        self.engines.replace(
            [self.pod(name) for name, held in self.pods.items() if held["in"]], str(self.version), fresh=True
        )
        self.announce()

    @rule()
    def catch_up(self) -> None:
        self.watch(len(self.log) + 1)
        expected = {self.incarnation(name) for name, held in self.pods.items() if held["in"]} - {None}
        assert self.listed == expected

    def run_of(self, pod: wire.Pod) -> str | None:
        return (t := read_engine(pod, PORTS).target) and t.incarnation

    def announce(self) -> None:
        targets, gone, _ = self.engines.announce()
        self.listed = {t.incarnation for t in targets if t.incarnation}
        self.gone += gone
        for run in self.listed:
            uid, restarts, _ = run.split("/")
            assert int(restarts) >= self.latest.get(uid, 0), "an older run came back"
            self.latest[uid] = int(restarts)

    @invariant()
    def nobody_alive_is_gone(self) -> None:
        assert {g.incarnation for g in self.gone} <= self.dead
        assert len(self.gone) == len(set(self.gone)), "told twice"


Cluster.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCluster = Cluster.TestCase


def test_a_deletion_seen_by_the_watch_is_told() -> None:
    """The model only checks that nothing too much is told; here that it is told at all, behind a resync."""
    cluster = Cluster()
    cluster.create("a")
    cluster.watch(1)
    run = cluster.incarnation("a")
    cluster.delete("a")
    cluster.bury("a")
    cluster.resync()
    assert not cluster.gone
    cluster.watch(9)
    assert [g.incarnation for g in cluster.gone] == [run]
