"""From a request's bytes to a checked message; whatever is wrong with them is a BadRequestError (400)."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from indexer import blocks
from indexer.api.errors import BadRequestError
from indexer.api.messages import HitRateRequest, LookupRequest
from indexer.engines.base import Prompt
from indexer.holders import TIERS
from indexer.query import Question

T = TypeVar("T")


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    decode = msgspec.json.Decoder(kind).decode

    def checked(body: bytes) -> T:
        if not body:
            raise BadRequestError("the request has no body; a JSON object is expected")
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            raise BadRequestError(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequestError(f"the body is not valid JSON: {error}") from None
        except RecursionError:
            raise BadRequestError("the body is nested too deeply") from None

    return checked


decode_hit_rate = _decoder(HitRateRequest)
"""A hit-rate request. That token ids are in range is checked by the hash rule, which sees them all."""

_decode_lookup = _decoder(LookupRequest)


def decode_question(body: bytes) -> Question:
    """A lookup request as the query core wants it."""
    asked = _decode_lookup(body)
    size = asked.block_size or None
    tiers = tuple(dict.fromkeys(asked.tiers or TIERS))
    if (asked.token_ids is msgspec.UNSET) == (asked.block_hashes is msgspec.UNSET):
        raise BadRequestError("exactly one of token_ids and block_hashes is needed")
    if asked.token_ids is msgspec.UNSET:
        packed = "".join([_block(index, value) for index, value in enumerate(asked.block_hashes or ())])
        return Question(None, packed, size, asked.candidates, tiers, asked.pool)
    if size is None:
        raise BadRequestError("block_size is needed with token_ids")
    prompt = Prompt(asked.token_ids, size, asked.cache_salt or None, asked.lora_name, asked.lora_path)
    return Question(prompt, "", size, asked.candidates, tiers, asked.pool)


def _block(index: int, value: str | int) -> str:
    try:
        return blocks.parse(value)
    except ValueError as error:
        raise BadRequestError(f"block_hashes[{index}]: {error}") from None
