"""Labels are the users' own: any keys, any values, and pools told apart by them."""

import pytest

from indexer.config.pool import Discovery, Labels
from tests.cluster.kube import Namespace, engine_pod
from tests.cluster.watcher import watching


def following(kube: Namespace, labels: Labels) -> Discovery:
    return Discovery(kubeconfig=kube.kubeconfig(), labels=labels)


PROFILES = {
    "aggregate service": (
        Labels(engine_key="infernex.io/aggregateGroup", engine_value="ns.chat", pd_role_value=("aggregate",)),
        {"infernex.io/aggregateGroup": "ns.chat", "openfuyao.com/pdRole": "aggregate"},
        {"infernex.io/aggregateGroup": "ns.other", "openfuyao.com/pdRole": "aggregate"},
    ),
    "PD service": (
        Labels(engine_key="infernex.io/pdEngineGroup", engine_value="ns.chat", pd_role_value=("prefill",)),
        {"infernex.io/pdEngineGroup": "ns.chat", "openfuyao.com/pdRole": "prefill"},
        {"infernex.io/pdEngineGroup": "ns.chat", "openfuyao.com/pdRole": "decode"},
    ),
    "KServe PD": (
        Labels(
            engine_key="app.kubernetes.io/name",
            engine_value="chat",
            pd_role_key="app.kubernetes.io/component",
            pd_role_value=("prefill", "leader-prefill", "worker-prefill"),
        ),
        {"app.kubernetes.io/name": "chat", "app.kubernetes.io/component": "leader-prefill"},
        {"app.kubernetes.io/name": "chat", "app.kubernetes.io/component": "leader-decode"},
    ),
    "KServe aggregate": (
        Labels(
            engine_key="app.kubernetes.io/name",
            engine_value="chat",
            pd_role_key="app.kubernetes.io/component",
            pd_role_value=("workload", "leader", "worker"),
        ),
        {"app.kubernetes.io/name": "chat", "app.kubernetes.io/component": "worker"},
        {"app.kubernetes.io/name": "chat"},
    ),
    "any role": (
        Labels(engine_key="app", engine_value="vllm", pd_role_key=""),
        {"app": "vllm"},
        {"app": "router"},
    ),
}


@pytest.mark.parametrize("profile", PROFILES)
async def test_selectors_are_free(kube: Namespace, profile: str) -> None:
    labels, ours, other = PROFILES[profile]
    for name, marks, ip in (("ours", ours, "10.0.0.1"), ("other", other, "10.0.0.2")):
        pod = engine_pod(name)
        pod["metadata"]["labels"] = marks
        await kube.run(pod, ip)
    async with watching(following(kube, labels)) as watcher:
        await watcher.ips("10.0.0.1")


async def test_pools_see_their_own_engines(kube: Namespace) -> None:
    pools = [Labels(engine_key="model", engine_value=value) for value in ("qwen", "llama")]
    async with watching(following(kube, pools[0])) as qwen, watching(following(kube, pools[1])) as llama:
        await kube.run(engine_pod("a", labels={"model": "qwen"}), "10.0.0.1")
        await kube.run(engine_pod("b", labels={"model": "llama"}), "10.0.0.2")
        await qwen.ips("10.0.0.1")
        await llama.ips("10.0.0.2")
        await kube.label("a", model="llama")
        await qwen.ips()
        await llama.ips("10.0.0.1", "10.0.0.2")
