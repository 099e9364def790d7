"""Every recorded answer of four real master versions, read by the client over a socket.

The answers are played back byte for byte; what is expected of each is worked out from its text another way.
"""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from collector.mooncake import answers
from collector.mooncake.client import MasterClient, askable, batchable
from collector.mooncake.errors import MasterAnswerError, MasterNotServingError, MasterUnreachableError
from collector.mooncake.gate import Gauges, read

DATA = Path(__file__).parent.parent / "data" / "mooncake" / "recorded.json.gz"
RECORDED: list[dict[str, str]] = json.loads(gzip.decompress(DATA.read_bytes()))
BY_NAME = {(row["version"], row["name"]): row for row in RECORDED}
GET = [row for row in RECORDED if row["request"].startswith("GET ")]


def asked(path: str) -> list[Any]:
    rows = [row for row in GET if row["request"].removeprefix("GET ").partition("?")[0] == path]
    assert rows
    return [pytest.param(row, id=f"{row['version']} {row['name']}") for row in rows]


def split(row: dict[str, str]) -> tuple[int, str]:
    head, _, body = row["answer"].partition("\r\n\r\n" if "\r\n\r\n" in row["answer"] else "\n\n")
    return int(head.split()[1]), body


@asynccontextmanager
async def playing(answer: str) -> AsyncIterator[MasterClient]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, MasterClient(f"http://127.0.0.1:{port}", timeout=5) as client:
        yield client


def failure(status: int) -> type[Exception]:
    return MasterNotServingError if status >= 500 else MasterAnswerError


@pytest.mark.parametrize("row", asked("/query_key"))
async def test_query_key(row: dict[str, str]) -> None:
    status, body = split(row)
    async with playing(row["answer"]) as client:
        if status == 404 and ("OBJECT_NOT_FOUND" in body or "REPLICA_IS_NOT_READY" in body):
            assert await client.places("k") is None
        elif status != 200:
            with pytest.raises(failure(status)):
                await client.places("k")
        else:
            expected = set(re.findall(r'"transport_endpoint_":"([^"]*)"', body))
            assert await client.places("k") == expected


@pytest.mark.parametrize("row", asked("/batch_query_keys"))
async def test_batch_query_keys(row: dict[str, str]) -> None:
    status, body = split(row)
    async with playing(row["answer"]) as client:
        try:
            data = json.loads(body)["data"] if status == 200 else None
        except ValueError:
            data = None
        if data is None:
            with pytest.raises(failure(status)):
                await client.batch_places(["k"], decoded=True)
        else:
            # Only `values` are in memory; disk_values and local_disk_values are not.
            expected = {
                key: {value["transport_endpoint_"] for value in entry["values"] or ()}
                for key, entry in data.items()
                if entry["ok"]
            }
            assert await client.batch_places(["k"], decoded=True) == expected


@pytest.mark.parametrize("row", asked("/batch_query_keys"))
def test_the_batch_call_tells_whether_it_leases(row: dict[str, str]) -> None:
    status, body = split(row)
    if status == 200 and '"a"b' not in body:
        leasing = row["version"] in ("0.3.9", "0.3.11.post1")
        assert answers.batch_is_read_only(body.encode()) is not leasing


@pytest.mark.parametrize("row", asked("/get_all_keys"))
async def test_get_all_keys(row: dict[str, str]) -> None:
    status, body = split(row)
    async with playing(row["answer"]) as client:
        if status == 200:
            assert answers.lines(await client.keys()) == body.splitlines()
        else:
            with pytest.raises(failure(status)):
                await client.keys()


@pytest.mark.parametrize("row", asked("/get_all_segments"))
async def test_get_all_segments(row: dict[str, str]) -> None:
    status, body = split(row)
    async with playing(row["answer"]) as client:
        if status == 200:
            assert await client.segments() == body.split()
        else:
            with pytest.raises(failure(status)):
                await client.segments()


@pytest.mark.parametrize("row", asked("/get_segments_detail"))
async def test_get_segments_detail(row: dict[str, str]) -> None:
    status, body = split(row)
    async with playing(row["answer"]) as client:
        found = await client.segment_endpoints()
    assert len(found) == (json.loads(body)["total_segments"] if status == 200 else 0)


@pytest.mark.parametrize("row", asked("/health"))
async def test_health(row: dict[str, str]) -> None:
    status, body = split(row)
    async with playing(row["answer"]) as client:
        if status == 200 and "standby" not in body:
            await client.check_health()
        else:
            with pytest.raises(MasterNotServingError):
                await client.check_health()


@pytest.mark.parametrize("row", asked("/metrics"))
async def test_metrics(row: dict[str, str]) -> None:
    async with playing(row["answer"]) as client:
        gauges = await client.gauges()
    names = {name for name, _ in gauges.values}
    if "ha_standby" not in row["name"]:
        assert {"master_key_count", "master_put_end_requests_total"} <= names
    assert not [name for name in names if re.search("ping|replica_list|cache_hit|valid_get", name)]


def test_a_replica_in_slices_is_one_place() -> None:
    line = b'{"size_":16777216,"buffer_address_":1,"transport_endpoint_":"10.0.0.1:15000"}\n'
    assert answers.places(line + line) == {"10.0.0.1:15000"}


def test_a_disk_only_object_is_nowhere_in_memory() -> None:
    assert answers.places(b"") == frozenset()
    assert answers.places(b'{"success":true,"data":[]}') == frozenset()


async def test_a_key_in_two_tiers_counts_where_its_memory_is() -> None:
    """An object in memory and on disk was announced as one: medium is data, and null is no error."""
    row = BY_NAME["0.3.13.post1", "disk_ssd_batch_mem_and_disk"]
    async with playing(row["answer"]) as client:
        assert await client.batch_places(["d0", "d1"], decoded=True) == {
            "d0": {"127.0.0.1:15799"},
            "d1": {"127.0.0.1:15799"},
        }
    row = BY_NAME["0.3.13.post1", "disk_ssd_batch_disk_only"]
    async with playing(row["answer"]) as client:
        assert await client.batch_places(["d0"], decoded=True) == {"d0": frozenset()}


async def test_another_program_with_the_same_paths_is_no_mooncake() -> None:
    body = '{"key":"k","size":1,"prot":"x","numBlobs":1,"valid":true,"blobs":[{"rank":0,"medium":"hbm"}]}'
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    async with playing(answer) as client:
        with pytest.raises(MasterAnswerError, match="query_key"):
            await client.places("k")


async def test_nobody_there() -> None:
    async with playing("") as client:
        with pytest.raises(MasterUnreachableError, match=client.base):
            await client.keys()
    async with MasterClient(client.base, timeout=1) as client:
        with pytest.raises(MasterUnreachableError):
            await client.keys()


async def test_a_silent_list_of_segments_has_a_limit_of_its_own() -> None:
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client gives up
        writer.close()
        gone.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, MasterClient(base, timeout=60, segments_timeout=0.1) as client:
        with pytest.raises(MasterUnreachableError, match=r"segmentsFetchTimeout = 0\.1s"):
            await client.segments()
        await asyncio.wait_for(gone.wait(), 10)


@pytest.mark.parametrize("bad", ["", " ", "a b", "a&b", "a\nb", "a\x00b", "a\udcffb"])
def test_keys_that_no_url_can_name(bad: str) -> None:
    assert askable(bad) == (bad == "")
    assert batchable(bad) == (bad == "")


def test_keys_that_only_a_batch_can_not_name() -> None:
    assert [askable(key) for key in ("a,b", 'a"b', "a#b?c=d;e+f%41@:/")] == [True] * 3
    assert [batchable(key) for key in ("a,b", 'a"b', "a#b?c=d;e+f%41@:/")] == [False, False, True]


def gauges(version: str, name: str = "metrics") -> Gauges:
    return read(split(BY_NAME[version, name])[1])


def test_counters_that_went_back_are_another_run() -> None:
    before = gauges("0.3.13.post1")
    assert before.same_run(before)
    assert before.same_run(Gauges(frozenset()))
    assert not Gauges(frozenset()).same_run(before), "a counter that is left out is zero"
