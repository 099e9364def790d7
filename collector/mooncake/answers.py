"""Bodies of a Mooncake master's answers, in the shapes of all versions: pure.

Up to 0.3.11 a look-up answers with JSON lines, since 0.3.12 with one JSON object; and the batch call grew
members at the same time. Medium is data: only `values` lie in memory, `disk_values` and the like never count.
"""

import msgspec
from msgspec import Struct

from collector.mooncake.view import Places


class _Buffer(Struct):
    transport_endpoint_: str


class _Found(Struct):
    success: bool
    data: list[_Buffer]


class _BatchEntry(Struct):
    ok: bool
    error: str | None = None
    values: list[_Buffer] | None = None


class _Batch(Struct):
    success: bool
    data: dict[str, _BatchEntry]


class _Probe(Struct):
    success: bool
    data: dict[str, dict[str, object]]


class _Segment(Struct):
    segment_name: str
    te_endpoint: str


class _Segments(Struct):
    segments: list[_Segment]


class _Health(Struct):
    role: str = "leader"
    service_ready: bool = True


_found = msgspec.json.Decoder(_Found)
_buffer = msgspec.json.Decoder(_Buffer)
_batch = msgspec.json.Decoder(_Batch)
_probe = msgspec.json.Decoder(_Probe)
_segments = msgspec.json.Decoder(_Segments)
_health = msgspec.json.Decoder(_Health)

ABSENT = (b"OBJECT_NOT_FOUND", b"REPLICA_IS_NOT_READY")
"""What a 404 says about a key: gone meanwhile, or still being written. Any other 404 says nothing of it."""


def lines(body: bytes) -> list[str]:
    """A list of keys or segment names, one a line."""
    return [line for line in body.decode("utf-8", "surrogateescape").split("\n") if line]


def places(body: bytes) -> Places:
    """Where `/query_key` says that a key's bytes are in memory; empty for one that is on disk only.

    A replica may come as several lines (0.3.7 cuts big objects into slices). Raises ValueError.
    """
    if body.startswith(b'{"success"'):
        return frozenset(buffer.transport_endpoint_ for buffer in _found.decode(body).data)
    return frozenset(_buffer.decode(line).transport_endpoint_ for line in body.split(b"\n") if line.strip())


def batch_places(body: bytes) -> dict[str, Places]:
    """The same for `/batch_query_keys`, without absent keys and those still being written. ValueError."""
    return {
        key: frozenset(buffer.transport_endpoint_ for buffer in entry.values or ())
        for key, entry in _batch.decode(body).data.items()
        if entry.ok
    }


def batch_is_read_only(body: bytes) -> bool:
    """Whether the batch call grants no leases: the version that gave entries `disk_values` ended that too."""
    return all("disk_values" in entry for entry in _probe.decode(body).data.values())


def segment_endpoints(body: bytes) -> dict[str, str]:
    """Segment name by transport endpoint, of `/get_segments_detail`. ValueError."""
    return {segment.te_endpoint: segment.segment_name for segment in _segments.decode(body).segments}


def serves(body: bytes) -> bool:
    """Whether `/health` is that of a serving leader; old masters answer a bare `OK`."""
    if not body.startswith(b"{"):
        return True
    health = _health.decode(body)
    return health.service_ready and health.role != "standby"
