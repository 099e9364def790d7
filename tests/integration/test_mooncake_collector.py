"""The whole collector with a Mooncake master: what a router, an operator and Prometheus see of L3."""

# ruff: noqa: ASYNC110

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from indexer.caveats import caveats
from indexer.index.masters import MasterNote, masters
from indexer.index.reader import IndexReader
from tests import mooncake_servers
from tests.fleet import POOL, collecting, settings
from tests.integration.mooncake_rig import block, digest, keys
from tests.mooncake_servers import Master, Pod
from tests.servers import Server

A = "127.0.0.11"


def with_master(server: Server, master: Master) -> dict[str, Any]:
    content = settings(server, {A: []})
    content["discovery"]["static"]["mooncakeMasters"] = [{"http": master.http}]
    content["ingest"]["l3"] = {"pollInterval": "100ms", "httpTimeout": "1s"}
    return content


async def scraped(address: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as response:
        lines = (await response.text()).splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith("cache_indexer_collector_l3_")]
    return {
        name.partition("{")[0].removeprefix("cache_indexer_collector_l3_"): float(v) for name, _, v in found
    }


async def test_memory_hits_notes_and_metrics(redis_server: Server, tmp_path: Path) -> None:
    version = mooncake_servers.need("0.3.13.post1")
    master = Master(version, tmp_path).start()
    pod = Pod(master, A, tmp_path)
    client = redis_server.aclient()
    reader = IndexReader(client, POOL, timeout=5)
    try:
        pod.put([*keys(range(3)), f"Qwen/Qwen3-32B@8@0@{digest(1)[:16]}@bfloat16", "something else"])
        content = with_master(redis_server, master)
        async with collecting(tmp_path, content):
            chain = "".join(map(block, range(4)))
            async with asyncio.timeout(20):
                while (await reader.lookup([chain], ["l3"], [A])).blocks("l3", A) != 3:
                    await asyncio.sleep(0.05)
                while not (known := masters(await reader.meta())) or known[master.http].keys != 3:
                    await asyncio.sleep(0.05)
            assert (await reader.lookup([chain], ["l3"], [A, "*"])).pool_wide() == 3
            note = known[master.http]
            assert (note.state, note.lookup, note.unknown, note.leases) == ("live", "read-only", 1, 0)
            assert (note.unknown_sample, dict(note.foreign)) == ("something else", {"lmcache": 1})
            assert dict(note.required) == {"ascend:Qwen3-32B": ("0.0.0/0",)}
            shown = await scraped(content["collector"]["addr"])
            assert (shown["live"], shown["keys"], shown["leases"]) == (1, 3, 0)
            assert (shown["unknown_keys"], shown["foreign_keys"]) == (1, 1)

            master.kill()
            async with asyncio.timeout(20):
                while masters(await reader.meta())[master.http].state != "stale":
                    await asyncio.sleep(0.05)
            assert (await reader.lookup([chain], ["l3"], [A])).blocks("l3", A) == 3
            (warning,) = [w for w in caveats(0.0, {}, await reader.meta(), None) if "Mooncake" in w]
            assert f"{master.http} is stale" in warning
            assert (await scraped(content["collector"]["addr"]))["live"] == 0
    finally:
        pod.kill()
        master.kill()
        await client.aclose()


def test_a_note_that_nobody_can_read_is_left_out() -> None:
    assert masters({"l3:http://a": "{", "l3:http://b": '{"state":"live"}', "mismatch": "x"}) == {
        "http://b": MasterNote("live")
    }
