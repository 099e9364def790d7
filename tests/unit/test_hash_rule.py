"""The hash rule beyond the golden cases: any prompt, any block size, alternatives, refusals."""

import pickle
import sys
from array import array
from hashlib import sha256
from types import SimpleNamespace

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.blocks import unpack
from indexer.engines import engine
from indexer.engines.base import MmItem, Prompt
from indexer.engines.vllm import cbor
from indexer.engines.vllm.hashing import VllmHashRule
from indexer.errors import HashError

EDGES = [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
IDS = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1) | st.integers(0, 152000)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def reference(serialise, seed: str, tokens: list[int], size: int, salt: str) -> list[bytes]:
    """The rule as written down, one block after the other (dialects before 0.31)."""
    parent = sha256(serialise(seed)).digest()
    digests = []
    for start in range(0, len(tokens) - size + 1, size):
        extra = (salt,) if salt and start == 0 else None
        parent = sha256(serialise((parent, tuple(tokens[start : start + size]), extra))).digest()
        digests.append(parent)
    return digests


@given(st.lists(IDS, max_size=80), st.integers(1, 90), TEXT, TEXT)
def test_cbor_chain_equals_the_rule_as_written_down(tokens, size, seed, salt) -> None:
    rule = VllmHashRule("sha256_cbor", seed, "0.18.0")
    expected = reference(lambda value: cbor2.dumps(value, canonical=True), seed, tokens, size, salt)
    assert rule.digests(Prompt(tokens, size, cache_salt=salt)) == expected
    assert rule.chains(Prompt(tokens, size, cache_salt=salt)) == ["".join(d[-8:].hex() for d in expected)]


@given(st.lists(IDS, max_size=80), st.integers(1, 90), TEXT, TEXT)
def test_pickle_chain_equals_the_rule_as_written_down(tokens, size, seed, salt) -> None:
    rule = VllmHashRule("sha256", seed, "0.18.0")
    expected = reference(lambda value: pickle.dumps(value, protocol=5), seed, tokens, size, salt)
    assert rule.digests(Prompt(tokens, size, cache_salt=salt)) == expected


@pytest.mark.parametrize("dialect", ["0.18.0", "0.33.0"])
def test_pickle_does_not_see_whether_equal_texts_are_one_object(dialect: str) -> None:
    text = "same text"
    rule = VllmHashRule("sha256", "0", dialect)
    other = "".join(list(text))
    assert rule.digests(Prompt([1], 1, cache_salt=text, lora_name=text, lora_path="/p")) == rule.digests(
        Prompt([1], 1, cache_salt=text, lora_name=other, lora_path="/p")
    )


VALUES = st.recursive(
    st.none() | TEXT | st.binary(max_size=300) | st.integers(-(2**64), 2**64 - 1),
    lambda inner: st.lists(inner, max_size=30).map(tuple),
)


@given(VALUES)
def test_canonical_cbor(value) -> None:
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.parametrize("value", [True, 1.5, {"a": 1}, [1]])
def test_cbor_refuses_what_vllm_never_hashes(value) -> None:
    with pytest.raises(TypeError):
        cbor.encode(value)


@pytest.mark.parametrize("kind", [tuple, lambda t: array("I", t), lambda t: np.array(t, np.int64), np.array])
def test_sequences_of_any_kind_hash_alike(kind) -> None:
    tokens = list(range(100, 180))
    for algo in ("sha256_cbor", "sha256"):
        rule = VllmHashRule(algo, "0")
        assert rule.digests(Prompt(kind(tokens), 16)) == rule.digests(Prompt(tokens, 16))


@pytest.mark.parametrize("bad", [-1, 2**64, 10**30, 1.0, "1", None])
@pytest.mark.parametrize("algo", ["sha256_cbor", "sha256"])
def test_a_bad_token_id_is_named_wherever_it_stands(bad, algo) -> None:
    with pytest.raises(HashError, match=r"token_ids\[4\]"):
        VllmHashRule(algo, "0").digests(Prompt([1, 2, 3, 4, bad], 2))


def test_a_block_longer_than_any_prompt() -> None:
    assert VllmHashRule("sha256_cbor", "0").chains(Prompt([1, 2], 10**30)) == [""]


def test_one_chain_where_versions_agree() -> None:
    tokens = list(range(64))
    for prompt in (Prompt(tokens, 16), Prompt([], 16), Prompt(tokens, 16, cache_salt="", lora_name="")):
        assert len(VllmHashRule("sha256_cbor", "0").chains(prompt)) == 1


def test_alternatives_where_versions_differ_newest_first() -> None:
    tokens = list(range(64))
    rule = VllmHashRule("sha256_cbor", "0")
    old, middle, new = (VllmHashRule("sha256_cbor", "0", v) for v in ("0.18.1rc2", "v0.19", "0.33.0"))
    salted = Prompt(tokens, 16, cache_salt="tenant-a")
    assert rule.chains(salted) == new.chains(salted) + old.chains(salted)
    assert old.chains(salted) == middle.chains(salted)
    assert [d[-8:].hex() for d in rule.digests(salted)] == unpack(new.chains(salted)[0])
    picture = Prompt(tokens, 16, mm=(MmItem("img", 4, 20),))
    assert rule.chains(picture) == new.chains(picture) + middle.chains(picture) + old.chains(picture)
    assert len(set(rule.chains(picture))) == 3


def test_an_item_before_the_first_full_block_is_done_changes_nothing() -> None:
    tail = Prompt(list(range(20)), 16, mm=(MmItem("img", 17, 2),))
    assert VllmHashRule("sha256_cbor", "0").chains(tail) == VllmHashRule("sha256_cbor", "0").chains(
        Prompt(list(range(20)), 16)
    )


def test_items_are_ordered_by_offset() -> None:
    one, two = MmItem("a", 1, 2), MmItem("b", 5, 2)
    rule = VllmHashRule("sha256_cbor", "0")
    tokens = list(range(16))
    assert rule.chains(Prompt(tokens, 16, mm=(two, one))) == rule.chains(Prompt(tokens, 16, mm=(one, two)))


def test_lora_without_path_leaves_the_older_dialects() -> None:
    prompt = Prompt(list(range(32)), 16, lora_name="l")
    assert VllmHashRule("sha256_cbor", "0").chains(prompt) == VllmHashRule(
        "sha256_cbor", "0", "0.30.0"
    ).chains(prompt)
    for rule in (VllmHashRule("sha256_cbor", "0", "0.31.0"), VllmHashRule("sha256_cbor", "0")):
        with pytest.raises(HashError, match="lora_path"):
            rule.digests(prompt)
    with pytest.raises(HashError, match="lora_path"):
        VllmHashRule("sha256_cbor", "0", "0.31.0").chains(prompt)
    with pytest.raises(HashError, match="lora_name"):
        VllmHashRule("sha256_cbor", "0").chains(Prompt([1], 1, lora_path="/a"))


@pytest.mark.parametrize("algo", ["sha256_cbor", "sha256", "xxhash_cbor", "xxhash"])
def test_a_none_hash_of_any_length_replaces_the_seed(algo) -> None:
    for none_hash in (b"", b"x", b"y" * 32, b"z" * 300):
        rule = VllmHashRule(algo, None, "0.13.0", none_hash)
        assert len(rule.digests(Prompt([1, 2, 3, 4], 2))) == 2
    two = VllmHashRule("sha256_cbor", None, "0.13.0", b"z" * 300).digests(Prompt([1, 2, 3, 4], 2))
    first = sha256(cbor2.dumps((b"z" * 300, (1, 2), None))).digest()
    assert two == [first, sha256(cbor2.dumps((first, (3, 4), None))).digest()]


@pytest.mark.parametrize(
    ("algo", "dialect"), [("xxhash", "auto"), ("xxhash_cbor", "0.33.0"), ("sha256", "0.28.9")]
)
def test_a_random_seed_is_refused(algo, dialect) -> None:
    with pytest.raises(HashError, match="random"):
        VllmHashRule(algo, None, dialect)


def test_seeds_are_raw_text() -> None:
    seeds = ("0", "00", "+0", "", "random")
    assert len({VllmHashRule("sha256_cbor", seed).none_hash for seed in (*seeds, None)}) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VllmHashRule("md5", "0"), "'md5' is unknown; known: sha256_cbor"),
        (lambda: VllmHashRule("sha256_cbor", "0", "latest"), "'latest' is neither auto nor"),
        (lambda: VllmHashRule("sha256_cbor", "\ud800"), "seed: not Unicode"),
        (lambda: VllmHashRule("sha256_cbor", "0").chains(Prompt([1], 1, cache_salt="\ud800")), "not Unicode"),
        (lambda: VllmHashRule("sha256_cbor", "0").chains(Prompt([1], 0)), "block_size: 0"),
        (
            lambda: VllmHashRule("sha256_cbor", "0").chains(Prompt([1], 1, mm=(MmItem("i", -1, 1),))),
            "mm: 'i'",
        ),
        (lambda: VllmHashRule("sha256_cbor", "0").chains(Prompt([1], 1, mm=(MmItem("i", 0, 0),))), "mm: 'i'"),
    ],
)
def test_refusals_name_field_and_value(make, message) -> None:
    with pytest.raises(HashError, match=message):
        make()


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(HashError, match=r"cache-indexer\[xxhash\]"):
        VllmHashRule("xxhash", "0")


def test_engines_by_name() -> None:
    key = SimpleNamespace(
        engine="vllm", python_hash_seed="0", prefix_caching_hash_algo="sha256_cbor", dialect="auto"
    )
    assert engine(key).name == "vllm"
    key.engine = "other"
    with pytest.raises(HashError, match=r"engine: 'other' is unknown; known: vllm"):
        engine(key)
