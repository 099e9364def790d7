"""What the streams of a pool share."""

import asyncio

import zmq
from msgspec import Struct

from collector.ingest.sequence import Cursor
from collector.metrics import Metrics
from indexer.config.tree import IngestL1
from indexer.engines.base import Engine
from indexer.index.state import StreamKey
from indexer.index.writer import IndexWriter


class Tools(Struct):
    """One set for a pool."""

    pool: str
    engine: Engine
    context: "zmq.Context[zmq.Socket[bytes]]"
    config: IngestL1
    metrics: Metrics
    index: IndexWriter
    replays: asyncio.Semaphore
    """Replays at a time: each may bring an engine's whole buffer."""
    offered: set[tuple[StreamKey, Cursor]]
    """Gaps for which leadership was offered to a standby already."""
