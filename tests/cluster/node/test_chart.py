"""The chart with real containers: our image, Redis, Mooncake, and a pod that plays a recorded engine."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collector.capture import Capture, load
from indexer.blocks import unpack
from indexer.config import BlockKey
from indexer.engines import engine
from indexer.engines.base import Prompt
from indexer.engines.events import Cleared, Removed, Stored
from tests.chart import helm
from tests.cluster.node import images, pods
from tests.cluster.node.node import Node
from tests.cluster.node.pods import NAMESPACE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VALUES = {
    "image": {"repository": "localhost/cache-indexer", "tag": "dev", "pullPolicy": "Never"},
    "ingest": {"l3": {"pollInterval": "1s"}},
    "redis": {
        "bundled": {
            "readReplicas": 1,
            "image": {"repository": "localhost/redis", "tag": "7", "pullPolicy": "Never"},
        }
    },
}
REDIS = "statefulset/kv-cache-indexer-redis"
REDIS_PODS = ("pod/kv-cache-indexer-redis-0", "pod/kv-cache-indexer-redis-1")
COLLECTORS = "deployment/kv-cache-indexer-collector"
# Runs in a pod of its own: asks by the Service's DNS name until it is told to stop, and counts.
CLIENT = """
import json, sys, time, urllib.request
body = sys.stdin.readline().encode()
answer, answers, failures, end = None, 0, [], time.monotonic() + float(sys.argv[1])
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
    """The node with the chart installed, a Mooncake master, two engines and a client pod. The engine `vllm`
    plays a recording; `quiet` has Mooncake memory only."""
    node.load(images.ours(pods.OURS))
    node.load(images.on_debian("redis", pods.REDIS))
    node.load(images.on_debian("mooncake", pods.MOONCAKE))
    values = tmp_path_factory.mktemp("chart") / "values.json"
    values.write_text(json.dumps(VALUES))
    install = ["install", "kv", str(helm.CHART), "--create-namespace", "--values", str(values)]
    node.helm(*install, "--namespace", NAMESPACE, "--wait", "--timeout", "240s")
    pods.apply(node, *pods.mooncake_master())
    pods.kubectl(node, "rollout", "status", pods.MASTER, "--timeout=120s")
    pods.apply(node, pods.engine("vllm", plays=True), pods.engine("quiet", plays=False), pods.client())
    ready = ["--for=condition=Ready", "pod/vllm", "pod/quiet", "pod/client"]
    pods.kubectl(node, "wait", *ready, "--timeout=120s")
    yield node
    node.helm("uninstall", "kv", "--namespace", NAMESPACE, "--wait")


@pytest.fixture(scope="module")
def addresses(cluster: Node) -> list[str]:
    """Of the pods `vllm` and `quiet`, also when they are gone."""
    return [pods.address(cluster, name) for name in ("vllm", "quiet")]


@pytest.fixture(scope="module")
def capture() -> Capture:
    """What the engine pod plays."""
    return load(helm.ROOT / "collector" / "data" / pods.CAPTURE)


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


def _request(capture: Capture, index: int) -> Prompt:
    """The recording's request at `index`."""
    request = [request for step in capture.steps for request in step.requests][index]
    assert capture.block_size is not None
    return Prompt(request.prompt, capture.block_size, cache_salt=request.cache_salt or None)


def _expected(capture: Capture, index: int = -1) -> float:
    """The share of that prompt that the recorded engine holds."""
    held = _held(capture)

    def share(chain: str) -> float:
        blocks = unpack(chain)
        prefix = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
        return prefix / len(blocks) if blocks else 0.0

    # Engine versions hash a salt in different ways: the one that fits counts.
    return max(share(chain) for chain in engine(BlockKey()).rule.chains(_request(capture, index)))


def _question(capture: Capture, addresses: list[str], index: int = -1) -> str:
    """That prompt as a query about the engines, and about an address that nobody has."""
    prompt = _request(capture, index)
    body = {
        "token_ids": prompt.token_ids,
        "block_size": prompt.block_size,
        "cache_salt": prompt.cache_salt or "",
    }
    return json.dumps({"server_ip": [*addresses, "192.0.2.1"], "body": body})


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


def _ratios(node: Node, question: str, tier: str = "l1") -> tuple[float, ...] | None:
    """Of `vllm` and `quiet`; None when there was no answer."""
    answer = _result(_client(node, question, 0.05))["last"]
    if answer is None:
        return None
    *ratios, unknown = (score[f"{tier}_hit_ratio"] for score in answer["server_score_list"])
    assert unknown == 0
    return tuple(ratios)


def _until(node: Node, question: str, expected: tuple[float, float], tier: str = "l1") -> None:
    """Ask until the ratios of `vllm` and `quiet` are as expected."""
    _eventually(lambda: _ratios(node, question, tier), expected)


def _eventually(ask: Callable[[], object], expected: object) -> None:
    deadline = time.monotonic() + 90
    while (answer := ask()) != expected:
        assert time.monotonic() < deadline, answer
        time.sleep(0.5)


def test_a_query_by_dns_name_gets_what_the_engine_holds(
    cluster: Node, capture: Capture, addresses: list[str]
) -> None:
    for index in (-1, -10, 0):
        _until(cluster, _question(capture, addresses, index), (_expected(capture, index), 0))
    assert _expected(capture) == 1.0


def test_helm_test(cluster: Node) -> None:
    assert "Succeeded" in cluster.helm("test", "kv", "--namespace", NAMESPACE)


def test_no_query_fails_while_the_chart_is_upgraded_and_a_collector_dies(
    cluster: Node, capture: Capture, addresses: list[str]
) -> None:
    asking = _client(cluster, _question(capture, addresses), 60)
    stats = pods.kubectl(cluster, "exec", COLLECTORS, "--", "cache-indexer", "stats", "--json")
    leader = json.loads(stats)[0]["stats"]["leader"]
    running = pods.kubectl(cluster, "get", "pods", "--output=name").split()
    (dying,) = (pod for pod in running if pod.removeprefix("pod/") in leader)
    pods.kubectl(cluster, "delete", dying, "--wait=false")
    _upgrade(cluster, "--set", "log.level=debug", "--wait", "--timeout", "240s")
    result = _result(asking)
    assert result["failures"] == []
    assert result["answers"] > 100
    assert result["last"]["server_score_list"][0]["l1_hit_ratio"] == _expected(capture)


def _upgrade(node: Node, *arguments: str) -> None:
    upgrade = ["upgrade", "kv", str(helm.CHART), "--namespace", NAMESPACE, "--reuse-values"]
    node.helm(*upgrade, *arguments)


def _replace_redis(node: Node, *deleted: str) -> None:
    pods.kubectl(node, "delete", *deleted, "--wait=true")
    pods.kubectl(node, "rollout", "status", REDIS, "--timeout=120s")


def test_the_index_comes_back_after_redis_lost_it(
    cluster: Node, capture: Capture, addresses: list[str]
) -> None:
    """The bundled Redis has no volume here, so that the pod's end is the data's end."""
    _replace_redis(cluster, REDIS_PODS[0])
    _until(cluster, _question(capture, addresses), (_expected(capture), 0))


def test_an_index_on_volumes_outlives_all_of_redis(
    cluster: Node, capture: Capture, addresses: list[str]
) -> None:
    """Persistence is turned on as operations.md says. Without collectors nobody can fill a new index."""
    question, expected = _question(capture, addresses), (_expected(capture), 0)
    pods.apply(cluster, *pods.volumes(cluster, len(REDIS_PODS)))
    pods.kubectl(cluster, "delete", REDIS, "--cascade=orphan")
    persistence = "redis.bundled.persistence"
    sizes = f"{persistence}.enabled=true,{persistence}.size=1Gi,{persistence}.storageClass=local"
    _upgrade(cluster, "--set", sizes)
    _replace_redis(cluster, *REDIS_PODS)
    _until(cluster, question, expected)

    pods.kubectl(cluster, "scale", COLLECTORS, "--replicas=0")
    ours = "--selector=app.kubernetes.io/component=collector"
    pods.kubectl(cluster, "wait", "--for=delete", "pod", ours, "--timeout=120s")
    _replace_redis(cluster, *REDIS_PODS)
    _until(cluster, question, expected)
    pods.kubectl(cluster, "scale", COLLECTORS, "--replicas=2")
    pods.kubectl(cluster, "rollout", "status", COLLECTORS, "--timeout=120s")
    assert _ratios(cluster, question) == expected


def _keys(capture: Capture, index: int, blocks: int) -> list[str]:
    """Under which the first blocks of a recorded prompt are stored by vllm-ascend's two ranks."""
    digests = engine(BlockKey()).rule.digests(_request(capture, index))[:blocks]
    prefixes = [f"Qwen3-32B@pcp0@dcp0@head_or_tp_rank:{rank}@pp_rank:0" for rank in (0, 1)]
    return [f"{prefix}@{digest.hex()}" for digest in digests for prefix in prefixes]


def test_mooncake_memory_is_what_was_put(cluster: Node, capture: Capture, addresses: list[str]) -> None:
    """Of 7 and 6 blocks; the fifth, of which one rank's part is missing, does not count."""
    last, first = (_question(capture, addresses, index) for index in (-1, 0))
    pods.put(cluster, "vllm", _keys(capture, -1, 5)[:-1])
    pods.put(cluster, "quiet", _keys(capture, 0, 2))
    _until(cluster, last, (4 / 7, 0), "l3")
    _until(cluster, first, (0, 2 / 6), "l3")


def test_mooncake_memory_goes_with_its_pod(cluster: Node, capture: Capture, addresses: list[str]) -> None:
    last, first = (_question(capture, addresses, index) for index in (-1, 0))
    pods.kubectl(cluster, "delete", "pod/quiet")
    _until(cluster, first, (0, 0), "l3")
    assert _ratios(cluster, last, "l3") == (4 / 7, 0)


def test_mooncake_memory_goes_with_the_master(cluster: Node, capture: Capture, addresses: list[str]) -> None:
    """A new master knows no keys, though the engine's client joins it again; what is put then is there."""
    last = _question(capture, addresses)
    pods.kubectl(cluster, "delete", "pod", "--selector=openfuyao.com/kvmanager=mooncake")
    pods.kubectl(cluster, "rollout", "status", pods.MASTER, "--timeout=120s")
    _until(cluster, last, (0, 0), "l3")
    _eventually(lambda: pods.segments(cluster), [f"{addresses[0]}:{pods.SEGMENT_PORT}"])
    pods.put(cluster, "vllm", _keys(capture, -1, 3))
    _until(cluster, last, (3 / 7, 0), "l3")


def test_an_engine_that_is_gone_holds_nothing(cluster: Node, capture: Capture, addresses: list[str]) -> None:
    question = _question(capture, addresses)
    assert _ratios(cluster, question) == (_expected(capture), 0)
    pods.kubectl(cluster, "delete", "pod/vllm")
    for tier in ("l1", "l3"):
        _until(cluster, question, (0, 0), tier)
