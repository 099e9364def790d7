"""What discovery relies on in the API, the same on the fake server as on the real one."""

import pytest

from collector.discovery.kubernetes.access import connect
from collector.discovery.kubernetes.api import ApiError, ExpiredError
from tests.cluster.kube import Namespace, Refused, engine_pod, running

SELECTOR = "openfuyao.com/engine=vllm,openfuyao.com/pdRole in (prefill,aggregate)"


async def test_a_watch_tells_every_change(kube: Namespace) -> None:
    """Above all what a deletion looks like, and what only leaves the selector."""
    pods = await connect(kube.kubeconfig(), "")
    _, version = await pods.list(SELECTOR, None)
    first = engine_pod("first")
    await kube.run(first, "10.0.0.1")
    await kube.label("first", **{"openfuyao.com/pdRole": "decode"})
    await kube.label("first", **{"openfuyao.com/pdRole": "prefill"})
    await kube.label("first", other="x")
    await kube.delete("first")
    await kube.bury("first")
    unscheduled = engine_pod("second")
    del unscheduled["spec"]["nodeName"]
    await kube.request("POST", "", unscheduled | {"spec": unscheduled["spec"] | {"schedulerName": "nobody"}})
    await kube.delete("second")
    await kube.run(engine_pod("other", labels={"openfuyao.com/engine": "sglang"}), "10.0.0.2")
    seen = []
    async with pods.watch(SELECTOR, version, 1) as watch:
        async for kind, pod in watch:
            assert int(pod.metadata.resource_version) > int(version)
            version = pod.metadata.resource_version
            seen.append(
                (kind, pod.metadata.name, pod.status.pod_ip, pod.metadata.deletion_timestamp is not None)
            )
    await pods.close()
    assert seen == [
        ("ADDED", "first", "", False),
        ("MODIFIED", "first", "10.0.0.1", False),
        ("DELETED", "first", "10.0.0.1", False),
        ("ADDED", "first", "10.0.0.1", False),
        ("MODIFIED", "first", "10.0.0.1", False),
        ("MODIFIED", "first", "10.0.0.1", True),
        ("MODIFIED", "first", "10.0.0.1", True),
        ("DELETED", "first", "10.0.0.1", True),
        ("ADDED", "second", "", False),
        ("MODIFIED", "second", "", True),
        ("DELETED", "second", "", True),
    ]


async def test_a_watch_goes_on_from_a_version(kube: Namespace) -> None:
    pods = await connect(kube.kubeconfig(), "")
    uid = await kube.run(engine_pod("a"), "10.0.0.1")
    listed, version = await pods.list(SELECTOR, None)
    assert [pod.metadata.uid for pod in listed] == [uid]
    await kube.status("a", running(engine_pod("a"), "10.0.0.1", restarts=3))
    async with pods.watch(SELECTOR, version, 1) as watch:
        [(kind, pod)] = [event async for event in watch]
    await pods.close()
    assert kind == "MODIFIED"
    restarts = {status.name: status.restart_count for status in pod.status.container_statuses or ()}
    assert restarts == {"proxy": 0, "engine": 3}


async def test_bookmarks_keep_a_quiet_watch_young(kube: Namespace) -> None:
    pods = await connect(kube.kubeconfig(), "")
    _, version = await pods.list(SELECTOR, None)
    async with pods.watch(SELECTOR, version, 4) as watch:
        await kube.run(engine_pod("other", labels={"openfuyao.com/engine": "sglang"}), "10.0.0.2")
        assert [event async for event in watch] == []
    await pods.close()
    assert watch.version is not None
    assert int(watch.version) >= int(version) + 2


async def test_a_list_comes_in_pages(kube: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.discovery.kubernetes.api.PAGE", 2)
    pods = await connect(kube.kubeconfig(), "")
    for number in range(5):
        await kube.run(engine_pod(f"e{number}"), f"10.0.0.{number}")
    listed, version = await pods.list(SELECTOR, None)
    again, _ = await pods.list(SELECTOR, version)
    await pods.close()
    assert [pod.metadata.name for pod in listed] == [f"e{number}" for number in range(5)]
    assert [pod.metadata.uid for pod in again] == [pod.metadata.uid for pod in listed]


async def test_a_forgotten_version_expires(kube: Namespace) -> None:
    pods = await connect(kube.kubeconfig(), "")
    _, version = await pods.list(SELECTOR, None)
    await kube.run(engine_pod("a"), "10.0.0.1")
    await kube.backend.forget()
    with pytest.raises(ExpiredError, match="too old resource version"):
        async with pods.watch(SELECTOR, version, 1) as watch:
            [event async for event in watch]
    await pods.close()


async def test_a_version_from_the_future(kube: Namespace) -> None:
    """After etcd was restored from a backup, the server never comes to the version that we know."""
    pods = await connect(kube.kubeconfig(), "")
    _, version = await pods.list(SELECTOR, None)
    with pytest.raises(ApiError, match="Too large resource version") as failure:
        await pods.list(SELECTOR, str(int(version) + 1_000_000))
    await pods.close()
    assert failure.value.status == 504


async def test_an_unknown_token(kube: Namespace) -> None:
    pods = await connect(kube.kubeconfig(token="stale"), "")
    with pytest.raises(ApiError) as failure:
        await pods.list(SELECTOR, None)
    await pods.close()
    assert failure.value.status == 401


async def test_a_name_in_use(kube: Namespace) -> None:
    await kube.run(engine_pod("a"), "10.0.0.1")
    with pytest.raises(Refused, match="409"):
        await kube.run(engine_pod("a"), "10.0.0.1")
