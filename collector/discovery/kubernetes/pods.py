"""What a pod says about the engine or the Mooncake master in it. Pure: no clock, no I/O."""

from collections.abc import Iterator

from msgspec import Struct

from collector.discovery.base import EngineTarget, Master, Rank
from collector.discovery.kubernetes.wire import Container, ContainerStatus, Pod
from indexer.config.pool import MooncakeMaster, VllmPorts

MAX_RANKS = 256
MAX_PORT = 65535


class Reading(Struct, frozen=True):
    """What a pod is, and what is wrong with it in words for its owner.

    `target` None: there is no running engine in it now. `ended`: nor will there be this one again, so that
    its blocks are gone; False with no target: it can't be told.
    """

    target: EngineTarget | None = None
    ended: bool = False
    problem: str | None = None


def read_engine(pod: Pod, ports: VllmPorts) -> Reading:
    """The engine in a pod.

    Ready is not asked for: what an engine publishes while it warms up can't be had later. The identity is
    `<pod UID>/<restarts>/<start>` of the container that publishes events, and the UID alone without one.
    """
    if _dying(pod):
        return Reading(ended=True)
    if not _running(pod):
        return Reading()
    publisher = _port(pod, ports.zmq_port_name)
    if publisher is None:
        target = EngineTarget(pod.status.pod_ip, pod.metadata.uid, ())
        return Reading(target, problem=f"no container port is named {ports.zmq_port_name}: L1 is unknown")
    container, first = publisher
    status = _status(pod, container.name)
    if status is not None and status.state is not None and status.state.running is None:
        return Reading(ended=True)
    ranks, problem = _ranks(pod, ports, first)
    return Reading(EngineTarget(pod.status.pod_ip, _incarnation(pod, status), ranks), problem=problem)


def read_master(pod: Pod, ports: MooncakeMaster, scheme: str) -> Master | None:
    """The Mooncake master in a pod; None when it doesn't run or has no HTTP port."""
    if _dying(pod) or not _running(pod):
        return None
    named = _port(pod, ports.http_port_name)
    port = named[1] if named else ports.http_port
    return Master(f"{scheme}://{_host(pod.status.pod_ip)}:{port}") if port else None


def _dying(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in ("Succeeded", "Failed")


def _running(pod: Pod) -> bool:
    return pod.status.phase == "Running" and bool(pod.status.pod_ip)


def _incarnation(pod: Pod, status: ContainerStatus | None) -> str:
    if status is None:
        return f"{pod.metadata.uid}/0"
    running = status.state and status.state.running
    # The start as well: a kubelet that lost its old containers counts restarts from 0 again.
    start = f"/{running.started_at}" if running and running.started_at else ""
    return f"{pod.metadata.uid}/{status.restart_count}{start}"


def _ranks(pod: Pod, ports: VllmPorts, first: int) -> tuple[tuple[Rank, ...], str | None]:
    """Rank r of an engine listens on the named port plus r; likewise its replay socket."""
    size, problem = _number(pod, ports.dp_size_key, ports.dp_size, 1, MAX_RANKS)
    declared = _mark(pod, ports.dp_size_key) is not None or ports.dp_size > 1
    group, wrong = _number(pod, ports.dp_index_key, 0, 0, MAX_RANKS) if declared else (0, None)
    problem = problem or wrong
    begin = group * size
    named = _port(pod, ports.replay_port_name)
    replay = named[1] if named else None
    if replay is not None and abs(replay - first) < begin + size:
        problem = problem or (
            f"{ports.replay_port_name} {replay} is also rank {abs(replay - first)}'s place after "
            f"{ports.zmq_port_name} {first}: keep them at least {begin + size} apart"
        )
        replay = None
    if max(first, replay or 0) + begin + size - 1 > MAX_PORT:
        return (), f"{size} ranks from number {begin} on go past port {MAX_PORT}"
    host = _host(pod.status.pod_ip)
    return tuple(
        Rank(f"tcp://{host}:{first + r}", None if replay is None else f"tcp://{host}:{replay + r}")
        for r in range(begin, begin + size)
    ), problem


def _number(pod: Pod, key: str, default: int, low: int, high: int) -> tuple[int, str | None]:
    text = _mark(pod, key)
    if text is None:
        return default, None
    if text.isascii() and text.isdigit() and low <= int(text[:9]) <= high:
        return int(text), None
    return default, f"{key} is {text!r}, not a number from {low} to {high}: taken as {default}"


def _mark(pod: Pod, key: str) -> str | None:
    """The annotation of that name, else the label."""
    if not key:
        return None
    return (pod.metadata.annotations or {}).get(key, (pod.metadata.labels or {}).get(key))


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers or ()
    # A native sidecar is written as an init container.
    yield from pod.spec.init_containers or ()


def _port(pod: Pod, name: str) -> tuple[Container, int] | None:
    ports = ((container, port) for container in _containers(pod) for port in container.ports or ())
    return next(((container, port.container_port) for container, port in ports if port.name == name), None)


def _status(pod: Pod, container: str) -> ContainerStatus | None:
    statuses = (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ()))
    return next((s for s in statuses if s.name == container), None)


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
