"""The whole control plane: what a Deployment makes of itself, found by discovery."""

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Namespace, engine_pod
from tests.cluster.test_discovery import discovery
from tests.cluster.watcher import watching


async def test_a_deployment_of_engines_comes_and_goes(
    control_plane: ControlPlane, real_kube: Namespace
) -> None:
    """Scheduled, started and given addresses by others: nothing of a pod is written by the test."""
    template = engine_pod("template")
    del template["spec"]["nodeName"]
    deployment = {
        "metadata": {"name": "vllm"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": template["metadata"]["labels"]},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
        },
    }
    path = f"/apis/apps/v1/namespaces/{real_kube.name}/deployments"
    async with watching(discovery(real_kube)) as watcher:
        await real_kube.call("POST", path, deployment)
        full = await watcher.until(lambda s: s.complete and len(s.engines) == 3)
        assert len({engine.ip for engine in full.engines}) == 3
        before = {engine.incarnation for engine in full.engines}
        await real_kube.call("PATCH", f"{path}/vllm", {"spec": {"replicas": 1}})
        one = await watcher.until(lambda s: len(s.engines) == 1)
        await real_kube.call("DELETE", f"{path}/vllm")
        await watcher.ips()
    assert {gone.incarnation for gone in watcher.gone} == before
    assert one.engines[0].incarnation in before
