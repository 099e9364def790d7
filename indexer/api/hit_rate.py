"""POST /kv-cache/hit-rate: how much of a prompt's prefix does each candidate hold?"""

import msgspec
from aiohttp import web

from indexer.api import metrics
from indexer.api.body import read_body
from indexer.api.decode import decode_hit_rate
from indexer.api.messages import HitRateResponse, ServerScore
from indexer.api.state import QUERY, age_header
from indexer.clock import monotonic


async def hit_rate(request: web.Request) -> web.Response:
    """Decode, hash, one index lookup, ratios. Errors: `indexer.api.errors`."""
    body = await read_body(request)
    start = monotonic()
    asked = decode_hit_rate(body)
    metrics.STAGE.labels("decode").observe(monotonic() - start)
    prompt = asked.body
    rates = await request.app[QUERY].hit_rate(
        asked.server_ip, prompt.token_ids, prompt.cache_salt, prompt.block_size
    )
    metrics.observe(rates.ages, rates.hash_seconds, rates.redis_seconds)
    metrics.BLOCKS_ASKED.inc(rates.blocks)
    for tier, blocks in rates.best.items():
        metrics.BLOCKS_MATCHED.labels(tier).inc(blocks)
    answer = HitRateResponse([ServerScore(score.ip, score.l1, score.l3) for score in rates.scores])
    return web.Response(
        body=msgspec.json.encode(answer),
        content_type="application/json",
        headers=age_header(rates.ages.values()),
    )
