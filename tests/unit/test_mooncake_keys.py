"""The grammars of Mooncake keys: recorded ones, made-up ones, garbage."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collector.mooncake.keys import BlockKey, ForeignKey, Part, parse

ROWS = json.loads((Path(__file__).parent.parent / "data" / "mooncake" / "keys.json").read_text())
RECORDED_BLOCK = "d1b6325ca92fad5f"

hashes = st.sampled_from([32, 64, 128]).flatmap(lambda n: st.text("0123456789abcdef", min_size=n, max_size=n))
# Model names with every separator that the grammars use.
models = st.text("aZ0-._/@:q", min_size=1, max_size=20).filter(lambda m: not m.startswith("@"))
plain_models = st.from_regex(r"[A-Z][A-Za-z0-9._-]{0,12}(/[A-Z][a-z0-9.-]{0,8})?(@v[0-9])?", fullmatch=True)
ranks = st.integers(0, 127)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['connector']}: {row['case'][:40]}")
def test_keys_that_real_connectors_made(row: dict) -> None:
    parsed = [parse(key) for key in row["keys"]]
    if row["connector"].startswith("lmcache"):
        assert set(parsed) == {ForeignKey("lmcache")}
        return
    assert all(isinstance(named, BlockKey) and named.block == RECORDED_BLOCK for named in parsed)
    assert len({named.part for named in parsed}) == len(row["keys"]), "each key is another part"
    assert len({named.space for named in parsed}) == 1
    assert parsed[0].model.split("@")[0] in ("Qwen3-32B", "M", "prod")


@given(models, ranks, ranks, ranks, ranks, hashes)
def test_ascend_round_trip(model: str, pcp: int, dcp: int, head: int, pp: int, digest: str) -> None:
    named = parse(f"{model}@pcp{pcp}@dcp{dcp}@head_or_tp_rank:{head}@pp_rank:{pp}@{digest}")
    assert named == BlockKey(f"ascend:{model}", model, Part(f"{pcp}.{dcp}.{head}", str(pp), ""), digest[-16:])


@given(models, ranks, ranks, ranks, st.sampled_from(["default", "c1", "c128", "mixed"]), hashes)
def test_ascend_with_groups_round_trip(
    model: str, head: int, pp: int, group: int, family: str, digest: str
) -> None:
    labels = f"@pcp0@dcp0@head_or_tp_rank:{head}@pp_rank:{pp}@group:{group}"
    named = parse(f"{model}{labels}@cache_role:kv@cache_family:{family}@{digest}")
    assert named == BlockKey(
        f"ascend+group:{model}", model, Part(f"0.0.{head}", str(pp), f"{group}.{family}"), digest[-16:]
    )
    state = parse(f"{model}{labels}@cache_role:state@cache_family:{family}@{digest}")
    assert state == ForeignKey("ascend-state"), "a state is no part of a prefix"


@given(models, ranks, ranks, hashes)
def test_ascend_layerwise_round_trip(model: str, head: int, layer: int, digest: str) -> None:
    old = parse(f"{model}@pcp0@dcp0@head_or_tp_rank:{head}@{digest}@{layer}")
    assert old == BlockKey(f"ascend+layer:{model}", model, Part(f"0.0.{head}", "", str(layer)), digest[-16:])
    labels = "@group:1@cache_role:kv@cache_family:default"
    new = parse(f"{model}@pcp0@dcp0@head_or_tp_rank:{head}{labels}@layer_id:{layer}@{digest}")
    part = Part(f"0.0.{head}", "", f"1.default.{layer}")
    assert new == BlockKey(f"ascend+group+layer:{model}", model, part, digest[-16:])


@given(models, ranks, ranks, ranks, st.none() | ranks, hashes)
@example("prod@M", 3, 1, 0, 1, "ab" * 32)
@example("M@store_tp:8@store_pp:1@store_format:tp_shared_mqa", 3, 0, 0, 0, "ab" * 32)
@example("M@store_pp:0@store_format:rank_local_tp8_layout_x", 0, 0, 0, None, "ab" * 16)
def test_vllm_round_trip(model: str, tp: int, dcp: int, pp: int, group: int | None, digest: str) -> None:
    tail = "" if group is None else f"@group:{group}"
    named = parse(f"{model}@tp_rank:{tp}@pcp0@dcp{dcp}@pp_rank:{pp}{tail}@{digest}")
    space = "vllm" if group is None else "vllm+group"
    part = Part(f"0.{dcp}.{tp}", str(pp), "" if group is None else str(group))
    assert named == BlockKey(f"{space}:{model}", model, part, digest[-16:])


@given(plain_models, st.integers(1, 64), st.data(), st.none() | ranks, hashes)
def test_the_oldest_ascend_shape(
    model: str, world: int, data: st.DataObject, layer: int | None, digest: str
) -> None:
    worker = data.draw(st.integers(0, world - 1))
    named = parse(f"{model}@{world}@{worker}@{digest}" + ("" if layer is None else f"@{layer}"))
    assert isinstance(named, BlockKey)
    assert (named.model, named.part.lane, named.block) == (model, str(worker), digest[-16:])
    assert named.part.slab == ("" if layer is None else str(layer))


@given(plain_models, st.none() | st.integers(0, 9), ranks, hashes)
def test_the_layerwise_data_path(model: str, group: int | None, head: int, digest: str) -> None:
    named = parse(model + ("" if group is None else f"@{group}") + f"@{digest}@{head}")
    part = Part(str(head), "", "" if group is None else str(group))
    assert named == BlockKey(f"ascend-data:{model}", model, part, digest[-16:])


@pytest.mark.parametrize(
    ("key", "family"),
    [
        ("Qwen/Qwen3-32B@8@0@-5@bfloat16", "lmcache"),
        ("m@8@3@abc@bfloat16@0", "lmcache"),
        ("m@8@3@abc@float8_e4m3fn@user%alice", "lmcache"),
        ("m@00000000@0@" + "ab" * 32, "lmcache"),
        ("m@00000000@0@" + "ab" * 32 + "@salt", "lmcache"),
        ("ab" * 32 + "_3_k", "sglang"),
        ("ab" * 32 + "__k", "sglang"),
        ("ab" * 32 + "_k", "sglang"),
        ("prod_meta-llama-Llama_" + "ab" * 32 + "_0_1_v", "sglang"),
        ("ab" * 32 + "_ukv1-0123456789abcdef_L0-32_H1", "sglang"),
    ],
)
def test_other_hash_domains_are_told_apart(key: str, family: str) -> None:
    assert parse(key) == ForeignKey(family)


@pytest.mark.parametrize(
    "key",
    [
        "", "@", "a@1", "模型@1", "ab" * 32, "DeepSeek-R1@PROCESSING@" + "ab" * 32,
        "@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@" + "ab" * 32,
        "M@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@" + "AB" * 32,
        "M@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@" + "ab" * 8,
        "M@pcp0@dcp0@head_or_tp_rank:x@pp_rank:0@" + "ab" * 32,
    ],
)  # fmt: skip
def test_unknown_shapes(key: str) -> None:
    assert parse(key) is None


@given(st.text() | st.text("@:pcdkrank_0a", max_size=200) | st.binary().map(lambda b: b.decode("latin1")))
def test_garbage_is_never_an_error(key: str) -> None:
    named = parse(key)
    if isinstance(named, BlockKey):
        assert key.startswith(named.model)
        assert named.block in key
