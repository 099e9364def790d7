"""What the query service counts, and GET /metrics.

With several workers a scrape reaches any one of them, so they count in files of one directory
(`PROMETHEUS_MULTIPROC_DIR`, set by `indexer.api.workers` before a worker starts) and whoever is asked adds
up all of them.
"""

import os
from collections.abc import Mapping

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

REQUESTS = Counter("cache_indexer_http_requests", "HTTP requests answered.", ["route", "status"])
LATENCY = Histogram(
    "cache_indexer_http_request_seconds", "From a request's head to its answer.", ["route"], buckets=_SECONDS
)
STAGE = Histogram(
    "cache_indexer_query_stage_seconds",
    "Parts of a query: decode (JSON and checks), hash (block chain), redis (index).",
    ["stage"],
    buckets=_SECONDS,
)
BLOCKS_ASKED = Counter("cache_indexer_query_blocks_asked", "Full blocks of all prompts asked about.")
BLOCKS_MATCHED = Counter(
    "cache_indexer_query_blocks_matched", "Of those, the prefix that the best candidate holds.", ["tier"]
)
REDIS_ERRORS = Counter(
    "cache_indexer_query_redis_errors", "Queries that failed because Redis did not answer."
)
INDEX_AGE = Gauge(
    "cache_indexer_query_index_age_seconds",
    "Age of the index (seconds since it moved or was confirmed) as the last query saw it; -1: never written.",
    ["pool"],
    multiprocess_mode="mostrecent",
)


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics, in Prometheus' text format."""
    registry = REGISTRY
    if os.environ.get(MULTIPROCESS):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def observe(ages: Mapping[str, float | None], hash_seconds: float, redis_seconds: float) -> None:
    """Notes what every kind of query measures: its stages, and the index ages that it saw, by pool."""
    STAGE.labels("hash").observe(hash_seconds)
    STAGE.labels("redis").observe(redis_seconds)
    for pool, age in ages.items():
        INDEX_AGE.labels(pool).set(-1 if age is None else age)
