"""Values: those of the guide go on working, wrong ones are refused, and both sides know the same keys."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from msgspec import NODEFAULT

from indexer.config import load
from indexer.config.schema import keys
from indexer.config.tree import File
from indexer.errors import ConfigError
from tests.chart import helm

GUIDE = Path(__file__).parent / "values" / "guide.yaml"
SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((helm.CHART / "values.yaml").read_text())
# Keys of config.yaml whose values the chart has under another name, or that make no sense in a pod.
ELSEWHERE = {
    "http.addr": "service.targetPort",
    "collector.addr": "collector.port",
    "redis.username": "redis.auth",
    "redis.password": "redis.auth",
    "redis.passwordFile": "redis.auth",
    "redis.tls.caFile": "redis.tls.caSecret",
    "discovery.kubeconfig": "serviceAccount",
    "pools[].discovery.kubeconfig": "serviceAccount",
}


def _loaded(tmp_path: Path, *arguments: str | Path, chart: Path = helm.CHART) -> Any:
    file, authorities = tmp_path / "config.yaml", tmp_path / "ca.crt"
    authorities.touch()
    text = helm.config(helm.render(*arguments, chart=chart))
    file.write_text(text.replace("/etc/cache-indexer-redis-ca/ca.crt", str(authorities)))
    return load(file, {"POD_NAMESPACE": "inference"})


@pytest.mark.parametrize("name", helm.SETS)
def test_the_program_accepts_the_rendered_configuration(name: str, tmp_path: Path) -> None:
    assert _loaded(tmp_path, *helm.values(name)).pools


def test_defaults_are_the_programs_own(tmp_path: Path) -> None:
    rendered = _loaded(tmp_path)
    plain = load(None, {"POD_NAMESPACE": "inference"}, default_file=tmp_path / "none")
    for section in ("log", "http", "collector", "ingest", "pools"):
        assert getattr(rendered, section) == getattr(plain, section)
    assert rendered.redis.url == "redis://kv-cache-indexer-redis:6379/0"
    assert rendered.redis.timeout == plain.redis.timeout


def test_the_guides_values_are_the_defaults() -> None:
    def below(guide: Any, own: Any, path: str = "") -> Iterator[str]:
        for key, value in guide.items():
            if key not in own:
                yield f"{path}{key} is missing"
            elif isinstance(value, dict) and value:
                yield from below(value, own[key], f"{path}{key}.")
            elif own[key] != value:
                yield f"{path}{key}: {own[key]!r}, the guide has {value!r}"

    assert list(below(yaml.safe_load(GUIDE.read_text()), DEFAULTS)) == []


def test_the_guides_values_work_unchanged() -> None:
    mine, guides = (helm.without_chance(text) for text in (helm.render(), helm.render("--values", GUIDE)))
    assert guides == mine


def test_as_a_part_of_another_chart(tmp_path: Path) -> None:
    parent = tmp_path / "infernex"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / "cache-indexer").symlink_to(helm.CHART)
    dependency = {"name": "cache-indexer", "version": "0.1.0", "condition": "cache-indexer.enabled"}
    chart = {"apiVersion": "v2", "name": "infernex", "version": "26.6.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    block = {
        "enabled": True,
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}},
        "blockKey": {"pythonHashSeed": "7", "prefixCachingHashAlgo": "sha256", "useIntBlockHashes": False},
        "discovery": {
            "refreshInterval": "5s",
            "vllm": {"zmqPortName": "events"},
            "mooncakeMaster": {"httpPortName": "admin", "httpPort": 9100},
        },
        "service": {"name": "cache-indexer-service", "port": 8080},
    }
    values = {"cache-indexer": block, "global": {"imageRegistry": "registry.example.com"}}
    (parent / "values.yaml").write_text(yaml.safe_dump(values))

    rendered = helm.render(chart=parent)
    (service,) = (o for o in helm.objects(rendered) if o["metadata"]["name"] == "cache-indexer-service")
    assert service["spec"]["ports"] == [{"name": "http", "port": 8080, "targetPort": "http"}]
    (pool,) = _loaded(tmp_path, chart=parent).pools
    assert (pool.block_key.python_hash_seed, pool.block_key.use_int_block_hashes) == ("7", False)
    assert (pool.discovery.vllm.zmq_port_name, pool.discovery.mooncake_master.http_port) == ("events", 9100)
    assert not helm.objects(helm.render("--set", "cache-indexer.enabled=false", chart=parent))


def test_a_seed_of_null_means_that_the_engines_have_none(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("blockKey: {pythonHashSeed: null}")
    config = yaml.safe_load(helm.config(helm.render("--values", values)))
    assert config["blockKey"]["pythonHashSeed"] is None


def test_pods_are_looked_for_where_the_role_is() -> None:
    rendered = helm.render(*helm.values("everything"))
    roles = {o["metadata"]["namespace"] for o in helm.objects(rendered) if o["kind"] == "Role"}
    assert roles == {"inference", "other"}


REFUSED = {
    "an unknown key": ({"replicas": 3}, "replicas"),
    "an unknown key further down": ({"ingest": {"l1": {"backofMax": "3s"}}}, "backofMax"),
    "an unknown key of a pool": ({"pools": [{"name": "a", "blockkey": {}}]}, "blockkey"),
    "a duration without a unit": ({"http": {"readTimeout": 30}}, "/http/readTimeout"),
    "a duration of nonsense": ({"discovery": {"refreshInterval": "10 s"}}, "/discovery/refreshInterval"),
    "a duration in a pool": (
        {"pools": [{"name": "a", "discovery": {"grace": 5}}]},
        "/pools/0/discovery/grace",
    ),
    "a seed that is a number": ({"blockKey": {"pythonHashSeed": 0}}, "/blockKey/pythonHashSeed"),
    "an unknown algorithm": ({"blockKey": {"prefixCachingHashAlgo": "md5"}}, "prefixCachingHashAlgo"),
    "an unknown log level": ({"log": {"level": "loud"}}, "/log/level"),
    "an integer that is text": ({"http": {"maxHeaderBytes": "1048576"}}, "/http/maxHeaderBytes"),
    "a port that is none": ({"discovery": {"mooncakeMaster": {"httpPort": 70000}}}, "httpPort"),
    "a pool without a name": ({"pools": [{"blockKey": {}}]}, "/pools/0"),
    "no roles": ({"discovery": {"labels": {"pdRoleValue": []}}}, "pdRoleValue"),
    "a password in a URL": ({"redis": {"url": "redis://u:p@h:6379/0"}}, "/redis/url"),
    "a URL of something else": ({"redis": {"url": "http://redis:6379"}}, "/redis/url"),
    "maxmemory as Kubernetes writes it": ({"redis": {"bundled": {"maxmemory": "1Gi"}}}, "maxmemory"),
    "an unknown key of the bundled Redis": ({"redis": {"bundled": {"replica": 1}}}, "replica"),
    "text for a switch": ({"autoscaling": {"enabled": "yes please"}}, "/autoscaling/enabled"),
    "an affinity of a new kind": ({"podAntiAffinity": "maybe"}, "/podAntiAffinity"),
    "an image without a tag": ({"image": {"tag": ""}}, "/image/tag"),
    "a Service name that is none": ({"service": {"name": "Cache_Indexer"}}, "/service/name"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_its_name(what: str, tmp_path: Path) -> None:
    values, named = REFUSED[what]
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = helm.run("template", "kv", helm.CHART, "--values", file)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_default_is_allowed_and_every_allowed_key_has_a_default() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)

    def undocumented(schema: Any, values: Any, path: str) -> Iterator[str]:
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        for name, inner in schema.get("properties", {}).items():
            if name not in values:
                yield f"{path}{name}"
            elif isinstance(values[name], dict):
                yield from undocumented(inner, values[name], f"{path}{name}.")

    jsonschema.validate(DEFAULTS, SCHEMA)
    free = {"global", "enabled", "resources.claims"}
    free |= {f"{part}.resources.claims" for part in ("collector", "redis.bundled")}
    assert set(undocumented(SCHEMA, DEFAULTS, "")) == free


def _config_keys() -> dict[str, Any]:
    return {key.path: key for key in keys(File) if key.path not in ELSEWHERE}


def test_every_key_of_the_configuration_can_be_set() -> None:
    refused = []
    for path, key in _config_keys().items():
        default = key.default
        if default is NODEFAULT:
            continue
        value = json.loads(json.dumps(default, default=str)) if default != () else []
        if type(default).__name__ == "Duration":
            value = str(default)
        try:
            jsonschema.validate(_nested(path, value), SCHEMA)
        except jsonschema.ValidationError as error:
            refused.append(f"{path}: {error.message}")
    assert refused == []


def _nested(path: str, value: Any) -> Any:
    head, dot, rest = path.partition(".")
    inner = _nested(rest, value) if dot else value
    if head.endswith("[]"):
        required = {"pools[]": {"name": "a"}, "engines[]": {"ip": "h"}, "ranks[]": {"events": "tcp://h:1"}}
        base = required.get(head, {})
        return {head.removesuffix("[]"): [{**base, **inner}]}
    return {head: inner}


WRONG = (-1, "nonsense", True, 5, [], {}, ["x"], None)


def test_what_the_schema_lets_through_the_program_can_read(tmp_path: Path) -> None:
    """For each key, values of every type: the chart may be laxer only where the form of a text counts."""
    lax = []
    file = tmp_path / "config.yaml"
    for path in _config_keys():
        if "[]" in path or path in ("pools", "redis.url", "redis.readUrl"):
            continue
        for value in WRONG:
            values = _nested(path, value)
            try:
                jsonschema.validate(values, SCHEMA)
            except jsonschema.ValidationError:
                continue
            values.setdefault("redis", {})["url"] = "rediss://redis:6379/0"
            file.write_text(yaml.safe_dump(values))
            try:
                load(file, {})
            except ConfigError as error:
                if not isinstance(value, str):
                    lax.append(f"{path}: {value!r}: {error}")
    assert lax == []
