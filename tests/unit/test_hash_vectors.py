"""Every golden hash that real vLLM releases produced, against our chain."""

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.engines.base import MmItem, Prompt
from indexer.engines.vllm.algorithms import as_ids
from indexer.engines.vllm.extra_keys import Form
from indexer.engines.vllm.hashing import VllmHashRule

DATA = Path(__file__).parent.parent / "data"
GOLDEN = json.loads(gzip.decompress((DATA / "block_hashes.json.gz").read_bytes()))
SPECS: dict[str, dict[str, Any]] = GOLDEN["specs"]
CASES: list[dict[str, Any]] = [c for c in GOLDEN["cases"] if c["independently_verified"]]
GROUPS = sorted({(c["version"], c["algo"]) for c in CASES})
# The path that the recorded engines loaded an adapter from when the recipe names none.
LORA_PATH = "/adapters/a"


@cache
def tokens_of(name: str) -> tuple[int, ...]:
    spec = SPECS[name]
    recipe = spec["recipe"]
    match recipe["kind"]:
        case "list":
            tokens = recipe["tokens"]
        case "range":
            tokens = range(recipe["start"], recipe["start"] + recipe["n"])
        case "const":
            tokens = [recipe["value"]] * recipe["n"]
        case "lcg":
            x, tokens = recipe["seed"], []
            for _ in range(recipe["n"]):
                x = (6364136223846793005 * x + 1442695040888963407) % 2**64
                tokens.append(recipe["lo"] + (x >> 33) % (recipe["hi"] - recipe["lo"]))
    raw = np.array(list(tokens), np.uint64).tobytes()
    assert hashlib.sha256(raw).hexdigest() == spec["tokens_sha256_le_u64"]
    return tuple(tokens)


def prompt_of(name: str) -> Prompt:
    spec = SPECS[name]
    lora = spec.get("lora")
    return Prompt(
        tokens_of(name),
        spec["block_size"],
        cache_salt=spec.get("salt"),
        lora_name=lora,
        lora_path=spec.get("lora_path", LORA_PATH) if lora else None,
        mm=tuple(MmItem(*item) for item in spec.get("mm", ())),
    )


def embeds_digests(rule: VllmHashRule, case: dict[str, Any]) -> list[bytes]:
    """Prompt embeddings are no part of a Prompt (no router sends them), but the chain takes their keys."""
    spec = SPECS[case["spec"]]
    rows, columns = spec["embeds"]
    size = spec["block_size"]
    matrix = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    keys: list[tuple[object, ...]] = []
    for start in range(0, rows, size):
        raw = matrix[start : start + size].tobytes()
        key: object = raw if case["version"] == "0.13.0" else hashlib.sha256(raw).digest()
        keys.append((("prompt_embeds", key) if rule.forms == (Form.TAGGED,) else key,))
    return rule.algorithm.chain(rule.none_hash, as_ids([0] * rows), size, keys)


@pytest.mark.parametrize(("version", "algo"), GROUPS)
def test_every_case_equals_the_engine(version: str, algo: str) -> None:
    seen = 0
    for case in CASES:
        if (case["version"], case["algo"]) != (version, algo):
            continue
        none_hash = None if case["reproducible"] else bytes.fromhex(case["none_hash"])
        rule = VllmHashRule(algo, case["seed"], version, none_hash)
        assert rule.none_hash.hex() == case["none_hash"]
        if "embeds" in SPECS[case["spec"]]:
            digests = embeds_digests(rule, case)
        else:
            prompt = prompt_of(case["spec"])
            digests = rule.digests(prompt)
            assert rule.chains(prompt) == ["".join(d[-8:].hex() for d in digests)]
        assert len(digests) == case["n_blocks"], case["spec"]
        for index, full in case["hashes"].items():
            assert digests[int(index)].hex() == full, (case["spec"], index)
        for index, value in case["ints"].items():
            assert int.from_bytes(digests[int(index)][-8:]) == int(value)
        seen += 1
    assert seen > 90


def test_the_published_example() -> None:
    tokens = [9707, 0, 358, 3900, 374, 1234, 5678, 9012]
    rule = VllmHashRule("sha256_cbor", "0", "0.18.0")
    assert rule.none_hash.hex() == "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
    assert [d.hex() for d in rule.digests(Prompt(tokens, 4))] == [
        "26771c278bf6d9da0620c67f010e95935bd5c7b2c68f31d676031c9f7578fd85",
        "ece3e8d89eb27cdc1fed3024e38bd434f191e915d6df1b259f19cf1390759f69",
    ]
    assert [int.from_bytes(d[-8:]) for d in rule.digests(Prompt(tokens, 4, cache_salt="tenant-a"))] == [
        4020494722497193364,
        14791242632234539454,
    ]
