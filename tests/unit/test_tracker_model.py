"""Streams under random restarts, losses, reconnects and takeovers: wrong is allowed only when it is told.

The model has one engine address, two collectors with a `Tracker` each, and Redis as one stream's record that
follows the rules of `apply` and `open`. The engine's truth is what its present process holds.
"""

import struct
from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.ingest.buffer import Buffer
from collector.ingest.sequence import Cursor
from collector.ingest.tracker import Open, Recover, Take, Tracker

STEPS = (
    ["publish"] * 6
    + ["deliver"] * 5
    + ["lead"] * 6
    + ["restart", "restart_behind", "clock_back", "lose", "cut", "connect", "connect", "connect"]
    + ["kill_leader", "takeover", "forget_outcome", "observe", "observe", "flush"]
)


@dataclass
class Process:
    """One run of the engine: every batch stores one block or removes one."""

    name: int
    batches: list[tuple[bytes, str, int]] = field(default_factory=list)
    held: set[int] = field(default_factory=set)


@dataclass
class Record:
    life: str
    next: int
    stamp: bytes
    held: set[int] = field(default_factory=set)
    suspect: bool = False


class Collector:
    def __init__(self, replay: bool, wipe: bool) -> None:
        self.tracker = Tracker(Buffer(60, 1 << 20), replay=replay, wipe=wipe)
        self.process: Process | None = None
        self.pipe: deque[tuple[int, bytes, bytes]] = deque()
        self.broken = True
        self.attempts: dict[Cursor, int] = {}


class World:
    def __init__(self, seed: int, replay: bool, wipe: bool, keep: int = 1000, lossy: bool = False) -> None:
        self.keep, self.lossy = keep, lossy
        self.random = Random(seed)
        self.replay, self.wipe = replay, wipe
        self.now = 1000.0
        self.process = Process(0)
        self.record: Record | None = None
        self.collectors = [Collector(replay, wipe), Collector(replay, wipe)]
        self.leader: Collector | None = None
        self.lives = 0
        self.lossless = True

    def run(self, steps: list[str]) -> None:
        for step in steps:
            getattr(self, step)()
        self.settle()

    # The engine.

    def publish(self) -> None:
        process = self.process
        self.now += self.random.random()
        seq = len(process.batches)
        stamp = struct.pack(">d", self.now)
        if process.held and self.random.random() < 0.4:
            block = self.random.choice(sorted(process.held))
            process.held.discard(block)
            process.batches.append((stamp, "remove", block))
        else:
            block = self.random.randrange(12)
            process.held.add(block)
            process.batches.append((stamp, "store", block))
        payload = bytes([block, process.batches[-1][1] == "store"])
        for collector in self.collectors:
            if collector.process is process and not collector.broken:
                collector.pipe.append((seq, stamp, payload))

    def restart(self) -> None:
        self.process = Process(self.process.name + 1)
        for collector in self.collectors:
            collector.broken = True

    def restart_behind(self) -> None:
        """It restarts and goes past our `next` before anybody reconnects."""
        self.restart()
        target = self.record.next if self.record else 3
        for _ in range(target + self.random.randrange(3)):
            self.publish()

    def clock_back(self) -> None:
        self.now -= self.random.randrange(1, 50)
        self.restart()

    # The network.

    def lose(self) -> None:
        collector = self.random.choice(self.collectors)
        if collector.pipe:
            del collector.pipe[self.random.randrange(len(collector.pipe))]
            self.lossless = False

    def cut(self) -> None:
        self.random.choice(self.collectors).broken = True

    def connect(self) -> None:
        for collector in self.collectors:
            if collector.broken and self.random.random() < 0.7:
                self._connect(collector)

    def _connect(self, collector: Collector) -> None:
        while collector.pipe:
            collector.tracker.arrive(*collector.pipe.popleft())
        collector.tracker.disconnected()
        collector.tracker.connecting()
        collector.process, collector.broken = self.process, False
        collector.tracker.connected()

    def deliver(self) -> None:
        collector = self.random.choice(self.collectors)
        for _ in range(self.random.randrange(1, 6)):
            if collector.pipe:
                collector.tracker.arrive(*collector.pipe.popleft())

    # Collectors.

    def observe(self) -> None:
        for collector in self.collectors:
            if collector is not self.leader and self.record:
                cursor = Cursor(self.record.life, self.record.next, self.record.stamp)
                collector.tracker.observe(cursor)

    def kill_leader(self) -> None:
        if self.leader:
            self.collectors.remove(self.leader)
            self.collectors.append(Collector(self.replay, self.wipe))
            self.observe()
            self.leader = None

    def takeover(self) -> None:
        if self.leader:
            self.leader.tracker.detach()
        self.leader = self.random.choice(self.collectors)
        self._attach(self.leader)

    def flush(self) -> None:
        if self.random.random() < 0.1:
            self.record = None
            if self.leader:
                self._attach(self.leader)

    def _attach(self, leader: Collector) -> None:
        if self.record is None:
            self._open(leader, Open(bytes(8), 0, "first contact"))
        else:
            leader.tracker.attach(Cursor(self.record.life, self.record.next, self.record.stamp))

    def _open(self, leader: Collector, plan: Open) -> None:
        self.lives += 1
        self.record = Record(f"life{self.lives}", 0, plan.floor)
        leader.tracker.opened(plan, Cursor(self.record.life, 0, plan.floor))

    def forget_outcome(self) -> None:
        self.lead(lost=True)

    def lead(self, lost: bool = False) -> None:
        leader = self.leader
        if leader is None:
            return
        plan = leader.tracker.plan(self.random.randrange(1, 5))
        if isinstance(plan, Open):
            self._open(leader, plan)
        elif isinstance(plan, Take):
            self._apply(plan)
            assert self.record
            cursor = Cursor(self.record.life, self.record.next, self.record.stamp)
            if lost:
                leader.tracker.attach(cursor)
            else:
                leader.tracker.settle(cursor)
        elif isinstance(plan, Recover):
            self._recover(leader, plan.start)

    def _apply(self, plan: Take) -> None:
        record = self.record
        assert record
        assert plan.frames[0].seq == record.next or plan.skip_from == record.next
        assert [f.seq for f in plan.frames] == list(
            range(plan.frames[0].seq, plan.frames[0].seq + len(plan.frames))
        )
        for frame in plan.frames:
            block, store = frame.payload
            (record.held.add if store else record.held.discard)(block)
        record.next, record.stamp = plan.frames[-1].seq + 1, plan.frames[-1].stamp
        record.suspect = record.suspect or plan.unproven or plan.skip_from is not None

    def _recover(self, leader: Collector, start: int) -> None:
        cursor = leader.tracker.cursor
        assert cursor
        if leader.broken:
            leader.tracker.recovered(False)
            return
        process = self.process
        batches = [
            (seq, stamp, bytes([block, kind == "store"]))
            for seq, (stamp, kind, block) in enumerate(process.batches)
            if seq >= start
        ]
        published = bool(batches)
        batches = [b for b in batches if b[0] >= len(process.batches) - self.keep]
        whole = len(batches)
        if self.lossy and whole > 2 and self.random.random() < 0.5:
            batches = batches[: self.random.randrange(1, whole)]
        if not published:
            leader.tracker.unpublished()
            leader.tracker.recovered(True)
            return
        complete = leader.tracker.replayed(batches)
        leader.tracker.recovered(complete and len(batches) == whole)
        self._count(leader, cursor)

    def _count(self, leader: Collector, cursor: Cursor) -> None:
        leader.attempts[cursor] = leader.attempts.get(cursor, 0) + 1
        if leader.attempts[cursor] > 3:
            leader.tracker.give_up()

    def settle(self) -> None:
        """Everything connects, arrives and is worked off."""
        for _ in range(3):
            for collector in self.collectors:
                if collector.broken:
                    self._connect(collector)
            if self.leader is None:
                self.takeover()
            for _ in range(400):
                self.lead()
            self.publish()
            for collector in self.collectors:
                while collector.pipe:
                    collector.tracker.arrive(*collector.pipe.popleft())
        for _ in range(400):
            self.lead()

    @property
    def right(self) -> bool:
        assert self.record
        return self.record.held == self.process.held


STORIES = st.lists(st.sampled_from(STEPS), max_size=70)


@settings(max_examples=700, deadline=None)
@given(st.integers(0, 1 << 30), STORIES, st.booleans())
def test_without_replay_no_stream_is_silently_wrong(seed: int, steps: list[str], wipe: bool) -> None:
    world = World(seed, replay=False, wipe=wipe)
    world.run(steps)
    assert world.record
    assert world.right or world.record.suspect


@settings(max_examples=700, deadline=None)
@given(st.integers(0, 1 << 30), STORIES, st.booleans())
def test_with_replay_every_stream_ends_right_and_unsuspected(seed: int, steps: list[str], wipe: bool) -> None:
    world = World(seed, replay=True, wipe=wipe)
    world.run(steps)
    assert world.record
    assert world.right
    assert not world.record.suspect


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 30), STORIES, st.booleans(), st.integers(1, 4), st.booleans())
def test_with_a_poor_replay_socket_no_stream_is_silently_wrong(
    seed: int, steps: list[str], wipe: bool, keep: int, lossy: bool
) -> None:
    world = World(seed, replay=True, wipe=wipe, keep=keep, lossy=lossy)
    world.run(steps)
    assert world.record
    assert world.right or world.record.suspect


QUIET = st.lists(st.sampled_from(["publish", "deliver", "lead", "observe", "forget_outcome"]), max_size=70)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), QUIET)
def test_an_undisturbed_stream_is_right_and_live(seed: int, steps: list[str]) -> None:
    world = World(seed, replay=False, wipe=False)
    for collector in world.collectors:
        world._connect(collector)
    world.takeover()
    world.run(steps)
    assert world.record
    assert world.right
    assert not world.record.suspect
    assert world.lives == 1


@pytest.mark.slow
def test_many_streams() -> None:
    for seed in range(5000):
        random = Random(seed)
        poor = seed % 4 == 1
        world = World(
            seed, replay=seed % 2 == 0 or poor, wipe=seed % 3 == 0, keep=2 if poor else 1000, lossy=poor
        )
        world.run(random.choices(STEPS, k=random.randrange(150)))
        assert world.record
        assert world.right or world.record.suspect, seed
        assert seed % 2 or world.right, seed
