"""Discovery through the Kubernetes API, on the fake server and on the real one."""

import pytest

from collector.discovery.base import EngineTarget, Gone, Master, Rank
from collector.membership import Roster
from indexer.config.pool import Discovery, MooncakeMaster
from tests.cluster.kube import STARTED, Namespace, Refused, engine_pod, running
from tests.cluster.watcher import watching

LATER = "2026-01-01T01:00:00Z"


def discovery(kube: Namespace, refresh: float = 300.0) -> Discovery:
    """A long interval, so that only the watch can have told what a test waits for."""
    return Discovery(kubeconfig=kube.kubeconfig(), refresh_interval=refresh)


def incarnation(uid: str, restarts: int = 0, started: str = STARTED) -> str:
    return f"{uid}/{restarts}/{started}"


async def test_an_engine_is_listed_once_it_runs(kube: Namespace) -> None:
    """Running with an address is enough: nothing here is ever Ready."""
    async with watching(discovery(kube)) as watcher:
        await watcher.ips()
        uid = await kube.run(engine_pod("a"), "10.0.0.1")
        snapshot = await watcher.ips("10.0.0.1")
    assert snapshot.engines == (EngineTarget("10.0.0.1", incarnation(uid), (Rank("tcp://10.0.0.1:5557"),)),)
    assert snapshot.error is None
    assert not watcher.gone


async def test_engines_from_before_are_listed_at_once(kube: Namespace) -> None:
    await kube.run(engine_pod("a"), "10.0.0.1")
    await kube.run(engine_pod("b", labels={"openfuyao.com/pdRole": "prefill"}), "10.0.0.2")
    await kube.run(engine_pod("c", labels={"openfuyao.com/pdRole": "decode"}), "10.0.0.3")
    await kube.request("POST", "", engine_pod("pending"))
    async with watching(discovery(kube)) as watcher:
        await watcher.ips("10.0.0.1", "10.0.0.2")
    assert {e.ip for e in watcher.all[0].engines} == {"10.0.0.1", "10.0.0.2"}


async def test_leaving_the_selector_is_no_end(kube: Namespace) -> None:
    """A label may be taken off by mistake, and the engine's blocks can't be had a second time."""
    async with watching(discovery(kube)) as watcher:
        uid = await kube.run(engine_pod("a"), "10.0.0.1")
        await watcher.ips("10.0.0.1")
        await kube.label("a", **{"openfuyao.com/pdRole": "decode"})
        await watcher.ips()
        await kube.label("a", **{"openfuyao.com/pdRole": "prefill"})
        snapshot = await watcher.ips("10.0.0.1")
    assert not watcher.gone
    assert snapshot.engines[0].incarnation == incarnation(uid)


async def test_a_deletion_names_the_engine(kube: Namespace) -> None:
    """It counts from the moment on that the pod is terminating: nobody routes to it any more."""
    async with watching(discovery(kube)) as watcher:
        uid = await kube.run(engine_pod("a"), "10.0.0.1")
        await watcher.ips("10.0.0.1")
        await kube.delete("a")
        await watcher.ips()
        assert watcher.gone == [Gone("10.0.0.1", incarnation(uid))]
        await kube.bury("a")
        await kube.run(engine_pod("b"), "10.0.0.2")
        await watcher.ips("10.0.0.2")
    assert len(watcher.gone) == 1


async def test_a_late_deletion_spares_the_next_owner_of_the_address(kube: Namespace) -> None:
    roster = Roster(grace=30.0)
    async with watching(discovery(kube)) as watcher:
        old = await kube.run(engine_pod("old"), "10.0.0.1")
        roster.observe(await watcher.ips("10.0.0.1"), 0.0)
        new = await kube.run(engine_pod("new"), "10.0.0.1")
        both = await watcher.ips("10.0.0.1", "10.0.0.1")
        refused = roster.observe(both, 1.0).refused
        assert [(r.incarnation, r.holder) for r in refused] == [(incarnation(new), incarnation(old))]
        await kube.bury("old")
        after = await watcher.ips("10.0.0.1")
    view = roster.observe(after, 2.0)
    assert watcher.gone == [Gone("10.0.0.1", incarnation(old))]
    assert [feed.incarnation for feed in view.feeds] == [incarnation(new)]
    assert not view.refused


async def test_a_restarted_container_is_another_engine(kube: Namespace) -> None:
    pod = engine_pod("a")
    async with watching(discovery(kube)) as watcher:
        uid = await kube.run(pod, "10.0.0.1")
        await watcher.ips("10.0.0.1")
        crashed = running(pod, "10.0.0.1")
        crashed["containerStatuses"][1]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
        await kube.status("a", crashed)
        await watcher.ips()
        await kube.status("a", running(pod, "10.0.0.1", 1, LATER))
        snapshot = await watcher.ips("10.0.0.1")
    assert watcher.gone == [Gone("10.0.0.1", incarnation(uid))], "a process that ended holds nothing"
    assert snapshot.engines[0].incarnation == incarnation(uid, 1, LATER)


async def test_another_containers_restart_is_nothing(kube: Namespace) -> None:
    pod = engine_pod("a")
    async with watching(discovery(kube)) as watcher:
        uid = await kube.run(pod, "10.0.0.1")
        await watcher.ips("10.0.0.1")
        status = running(pod, "10.0.0.1")
        status["containerStatuses"][0]["restartCount"] = 7
        await kube.status("a", status)
        await kube.run(engine_pod("b"), "10.0.0.2")
        snapshot = await watcher.ips("10.0.0.1", "10.0.0.2")
    assert snapshot.engines[0].incarnation == incarnation(uid)
    assert not watcher.gone


async def test_a_deletion_while_out_of_reach_is_told_afterwards(kube: Namespace) -> None:
    async with watching(discovery(kube)) as watcher:
        uid = await kube.run(engine_pod("a"), "10.0.0.1")
        await kube.run(engine_pod("b"), "10.0.0.2")
        await watcher.ips("10.0.0.1", "10.0.0.2")
        kube.link.cut()
        blind = await watcher.until(lambda s: not s.complete)
        assert {e.ip for e in blind.engines} == {"10.0.0.1", "10.0.0.2"}, "nobody goes unseen"
        assert "can't be reached" in (blind.error or "")
        await kube.bury("a")
        kube.link.mend()
        await watcher.ips("10.0.0.2")
    assert watcher.gone == [Gone("10.0.0.1", incarnation(uid))]


async def test_expiry_of_the_watch_leaves_absence_to_the_grace_time(kube: Namespace) -> None:
    """Then the deletion itself was never seen."""
    roster = Roster(grace=30.0)
    async with watching(discovery(kube)) as watcher:
        uid = await kube.run(engine_pod("a"), "10.0.0.1")
        await kube.run(engine_pod("b"), "10.0.0.2")
        roster.observe(await watcher.ips("10.0.0.1", "10.0.0.2"), 0.0)
        kube.link.cut()
        roster.observe(await watcher.until(lambda s: not s.complete), 1.0)
        await kube.bury("a")
        await kube.backend.forget()
        kube.link.mend()
        roster.observe(await watcher.ips("10.0.0.2"), 100.0)
        streams = {("10.0.0.1", 0): incarnation(uid), ("10.0.0.2", 0): None}
        assert roster.retire(streams, 129.0) == []
        assert [(r.ip, r.why) for r in roster.retire(streams, 130.0)] == [("10.0.0.1", "not listed for 30 s")]
        await kube.run(engine_pod("c"), "10.0.0.3")
        await watcher.ips("10.0.0.2", "10.0.0.3")
    assert not watcher.gone


async def test_the_api_server_crashes_and_comes_back(kube: Namespace) -> None:
    async with watching(discovery(kube)) as watcher:
        await kube.run(engine_pod("a"), "10.0.0.1")
        before = await watcher.ips("10.0.0.1")
        await kube.backend.stop()
        blind = await watcher.until(lambda s: not s.complete)
        assert blind.engines == before.engines
        await kube.backend.start()
        assert (await watcher.ips("10.0.0.1")).engines == before.engines
        await kube.run(engine_pod("b"), "10.0.0.2")
        await watcher.ips("10.0.0.1", "10.0.0.2")
    assert not watcher.gone


async def test_every_resync_agrees_with_the_watch(kube: Namespace) -> None:
    """Lists and watches interleave here at every turn; nothing may flicker or be told twice."""
    pod = engine_pod("a")
    async with watching(discovery(kube, refresh=1.0)) as watcher:
        uid = await kube.run(pod, "10.0.0.1")
        for restarts in range(1, 6):
            await kube.status("a", running(pod, "10.0.0.1", restarts, LATER))
            await watcher.until(
                lambda s, n=restarts: [e.incarnation for e in s.engines] == [incarnation(uid, n, LATER)]  # type: ignore[misc]
            )
            await kube.run(engine_pod(f"b{restarts}"), "10.0.1.1")
            await watcher.ips("10.0.0.1", "10.0.1.1")
            await kube.bury(f"b{restarts}")
            await watcher.ips("10.0.0.1")
    runs = [e.incarnation for s in watcher.all for e in s.engines if e.ip == "10.0.0.1"]
    assert list(dict.fromkeys(runs)) == sorted(dict.fromkeys(runs)), "an older run came back"
    assert len({g.incarnation for g in watcher.gone}) == len(watcher.gone) == 5


async def test_masters(kube: Namespace) -> None:
    labels = {"openfuyao.com/kvmanager": "mooncake", "openfuyao.com/engine": "none"}
    async with watching(discovery(kube)) as watcher:
        await kube.run(engine_pod("named", labels=labels, ports={"rpc": 50051, "http": 9100}), "10.0.0.1")
        await kube.run(engine_pod("plain", labels=labels, ports={}), "fd00::1")
        snapshot = await watcher.until(lambda s: len(s.masters) == 2)
        assert set(snapshot.masters) == {Master("http://10.0.0.1:9100"), Master("http://[fd00::1]:9003")}
        assert not snapshot.engines
        await kube.delete("plain")
        await watcher.until(lambda s: s.masters == (Master("http://10.0.0.1:9100"),))
    without = Discovery(kubeconfig=kube.kubeconfig(), mooncake_master=MooncakeMaster(http_port=0))
    await kube.run(engine_pod("portless", labels=labels, ports={}), "10.0.0.3")
    async with watching(without) as watcher:
        assert (await watcher.ips()).masters == (Master("http://10.0.0.1:9100"),)


async def test_two_pods_on_one_host_address(kube: Namespace) -> None:
    """Both are passed on, the older first; the roster refuses the second."""
    older = await kube.run(engine_pod("older", hostNetwork=True, containers=host_ports(5557)), "192.168.0.1")
    younger = await kube.run(
        engine_pod("younger", hostNetwork=True, containers=host_ports(5657)), "192.168.0.1"
    )
    async with watching(discovery(kube)) as watcher:
        snapshot = await watcher.ips("192.168.0.1", "192.168.0.1")
    assert {e.ranks[0].events for e in snapshot.engines} == {
        "tcp://192.168.0.1:5557",
        "tcp://192.168.0.1:5657",
    }
    view = Roster(30.0).observe(snapshot, 0.0)
    assert len(view.refused) == 1
    assert {view.refused[0].incarnation, view.refused[0].holder} == {incarnation(older), incarnation(younger)}


def host_ports(port: int) -> list[dict[str, object]]:
    ports = [{"name": "zmq-pub", "containerPort": port, "hostPort": port}]
    return [{"name": "engine", "image": "vllm", "ports": ports}]


async def test_a_stale_token(kube: Namespace) -> None:
    stale = Discovery(kubeconfig=kube.kubeconfig(token="stale"))
    async with watching(stale) as watcher:
        snapshot = await watcher.until(lambda s: not s.complete)
    assert "does not know our token" in (snapshot.error or "")
    assert "stale" not in (snapshot.error or "")


ROLE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}


async def test_a_role_for_pods_is_all_it_needs(real_kube: Namespace) -> None:
    """Without it the error says what is missing; once it is there, nothing else is allowed."""
    kube = real_kube
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{kube.name}"
    accounts = f"/api/v1/namespaces/{kube.name}/serviceaccounts"
    await kube.call("POST", accounts, {"metadata": {"name": "cache-indexer"}})
    request = {"spec": {"expirationSeconds": 3600}}
    token = (await kube.call("POST", f"{accounts}/cache-indexer/token", request))["status"]["token"]
    await kube.run(engine_pod("a"), "10.0.0.1")
    async with watching(Discovery(kubeconfig=kube.kubeconfig(token=token))) as watcher:
        forbidden = await watcher.until(lambda s: not s.complete)
        assert f"a Role in namespace {kube.name} with get, list and watch on pods" in (forbidden.error or "")
        await kube.call("POST", f"{rbac}/roles", {"metadata": {"name": "cache-indexer"}, "rules": [ROLE]})
        binding = {
            "metadata": {"name": "cache-indexer"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cache-indexer"},
            "subjects": [{"kind": "ServiceAccount", "name": "cache-indexer", "namespace": kube.name}],
        }
        await kube.call("POST", f"{rbac}/rolebindings", binding)
        await watcher.ips("10.0.0.1")
        await kube.run(engine_pod("b"), "10.0.0.2")
        await watcher.ips("10.0.0.1", "10.0.0.2")
    pods = f"/api/v1/namespaces/{kube.name}/pods"
    for method, path in (
        ("DELETE", f"{pods}/a"),
        ("POST", pods),
        ("PATCH", f"{pods}/a"),
        ("GET", f"/api/v1/namespaces/{kube.name}/secrets"),
        ("GET", "/api/v1/namespaces/default/pods"),
    ):
        with pytest.raises(Refused, match="403"):
            await kube.call(method, path, engine_pod("x") if method != "GET" else None, token=token)
    assert await kube.call("GET", f"{pods}/a", token=token)
