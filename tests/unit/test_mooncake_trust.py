"""Whether a master's empty answers are believed, and whether it is asked for a listing at all."""

from hypothesis import given
from hypothesis import strategies as st

from collector.mooncake.gate import Gate, Gauges, read
from collector.mooncake.trust import HOLD, Seen, Trust

FULL = Seen(keys=True, segments=True, same_run=True)
NOTHING_NEW_RUN = Seen(keys=False, segments=False, same_run=False)
NOTHING_SAME_RUN = Seen(keys=False, segments=False, same_run=True)
NO_KEYS_NEW_RUN = Seen(keys=False, segments=True, same_run=False)


def beliefs(*polls: Seen, trust: Trust | None = None) -> list[bool]:
    trust = trust or Trust(keys=True, segments=True)
    return [trust.believe(seen, float(now)) for now, seen in enumerate(polls)]


def test_a_restarted_master_is_not_believed_before_segments_are_back_and_a_second_poll_agrees() -> None:
    polls = [FULL, NOTHING_NEW_RUN, NOTHING_NEW_RUN, NO_KEYS_NEW_RUN, NO_KEYS_NEW_RUN, NO_KEYS_NEW_RUN]
    assert beliefs(*polls) == [True, False, False, False, True, True]


def test_keys_that_come_back_with_the_segments_were_never_lost() -> None:
    back = Seen(keys=True, segments=True, same_run=False)
    assert beliefs(FULL, NOTHING_NEW_RUN, NO_KEYS_NEW_RUN, back) == [True, False, False, True]


def test_an_emptied_master_that_did_not_restart_is_believed_at_the_second_poll() -> None:
    assert beliefs(FULL, NOTHING_SAME_RUN, NOTHING_SAME_RUN) == [True, False, True]
    removed_all = Seen(keys=False, segments=True, same_run=True)
    assert beliefs(FULL, removed_all, removed_all) == [True, False, True]


def test_a_new_leader_does_not_believe_the_first_empty_answer() -> None:
    assert beliefs(NO_KEYS_NEW_RUN, NO_KEYS_NEW_RUN, trust=Trust(True, True)) == [False, True]
    assert beliefs(NOTHING_NEW_RUN, trust=Trust(False, False)) == [True], "there was nothing to lose"


def test_nobody_ever_came_back() -> None:
    trust = Trust(keys=True, segments=True)
    assert not trust.believe(NOTHING_NEW_RUN, 0.0)
    assert not trust.believe(NOTHING_NEW_RUN, HOLD - 1)
    assert trust.believe(NOTHING_NEW_RUN, HOLD)


seen = st.builds(Seen, keys=st.booleans(), segments=st.booleans(), same_run=st.booleans())


@given(st.lists(seen, max_size=30))
def test_never_believed_at_once_and_never_doubted_for_ever(polls: list[Seen]) -> None:
    trust = Trust(keys=True, segments=True)
    had_keys = had_segments = True
    doubted = 0
    for now, poll in enumerate(polls):
        lost = (had_keys and not poll.keys) or (had_segments and not poll.segments)
        believed = trust.believe(poll, float(now))
        assert believed or lost, "only a loss is doubted"
        assert not (believed and lost and not doubted), "a loss needs a second poll"
        doubted = 0 if believed else doubted + 1
        assert doubted <= HOLD
        if believed:
            had_keys, had_segments = poll.keys, poll.segments


def gauges(**counters: int) -> Gauges:
    return read("".join(f"master_{name} {value}\n" for name, value in counters.items()))


def test_the_gate_holds_only_after_two_equal_readings() -> None:
    gate = Gate()
    quiet, moved = gauges(put_end_requests_total=1), gauges(put_end_requests_total=2)
    readings = [quiet, quiet, quiet, moved, moved, moved]
    assert [gate.holds(reading) for reading in readings] == [False, False, True, False, False, True]
    gate.reset()
    assert [gate.holds(moved) for _ in range(3)] == [False, False, True]


def test_reads_do_not_open_the_gate() -> None:
    quiet = gauges(put_end_requests_total=1, key_count=1)
    noisy = gauges(
        put_end_requests_total=1,
        key_count=1,
        get_replica_list_requests_total=7,
        batch_get_replica_list_items_total=9,
        ping_requests_total=4,
        exist_key_requests_total=5,
        fetch_tasks_requests_total=2,
        attempted_evictions_total=3,
    )
    assert quiet.values == noisy.values


def test_every_kind_of_change_opens_the_gate() -> None:
    before = gauges(put_end_requests_total=1, key_count=1, total_capacity_bytes=2)
    for change in (
        "put_end_requests_total",
        "batch_put_end_requests_total",
        "evicted_key_count",
        "remove_requests_total",
        "remove_by_regex_requests_total",
        "remove_all_requests_total",
        "total_capacity_bytes",
        "key_count",
        "unmount_segment_requests_total",
        "copy_end_requests_total",
        "move_end_requests_total",
        "batch_replica_clear_requests_total",
        "evict_disk_replica_requests_total",
        "promotion_completed_total",
    ):
        counters = {"put_end_requests_total": 1, "key_count": 1, "total_capacity_bytes": 2}
        counters[change] = counters.get(change, 0) + 1
        assert gauges(**counters).values != before.values, change
