"""The description at /openapi.json against what the real service takes and gives."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from indexer.blocks import WIDTH
from tests import query_service, servers
from tests.index_fill import chain, fill
from tests.query_service import HIT_RATE, Service

LOOKUP = "/v1/lookup"
PROMPT = list(range(64))
BLOCKS = chain(PROMPT, 16)
ASKED = {"token_ids": PROMPT, "block_size": 16}
OVER = [{"token_ids": [-1]}, {"token_ids": [1 << 64]}, {"token_ids": [True]}, {"token_ids": ["1"]}]
OVER += [{"block_size": size} for size in (0, 1 << 31, 1.5, "16", None)]
OVER += [{"cache_salt": None}, {"x": 1}]
TAKEN = [{"cache_salt": "a"}, {"token_ids": [(1 << 64) - 1]}, {"block_size": (1 << 31) - 1}]
QUESTIONS = [
    *((HIT_RATE, {"server_ip": ips, "body": ASKED}) for ips in (["10.0.0.1"], ["*", "", "10.0.0.1"])),
    *((HIT_RATE, {"server_ip": ["10.0.0.1"], "body": ASKED | change}) for change in (*OVER, *TAKEN)),
    *((HIT_RATE, wrong) for wrong in ([], None, {"server_ip": [], "body": ASKED}, {"server_ip": ["a"]})),
    *((LOOKUP, ASKED | change) for change in (*OVER, *TAKEN)),
    *((LOOKUP, ASKED | {"tiers": tiers}) for tiers in (["l1"], ["l3", "l3"], None, [], ["l4"])),
    *((LOOKUP, ASKED | {"candidates": names}) for names in ([], None, ["x", "10.0.0.1"], [1])),
    *((LOOKUP, {"block_hashes": [value]}) for value in ("00000000000000fF", "ff", "x" * 16, 1.5)),
    *((LOOKUP, {"block_hashes": [value]}) for value in (-(1 << 63), -(1 << 63) - 1, (1 << 64) - 1, 1 << 64)),
    *((LOOKUP, question) for question in ({}, ASKED | {"block_hashes": []}, {"token_ids": [1]})),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    redis = servers.start("valkey")
    streams = {("10.0.0.1", 0): {"l1": BLOCKS}, ("fd00::2", 3): {"l2": BLOCKS[:WIDTH]}}
    asyncio.run(fill(redis.url, streams, {"10.0.0.1": BLOCKS[:WIDTH], "*": BLOCKS}))
    try:
        with query_service.start(tmp_path_factory.mktemp("query"), redis.url) as running:
            yield running
    finally:
        redis.close()


def fits(document: dict[str, Any], content: dict[str, Any], value: object) -> bool:
    schema = content["application/json"]["schema"] | {"components": document["components"]}
    return bool(Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize(("path", "question"), QUESTIONS)
def test_what_is_taken_and_given_is_as_described(service: Service, path: str, question: object) -> None:
    document = service.get("/openapi.json")[2]
    described = document["paths"][path]["post"]
    code, headers, answer = service.post(path, question)
    assert headers["content-type"] == "application/json"
    assert code == (200 if fits(document, described["requestBody"]["content"], question) else 400)
    assert fits(document, described["responses"][str(code)]["content"], answer)
