"""The self-check against recorded engines: silent when right, and naming what is wrong."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from indexer.blocks import unpack
from indexer.engines.base import MmItem, Prompt, Verdict
from indexer.engines.events import Removed, Stored
from indexer.engines.vllm import checker
from indexer.engines.vllm.checker import SURE_AFTER, VllmChecker
from indexer.engines.vllm.events import VllmDialect
from indexer.engines.vllm.hashing import VllmHashRule
from tests.captures import frames

INT_SEED_0 = "capture-0.18.0-bs32-int"
BYTES_UNSET = "capture-0.32.0-bs128-bytes-seedunset"
LORA = "capture-0.18.0-lora"
RIGHT = {
    INT_SEED_0: ("sha256_cbor", "0"),
    "capture-0.18.0-dp2": ("sha256_cbor", "0"),
    LORA: ("sha256_cbor", "0"),
    BYTES_UNSET: ("sha256_cbor", None),
    "conversations-0.18.0-a": ("sha256_cbor", "0"),
}
VERSION = {name: "0.32.0" if "0.32" in name else "0.18.0" for name in RIGHT}


def stored_of(name: str) -> list[Stored]:
    events = [e for parts in frames(name) for e in VllmDialect().decode(parts[-1]).events]
    return [event for event in events if isinstance(event, Stored)]


def verdicts(name: str, *rule: Any, **changes: Any) -> list[Verdict | None]:
    check = VllmChecker(VllmHashRule(*rule)).check
    return [check(msgspec.structs.replace(event, **changes)) for event in stored_of(name)]


def causes(name: str, *rule: Any) -> Counter[str]:
    return Counter(v.cause for v in verdicts(name, *rule) if v is not None and not v.ok)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("dialect", ["auto", "told"])
def test_every_recorded_hash_follows(name: str, dialect: str) -> None:
    result = verdicts(name, *RIGHT[name], VERSION[name] if dialect == "told" else "auto")
    assert result
    assert set(result) == {Verdict(True)}


@pytest.mark.parametrize("name", RIGHT)
def test_removals_name_blocks_that_were_stored(name: str) -> None:
    events = [e for parts in frames(name) for e in VllmDialect().decode(parts[-1]).events]
    stored = {b for e in events if isinstance(e, Stored) for b in unpack(e.blocks)}
    removed = {b for e in events if isinstance(e, Removed) for b in unpack(e.blocks)}
    assert removed <= stored


@pytest.mark.parametrize(
    ("name", "rule", "cause"),
    [
        (
            INT_SEED_0,
            ("sha256_cbor", "42"),
            'seed: engine hashes follow PYTHONHASHSEED "0", configured is "42"',
        ),
        (
            INT_SEED_0,
            ("sha256_cbor", None),
            'seed: engine hashes follow PYTHONHASHSEED "0", configured is unset',
        ),
        (
            BYTES_UNSET,
            ("sha256_cbor", "0"),
            'seed: engine hashes follow PYTHONHASHSEED unset, configured is "0"',
        ),
        (INT_SEED_0, ("sha256", "0"), "algorithm: engine hashes with sha256_cbor, configured is sha256"),
        (INT_SEED_0, ("xxhash", "0"), "algorithm: engine hashes with sha256_cbor, configured is xxhash"),
    ],
)
def test_a_wrong_configuration_is_named(name: str, rule: Any, cause: str) -> None:
    found = verdicts(name, *rule)
    assert found[0] == Verdict(False, cause)
    assert Verdict(True) not in [v for v, e in zip(found, stored_of(name), strict=True) if e.parent is None]


def test_two_wrong_settings_are_both_named() -> None:
    (cause, _), *_ = causes(INT_SEED_0, "sha256", "42").most_common()
    assert cause.startswith("algorithm: ")
    assert "; seed: " in cause


def test_a_dialect_shows_where_extra_keys_are_used() -> None:
    found = causes(BYTES_UNSET, "sha256_cbor", None, "0.30.0")
    assert found.keys() == {"dialect: engine hashes extra keys as vLLM >= 0.31, configured is vLLM 0.19-0.30"}
    assert Verdict(True) in verdicts(BYTES_UNSET, "sha256_cbor", None, "0.30.0")


def test_an_unusual_seed_is_told_apart_from_a_wrong_algorithm_by_full_digests() -> None:
    prompt = Prompt(list(range(64)), 16)
    event = stored(VllmHashRule("sha256_cbor", "987654"), prompt, full=True)
    seed = VllmChecker(VllmHashRule("sha256_cbor", "0")).check(event)
    assert seed is not None
    assert seed.cause.startswith('seed: engine hashes follow neither the configured PYTHONHASHSEED "0" nor')
    both = VllmChecker(VllmHashRule("sha256", "0")).check(event)
    assert both is not None
    assert both.cause.startswith("algorithm: engine hashes with sha256_cbor, configured is sha256; seed: ")


def stored(rule: VllmHashRule, prompt: Prompt, *, full: bool = False, **fields: Any) -> Stored:
    """What an engine with `rule` would tell of `prompt`."""
    digests = rule.digests(prompt)
    fields.setdefault("extra_keys", [None] * len(digests))
    hashes = tuple(digests if full else [int.from_bytes(d[-8:]) for d in digests])
    blocks = "".join(d[-8:].hex() for d in digests)
    size = prompt.block_size
    return Stored("l1", 0, blocks, None, hashes, prompt.token_ids[: len(digests) * size], size, **fields)


def test_an_unusual_seed_with_integer_hashes() -> None:
    event = stored(VllmHashRule("sha256_cbor", "987654"), Prompt(list(range(64)), 16))
    verdict = VllmChecker(VllmHashRule("sha256_cbor", "0")).check(event)
    assert verdict is not None
    assert verdict.cause.startswith("seed: ")


@pytest.mark.parametrize("finer", [16, 32, 64])
def test_a_finer_block_size_than_told(finer: int) -> None:
    rule = VllmHashRule("sha256_cbor", "0")
    tokens = list(range(256))
    fine = rule.digests(Prompt(tokens, finer))[128 // finer - 1 :: 128 // finer]
    packed = "".join(d[-8:].hex() for d in fine)
    hashes = tuple(int.from_bytes(d[-8:]) for d in fine)
    event = Stored("l1", 0, packed, None, hashes, tokens, 128, [None, None])
    verdict = VllmChecker(rule).check(event)
    assert verdict == Verdict(False, f"block size: engine hashes every {finer} tokens, its events say 128")


def test_look_ahead_is_named() -> None:
    rule = VllmHashRule("sha256_cbor", "0")
    verdict = VllmChecker(rule).check(stored(rule, Prompt([1, 2], 1), lookahead=True))
    assert verdict is not None
    assert verdict.cause.startswith("look-ahead: ")


@pytest.mark.parametrize("version", ["0.18.0", "0.30.0", "0.33.0"])
def test_salt_and_pictures_as_events_tell_them(version: str) -> None:
    rule = VllmHashRule("sha256_cbor", "0", version)
    prompt = Prompt(list(range(64)), 16, cache_salt="s", mm=(MmItem("img", 20, 20),))
    keys: list[Any] = [["s"], [["img", 4]], [["img", -12]], None]
    if version == "0.18.0":
        keys = [["s"], ["img"], ["img"], None]
    event = stored(rule, prompt, extra_keys=keys)
    assert VllmChecker(rule).check(event) == Verdict(True)
    assert VllmChecker(VllmHashRule("sha256_cbor", "0")).check(event) == Verdict(True)
    if version != "0.18.0":  # plain identifiers do not tell where the item began
        other = {"0.30.0": "0.33.0", "0.33.0": "0.30.0"}[version]
        verdict = VllmChecker(VllmHashRule("sha256_cbor", "0", other)).check(event)
        assert verdict is not None
        assert verdict.cause.startswith("dialect: engine hashes extra keys as vLLM")


def test_lora_from_0_31_on_cannot_be_checked() -> None:
    rule = VllmHashRule("sha256_cbor", "0", "0.33.0")
    event = stored(
        rule, Prompt([1, 2], 1, lora_name="l", lora_path="/p"), extra_keys=[["l"], ["l"]], lora_name="l"
    )
    assert VllmChecker(rule).check(event) is None
    assert VllmChecker(VllmHashRule("sha256_cbor", "0")).check(event) is None
    verdict = VllmChecker(VllmHashRule("sha256_cbor", "0", "0.30.0")).check(event)
    assert verdict is not None
    assert verdict.cause.startswith("dialect: ")


def test_a_lora_name_is_not_taken_for_a_salt() -> None:
    rule = VllmHashRule("sha256_cbor", "0", "0.33.0")
    prompt = Prompt([1], 1, lora_name="l", lora_path="/p")
    assert VllmChecker(rule).check(stored(rule, prompt, extra_keys=[["l"]], lora_name="l")) is None


def test_a_parent_of_several_fine_digests_counts_by_the_last() -> None:
    rule = VllmHashRule("sha256_cbor", "0")
    one, two, three = rule.digests(Prompt([1, 2, 3], 1))
    event = Stored("l1", 0, three[-8:].hex(), one + two, (three,), [3], 1, [None])
    assert VllmChecker(rule).check(event) == Verdict(True)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": list(range(33))}, {"token_ids": []}, {"token_ids": [(1, 2)] * 32},
        {"token_ids": ["x"] * 32}, {"token_ids": [-1] * 32}, {"block_size": 0}, {"tier": "l2"},
        {"parent": 7}, {"hashes": (), "blocks": ""},
        {"extra_keys": [None]}, {"extra_keys": [None, None, None]}, {"extra_keys": ["keys", None]},
        {"extra_keys": [[7], None]}, {"extra_keys": [[["img", 4, 5]], None]},
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_tell_enough_raises_no_alarm(changes: dict[str, Any]) -> None:
    rule = VllmHashRule("sha256_cbor", "0")
    event = stored(rule, Prompt(list(range(32)), 16))
    assert VllmChecker(rule).check(event) == Verdict(True)
    assert (
        VllmChecker(VllmHashRule("sha256_cbor", "1")).check(msgspec.structs.replace(event, **changes)) is None
    )


def test_without_told_extra_keys_a_salt_raises_no_alarm() -> None:
    """Before 0.17 events do not tell salts: what fits nothing may be salted."""
    rule = VllmHashRule("sha256_cbor", "0", "0.13.0")
    check = VllmChecker(rule).check
    assert check(stored(rule, Prompt([0, 0], 1), extra_keys=None)) == Verdict(True)
    for token in range(3 * SURE_AFTER):
        assert check(stored(rule, Prompt([token], 1, cache_salt="s"), extra_keys=None)) is None


def test_without_told_extra_keys_a_stream_of_which_nothing_fits_is_called_wrong() -> None:
    engine = VllmHashRule("sha256_cbor", "987654", "0.13.0")
    check = VllmChecker(VllmHashRule("sha256_cbor", "0", "0.13.0")).check
    found = [check(stored(engine, Prompt([token], 1), extra_keys=None)) for token in range(SURE_AFTER)]
    assert found[:-1] == [None] * (SURE_AFTER - 1)
    assert found[-1] is not None
    assert found[-1].cause.startswith("seed: ")
    usual = VllmHashRule("sha256_cbor", "42", "0.13.0")
    verdict = VllmChecker(VllmHashRule("sha256_cbor", "0")).check(
        stored(usual, Prompt([1], 1), extra_keys=None)
    )
    assert verdict == Verdict(False, 'seed: engine hashes follow PYTHONHASHSEED "42", configured is "0"')


def test_a_later_block_that_fits_nothing() -> None:
    rule = VllmHashRule("sha256_cbor", "0")
    event = stored(rule, Prompt(list(range(32)), 16))
    broken = msgspec.structs.replace(event, blocks=event.blocks[:16] + "0" * 16)
    verdict = VllmChecker(rule).check(broken)
    assert verdict is not None
    assert verdict.cause.startswith("unknown: ")


def test_kept_digests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "KEPT_DIGESTS", 2)
    rule = VllmHashRule("sha256_cbor", "0")
    check = VllmChecker(rule).check
    event = stored(rule, Prompt([1, 2, 3, 4], 1))
    rest = [
        Stored("l1", 0, event.blocks[16 * i :][:16], event.hashes[i - 1], event.hashes[i : i + 1], [i + 1], 1)
        for i in (1, 2, 3)
    ]
    assert check(event) == Verdict(True)
    assert [check(child) for child in rest] == [None, None, Verdict(True)]
