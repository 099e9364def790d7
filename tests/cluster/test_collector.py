"""The whole write side on discovered pods: their events end up in Redis under their addresses."""

from pathlib import Path
from typing import Any

from tests.cluster.kube import Namespace, engine_pod
from tests.fake_engine import Engine
from tests.fleet import Index, agrees, collecting, settings, until
from tests.servers import Server


def content(server: Server, kube: Namespace) -> dict[str, Any]:
    """A grace time that no test lives to see: what goes, goes by a deletion that was seen."""
    discovery = {"source": "kubernetes", "kubeconfig": kube.kubeconfig(), "grace": "1h"}
    return settings(server, {}, discovery=discovery)


def pod_of(name: str, engine: Engine) -> dict[str, Any]:
    return engine_pod(name, ports={"zmq-pub": engine.port, "zmq-replay": engine.replay_port})


async def test_blocks_come_with_a_pod_and_go_with_it(
    redis_server: Server, tmp_path: Path, kube: Namespace
) -> None:
    index = Index(redis_server)
    async with collecting(tmp_path, content(redis_server, kube)):
        for number in range(2):  # the second pod has the first one's address
            async with Engine(host="127.0.0.2", replay=True) as engine:
                await engine.store("before", f"before-{number}")
                await kube.run(pod_of(f"e{number}", engine), "127.0.0.2")
                await engine.heard()
                await engine.store(f"after-{number}")
                await agrees(index, "127.0.0.2", engine)
                await kube.delete(f"e{number}")
                await until(lambda: not index.stream("127.0.0.2"))
                assert not index.held("127.0.0.2")
                await kube.bury(f"e{number}")


async def test_a_lost_api_server_loses_no_blocks(
    redis_server: Server, tmp_path: Path, kube: Namespace
) -> None:
    index = Index(redis_server)
    async with (
        collecting(tmp_path, content(redis_server, kube)),
        Engine(host="127.0.0.2", replay=True) as engine,
    ):
        await kube.run(pod_of("e", engine), "127.0.0.2")
        await engine.heard()
        await engine.store("a", "b")
        await agrees(index, "127.0.0.2", engine)
        kube.link.cut()
        await engine.store("c")
        await agrees(index, "127.0.0.2", engine)
        kube.link.mend()
        await engine.remove("a")
        await agrees(index, "127.0.0.2", engine)
