"""The chart on a real API server, with real controllers: installed, upgraded, rolled back, removed."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chart import helm
from tests.cluster.control_plane import ControlPlane
from tests.conftest import REQUIRED

RELEASE, NAMESPACE = "kv", "inference"
OBJECTS = (
    "all,configmaps,secrets,serviceaccounts,roles,rolebindings,poddisruptionbudgets,persistentvolumeclaims"
)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """The control plane, with what the values name; helm must be here, too."""
    if reason := helm.absent():
        (pytest.fail if "helm" in REQUIRED else pytest.skip)(reason)
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for path, made in (
        ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
        ("/api/v1/namespaces", {"metadata": {"name": "other"}}),
        (classes, {"metadata": {"name": "high"}, "value": 1000}),
    ):
        if not control_plane.exists(f"{path}/{made['metadata']['name']}"):
            control_plane.request("POST", path, made)
    return control_plane


@pytest.fixture
def environment(cluster: ControlPlane, tmp_path: Path) -> Mapping[str, str]:
    """For helm and kubectl: that cluster, and nothing of this user's own settings."""
    own = {name: str(tmp_path / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    return os.environ | own | {"KUBECONFIG": str(cluster.kubeconfig), "NO_PROXY": "127.0.0.1"}


def _helm(environment: Mapping[str, str], *arguments: str | Path) -> str:
    done = helm.run(*arguments, "--namespace", NAMESPACE, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _kubectl(environment: Mapping[str, str], *arguments: str, stdin: str = "") -> str:
    kubectl = helm.ROOT / ".tools" / "bin" / "kubectl"
    done = subprocess.run(
        [kubectl if kubectl.is_file() else "kubectl", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _objects(environment: Mapping[str, str], kinds: str = OBJECTS) -> dict[str, Any]:
    """The release's objects, by `Kind/name`."""
    label = f"app.kubernetes.io/instance={RELEASE}"
    found = json.loads(
        _kubectl(environment, "get", kinds, "-n", NAMESPACE, "--selector", label, "--output", "json")
    )["items"]
    return {f"{o['kind']}/{o['metadata']['name']}": o for o in found}


def _pods(environment: Mapping[str, str], component: str) -> set[str]:
    """UIDs of a component's pods that are not ending."""
    return {
        o["metadata"]["uid"]
        for o in _objects(environment, "pods").values()
        if o["metadata"]["labels"]["app.kubernetes.io/component"] == component
        and "deletionTimestamp" not in o["metadata"]
    }


def test_a_releases_whole_life(cluster: ControlPlane, environment: Mapping[str, str]) -> None:
    wait = ("--wait", "--timeout", "60s")
    notes = _helm(environment, "install", RELEASE, helm.CHART, *wait)
    assert "http://cache-indexer-service.inference:8080/kv-cache/hit-rate" in notes
    assert "rendered without a cluster" not in notes
    first = _objects(environment)
    secret = first["Secret/kv-cache-indexer-redis"]["data"]
    redis, query = _pods(environment, "redis"), _pods(environment, "query")
    assert (len(redis), len(query), len(_pods(environment, "collector"))) == (1, 2, 2)

    _helm(
        environment, "upgrade", RELEASE, helm.CHART, *wait,
        "--set", "replicaCount=3", "--set", "ingest.l3.pollInterval=20s",
    )  # fmt: skip
    second = _objects(environment)
    assert second["Secret/kv-cache-indexer-redis"]["data"] == secret, "passwords are kept over upgrades"
    assert _pods(environment, "redis") == redis, "an upgrade that does not concern Redis leaves it running"
    assert len(_pods(environment, "query")) == 3
    assert not _pods(environment, "query") & query, "a changed configuration rolls the pods"
    assert "pollInterval: 20s" in second["ConfigMap/kv-cache-indexer"]["data"]["config.yaml"]

    _helm(environment, "rollback", RELEASE, "1", *wait)
    third = _objects(environment)
    assert third["Secret/kv-cache-indexer-redis"]["data"] == secret
    assert len(_pods(environment, "query")) == 2
    assert third["ConfigMap/kv-cache-indexer"]["data"] == first["ConfigMap/kv-cache-indexer"]["data"]

    _helm(environment, "uninstall", RELEASE, *wait)
    assert _objects(environment) == {}


@pytest.mark.parametrize("name", helm.SETS)
def test_the_api_server_accepts_every_object(name: str, environment: Mapping[str, str]) -> None:
    rendered = helm.objects(helm.render(*helm.values(name)))
    # These kinds come with the Prometheus operator, which is not here.
    known = [o for o in rendered if not o["apiVersion"].startswith("monitoring.coreos.com/")]
    for item in known:
        item["metadata"].setdefault("namespace", NAMESPACE)
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
    told = _kubectl(
        environment, "apply", "--dry-run=server", "--validate=strict", "--filename", "-", stdin=manifest
    )
    assert told.count("(server dry run)") == len(known)


def test_collectors_may_read_pods_and_nothing_more(
    cluster: ControlPlane, environment: Mapping[str, str]
) -> None:
    manifest = [
        o for o in helm.objects(helm.render()) if "Role" in o["kind"] or o["kind"] == "ServiceAccount"
    ]
    for item in manifest:
        item["metadata"].setdefault("namespace", NAMESPACE)
    items = {"apiVersion": "v1", "kind": "List", "items": manifest}
    _kubectl(environment, "apply", "--filename", "-", stdin=json.dumps(items))

    def allowed(verb: str, resource: str, namespace: str = NAMESPACE) -> bool:
        attributes = {"verb": verb, "resource": resource, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{NAMESPACE}:kv-cache-indexer",
                "resourceAttributes": attributes,
            },
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(json.loads(cluster.request("POST", path, review))["status"]["allowed"])

    try:
        assert all(allowed(verb, "pods") for verb in ("get", "list", "watch"))
        assert not any(allowed(verb, "pods") for verb in ("create", "delete", "patch", "update"))
        assert not any(allowed("get", kind) for kind in ("secrets", "configmaps", "leases"))
        assert not allowed("list", "pods", "other")
    finally:
        _kubectl(environment, "delete", "--filename", "-", stdin=json.dumps(items))
