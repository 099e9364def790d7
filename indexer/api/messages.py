"""What travels over HTTP: the bodies of requests and answers, as frozen Structs.

`indexer.api.openapi` generates the published schema from these, so a field's meaning is said here and once.
Requests are strict: an unknown field, a wrong type or a value out of range is refused, naming the field.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Tier = Literal["l1", "l2", "l3"]

MAX_TOKEN = (1 << 64) - 1
"""Largest token id; beyond what msgspec's own `le` can say, so the hash rule compares it."""

MAX_BLOCK_SIZE = (1 << 31) - 1
"""Largest block size; engines hold theirs in 32 bits or use far less."""

Tokens = Annotated[
    list[Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_TOKEN})]],
    Meta(
        description="The tokenised prompt; each id within 0..2^64-1. A tail shorter than a block is ignored."
    ),
]
_BlockHex = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-fA-F]{16}$"})]
_BlockInt = Annotated[int, Meta(extra_json_schema={"minimum": -(1 << 63), "maximum": MAX_TOKEN})]
BlockSize = Annotated[
    int, Meta(ge=1, le=MAX_BLOCK_SIZE, description="Tokens in a block, as the engines' --block-size.")
]
Salt = Annotated[str, Meta(description="The engine request's cache_salt; empty is none.")]
Ratio = Annotated[
    float,
    Meta(
        ge=0, le=1, description="Consecutive blocks present from block 0 over all full blocks of the prompt."
    ),
]


class HitRateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The prompt of a hit-rate question."""

    token_ids: Tokens
    block_size: BlockSize
    cache_salt: Salt = ""


class HitRateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of this prompt does each of these candidates hold?"""

    server_ip: Annotated[
        list[str],
        Meta(min_length=1, description="Candidates; the answer keeps their order and their duplicates."),
    ]
    body: HitRateBody


class ServerScore(Struct, frozen=True, gc=False):
    """One candidate's answer."""

    server_ip: str
    l1_hit_ratio: Ratio
    l3_hit_ratio: Ratio


class HitRateResponse(Struct, frozen=True):
    """Answer and error envelope of hit-rate: on an error the list is empty and `status` is the HTTP code."""

    server_score_list: list[ServerScore]
    message: Annotated[str, Meta(description="Empty on success, else what is wrong.")] = ""
    status: Annotated[int, Meta(description="0 on success, else the HTTP status code.")] = 0


class ErrorResponse(Struct, frozen=True):
    """Error envelope of every other route."""

    message: str
    status: Annotated[int, Meta(description="The HTTP status code.")]


class LookupRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt, by tokens or by block hashes, and what is asked about it.

    Exactly one of `token_ids` (needs `block_size`) and `block_hashes` is given.
    """

    token_ids: Tokens | UnsetType = UNSET
    block_hashes: (
        Annotated[
            list[_BlockHex | _BlockInt],
            Meta(
                description="The prompt's blocks in order: 16 hex digits, or the engine's integer hash, "
                "signed or unsigned (-2^63..2^64-1)."
            ),
        ]
        | UnsetType
    ) = UNSET
    block_size: BlockSize | UnsetType = UNSET
    cache_salt: Salt = ""
    lora_name: Annotated[str, Meta(description="The adapter's name.")] | None = None
    lora_path: (
        Annotated[str, Meta(description="The adapter's path; only some engine versions hash it.")] | None
    ) = None
    candidates: (
        Annotated[list[str], Meta(description="Instances to report, in this order; all known when absent.")]
        | None
    ) = None
    tiers: Annotated[list[Tier], Meta(min_length=1, description="All tiers when absent.")] | None = None
    pool: Annotated[str, Meta(description="Needed only where several pools fit.")] | None = None


class TierMatch(Struct, frozen=True):
    """How far a prefix reaches in one tier."""

    blocks: Annotated[int, Meta(ge=0, description="Consecutive blocks present from block 0.")]
    tokens: Annotated[
        int | None, Meta(description="The same in tokens; null when the block size is not known.")
    ]
    ratio: Ratio


class RankMatch(Struct, frozen=True):
    """One data-parallel rank of an instance; tiers that were not asked for are absent."""

    rank: int
    l1: TierMatch | UnsetType = UNSET
    l2: TierMatch | UnsetType = UNSET


class StreamInfo(Struct, frozen=True):
    """One event stream of an instance."""

    rank: int
    state: Annotated[str, Meta(description="connecting, live, suspect, mismatch or lost.")]
    age: Annotated[float | None, Meta(description="Seconds since its last event; null when never heard.")]


class InstanceMatch(Struct, frozen=True, kw_only=True):
    """One instance; its l1 and l2 are those of its best rank. Tiers not asked for are absent."""

    ip: str
    l1: TierMatch | UnsetType = UNSET
    l2: TierMatch | UnsetType = UNSET
    l3: TierMatch | UnsetType = UNSET
    ranks: list[RankMatch]
    streams: list[StreamInfo]


class LookupResponse(Struct, frozen=True, kw_only=True):
    """Everything that is known about a prompt's blocks in one pool."""

    pool: str
    blocks: Annotated[int, Meta(ge=0, description="Full blocks of the prompt.")]
    instances: list[InstanceMatch]
    l3_pool: (
        Annotated[TierMatch, Meta(description="The prefix that Mooncake memory holds on whatever hosts.")]
        | UnsetType
    ) = UNSET
    warnings: Annotated[list[str], Meta(description="Why the numbers may say less than they seem to.")]


class ReadyResponse(Struct, frozen=True):
    """Whether this process can answer."""

    ready: bool
    reasons: Annotated[list[str], Meta(description="Why not; empty when ready.")]
