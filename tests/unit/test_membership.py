"""Who is in the fleet. Each scenario is named after the failure it guards against."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from collector.discovery.base import EngineTarget, Gone, Master, Rank, Snapshot
from collector.membership import Roster

GRACE = 30.0


def engine(ip: str, incarnation: str | None = "a", ranks: int = 1) -> EngineTarget:
    return EngineTarget(ip, incarnation, tuple(Rank(f"tcp://{ip}:{5557 + r}") for r in range(ranks)))


def followed(view):
    return {(f.ip, f.rank): f.incarnation for f in view.feeds}


def test_an_engine_is_followed_and_its_stream_kept():
    roster = Roster(GRACE)
    view = roster.observe(Snapshot((engine("e1", ranks=2),), (Master("http://m:9003"),)), 0)
    assert followed(view) == {("e1", 0): "a", ("e1", 1): "a"}
    assert view.feeds[1].events == "tcp://e1:5558"
    assert view.masters == (Master("http://m:9003"),)
    assert roster.retire({("e1", 0): "a", ("e1", 1): "a"}, 1000) == []


def test_pod_that_disappears_is_gone_after_the_grace_time_and_not_before():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1"), engine("e2"))), 0)
    roster.observe(Snapshot((engine("e2"),)), 10)
    assert followed(roster.view(39.9)) == {("e1", 0): "a", ("e2", 0): "a"}
    assert roster.retire({("e1", 0): "a", ("e2", 0): "a"}, 39.9) == []
    assert followed(roster.view(40)) == {("e2", 0): "a"}
    assert [(r.ip, r.rank) for r in roster.retire({("e1", 0): "a", ("e2", 0): "a"}, 40)] == [("e1", 0)]


def test_losing_most_engines_at_once_retires_nobody_if_they_come_back():
    fleet = tuple(engine(f"e{i}") for i in range(20))
    streams = {(e.ip, 0): "a" for e in fleet}
    roster = Roster(GRACE)
    roster.observe(Snapshot(fleet), 0)
    roster.observe(Snapshot(()), 5)
    assert roster.retire(streams, 34) == []
    roster.observe(Snapshot(fleet), 34)
    assert roster.retire(streams, 300) == []
    # A second absence starts a grace time of its own.
    roster.observe(Snapshot(()), 300)
    assert roster.retire(streams, 329) == []
    assert len(roster.retire(streams, 330)) == 20


def test_api_error_retires_nobody_however_long_it_lasts():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1"),)), 0)
    roster.observe(Snapshot((), complete=False, error="API server away"), 5)
    assert followed(roster.view(10_000)) == {("e1", 0): "a"}
    assert roster.retire({("e1", 0): "a", ("old", 0): "x"}, 10_000) == []


def test_an_error_in_the_middle_of_an_absence_holds_the_retirement_up():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1"),)), 0)
    roster.observe(Snapshot(()), 5)
    roster.observe(Snapshot((), complete=False, error="timeout"), 10)
    assert roster.retire({("e1", 0): "a"}, 100) == []
    roster.observe(Snapshot(()), 101)
    assert [r.ip for r in roster.retire({("e1", 0): "a"}, 101)] == ["e1"]


def test_nothing_is_retired_before_the_first_snapshot():
    assert Roster(GRACE).retire({("e1", 0): "a"}, 1e9) == []


def test_explicit_deletion_counts_at_once():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1"), engine("e2"))), 0)
    view = roster.observe(Snapshot((engine("e2"),), gone=(Gone("e1", "a"),)), 1)
    assert followed(view) == {("e2", 0): "a"}
    assert [r.ip for r in roster.retire({("e1", 0): "a", ("e2", 0): "a"}, 1)] == ["e1"]


def test_delayed_delete_of_the_old_pod_never_removes_the_new_one_on_its_address():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1", "old"),)), 0)
    roster.observe(Snapshot((engine("e1", "new"),)), 1)
    view = roster.observe(Snapshot((engine("e1", "new"),), gone=(Gone("e1", "old"),)), 2)
    assert followed(view) == {("e1", 0): "new"}
    assert roster.retire({("e1", 0): "new"}, 2) == []


def test_delete_of_the_old_pod_spares_a_new_one_that_only_redis_knows_yet():
    """The last leader already saw the new pod; this one's list is older, and must not undo that."""
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1", "old"),)), 0)
    roster.observe(Snapshot((), gone=(Gone("e1", "old"),)), 1)
    assert roster.retire({("e1", 0): "new"}, 2) == []
    assert [r.ip for r in roster.retire({("e1", 0): "old"}, 2)] == ["e1"]


def test_restarted_engine_is_the_same_stream_with_another_incarnation():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1", "uid+0"),)), 0)
    view = roster.observe(Snapshot((engine("e1", "uid+1"),)), 1)
    assert followed(view) == {("e1", 0): "uid+1"}
    assert roster.retire({("e1", 0): "uid+0"}, 1000) == []  # opening the new life replaces it


def test_collector_restart_does_not_wipe_a_healthy_pod():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1"),)), 0)
    assert roster.retire({("e1", 0): "a"}, 0) == []


def test_idle_engine_is_not_dead():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1"),)), 0)
    assert followed(roster.view(1e6)) == {("e1", 0): "a"}


def test_streams_in_redis_that_nobody_lists_go_after_the_grace_time():
    roster = Roster(GRACE)
    roster.observe(Snapshot(()), 100)
    assert roster.retire({("ghost", 3): None}, 100) == []
    assert [(r.ip, r.rank) for r in roster.retire({("ghost", 3): None}, 130)] == [("ghost", 3)]


def test_rank_that_the_instance_no_longer_has():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1", "a", ranks=2),)), 0)
    view = roster.observe(Snapshot((engine("e1", "a", ranks=1),)), 10)
    streams = {("e1", 0): "a", ("e1", 1): "a"}
    # It may be a slip of whoever counts ranks, so it is followed on for a while.
    assert followed(view) == streams
    assert roster.retire(streams, 39) == []
    assert [(r.ip, r.rank) for r in roster.retire(streams, 40)] == [("e1", 1)]
    assert followed(roster.view(40)) == {("e1", 0): "a"}


def test_ranks_that_go_and_come_back():
    roster = Roster(GRACE)
    streams = {("e1", rank): "a" for rank in range(3)}
    for now, ranks in ((0, 3), (10, 2), (20, 1), (30, 2)):
        view = roster.observe(Snapshot((engine("e1", "a", ranks=ranks),)), now)
        assert followed(view) == streams
    assert [r.rank for r in roster.retire(streams, 40)] == [2]
    assert [r.rank for r in roster.retire(streams, 300)] == [2]
    assert set(followed(roster.view(300))) == {("e1", 0), ("e1", 1)}


def test_rank_of_a_replaced_engine_goes_at_once():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1", "a", ranks=2),)), 0)
    roster.observe(Snapshot((engine("e1", "b", ranks=1),)), 10)
    assert [(r.ip, r.rank) for r in roster.retire({("e1", 0): "a", ("e1", 1): "a"}, 10)] == [("e1", 1)]


def test_list_that_is_older_than_redis_does_not_retire_a_newer_engines_rank():
    """A new leader's discovery may lag behind what the last leader saw."""
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("e1", "old", ranks=1),)), 0)
    assert roster.retire({("e1", 0): "new", ("e1", 1): "new"}, 1) == []
    roster.observe(Snapshot((engine("e1", "new", ranks=2),)), 2)
    assert roster.retire({("e1", 0): "new", ("e1", 1): "new"}, 1000) == []


def test_host_without_ranks_is_an_instance_without_feeds():
    view = Roster(GRACE).observe(Snapshot((engine("store", ranks=0),)), 0)
    assert view.instances == ("store",)
    assert view.feeds == ()


def test_two_engines_claim_one_address():
    roster = Roster(GRACE)
    roster.observe(Snapshot((engine("host", "first"),)), 0)
    both = (engine("host", "second"), engine("host", "first"))
    view = roster.observe(Snapshot(both), 1)
    assert followed(view) == {("host", 0): "first"}
    assert [(r.ip, r.incarnation, r.holder) for r in view.refused] == [("host", "second", "first")]
    # The second takes over as soon as the first is gone; nothing has to wait for a grace time.
    view = roster.observe(Snapshot(both[:1], gone=(Gone("host", "first"),)), 2)
    assert followed(view) == {("host", 0): "second"}
    assert view.refused == ()


def test_memory_does_not_grow_with_pod_churn():
    roster = Roster(1.0)
    for i in range(2000):
        roster.observe(Snapshot((engine(f"e{i}", f"u{i}"),), gone=(Gone(f"e{i - 1}", f"u{i - 1}"),)), i)
    sizes = [len(v) for v in vars(roster).values() if isinstance(v, dict)]
    assert max(sizes) < 20


@given(
    st.lists(
        st.lists(
            st.builds(engine, st.sampled_from("xyz"), st.sampled_from("abc"), st.integers(0, 3)), max_size=6
        ),
        max_size=6,
    )
)
def test_one_address_one_engine(history):
    roster = Roster(GRACE)
    for now, engines in enumerate(history):
        view = roster.observe(Snapshot(tuple(engines)), now)
        assert len(set(view.instances)) == len(view.instances)
        assert {e.ip for e in engines} <= set(view.instances)
        assert len(followed(view)) == len(view.feeds)
        kept = len({e.ip for e in engines})
        assert len(view.refused) == len(engines) - kept


class Fleet(RuleBasedStateMachine):
    """A fleet with pods that come, restart and go, watched through a source that may be late or blind."""

    def __init__(self):
        super().__init__()
        self.roster = Roster(GRACE)
        self.now = 0.0
        self.alive: dict[str, EngineTarget] = {}
        self.redis: dict[tuple[str, int], str] = {}
        self.dead: list[Gone] = []
        self.births = 0
        self.unseen: dict[str, float] = {}  # since when each address has been without an engine, as listed
        self.seen = False

    def snapshot(self, gone=(), complete=True):
        engines = tuple(self.alive.values()) if complete else ()
        view = self.roster.observe(Snapshot(engines, complete=complete, gone=tuple(gone)), self.now)
        if complete:
            self.seen = True
            for ip in {ip for ip, _ in self.redis} | set(self.unseen):
                if ip in self.alive:
                    self.unseen.pop(ip, None)
                else:
                    self.unseen.setdefault(ip, self.now)
        for feed in view.feeds:
            if feed.ip in self.alive and complete:
                assert feed.incarnation == self.alive[feed.ip].incarnation
        if complete:
            for feed in view.feeds:
                self.redis[feed.ip, feed.rank] = feed.incarnation
        return view

    @rule(ip=st.sampled_from("xyz"), ranks=st.integers(1, 3))
    def start(self, ip, ranks):
        if ip in self.alive:
            self.dead.append(Gone(ip, self.alive[ip].incarnation))
        self.births += 1
        self.alive[ip] = engine(ip, f"u{self.births}", ranks)
        self.snapshot()

    @rule(ip=st.sampled_from("xyz"), ranks=st.integers(0, 3))
    def resize(self, ip, ranks):
        """Not a new process: whoever counts its ranks has changed its mind."""
        if ip in self.alive:
            self.alive[ip] = engine(ip, self.alive[ip].incarnation, ranks)
            self.snapshot()

    @rule(ip=st.sampled_from("xyz"), told=st.booleans())
    def die(self, ip, told):
        if ip in self.alive:
            gone = Gone(ip, self.alive.pop(ip).incarnation)
            self.dead.append(gone)
            self.snapshot([gone] if told else [])

    @rule(data=st.data())
    def late_delete(self, data):
        if self.dead:
            self.snapshot([data.draw(st.sampled_from(self.dead))])

    @rule(quarters=st.integers(1, 160))
    def wait(self, quarters):
        self.now += quarters / 4  # exact: of many a time t, t + GRACE - t is a little less than GRACE
        self.snapshot()

    @rule()
    def blind(self):
        self.snapshot(complete=False)
        self.now += 5 * GRACE
        before = dict(self.redis)
        explicit = {(g.ip, g.incarnation) for g in self.dead}
        for gone in self.roster.retire(before, self.now):
            held = self.alive.get(gone.ip)
            assert held is None or gone.rank >= len(held.ranks)
            assert (gone.ip, before[gone.ip, gone.rank]) in explicit

    @rule()
    def lead(self):
        for gone in self.roster.retire(dict(self.redis), self.now):
            incarnation = self.redis.pop((gone.ip, gone.rank))
            held = self.alive.get(gone.ip)
            if held is not None:
                assert gone.rank >= len(held.ranks), "a living stream was retired"
            elif Gone(gone.ip, incarnation) not in self.dead:
                assert self.now - self.unseen[gone.ip] >= GRACE

    @invariant()
    def the_living_are_followed(self):
        if self.seen:
            feeds = followed(self.roster.view(self.now))
            for ip, target in self.alive.items():
                for rank in range(len(target.ranks)):
                    assert feeds[ip, rank] == target.incarnation

    def teardown(self):
        """In the end, with a source that sees everything, exactly the living remain."""
        for wait in (0, GRACE):
            self.now += wait
            self.snapshot()
            for gone in self.roster.retire(dict(self.redis), self.now):
                del self.redis[gone.ip, gone.rank]
        assert set(self.redis) == {(e.ip, r) for e in self.alive.values() for r in range(len(e.ranks))}


TestFleet = Fleet.TestCase
