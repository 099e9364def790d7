"""POST /v1/lookup: the same question as hit-rate, answered with everything that is known."""

from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from indexer.api import metrics
from indexer.api.body import read_body
from indexer.api.decode import decode_question
from indexer.api.messages import InstanceMatch, LookupResponse, RankMatch, StreamInfo, TierMatch
from indexer.api.state import QUERY, age_header
from indexer.clock import monotonic
from indexer.query import Answer


async def lookup(request: web.Request) -> web.Response:
    """Decode, look up, lay out. Errors: `indexer.api.errors`."""
    body = await read_body(request)
    start = monotonic()
    question = decode_question(body)
    metrics.STAGE.labels("decode").observe(monotonic() - start)
    answer = await request.app[QUERY].lookup(question)
    ages = {answer.pool: answer.matches.age}
    metrics.observe(ages, answer.hash_seconds, answer.redis_seconds)
    return web.Response(
        body=msgspec.json.encode(lay_out(answer, question.tiers)),
        content_type="application/json",
        headers=age_header(ages.values()),
    )


def lay_out(answer: Answer, tiers: Sequence[str]) -> LookupResponse:
    """An answer of the query core in the published shape; only `tiers` are shown."""

    def tier_match(tier: str, blocks: int) -> TierMatch | UnsetType:
        if tier not in tiers:
            return UNSET
        tokens = blocks * answer.block_size if answer.block_size else None
        return TierMatch(blocks, tokens, blocks / answer.total if answer.total else 0.0)

    def instance(ip: str) -> InstanceMatch:
        streams = answer.streams.get(ip, [])
        by_tier = {tier: answer.matches.ranks(tier, ip) for tier in ("l1", "l2") if tier in tiers}
        ranks = {stream.key.rank for stream in streams}.union(*by_tier.values())
        return InstanceMatch(
            ip=ip,
            l1=tier_match("l1", answer.matches.blocks("l1", ip) if "l1" in tiers else 0),
            l2=tier_match("l2", answer.matches.blocks("l2", ip) if "l2" in tiers else 0),
            l3=tier_match("l3", answer.matches.blocks("l3", ip) if "l3" in tiers else 0),
            ranks=[
                RankMatch(
                    rank,
                    l1=tier_match("l1", by_tier.get("l1", {}).get(rank, 0)),
                    l2=tier_match("l2", by_tier.get("l2", {}).get(rank, 0)),
                )
                for rank in sorted(ranks)
            ],
            streams=[StreamInfo(stream.key.rank, stream.state, stream.seen_age) for stream in streams],
        )

    return LookupResponse(
        pool=answer.pool,
        blocks=answer.total,
        instances=[instance(ip) for ip in answer.instances],
        l3_pool=tier_match("l3", answer.matches.pool_wide("l3") if "l3" in tiers else 0),
        warnings=answer.warnings,
    )
