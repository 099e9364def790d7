"""Engines from the configuration, the command line and a watched file."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from collector.discovery import EngineTarget, Master, Rank, source
from collector.discovery.file import FileSource
from collector.discovery.static import parse_engine
from indexer.config import load
from indexer.errors import ConfigError

ONE = "engines: [{ip: e1, incarnation: a, ranks: [{events: 'tcp://h:1'}]}]\n"
TWO = "engines: [{ip: e1, ranks: [{events: 'tcp://h:1'}]}, {ip: e2}]\nmooncakeMasters: [{http: 'http://m:9003/'}]\n"


async def first(iterator):
    return await asyncio.wait_for(anext(iterator), 20)


def configured(engines):
    return load(overrides={"discovery.source": "static", "discovery.static": {"engines": engines}})


async def test_static_list_is_one_complete_snapshot():
    config = load(
        overrides={
            "discovery.source": "static",
            "discovery.static": {
                "engines": [{"ip": "10.0.0.7", "ranks": [{"events": "tcp://a:1", "replay": "tcp://a:2"}]}],
                "mooncakeMasters": [{"http": "http://m:9003/"}],
            },
        }
    )
    snapshot = await first(source(config.pools[0].discovery).snapshots())
    assert snapshot.complete
    assert snapshot.engines == (EngineTarget("10.0.0.7", None, (Rank("tcp://a:1", "tcp://a:2"),)),)
    assert snapshot.masters == (Master("http://m:9003"),)


def test_source_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "collector.discovery.kubernetes", raising=False)
    monkeypatch.setitem(sys.modules, "collector.discovery.kubernetes.source", None)
    with pytest.raises(ConfigError, match=r"discovery\.source.*cache-indexer\[kubernetes\]"):
        source(load(overrides={"discovery.source": "kubernetes"}).pools[0].discovery)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("10.0.0.7=tcp://a:1", [("tcp://a:1", None)]),
        ("10.0.0.7=tcp://a:1,replay=tcp://a:9", [("tcp://a:1", "tcp://a:9")]),
        ("10.0.0.7=tcp://a:1,tcp://a:2,replay=tcp://a:9", [("tcp://a:1", None), ("tcp://a:2", "tcp://a:9")]),
        ("10.0.0.7=", []),
    ],
)
def test_engine_option(text, ranks):
    config = configured([parse_engine(text)])
    (engine,) = config.pools[0].discovery.static.engines
    assert engine.ip == "10.0.0.7"
    assert [(r.events, r.replay) for r in engine.ranks] == ranks


def test_engine_option_with_an_ipv6_address():
    assert parse_engine("[fd00::7]=tcp://[fd00::7]:5557") == {
        "ip": "fd00::7",
        "ranks": [{"events": "tcp://[fd00::7]:5557"}],
    }


@pytest.mark.parametrize(
    "text",
    [
        "tcp://a:1",
        "=tcp://a:1",
        "e=a:1",
        "e=replay=tcp://a:1",
        "e=tcp://a:1,replay=tcp://a:2,replay=tcp://a:3",
        "e=tcp://a:1,topic=x",
    ],
)
def test_engine_option_that_does_not_fit_is_shown(text):
    with pytest.raises(ConfigError, match="--engine"):
        parse_engine(text)


async def test_file_edits_apply_without_a_restart(tmp_path):
    file = tmp_path / "engines.yaml"
    file.write_text(ONE)
    snapshots = FileSource(str(file), 0.01).snapshots()
    assert [(e.ip, e.incarnation) for e in (await first(snapshots)).engines] == [("e1", "a")]
    file.write_text(TWO)
    snapshot = await first(snapshots)
    assert [e.ip for e in snapshot.engines] == ["e1", "e2"]
    assert snapshot.masters == (Master("http://m:9003"),)


async def test_file_replaced_by_rename_with_an_old_modification_time(tmp_path):
    file = tmp_path / "engines.yaml"
    file.write_text(ONE)
    snapshots = FileSource(str(file), 0.01).snapshots()
    await first(snapshots)
    other = tmp_path / "new"
    other.write_text(TWO)
    os.utime(other, (1, 1))
    other.replace(file)
    assert len((await first(snapshots)).engines) == 2


async def test_file_in_a_configmap_volume(tmp_path):
    """Kubernetes swaps a `..data` symlink; the file itself is a link that never changes."""

    def version(name: str, content: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "engines.yaml").write_text(content)
        (tmp_path / "..tmp").symlink_to(name)
        (tmp_path / "..tmp").replace(tmp_path / "..data")

    version("..1", ONE)
    (tmp_path / "engines.yaml").symlink_to(Path("..data") / "engines.yaml")
    snapshots = FileSource(str(tmp_path / "engines.yaml"), 0.01).snapshots()
    assert len((await first(snapshots)).engines) == 1
    version("..2", TWO)
    assert len((await first(snapshots)).engines) == 2


@pytest.mark.parametrize("broken", ["", "engines: [", "engines: [{ip: 7}]", "engine: []", "[]"])
async def test_broken_edit_keeps_the_last_good_list_and_says_so(tmp_path, broken):
    file = tmp_path / "engines.yaml"
    file.write_text(ONE)
    snapshots = FileSource(str(file), 0.01).snapshots()
    good = await first(snapshots)
    file.write_text(broken)
    kept = await first(snapshots)
    assert kept.engines == good.engines
    assert not kept.complete
    assert kept.error is not None
    assert str(file) in kept.error
    file.write_text(TWO)
    assert (await first(snapshots)).complete


async def test_file_that_is_not_there_yet(tmp_path):
    file = tmp_path / "engines.yaml"
    snapshots = FileSource(str(file), 0.01).snapshots()
    missing = await first(snapshots)
    assert not missing.complete
    assert str(file) in str(missing.error)
    file.write_text(ONE)
    assert (await first(snapshots)).complete
