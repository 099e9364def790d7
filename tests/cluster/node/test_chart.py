"""The chart with real containers: our image, a real Redis, and pods that play a recorded engine."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.capture import Capture, load
from indexer.blocks import unpack
from indexer.config import BlockKey
from indexer.engines import engine
from indexer.engines.base import Prompt
from indexer.engines.events import Cleared, Removed, Stored
from tests.chart import helm
from tests.cluster import binaries
from tests.cluster.node.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CAPTURE = "conversations-0.18.0-a.jsonl.gz"
NAMESPACE = "inference"
VALUES = {
    "image": {"repository": "localhost/cache-indexer", "tag": "dev", "pullPolicy": "Never"},
    "redis": {
        "bundled": {
            "readReplicas": 1,
            "image": {"repository": "localhost/redis", "tag": "7", "pullPolicy": "Never"},
        }
    },
}
ENGINE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "vllm",
        "labels": {"openfuyao.com/engine": "vllm", "openfuyao.com/pdRole": "aggregate"},
    },
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "vllm",
                "image": "localhost/cache-indexer:dev",
                "imagePullPolicy": "Never",
                "command": ["sh", "-c"],
                "args": [
                    "exec cache-indexer replay --host 0.0.0.0 --replay-port 6557 --speed 0 --stay "
                    f"/opt/cache-indexer/lib/python3*/site-packages/collector/data/{CAPTURE}"
                ],
                "ports": [
                    {"name": "zmq-pub", "containerPort": 5557},
                    {"name": "zmq-replay", "containerPort": 6557},
                ],
            }
        ],
    },
}
# Runs in a pod of its own: asks by the Service's DNS name until it is told to stop, and counts.
CLIENT = """
import json, sys, time, urllib.request
body = sys.stdin.readline().encode()
answers, failures, end = 0, [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    url = "http://cache-indexer-service:8080/kv-cache/hit-rate"
    try:
        answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body), timeout=10))
        answers += answer["status"] == 0
    except Exception as error:
        failures.append(f"{time.time():.3f} {error!r}")
    time.sleep(0.01)
print(json.dumps({"answers": answers, "failures": failures, "last": answer}))
"""


@pytest.fixture(scope="module")
def cluster(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The node with the chart installed, an engine that has played all of its recording, and a client pod."""
    folder = binaries.cache() / "images"
    folder.mkdir(exist_ok=True)
    ours, redis = folder / "cache-indexer.tar", folder / "redis.tar"
    subprocess.run([helm.ROOT / "image" / "build.sh", "localhost/cache-indexer:dev", ours], check=True)
    if not redis.is_file():
        context = Path(__file__).parent / "redis"
        buildah = ["buildah", "--storage-driver", "overlay"]
        options = ["--isolation", "chroot", "--network", "host", "--pull-never", "--tag", "localhost/redis:7"]
        subprocess.run([*buildah, "bud", *options, context], check=True)
        subprocess.run(
            [*buildah, "push", "localhost/redis:7", f"oci-archive:{redis}:localhost/redis:7"], check=True
        )
    node.load(ours)
    node.load(redis)
    values = tmp_path_factory.mktemp("chart") / "values.json"
    values.write_text(json.dumps(VALUES))
    install = ["install", "kv", str(helm.CHART), "--create-namespace", "--values", str(values)]
    node.helm(*install, "--namespace", NAMESPACE, "--wait", "--timeout", "240s")
    for pod in (ENGINE, _client_pod()):
        manifest = values.with_name("pod.json")
        manifest.write_text(json.dumps(pod))
        node.kubectl("apply", "-n", NAMESPACE, "-f", str(manifest))
    node.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/vllm", "pod/client", "--timeout=120s")
    yield node
    node.helm("uninstall", "kv", "--namespace", NAMESPACE, "--wait")


def _client_pod() -> dict[str, Any]:
    container = {
        "name": "client",
        "image": "localhost/cache-indexer:dev",
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec}


@pytest.fixture(scope="module")
def capture() -> Capture:
    """What the engine pod plays."""
    return load(helm.ROOT / "collector" / "data" / CAPTURE)


def _held(capture: Capture) -> set[str]:
    """The blocks that the engine holds at the end, by its own events."""
    dialect, held = engine(BlockKey()).dialect, set[str]()
    for frame in capture.frames:
        for event in dialect.decode(frame.payload).events:
            if isinstance(event, Stored):
                held |= set(unpack(event.blocks))
            elif isinstance(event, Removed):
                held -= set(unpack(event.blocks))
            elif isinstance(event, Cleared):
                held.clear()
    return held


def _expected(capture: Capture, prompt: tuple[int, ...], salt: str | None) -> float:
    """The share of a prompt that the engine holds."""
    assert capture.block_size is not None
    held = _held(capture)

    def share(chain: str) -> float:
        blocks = unpack(chain)
        prefix = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
        return prefix / len(blocks) if blocks else 0.0

    question = Prompt(prompt, capture.block_size, cache_salt=salt or None)
    # Engine versions hash a salt in different ways: the one that fits counts.
    return max(share(chain) for chain in engine(BlockKey()).rule.chains(question))


def _question(node: Node, capture: Capture, index: int = -1) -> tuple[str, float]:
    """The recording's request at `index` as a query about the engine's pod, and the ratio to get."""
    requests = [request for step in capture.steps for request in step.requests]
    request = requests[index]
    address = node.kubectl("get", "pod", "vllm", "-n", NAMESPACE, "-o", "jsonpath={.status.podIP}")
    prompt = {
        "token_ids": request.prompt,
        "block_size": capture.block_size,
        "cache_salt": request.cache_salt or "",
    }
    ratio = _expected(capture, request.prompt, request.cache_salt)
    return json.dumps({"server_ip": [address, "192.0.2.1"], "body": prompt}), ratio


def _client(node: Node, question: str, seconds: float) -> "subprocess.Popen[str]":
    """Ask again and again, from the client's pod."""
    command = ["exec", "-i", "-n", NAMESPACE, "client", "--", "python3", "-c", CLIENT, str(seconds)]
    process = subprocess.Popen(
        node.inside([*node._kubectl(), *command]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return process


def _result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, _ = process.communicate(timeout=300)
    result: dict[str, Any] = json.loads(output)
    return result


def _ratio(node: Node, question: str) -> float:
    score, unknown = _result(_client(node, question, 0.05))["last"]["server_score_list"]
    assert unknown["l1_hit_ratio"] == 0
    return float(score["l1_hit_ratio"])


def _until(what: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_query_by_dns_name_gets_what_the_engine_holds(cluster: Node, capture: Capture) -> None:
    for index in (-1, -10, 0):
        question, ratio = _question(cluster, capture, index)
        _until(lambda question=question, ratio=ratio: _ratio(cluster, question) == ratio)  # type: ignore[misc]
    assert _question(cluster, capture)[1] == 1.0


def test_helm_test(cluster: Node) -> None:
    assert "Succeeded" in cluster.helm("test", "kv", "--namespace", NAMESPACE)


def test_no_query_fails_while_the_chart_is_upgraded_and_a_collector_dies(
    cluster: Node, capture: Capture
) -> None:
    question, ratio = _question(cluster, capture)
    asking = _client(cluster, question, 60)
    stats = [
        "exec",
        "-n",
        NAMESPACE,
        "deploy/kv-cache-indexer-collector",
        "--",
        "cache-indexer",
        "stats",
        "--json",
    ]
    leader = json.loads(cluster.kubectl(*stats))[0]["stats"]["leader"]
    pods = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name").split()
    (dying,) = (pod for pod in pods if pod.removeprefix("pod/") in leader)
    cluster.kubectl("delete", "-n", NAMESPACE, dying, "--wait=false")
    upgrade = ["upgrade", "kv", str(helm.CHART), "--namespace", NAMESPACE, "--reuse-values"]
    cluster.helm(*upgrade, "--set", "log.level=debug", "--wait", "--timeout", "240s")
    result = _result(asking)
    assert result["failures"] == []
    assert result["answers"] > 100
    assert result["last"]["server_score_list"][0]["l1_hit_ratio"] == ratio


def test_the_index_comes_back_after_redis_lost_it(cluster: Node, capture: Capture) -> None:
    """The bundled Redis has no volume here, so that the pod's end is the data's end."""
    question, ratio = _question(cluster, capture)
    cluster.kubectl("delete", "-n", NAMESPACE, "pod", "kv-cache-indexer-redis-0", "--wait=true")
    rollout = ["rollout", "status", "-n", NAMESPACE, "statefulset/kv-cache-indexer-redis", "--timeout=120s"]
    cluster.kubectl(*rollout)
    _until(lambda: _ratio(cluster, question) == ratio)


def test_an_engine_that_is_gone_holds_nothing(cluster: Node, capture: Capture) -> None:
    question, ratio = _question(cluster, capture)
    assert ratio > 0
    cluster.kubectl("delete", "-n", NAMESPACE, "pod", "vllm")
    _until(lambda: _ratio(cluster, question) == 0)
