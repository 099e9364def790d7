"""The lookup against a ten-line oracle of sets, with every kind of write in between, on real servers."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from indexer.config.tree import Redis
from indexer.index.connect import connect
from indexer.index.state import Op, StreamKey
from tests.integration.index.conftest import Index, block, packed
from tests.servers import Server

IPS = [f"10.0.0.{n}" for n in range(6)]
KEYS = st.builds(StreamKey, st.sampled_from(IPS), st.integers(0, 1))
GROUPS = st.sampled_from([0, 0, 0, 1])
TIERS = st.sampled_from(["l1", "l2"])
HOSTS = st.sampled_from([*IPS, "*"])
WORLD = 120
"""Blocks: more than one of the chunks that the script reads, so that lookups end inside and between them"""
RUNS = st.tuples(st.integers(0, WORLD), st.integers(1, WORLD)).map(lambda t: range(t[0], min(WORLD, sum(t))))
PREFIXES = st.integers(1, WORLD).map(range)
HOLES = st.lists(st.integers(0, WORLD - 1), min_size=1, max_size=4)
CHAINS = st.one_of(
    PREFIXES, RUNS, st.lists(st.integers(0, WORLD + 5), max_size=WORLD), st.just(()), st.just(range(WORLD))
)
STORED = st.one_of(PREFIXES, PREFIXES, RUNS)


class Machine(RuleBasedStateMachine):
    """Holders are sets of small numbers: of streams by (tier, key, group), of hosts by name."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server.wipe()
        self.client = self.do(connect(Redis(url=self.server.url, timeout=10)))  # type: ignore[arg-type]
        self.index = Index(self.server, self.client)
        self.other_reader = Index(self.server, self.client).reader
        self.do(self.index.lead())
        self.held: dict[tuple[str, StreamKey, int], set[int]] = {}
        self.groups: dict[StreamKey, set[int]] = {}
        self.next: dict[StreamKey, int] = {}
        self.lives: dict[StreamKey, str] = {}
        self.hosts: dict[str, set[int]] = {}
        self.generations: dict[str, str] = {}
        self.serial = 0

    def do(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    @initialize(width=st.integers(0, 70))
    def others_take_slots(self, width: int) -> None:
        """So that the holders under test lie in any 32-bit word, and next to each other in two."""
        generation = ""
        for n in range(width):
            for tier in ("l1", "l3"):
                key = StreamKey(f"10.9.0.{n}", 0)
                if tier == "l1":
                    self.do(self.index.open(key))
                    self.do(self.index.store(key, 0, WORLD + 9))
                else:
                    self.do(self.index.writer.reconcile(
                        self.index.token, f"l3:{key.ip}", generation, packed(WORLD + 9), ""
                    ))  # fmt: skip

    @rule(key=KEYS)
    def new_life(self, key: StreamKey) -> None:
        self.serial += 1
        life = f"life{self.serial}"
        self.do(self.index.open(key, life, self.lives.get(key)))
        self.lives[key], self.next[key], self.groups[key] = life, 0, set()
        self._forget(key)

    @rule(key=KEYS)
    def gone(self, key: StreamKey) -> None:
        if key in self.lives:
            self.do(self.index.writer.end(self.index.token, key, self.lives.pop(key)))
            self._forget(key)

    def _forget(self, key: StreamKey, *tiers: str) -> None:
        for holder in [h for h in self.held if h[1] == key and h[0] in (tiers or ("l1", "l2"))]:
            del self.held[holder]

    @rule(
        key=KEYS,
        changes=st.lists(
            st.one_of(
                st.tuples(st.just("store"), TIERS, GROUPS, STORED),
                st.tuples(st.just("remove"), TIERS, GROUPS, st.one_of(HOLES, HOLES, RUNS)),
                st.tuples(st.just("clear"), TIERS, st.just(0), st.just(())),
            ),
            min_size=1,
            max_size=4,
        ),
        again=st.booleans(),
    )
    def batch(self, key: StreamKey, changes: list[Any], again: bool) -> None:
        ops = [Op(kind, tier, group, packed(*numbers)) for kind, tier, group, numbers in changes]
        life = self.lives.get(key, "none")
        outcome = self.do(self.index.apply(key, self.next.get(key, 0), *ops, life=life))
        if key not in self.lives:
            assert outcome.code == "NONE"
            return
        assert outcome.code == "OK"
        self.next[key] += 1
        if again:
            self.do(self.index.client.deliver_again(self.index.client.sent[-1]))
        for kind, tier, group, numbers in changes:
            if kind == "clear":
                self._forget(key, tier)
            elif kind == "store":
                self.groups[key].add(group)
                self.held.setdefault((tier, key, group), set()).update(numbers)
            else:
                self.held.get((tier, key, group), set()).difference_update(numbers)

    @rule(
        host=HOSTS, adds=STORED, removes=st.one_of(HOLES, RUNS), drop=st.integers(0, 5).map(lambda n: n == 0)
    )
    def reconcile(self, host: str, adds: range, removes: Any, drop: bool) -> None:
        _, self.generations[host] = self.do(
            self.index.writer.reconcile(
                self.index.token,
                f"l3:{host}",
                self.generations.get(host, ""),
                packed(*adds),
                packed(*removes),
                drop,
            )
        )
        blocks = self.hosts.setdefault(host, set())
        blocks.difference_update(removes)
        blocks.update(adds)
        if drop:
            blocks.clear()

    @rule(budget=st.integers(1, 100))
    def sweep(self, budget: int) -> None:
        self.do(self.index.writer.sweep(self.index.token, budget))

    def _expected(self, tier: str, instance: str, chain: Any) -> dict[int, int]:
        """The oracle."""

        def reach(blocks: set[int]) -> int:
            return next((i for i, number in enumerate(chain) if number not in blocks), len(chain))

        if tier == "l3":
            return {0: reach(self.hosts.get(instance, set()))}
        return {
            key.rank: min(
                (reach(self.held.get((tier, key, group), set())) for group in self.groups[key]), default=0
            )
            for key in self.lives
            if key.ip == instance
        }

    @rule(
        chains=st.lists(CHAINS, min_size=1, max_size=2),
        tiers=st.lists(st.sampled_from(["l1", "l2", "l3"]), min_size=1, max_size=3, unique=True),
        instances=st.none() | st.lists(st.sampled_from([*IPS, "10.8.0.1", "x", "*"]), max_size=8),
        stale=st.booleans(),
        refusals=st.sampled_from([2, 2, 0]),
        blocks_per_call=st.sampled_from([2048, 2048, 30, 64]),
    )
    def lookup(
        self, chains: Any, tiers: Any, instances: Any, stale: bool, refusals: int, blocks_per_call: int
    ) -> None:
        reader = self.other_reader if stale else self.index.reader
        with pytest.MonkeyPatch.context() as patch:
            if not refusals:  # as in a storm of changes: the slots were just read, and are refused
                patch.setattr(reader, "_slots", None)
            patch.setattr("indexer.index.reader._REFUSALS", refusals)
            patch.setattr("indexer.index.lookup._BLOCKS_PER_CALL", blocks_per_call)
            matches = self.do(reader.lookup([packed(*chain) for chain in chains], tiers, instances))
        for tier in tiers:
            for instance in IPS if instances is None else [name for name in instances if name != "*"]:
                expected = [self._expected(tier, instance, chain) for chain in chains]
                ranks = {rank: max(counts[rank] for counts in expected) for rank in expected[0]}
                got = matches.ranks(tier, instance)
                assert {r: n for r, n in got.items() if n} == {r: n for r, n in ranks.items() if n}
                assert matches.blocks(tier, instance) == max(ranks.values(), default=0)
            assert matches.blocks(tier, "*") == 0
        pool_wide = max(self._expected("l3", "*", chain)[0] for chain in chains)
        asked = "l3" in tiers and (instances is None or "*" in instances)
        assert matches.pool_wide() == (pool_wide if asked else 0)

    @rule(number=st.integers(0, WORLD - 1))
    def holders(self, number: int) -> None:
        expected = {f"l3:{host}" for host, blocks in self.hosts.items() if number in blocks}
        for (tier, key, group), blocks in self.held.items():
            if number in blocks:
                expected.add(f"{tier}:{key.name}" + (f":g{group}" if group else ""))
        assert self.do(self.index.reader.holders(block(number))) == sorted(expected)

    def teardown(self) -> None:
        try:
            self.do(self.index.check())
            self.do(self.index.sweep_all())
            self.do(self.index.check())
            stats = self.do(self.index.reader.stats())
            assert all(tier.retired == 0 for tier in stats.tiers.values())
        finally:
            self.do(self.client.aclose())
            self.loop.close()


@pytest.fixture
def machine(any_redis: Server) -> type[Machine]:
    Machine.server = any_redis
    return Machine


def test_lookups_are_exact_whatever_is_written_in_between(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
