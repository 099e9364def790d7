"""Requests are decoded strictly: what is not allowed is a BadRequestError that names it, nothing else."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.api.decode import decode_hit_rate, decode_question
from indexer.api.errors import BadRequestError
from indexer.blocks import block_of_int, unpack

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["server_ip", "body", "token_ids", "block_size", "cache_salt", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in (decode_hit_rate, decode_question):
        with pytest.raises(BadRequestError):
            decode(data)


@given(JSON)
def test_any_json_is_decoded_or_refused(value: object) -> None:
    for decode in (decode_hit_rate, decode_question):
        with contextlib.suppress(BadRequestError):
            decode(json.dumps(value).encode("utf-8", "surrogatepass"))


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_a_block_is_the_same_as_hex_and_as_signed_or_unsigned_integer(value: int) -> None:
    unsigned = value & ((1 << 64) - 1)
    signed = unsigned - (1 << 64) if unsigned >> 63 else unsigned
    hexes = [f"{unsigned:016x}", f"{unsigned:016X}"]
    body = json.dumps({"block_hashes": [value, unsigned, signed, *hexes]}).encode()
    assert unpack(decode_question(body).blocks) == [block_of_int(value)] * 5


@pytest.mark.parametrize(
    "wrong",
    [
        1 << 64,
        -(1 << 63) - 1,
        "12",
        "0x00000000000000ab",
        "g" * 16,
        "1" * 17,
        "٣" * 16,
        "",
        1.0,
        None,
        True,
        [],
    ],
)
def test_what_is_no_block_is_refused(wrong: object) -> None:
    with pytest.raises(BadRequestError, match=r"block_hashes"):
        decode_question(json.dumps({"block_hashes": [1, wrong]}).encode())


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "exactly one of token_ids and block_hashes"),
        ({"token_ids": [1], "block_hashes": [1], "block_size": 1}, "exactly one"),
        ({"token_ids": [1]}, "block_size"),
        ({"token_ids": [1], "block_size": 0}, "block_size"),
        ({"token_ids": [1], "block_size": 1, "tiers": []}, "tiers"),
        ({"token_ids": [1], "block_size": 1, "tiers": ["l4"]}, "tiers"),
        ({"token_ids": [1], "block_size": 1, "candidates": "10.0.0.1"}, "candidates"),
        ({"token_ids": [1], "block_size": 1, "block_sise": 1}, "block_sise"),
    ],
)
def test_lookup_names_what_is_wrong(body: object, named: str) -> None:
    with pytest.raises(BadRequestError, match=named):
        decode_question(json.dumps(body).encode())


def test_tiers_default_to_all_and_are_asked_once() -> None:
    assert decode_question(b'{"block_hashes": []}').tiers == ("l1", "l2", "l3")
    assert decode_question(b'{"block_hashes": [], "tiers": ["l3", "l1", "l3"]}').tiers == ("l3", "l1")
