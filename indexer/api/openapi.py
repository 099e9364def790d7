"""GET /openapi.json: the API described in OpenAPI 3.1, generated from `indexer.api.messages`."""

from functools import cache
from typing import Any

import msgspec
from aiohttp import web

import indexer
from indexer.api import messages
from indexer.api.state import AGE_HEADER, NEVER

_TOKENS = [9707, 0, 358, 3900, 374, 1234, 5678, 9012]
_HIT_RATE_EXAMPLE = {
    "server_ip": ["10.0.0.7", "10.0.0.8"],
    "body": {"token_ids": _TOKENS, "cache_salt": "", "block_size": 4},
}
_HIT_RATE_ANSWER = {
    "server_score_list": [
        {"server_ip": "10.0.0.7", "l1_hit_ratio": 1.0, "l3_hit_ratio": 0.5},
        {"server_ip": "10.0.0.8", "l1_hit_ratio": 0.0, "l3_hit_ratio": 0.0},
    ],
    "message": "",
    "status": 0,
}
_LOOKUP_EXAMPLE = {"token_ids": _TOKENS, "block_size": 4, "candidates": ["10.0.0.7"]}
_LOOKUP_ANSWER = {
    "pool": "default",
    "blocks": 2,
    "instances": [
        {
            "ip": "10.0.0.7",
            "ranks": [
                {
                    "rank": 0,
                    "l1": {"blocks": 2, "tokens": 8, "ratio": 1.0},
                    "l2": {"blocks": 0, "tokens": 0, "ratio": 0.0},
                }
            ],
            "streams": [{"rank": 0, "state": "live", "age": 0.4}],
            "l1": {"blocks": 2, "tokens": 8, "ratio": 1.0},
            "l2": {"blocks": 0, "tokens": 0, "ratio": 0.0},
            "l3": {"blocks": 1, "tokens": 4, "ratio": 0.5},
        }
    ],
    "warnings": [],
    "l3_pool": {"blocks": 1, "tokens": 4, "ratio": 0.5},
}
_ERRORS = {
    400: "The request is refused; the message names the field.",
    405: "Method not allowed; `Allow` says which is.",
    408: "The body did not arrive within http.readTimeout.",
    413: "The body is larger than http.maxHitRateBodyBytes.",
    417: "Another expectation than `Expect: 100-continue`.",
    500: "Redis, which holds the index, did not answer within redis.timeout.",
}
_REF = "#/components/schemas/{name}"


@cache
def document() -> dict[str, Any]:
    """The whole description, as plain JSON types."""
    kinds = (
        messages.HitRateRequest,
        messages.HitRateResponse,
        messages.LookupRequest,
        messages.LookupResponse,
        messages.ErrorResponse,
        messages.ReadyResponse,
    )
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas["LookupRequest"]["oneOf"] = [
        {"required": ["token_ids", "block_size"]},
        {"required": ["block_hashes"]},
    ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cache-indexer",
            "version": indexer.__version__,
            "description": "Which engine holds which prefix of a prompt, in its own memory (l1), "
            "its host's (l2) and Mooncake memory (l3).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/kv-cache/hit-rate": {
                "post": _post(
                    "hitRate",
                    "How much of a prompt's prefix does each candidate hold?",
                    ("HitRateRequest", _HIT_RATE_EXAMPLE),
                    ("HitRateResponse", _HIT_RATE_ANSWER),
                    "HitRateResponse",
                    {"server_score_list": []},
                )
            },
            "/v1/lookup": {
                "post": _post(
                    "lookup",
                    "The same question, answered with every tier, rank and stream.",
                    ("LookupRequest", _LOOKUP_EXAMPLE),
                    ("LookupResponse", _LOOKUP_ANSWER),
                    "ErrorResponse",
                    {},
                )
            },
            "/healthz": {"get": _get("healthz", "The process lives.", {200: ("Alive.", _text("ok"))})},
            "/readyz": {
                "get": _get(
                    "readyz",
                    "Queries can be answered: Redis answers and its scripts load. Engines are not needed.",
                    {
                        200: ("Ready.", _json("ReadyResponse", {"ready": True, "reasons": []})),
                        503: (
                            "Not ready.",
                            _json(
                                "ReadyResponse",
                                {"ready": False, "reasons": ["pool default: connection refused"]},
                            ),
                        ),
                    },
                )
            },
            "/metrics": {
                "get": _get("metrics", "Prometheus metrics.", {200: ("Text format.", {"text/plain": {}})})
            },
            "/openapi.json": {
                "get": _get("openapi", "This description.", {200: ("OpenAPI 3.1.", {"application/json": {}})})
            },
        },
        "components": {"schemas": schemas},
    }


def _json(schema: str, example: object) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=schema)}, "example": example}}


def _text(example: str) -> dict[str, Any]:
    return {"text/plain": {"schema": {"type": "string"}, "example": example}}


def _get(name: str, summary: str, answers: dict[int, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    responses = {
        str(code): {"description": text, "content": content} for code, (text, content) in answers.items()
    }
    return {"operationId": name, "summary": summary, "responses": responses}


def _post(
    name: str,
    summary: str,
    request: tuple[str, object],
    answer: tuple[str, object],
    error: str,
    envelope: dict[str, Any],
) -> dict[str, Any]:
    age = {
        "description": "Seconds since the index last moved or was confirmed current; "
        f"`{NEVER}` when it was never written.",
        "schema": {"oneOf": [{"type": "number", "minimum": 0}, {"const": NEVER}]},
    }
    responses: dict[str, Any] = {
        "200": {"description": "The answer.", "headers": {AGE_HEADER: age}, "content": _json(*answer)}
    }
    for code, text in _ERRORS.items():
        example = {**envelope, "message": text, "status": code}
        responses[str(code)] = {"description": text, "content": _json(error, example)}
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": _json(*request)},
        "responses": responses,
    }


async def openapi(request: web.Request) -> web.Response:
    """GET /openapi.json."""
    return web.Response(body=msgspec.json.encode(document()), content_type="application/json")
