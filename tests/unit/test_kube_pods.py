"""What discovery reads out of a pod."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.discovery.base import Rank
from collector.discovery.kubernetes import selectors, wire
from collector.discovery.kubernetes.pods import Reading, read_engine, read_master
from indexer.config.pool import Labels, MooncakeMaster, VllmPorts

PORTS = VllmPorts()
START = "2026-01-01T00:00:00Z"


def pod(
    ports: dict[str, int] | None = None,
    *,
    ip: str = "10.0.0.7",
    metadata: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **status: Any,
) -> wire.Pod:
    """As the API writes it, with much that discovery has no use for."""
    listed = [{"name": n, "containerPort": p, "protocol": "TCP"} for n, p in (ports or {}).items()]
    engine = {"name": "engine", "image": "x", "env": [{"name": "A", "value": "b"}], "ports": listed}
    ran = {"name": "engine", "restartCount": 2, "state": {"running": {"startedAt": START}}, "lastState": {}}
    raw = {
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", "resourceVersion": "5", "managedFields": [{}]}
        | (metadata or {}),
        "spec": {"containers": [{"name": "proxy", "image": "y"}, engine]} | (spec or {}),
        "status": {"phase": "Running", "podIP": ip, "containerStatuses": [ran], "qosClass": "x"} | status,
    }
    return wire.pod.decode(msgspec.json.encode(raw))


def ranks(reading: Reading) -> list[tuple[str, str | None]]:
    assert reading.target is not None
    return [(rank.events, rank.replay) for rank in reading.target.ranks]


def test_one_rank() -> None:
    reading = read_engine(pod({"zmq-pub": 5557}), PORTS)
    assert reading.target is not None
    assert (reading.target.ip, reading.target.incarnation) == ("10.0.0.7", f"u/2/{START}")
    assert reading.target.ranks == (Rank("tcp://10.0.0.7:5557", None),)
    assert reading.problem is None


def test_an_address_of_the_sixth_version_is_bracketed() -> None:
    reading = read_engine(pod({"zmq-pub": 5557, "zmq-replay": 6557}, ip="fd00::7"), PORTS)
    assert ranks(reading) == [("tcp://[fd00::7]:5557", "tcp://[fd00::7]:6557")]
    assert reading.target is not None
    assert reading.target.ip == "fd00::7"


@pytest.mark.parametrize("kind", ["annotations", "labels"])
def test_a_pod_tells_its_number_of_ranks(kind: str) -> None:
    reading = read_engine(
        pod({"zmq-pub": 5557, "zmq-replay": 6557}, metadata={kind: {"cache-indexer/dpSize": "3"}}), PORTS
    )
    assert ranks(reading) == [(f"tcp://10.0.0.7:{5557 + r}", f"tcp://10.0.0.7:{6557 + r}") for r in range(3)]


def test_the_annotation_wins_and_then_the_configuration() -> None:
    both = pod(
        {"zmq-pub": 5557},
        metadata={"annotations": {"dp": "2"}, "labels": {"dp": "4"}},
    )
    assert len(ranks(read_engine(both, VllmPorts(dp_size_key="dp", dp_size=8)))) == 2
    assert len(ranks(read_engine(pod({"zmq-pub": 5557}), VllmPorts(dp_size_key="dp", dp_size=8)))) == 8


def test_pods_of_a_group_share_one_numbering_of_ranks() -> None:
    """The second pod's engine cores publish on the ports after the first pod's."""
    worker = {"labels": {"leaderworkerset.sigs.k8s.io/worker-index": "1"}}
    reading = read_engine(pod({"zmq-pub": 5557, "zmq-replay": 6557}, metadata=worker), VllmPorts(dp_size=2))
    assert ranks(reading) == [(f"tcp://10.0.0.7:{5559 + r}", f"tcp://10.0.0.7:{6559 + r}") for r in range(2)]


def test_a_group_without_data_parallelism_has_no_numbering() -> None:
    """A tensor-parallel engine over several pods: its leader's one publisher is at the named port."""
    worker = {"labels": {"leaderworkerset.sigs.k8s.io/worker-index": "1"}}
    assert ranks(read_engine(pod({"zmq-pub": 5557}, metadata=worker), PORTS)) == [
        ("tcp://10.0.0.7:5557", None)
    ]


@pytest.mark.parametrize("text", ["", "0", "two", "-1", "1.5", "257", "٣", "9" * 5000])
def test_a_wrong_number_is_told_and_the_configured_one_taken(text: str) -> None:
    reading = read_engine(
        pod({"zmq-pub": 5557}, metadata={"annotations": {"cache-indexer/dpSize": text}}), VllmPorts(dp_size=2)
    )
    assert len(ranks(reading)) == 2
    assert reading.problem is not None
    assert "cache-indexer/dpSize" in reading.problem
    assert "from 1 to 256" in reading.problem


def test_replay_ports_that_collide_with_event_ports_are_not_used() -> None:
    """Rank 1 publishes where rank 0 would be asked for a replay, and nobody would answer there."""
    reading = read_engine(pod({"zmq-pub": 5557, "zmq-replay": 5558}), VllmPorts(dp_size=2))
    assert ranks(reading) == [("tcp://10.0.0.7:5557", None), ("tcp://10.0.0.7:5558", None)]
    assert reading.problem is not None
    assert "at least 2 apart" in reading.problem
    assert (
        ranks(read_engine(pod({"zmq-pub": 5557, "zmq-replay": 5558}), PORTS))[0][1] == "tcp://10.0.0.7:5558"
    )


def test_ports_end_somewhere() -> None:
    reading = read_engine(pod({"zmq-pub": 65535}), VllmPorts(dp_size=2))
    assert ranks(reading) == []
    assert reading.problem is not None
    assert "65535" in reading.problem


def test_without_the_port_it_is_a_host_of_memory_only() -> None:
    reading = read_engine(pod({"events": 5557}), PORTS)
    assert ranks(reading) == []
    assert reading.problem == "no container port is named zmq-pub: L1 is unknown"
    assert ranks(read_engine(pod({"events": 5557}), VllmPorts(zmq_port_name="events")))


def test_a_native_sidecar_may_publish() -> None:
    ports = [{"name": "zmq-pub", "containerPort": 5600}]
    sidecar = {"name": "s", "image": "x", "restartPolicy": "Always", "ports": ports}
    status = {"name": "s", "restartCount": 9, "state": {"running": {"startedAt": START}}}
    reading = read_engine(pod(spec={"initContainers": [sidecar]}, initContainerStatuses=[status]), PORTS)
    assert reading.target is not None
    assert reading.target.incarnation == f"u/9/{START}"
    assert ranks(reading) == [("tcp://10.0.0.7:5600", None)]


@pytest.mark.parametrize(
    ("changes", "ended"),
    [
        ({"phase": "Pending"}, False),
        ({"phase": "Unknown"}, False),
        ({"podIP": ""}, False),
        ({"phase": "Succeeded"}, True),
        ({"phase": "Failed"}, True),
        ({"metadata": {"deletionTimestamp": START}}, True),
        (
            {"containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            True,
        ),
        ({"containerStatuses": [{"name": "engine", "state": {"terminated": {"exitCode": 137}}}]}, True),
    ],
)
def test_what_does_not_run(changes: dict[str, Any], ended: bool) -> None:
    assert read_engine(pod({"zmq-pub": 5557}, **changes), PORTS) == Reading(ended=ended)


@pytest.mark.parametrize("statuses", [None, []])
def test_a_status_may_lack_its_containers(statuses: Any) -> None:
    reading = read_engine(pod({"zmq-pub": 5557}, containerStatuses=statuses), PORTS)
    assert reading.target is not None
    assert reading.target.incarnation == "u/0"


def test_masters() -> None:
    ports = MooncakeMaster()
    named = read_master(pod({"http": 9100, "rpc": 50051}), ports, "https")
    assert named is not None
    assert named.http == "https://10.0.0.7:9100"
    fallback = read_master(pod({"rpc": 50051}, ip="fd00::7"), ports, "http")
    assert fallback is not None
    assert fallback.http == "http://[fd00::7]:9003"
    assert read_master(pod({"rpc": 50051}), MooncakeMaster(http_port=0), "http") is None
    assert read_master(pod({"http": 9003}, phase="Pending"), ports, "http") is None
    assert read_master(pod({"http": 9003}, metadata={"deletionTimestamp": START}), ports, "http") is None


def test_selectors() -> None:
    assert selectors.engines(Labels()) == (
        "openfuyao.com/engine=vllm,openfuyao.com/pdRole in (prefill,aggregate)"
    )
    assert selectors.engines(Labels(engine_key="app", engine_value="v", pd_role_key="")) == "app=v"
    assert selectors.masters(Labels()) == "openfuyao.com/kvmanager=mooncake"


@settings(deadline=None)
@given(annotations=st.dictionaries(st.sampled_from(["cache-indexer/dpSize", "x"]), st.text(max_size=4)))
def test_no_annotation_upsets_it(annotations: dict[str, str]) -> None:
    """One pod's owner can't hide everybody's engines."""
    reading = read_engine(
        pod({"zmq-pub": 5557, "zmq-replay": 5600}, metadata={"annotations": annotations}), PORTS
    )
    assert reading.target is not None
    assert all(len({r.events, r.replay}) == 2 for r in reading.target.ranks)
