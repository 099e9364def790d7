"""What is rendered: compared with files that a person has read, with Kubernetes' own schemas, with rules."""

import difflib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import latest_version, validate
from kubernetes_validate.utils import SchemaNotFoundError

from tests.chart import helm

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = [f"1.{minor}" for minor in range(28, int(latest_version().split(".")[1]) + 1)]
OPERATOR_KINDS = {"ServiceMonitor", "PrometheusRule"}


@pytest.mark.parametrize("name", helm.SETS)
def test_rendered_as_last_looked_at(name: str) -> None:
    rendered = helm.without_chance(helm.render(*helm.values(name)))
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(rendered)
    changes = difflib.unified_diff(file.read_text().splitlines(), rendered.splitlines(), "golden", "rendered")
    assert not list(changes), "if the change is meant: make golden, and read the diff"


def test_lint() -> None:
    done = helm.run("lint", "--strict", helm.CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", helm.SETS)
def test_kubernetes_knows_every_field(name: str) -> None:
    unknown = set()
    for item in helm.objects(helm.render(*helm.values(name))):
        for version in VERSIONS:
            try:
                validate(item, version, strict=True)
            except SchemaNotFoundError:
                unknown.add(item["kind"])
    assert unknown <= OPERATOR_KINDS


@pytest.mark.parametrize("name", helm.SETS)
def test_every_container_is_confined_and_has_resources(name: str) -> None:
    for pod, spec in helm.pods(helm.render(*helm.values(name))).items():
        assert spec["securityContext"]["runAsNonRoot"] is True, pod
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, pod
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, pod
            for kind in ("requests", "limits"):
                assert set(container["resources"][kind]) == {"cpu", "memory"}, pod


@pytest.mark.parametrize("name", helm.SETS)
def test_only_collectors_may_speak_to_the_api_server(name: str) -> None:
    rendered = helm.render(*helm.values(name))
    for pod, spec in helm.pods(rendered).items():
        assert spec["automountServiceAccountToken"] is pod.endswith("-collector"), pod
    roles = [o for o in helm.objects(rendered) if "Role" in o["kind"] and "rules" in o]
    assert {o["kind"] for o in roles} == {"Role"}
    rules = [rule for role in roles for rule in role["rules"]]
    assert {yaml.safe_dump(rule) for rule in rules} == {
        yaml.safe_dump({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]})
    }


@pytest.mark.parametrize("name", helm.SETS)
def test_services_and_budgets_select_pods_of_one_component(name: str) -> None:
    rendered = helm.render(*helm.values(name))
    labels = [
        o["spec"]["template"]["metadata"]["labels"]
        for o in helm.objects(rendered)
        if "template" in o.get("spec", {})
    ]
    for item in helm.objects(rendered):
        if item["kind"] == "Service":
            selector = dict(item["spec"]["selector"])
            selector.pop("statefulset.kubernetes.io/pod-name", None)
        elif item["kind"] == "PodDisruptionBudget":
            selector = item["spec"]["selector"]["matchLabels"]
        else:
            continue
        chosen = [own for own in labels if selector.items() <= own.items()]
        assert len(chosen) == 1, item["metadata"]["name"]


def test_a_changed_configuration_and_nothing_else_rolls_the_pods() -> None:
    def templates(*arguments: str) -> dict[str, Any]:
        return {
            o["metadata"]["name"]: o["spec"]["template"]
            for o in helm.objects(helm.render(*arguments))
            if "template" in o.get("spec", {})
        }

    before, after = templates(), templates("--set", "ingest.l3.pollInterval=20s")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"kv-cache-indexer-query", "kv-cache-indexer-collector"}
    assert templates("--set", "replicaCount=5") == before
    fuller = templates("--set", "redis.bundled.maxmemory=2gb")
    assert {name for name in before if before[name] != fuller[name]} == {"kv-cache-indexer-redis"}


def test_no_query_pod_ends_before_a_new_one_is_ready() -> None:
    query = helm.one(helm.render(), "Deployment", "kv-cache-indexer-query")["spec"]
    assert query["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    spec = query["template"]["spec"]
    (container,) = spec["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    http = yaml.safe_load(helm.config(helm.render()))["http"]
    assert spec["terminationGracePeriodSeconds"] > 5 + int(http["shutdownTimeout"].removesuffix("s"))


@pytest.mark.parametrize("name", ["external", "sentinel"])
def test_no_bundled_redis_beside_an_external_one(name: str) -> None:
    rendered = helm.render(*helm.values(name))
    assert not [o for o in helm.objects(rendered) if o["kind"] in ("StatefulSet", "Secret")]


def test_passwords_stand_in_the_secret_alone() -> None:
    rendered = helm.render()
    secret = helm.one(rendered, "Secret", "kv-cache-indexer-redis")
    assert len(set(secret["data"].values())) == 3
    for password in secret["data"].values():
        assert rendered.count(password) == 1
        assert re.fullmatch(r"[A-Za-z0-9+/=]{56}", password)
    assert helm.one(helm.render(), "Secret", "kv-cache-indexer-redis") != secret
