"""Discovery against a real kubelet: what it writes into a pod is what identities are made of."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from collector.discovery.base import Gone, Snapshot
from tests.cluster.kube import Json, engine_pod
from tests.cluster.node.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def engine(name: str) -> Json:
    """An engine pod whose container does nothing."""
    pod = engine_pod(name, ports={"zmq-pub": 5557, "zmq-replay": 6557})
    del pod["spec"]["nodeName"]
    container = pod["spec"]["containers"][1] | {"image": "localhost/pause:1", "imagePullPolicy": "Never"}
    pod["spec"] |= {"containers": [container], "terminationGracePeriodSeconds": 1}
    return pod | {"apiVersion": "v1", "kind": "Pod"}


class Seen:
    """What discovery wrote."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self.gone: list[Gone] = []

    async def until(self, what: Callable[[Snapshot], bool]) -> Snapshot:
        """The next snapshot that is as asked."""
        async with asyncio.timeout(60):
            while line := await self._lines.readline():
                snapshot = msgspec.json.decode(line, type=Snapshot)
                self.gone += snapshot.gone
                if what(snapshot):
                    return snapshot
        raise AssertionError("discovery ended")


@asynccontextmanager
async def discovering(node: Node, namespace: str) -> AsyncIterator[Seen]:
    """Discovery running inside the node."""
    module = "tests.cluster.node.snapshots"
    command = node.inside([sys.executable, "-m", module, f"{node.run}/admin.kubeconfig", namespace])
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Seen(process.stdout)
    finally:
        process.stdin.close()
        await process.wait()


async def test_engines_live_and_die(node: Node) -> None:
    node.kubectl("create", "namespace", "engines")
    manifests = node.run / "engines.json"
    manifests.write_text("\n".join(json.dumps(engine(name)) for name in ("a", "b")))
    async with discovering(node, "engines") as seen:
        node.kubectl("apply", "--namespace=engines", f"--filename={manifests}")
        both = await seen.until(lambda s: len(s.engines) == 2)
        pods = {pod["metadata"]["name"]: pod for pod in items(node)}
        by_ip = {e.ip: e for e in both.engines}
        a, b = (by_ip[pods[name]["status"]["podIP"]] for name in ("a", "b"))
        started = pods["a"]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        assert a.incarnation == f"{pods['a']['metadata']['uid']}/0/{started}"
        assert [(r.events, r.replay) for r in a.ranks] == [(f"tcp://{a.ip}:5557", f"tcp://{a.ip}:6557")]

        node.enter("kill", "-KILL", pid_of(node, pods["a"]))
        again = await seen.until(
            lambda s: any(e.ip == a.ip and e.incarnation != a.incarnation for e in s.engines)
        )
        [run] = [e.incarnation for e in again.engines if e.ip == a.ip]
        assert run is not None
        assert run.startswith(f"{pods['a']['metadata']['uid']}/1/")

        node.kubectl("delete", "pod", "b", "--namespace=engines")
        await seen.until(lambda s: [e.ip for e in s.engines] == [a.ip])
    assert b.incarnation in {gone.incarnation for gone in seen.gone}
    assert run not in {gone.incarnation for gone in seen.gone}


def items(node: Node) -> list[Json]:
    listed: Json = json.loads(node.kubectl("get", "pods", "--namespace=engines", "--output=json"))
    return list(listed["items"])


def pid_of(node: Node, pod: Json) -> str:
    """Process of the pod's container, in the node's numbering."""
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    tasks = node.enter(*node.ctr("-n", "k8s.io", "tasks", "list"))
    return next(line.split()[1] for line in tasks.splitlines() if line.startswith(container))
