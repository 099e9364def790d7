"""Completeness, and the view against a model of plain sets."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.mooncake.completeness import Fixed, required
from collector.mooncake.keys import BlockKey, Part, parse
from collector.mooncake.view import View

DIGEST = "ab" * 24
A, B = "10.0.0.1:15000", "10.0.0.2:15000"
HOST_A, HOST_B = "10.0.0.1", "10.0.0.2"


def part(tp: int, pp: int = 0, slab: str = "") -> Part:
    return Part(f"0.0.{tp}", str(pp), slab)


def key(block: int, tp: int = 0, pp: int = 0, model: str = "M") -> str:
    return f"{model}@pcp0@dcp0@head_or_tp_rank:{tp}@pp_rank:{pp}@{DIGEST}{block:016x}"


def view(require_all: bool = True, fixed: Fixed | None = None) -> View:
    return View(lambda place: place.rpartition(":")[0], require_all=require_all, fixed=fixed or Fixed())


def put(target: View, at: dict[str, set[str]]) -> None:
    for name, places in at.items():
        named = parse(name)
        assert isinstance(named, BlockKey)
        target.add(name, named)
        target.place(name, frozenset(places))


def claims(target: View) -> dict[int, set[str]]:
    target.settle()
    return {int(block, 16): set(holders) for block, holders in target.claims.items()}


def test_all_lanes_times_all_stages_times_all_slabs() -> None:
    shown = [part(0, 0, "0"), part(1, 0, "0"), part(0, 1, "1")]
    assert required(shown, Fixed()) == {part(*axes) for axes in product((0, 1), (0, 1), ("0", "1"))}


def test_context_parallel_ranks_go_along_with_their_lane() -> None:
    shown = [Part("0.0.0", "0", ""), Part("0.1.1", "0", "")]
    assert required(shown, Fixed()) == set(shown)


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        (Fixed(tp=4), {part(tp) for tp in range(4)}),
        (Fixed(tp=1), {part(0)}),
        (Fixed(pp=2), {part(tp, pp) for tp in (0, 1) for pp in (0, 1)}),
        (Fixed(tp=1, pp=1), {part(0)}),
    ],
)
def test_the_configuration_fixes_an_axis(fixed: Fixed, expected: set[Part]) -> None:
    assert required([part(0), part(1)], fixed) == expected


def test_an_axis_that_keys_do_not_name_can_not_be_fixed() -> None:
    layerwise = Part("0.0.0", "", "3")
    assert required([layerwise], Fixed(pp=2)) == {layerwise}


def test_a_block_counts_only_with_every_rank() -> None:
    mine = view()
    put(mine, {key(1, tp): {A} for tp in range(4)} | {key(2, tp): {A} for tp in range(3)})
    assert claims(mine) == {1: {HOST_A, "*"}}


def test_a_block_that_lies_on_several_hosts_is_only_in_the_pool() -> None:
    mine = view()
    put(mine, {key(1, 0): {A}, key(1, 1): {B}, key(2, 0): {A, B}, key(2, 1): {B}})
    assert claims(mine) == {1: {"*"}, 2: {HOST_B, "*"}}


def test_any_part_is_enough_when_so_configured() -> None:
    mine = view(require_all=False)
    put(mine, {key(1, 0): {A}, key(1, 1): {B}, key(2, 1): {A}})
    assert claims(mine) == {1: {HOST_A, HOST_B, "*"}, 2: {HOST_A, "*"}}


def test_disk_only_is_no_memory() -> None:
    mine = view()
    put(mine, {key(1, 0): {A}, key(1, 1): set()})
    assert claims(mine) == {}


def test_a_bigger_rank_set_makes_older_blocks_incomplete_and_back() -> None:
    mine = view()
    put(mine, {key(1, 0): {A}})
    assert claims(mine) == {1: {HOST_A, "*"}}
    put(mine, {key(2, 1): {A}})
    assert claims(mine) == {}
    mine.remove(key(2, 1))
    assert claims(mine) == {1: {HOST_A, "*"}}


def test_models_have_rank_sets_of_their_own() -> None:
    mine = view()
    put(mine, {key(1, 0, model="M"): {A}, key(2, 0, model="N"): {B}, key(2, 1, model="N"): {B}})
    assert claims(mine) == {1: {HOST_A, "*"}, 2: {HOST_B, "*"}}


def test_fields_of_one_engine_do_not_blank_another_shape_of_key() -> None:
    """While a fleet is upgraded, keys with and without groups live side by side."""
    mine = view()
    grouped = f"M@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@cache_role:kv@cache_family:default@{DIGEST}"
    put(mine, {key(1): {A}, f"{grouped}{2:016x}": {B}})
    assert claims(mine) == {1: {HOST_A, "*"}, 2: {HOST_B, "*"}}


KEYS = [key(block, tp, pp) for block in range(3) for tp in range(2) for pp in range(2)]
PLACES = [A, "10.0.0.1:15001", B]
steps = st.one_of(
    st.tuples(st.just("place"), st.sampled_from(KEYS), st.frozensets(st.sampled_from(PLACES), max_size=2)),
    st.tuples(st.just("add"), st.sampled_from(KEYS), st.none()),
    st.tuples(st.just("remove"), st.sampled_from(KEYS), st.none()),
    st.tuples(st.just("drop"), st.sampled_from(PLACES), st.none()),
    st.tuples(st.just("settle"), st.just(""), st.none()),
)


def model_claims(model: dict[str, frozenset[str]], require_all: bool) -> dict[int, set[str]]:
    """The same question answered from scratch, with nothing but sets."""
    named = {name: parse(name) for name in model}
    lanes = {n.part.lane for n in named.values()}
    stages = {n.part.stage for n in named.values()}
    result: dict[int, set[str]] = {}
    for block in range(3):
        here = {n.part: model[name] for name, n in named.items() if int(n.block, 16) == block}
        per_part = [
            {place.rpartition(":")[0] for place in here.get(Part(lane, stage, ""), ())}
            for lane, stage in product(lanes, stages)
        ]
        if require_all and per_part and all(per_part):
            result[block] = set.intersection(*per_part) | {"*"}
        if not require_all and any(per_part):
            result[block] = set.union(*per_part) | {"*"}
    return result


@settings(max_examples=300)
@given(st.lists(steps, max_size=40), st.booleans())
def test_any_order_of_news_gives_what_the_sets_give(script: list[tuple], require_all: bool) -> None:
    mine = view(require_all)
    model: dict[str, frozenset[str]] = {}
    changed: set[str] = set()
    before: dict[str, frozenset[str]] = {}
    for what, name, places in script:
        if what in ("add", "place"):
            mine.add(name, parse(name))
            model.setdefault(name, frozenset())
        if what == "place":
            mine.place(name, places)
            model[name] = places
        elif what == "remove":
            mine.remove(name)
            model.pop(name, None)
        elif what == "drop":
            mine.drop(lambda place, lost=name: place == lost)
            model = {k: v - {name} for k, v in model.items()}
        elif what == "settle":
            changed |= mine.settle()
    changed |= mine.settle()
    assert {int(b, 16): set(h) for b, h in mine.claims.items()} == model_claims(model, require_all)
    moved = {b for b in before.keys() | mine.claims.keys() if before.get(b) != mine.claims.get(b)}
    assert moved <= changed, "a change that nobody was told of is never written"
    assert len(mine) == len(model)


def test_nothing_touched_nothing_changed() -> None:
    mine = view()
    put(mine, {key(1): {A}})
    assert mine.settle()
    put(mine, {key(1): {A}})
    assert mine.settle() == set()
