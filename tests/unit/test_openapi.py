"""The published description is valid, and says what the Structs say."""

import json

import msgspec
import pytest
from openapi_spec_validator import validate

from indexer.api import messages, openapi
from indexer.api.app import ROUTES
from indexer.api.decode import decode_hit_rate, decode_question

DOCUMENT = json.loads(msgspec.json.encode(openapi.document()))


def test_it_is_valid_openapi() -> None:
    validate(DOCUMENT)


def test_it_describes_every_route() -> None:
    assert set(DOCUMENT["paths"]) == ROUTES


def test_requests_in_it_refuse_unknown_fields() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("HitRateRequest", "HitRateBody", "LookupRequest"):
        assert schemas[name]["additionalProperties"] is False


def test_example_requests_are_accepted() -> None:
    decode_hit_rate(json.dumps(_example("/kv-cache/hit-rate", "requestBody")).encode())
    decode_question(json.dumps(_example("/v1/lookup", "requestBody")).encode())


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/kv-cache/hit-rate", "200", messages.HitRateResponse),
        ("/kv-cache/hit-rate", "500", messages.HitRateResponse),
        ("/v1/lookup", "200", messages.LookupResponse),
        ("/v1/lookup", "400", messages.ErrorResponse),
    ],
)
def test_example_answers_have_the_shape_of_their_structs(path: str, status: str, kind: type) -> None:
    example = DOCUMENT["paths"][path]["post"]["responses"][status]["content"]["application/json"]["example"]
    assert msgspec.to_builtins(msgspec.convert(example, kind)) == example


def _example(path: str, part: str) -> object:
    return DOCUMENT["paths"][path]["post"][part]["content"]["application/json"]["example"]
