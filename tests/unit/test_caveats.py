"""Every reason to distrust a lookup's numbers is said, and none is invented."""

import pytest

from indexer.caveats import STALE_SECONDS, caveats
from indexer.index.state import STAMP_NONE, StreamKey, StreamState


def stream(state: str = "live", **fields: object) -> StreamState:
    return StreamState(StreamKey("10.0.0.1", 0), "life", "inc", 7, STAMP_NONE, state, 0.1, **fields)  # type: ignore[arg-type]


def said(*streams: StreamState, age: float | None = 1.0, size: int | None = 16, **meta: str) -> str:
    return "\n".join(caveats(age, {"10.0.0.1": streams}, meta, size))


def test_a_healthy_pool_needs_no_warning() -> None:
    assert said(stream(block_size=16)) == ""
    assert said(stream(block_size=16), size=None) == ""


@pytest.mark.parametrize("state", ["connecting", "suspect", "lost"])
def test_a_stream_in_trouble_is_named(state: str) -> None:
    assert f"stream 10.0.0.1:0 is {state}" in said(stream(state))


def test_a_mismatch_tells_its_cause() -> None:
    assert "seed: engine seems to use another" in said(
        stream("mismatch", cause="seed: engine seems to use another")
    )
    assert "blockKey" in said(stream("mismatch"))


def test_the_pools_mismatch_is_told() -> None:
    assert "algorithm: sha256" in said(mismatch="algorithm: sha256")


def test_another_block_size_is_told() -> None:
    assert "block_size 16 was asked, but engines told 32, 128" in said(
        stream(block_size=128), stream(block_size=32)
    )


def test_cold_and_stale_are_told_apart() -> None:
    assert "never written" in said(age=None)
    assert "stale" in said(age=STALE_SECONDS + 1)


def test_a_hybrid_model_is_told() -> None:
    assert "KV-cache groups 0, 2" in said(stream(groups=(0, 2)))
    assert said(stream(groups=(0,))) == ""
