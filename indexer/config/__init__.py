"""The one configuration tree: read once, checked at load, immutable after."""

from indexer.config.load import DEFAULT_FILE, load, load_static
from indexer.config.pool import (
    BlockKey,
    Discovery,
    Labels,
    MooncakeMaster,
    Pool,
    Static,
    StaticEngine,
    StaticMaster,
    StaticRank,
    VllmPorts,
)
from indexer.config.redis_url import RedisTarget, parse_redis_url, redacted
from indexer.config.tree import Collector, Config, Http, Ingest, IngestL1, IngestL3, Log, Redis, RedisTls
from indexer.config.units import Duration, parse_addr

__all__ = [
    "DEFAULT_FILE",
    "BlockKey",
    "Collector",
    "Config",
    "Discovery",
    "Duration",
    "Http",
    "Ingest",
    "IngestL1",
    "IngestL3",
    "Labels",
    "Log",
    "MooncakeMaster",
    "Pool",
    "Redis",
    "RedisTarget",
    "RedisTls",
    "Static",
    "StaticEngine",
    "StaticMaster",
    "StaticRank",
    "VllmPorts",
    "load",
    "load_static",
    "parse_addr",
    "parse_redis_url",
    "redacted",
]
