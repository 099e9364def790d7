"""What the collector counts, for Prometheus. No stream is a label: a fleet has thousands, see Redis."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_P = "cache_indexer_collector_"


class Metrics:
    """One set for a process; every metric has the label `pool`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_P + name, text, ["pool", *labels], registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_P + name, text, ["pool", *labels], registry=self.registry)

        def seconds(name: str, text: str, *buckets: float) -> Histogram:
            return Histogram(_P + name, text, ["pool"], registry=self.registry, buckets=buckets)

        self.frames = counter("frames", "Event batches received.")
        self.bad_frames = counter("bad_frames", "Messages that are no event batch.")
        self.duplicates = counter("duplicates", "Event batches that had come before.")
        self.batches = counter("batches", "Event batches applied to the index.")
        self.blocks = counter("blocks", "Blocks in applied events.", "kind")
        self.skipped = counter("skipped_events", "Events, or fields, that are not understood.", "reason")
        self.gaps = counter("gaps", "Gaps in a stream that could not be filled.")
        self.missing = counter("missing_batches", "Event batches lost in such gaps.")
        self.stale = counter("stale_batches", "Event batches left over from an engine's earlier life.")
        self.evicted = counter(
            "evicted_batches", "Batches that left the leader's full buffer before they were applied."
        )
        self.restarts = counter("restarts", "New lives of streams.")
        self.replays = counter("replays", "Requests to replay sockets.", "outcome")
        self.stores_dropped = counter("stores_dropped", "Blocks not stored because Redis is out of memory.")
        self.writes = counter("writes", "Calls that apply events.", "outcome")
        self.write_seconds = seconds(
            "write_seconds", "Time of a call that applies events.", 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1
        )
        self.event_seconds = seconds(
            "event_seconds",
            "From a batch's arrival to its being visible.",
            0.002,
            0.005,
            0.01,
            0.02,
            0.1,
            1,
            5,
        )
        self.checks = counter("hash_checks", "Events whose hashes were recomputed.", "outcome")
        self.streams = gauge("streams", "Streams by state.", "state")
        self.buffer_fill = gauge("buffer_fill", "How full the fullest stream's buffer is, 0 to 1.")
        self.leader = gauge("leader", "1 on the collector that leads.")
        self.term = gauge("term", "Term of the last leadership of this collector.")
        self.warm = gauge("warm", "1 when a takeover by this collector would lose nothing.")
        self.went_back = counter("index_went_back", "Times that Redis was found at an earlier state.")
        self.swept = counter("swept_bits", "Bits cleared of retired holders.")
