"""What runs beside the chart: a pod that plays a recorded engine, Mooncake, a client. Labels and port names
are those of engines.md and mooncake.md."""

import json

from tests.chart import helm
from tests.cluster.kube import Json
from tests.cluster.node.node import Node

NAMESPACE = "inference"
CAPTURE = "conversations-0.18.0-a.jsonl.gz"
OURS, REDIS, MOONCAKE = "localhost/cache-indexer:dev", "localhost/redis:7", "localhost/mooncake:0.3.13"
MASTER = "deployment/mooncake-master"
SEGMENT_PORT = 17001
MIB = 1 << 20
_CLIENT = (helm.ROOT / "tests" / "mooncake_client.py").read_text()


def kubectl(node: Node, verb: str, *arguments: str) -> str:
    """kubectl in the namespace of the release."""
    return node.kubectl("--namespace", NAMESPACE, verb, *arguments)


def apply(node: Node, *manifests: Json) -> None:
    """Create or change objects in the namespace of the release."""
    file = node.run / "manifests.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    kubectl(node, "apply", f"--filename={file}")


def address(node: Node, pod: str) -> str:
    """A pod's IP."""
    return kubectl(node, "get", "pod", pod, "--output=jsonpath={.status.podIP}")


def client() -> Json:
    """A pod to ask from."""
    return _pod("client", {}, {"name": "client", "image": OURS, "command": ["sleep", "3600"]})


def engine(name: str, *, plays: bool) -> Json:
    """An engine's pod with a real Mooncake client of 64 MiB; if it `plays`, it publishes what a recorded
    engine did, else nothing is known of its HBM."""
    labels = {"openfuyao.com/engine": "vllm", "openfuyao.com/pdRole": "aggregate"}
    return _pod(name, labels, *([_RECORDED_ENGINE] if plays else []), _MOONCAKE_CLIENT)


def put(node: Node, pod: str, keys: list[str]) -> None:
    """Have an engine's Mooncake client store keys in its own memory; returns before they are stored."""
    segment = f"{address(node, pod)}:{SEGMENT_PORT}"
    command = json.dumps({"do": "put", "keys": keys, "size": 1024, "at": segment})
    shell = ["sh", "-c", 'printf "%s\\n" "$0" > /tmp/do', command]
    kubectl(node, "exec", pod, "--container=mooncake", "--", *shell)


def segments(node: Node) -> list[str]:
    """Whose memory the Mooncake master has, as the client's pod hears."""
    url = "http://mooncake-master-service:9003/get_all_segments"
    script = f"import urllib.request as r; print(r.urlopen('{url}').read().decode())"
    return kubectl(node, "exec", "client", "--", "python3", "-c", script).split()


def mooncake_master() -> list[Json]:
    """A real Mooncake master and its Service."""
    labels = {"openfuyao.com/kvmanager": "mooncake"}
    container = {
        "name": "mooncake-master",
        "image": MOONCAKE,
        "command": ["master", "--port=50051", "--metrics_port=9003", "--logtostderr=true"],
        "ports": [{"name": "rpc", "containerPort": 50051}, {"name": "http", "containerPort": 9003}],
        "readinessProbe": {"httpGet": {"path": "/get_all_segments", "port": "http"}, "periodSeconds": 1},
    }
    pod = _pod("mooncake-master", labels, container)
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    ports = [
        {"name": "rpc", "port": 30089, "targetPort": "rpc"},
        {"name": "http", "port": 9003, "targetPort": "http"},
    ]
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "mooncake-master"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "mooncake-master-service"},
            "spec": {"selector": labels, "ports": ports},
        },
    ]


def volumes(node: Node, count: int) -> list[Json]:
    """Volumes on the node's disk, of a storage class `local`."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}
    made: list[Json] = []
    for number in range(count):
        path = node.run / f"volume-{number}"
        path.mkdir()
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        made.append(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": path.name}, "spec": spec}
        )
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    return [storage_class, *made]


def _pod(name: str, labels: Json, *containers: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"imagePullPolicy": "Never"} | container for container in containers],
        },
    }


_RECORDED_ENGINE = {
    "name": "vllm",
    "image": OURS,
    "command": ["sh", "-c"],
    "args": [
        "exec cache-indexer replay --host 0.0.0.0 --replay-port 6557 --speed 0 --stay "
        f"/opt/cache-indexer/lib/python3*/site-packages/collector/data/{CAPTURE}"
    ],
    "ports": [{"name": "zmq-pub", "containerPort": 5557}, {"name": "zmq-replay", "containerPort": 6557}],
}
# It obeys what is written into a pipe.
_MOONCAKE_CLIENT = {
    "name": "mooncake",
    "image": MOONCAKE,
    "command": ["sh", "-c"],
    "args": [
        "mkfifo /tmp/do && exec 3<>/tmp/do && "
        f'exec python -c "$CLIENT" 1 "$POD_IP:{SEGMENT_PORT}" mooncake-master-service:30089 {64 * MIB} <&3'
    ],
    "env": [
        {"name": "CLIENT", "value": _CLIENT},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ],
}
