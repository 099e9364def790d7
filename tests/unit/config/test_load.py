"""Where the configuration comes from, and what comes out."""

import json
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from indexer.config import Config, Pool, Static, load, load_static, schema
from indexer.config.environment import variable
from indexer.config.reference import markdown
from indexer.config.tree import DEFAULT_REDIS_URL, File
from indexer.errors import ConfigError

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "tests/data/config/guide.yaml"


@pytest.fixture
def write(tmp_path):
    def write(text):
        file = tmp_path / "config.yaml"
        file.write_text(text)
        return file

    return write


def test_nothing_given_is_all_defaults(tmp_path):
    assert load(None, {}, {}, default_file=tmp_path / "absent") == Config()


def test_the_default_file_is_read_when_it_is_there(write):
    assert load(default_file=write("log: {level: error}")).log.level == "error"


def test_a_file_of_the_replaced_system_means_the_same_and_equals_the_defaults():
    assert load(GUIDE) == Config()


def test_json_is_yaml(write):
    raw = yaml.safe_load(GUIDE.read_text()) | {"log": {"level": "warn"}}
    assert load(write(json.dumps(raw))).log.level == "warn"


@pytest.mark.parametrize("text", ["", "# nothing\n", "http:\nblockKey:\ndiscovery: {labels: }\npools: []\n"])
def test_an_empty_file_or_section_stands_for_its_defaults(write, text):
    assert load(write(text)) == Config()


def test_durations_are_seconds_and_addresses_have_parts(write):
    config = load(write('{http: {addr: "127.0.0.1:1", readTimeout: 1m30s}, collector: {addr: ":2"}}'))
    assert config.http.read_timeout == 90.0
    assert (config.http.host, config.http.port) == ("127.0.0.1", 1)
    assert (config.collector.host, config.collector.port) == (None, 2)


def test_one_text_is_a_list_of_one(write):
    config = load(write("discovery: {labels: {pdRoleValue: prefill}}"))
    assert config.pools[0].discovery.labels.pd_role_value == ("prefill",)


def test_the_environment_comes_after_the_file_and_options_last(write):
    file = write("{http: {workers: 2, addr: ':1'}, redis: {timeout: 100ms}}")
    env = {"CACHE_INDEXER_HTTP_WORKERS": "3", "CACHE_INDEXER_HTTP_ADDR": ":2", "HOME": "/"}
    config = load(file, env, {"http.addr": ":3"})
    assert (config.http.workers, config.http.addr, config.redis.timeout) == (3, ":3", 0.1)


def test_the_environment_can_name_the_file_and_the_option_wins(write, tmp_path):
    env = {"CACHE_INDEXER_CONFIG": str(write("pool: a"))}
    assert load(None, env).pools[0].name == "a"
    other = tmp_path / "other.yaml"
    other.write_text("pool: b")
    assert load(other, env).pools[0].name == "b"


def test_the_environment_reads_each_type_as_the_file_does():
    config = load(
        env={
            "CACHE_INDEXER_BLOCK_KEY_PYTHON_HASH_SEED": "00",
            "CACHE_INDEXER_BLOCK_KEY_USE_INT_BLOCK_HASHES": "false",
            "CACHE_INDEXER_INGEST_L1_BACKOFF_MAX": "1m",
            "CACHE_INDEXER_INGEST_L3_COMPLETENESS": "any",
            "CACHE_INDEXER_DISCOVERY_LABELS_PD_ROLE_VALUE": "[prefill, decode]",
            "CACHE_INDEXER_DISCOVERY_MOONCAKE_MASTER_HTTP_PORT": "9004",
            "CACHE_INDEXER_REDIS_PASSWORD": "0123",
        }
    )
    block_key, discovery = config.pools[0].block_key, config.pools[0].discovery
    assert (block_key.python_hash_seed, block_key.use_int_block_hashes) == ("00", False)
    assert config.ingest.l1.backoff_max == 60
    assert config.ingest.l3.completeness == "any"
    assert discovery.labels.pd_role_value == ("prefill", "decode")
    assert discovery.mooncake_master.http_port == 9004
    assert config.redis.password == "0123"


def test_the_environment_can_unset_the_seed_and_empty_variables_are_absent():
    env = {"CACHE_INDEXER_BLOCK_KEY_PYTHON_HASH_SEED": "null", "CACHE_INDEXER_HTTP_WORKERS": ""}
    config = load(env=env)
    assert config.pools[0].block_key.python_hash_seed is None
    assert config.http.workers == 1


def test_variables_that_kubernetes_sets_for_services_are_none_of_ours():
    links = {}
    for service in ("", "SERVICE_", "REDIS_", "COLLECTOR_"):
        prefix = f"CACHE_INDEXER_{service}"
        links |= {
            f"{prefix}SERVICE_HOST": "10.0.0.1",
            f"{prefix}SERVICE_PORT": "8080",
            f"{prefix}SERVICE_PORT_HTTP_METRICS": "8080",
            f"{prefix}PORT": "tcp://10.0.0.1:8080",
            f"{prefix}PORT_8080_TCP": "tcp://10.0.0.1:8080",
            f"{prefix}PORT_8080_TCP_PROTO": "tcp",
            f"{prefix}PORT_8080_TCP_PORT": "8080",
            f"{prefix}PORT_8080_TCP_ADDR": "10.0.0.1",
        }
    assert load(env=links) == Config()
    with pytest.raises(ConfigError, match="CACHE_INDEXER_HTTP_PORT: unknown"):
        load(env={"CACHE_INDEXER_HTTP_PORT": "28080"})


def test_every_key_outside_lists_has_its_own_variable():
    keys = [key for key in schema.keys(File) if not key.in_list]
    names = [variable(key) for key in keys]
    assert len(set(names)) == len(names) > 40
    env = {
        variable(key): schema.default_text(key.default).strip('"')
        for key in keys
        if key.path
        not in ("redis.url", "pools", "discovery.static.engines", "discovery.static.mooncakeMasters")
    }
    assert load(env=env) == Config()


def test_whether_a_redis_url_was_given(write):
    assert load(default_file=write("redis: {timeout: 1ms}")).redis.url_given is False
    assert load(default_file=write("redis: {url: ''}")).redis.url == DEFAULT_REDIS_URL
    for config in (
        load(write(f"redis: {{url: {DEFAULT_REDIS_URL}}}")),
        load(env={"CACHE_INDEXER_REDIS_URL": DEFAULT_REDIS_URL}),
        load(overrides={"redis.url": DEFAULT_REDIS_URL}),
    ):
        assert config.redis.url_given is True
        assert config.redis.url == DEFAULT_REDIS_URL


def test_top_level_keys_are_the_short_form_of_one_pool(write):
    short = load(write("{pool: a, blockKey: {pythonHashSeed: '7'}, discovery: {source: file, file: /e}}"))
    long = load(
        write("pools: [{name: a, blockKey: {pythonHashSeed: '7'}, discovery: {source: file, file: /e}}]")
    )
    assert short == long


def test_pools_take_from_the_top_what_they_do_not_say(write):
    text = """
    blockKey: {pythonHashSeed: "7", dialect: 0.18.0}
    discovery: {refreshInterval: 5s, labels: {engineValue: x, kvManagerValue: y}}
    pools:
      - name: a
      - {name: b, blockKey: {dialect: auto}, discovery: {labels: {engineValue: z}}}
    """
    a, b = load(write(text)).pools
    assert (a.block_key.python_hash_seed, a.block_key.dialect) == ("7", "0.18.0")
    assert (b.block_key.python_hash_seed, b.block_key.dialect) == ("7", "auto")
    assert (a.discovery.labels.engine_value, b.discovery.labels.engine_value) == ("x", "z")
    assert b.discovery.labels.kv_manager_value == "y"
    assert b.discovery.refresh_interval == 5


def test_the_namespace_is_the_pod_s_unless_given(write):
    text = "pools: [{name: a}, {name: b, discovery: {namespace: own}}]"
    a, b = load(write(text), {"POD_NAMESPACE": "here"}).pools
    assert (a.discovery.namespace, b.discovery.namespace) == ("here", "own")


STATIC = """
engines:
  - ip: 10.0.0.7
    incarnation: a1
    ranks:
      - {events: "tcp://10.0.0.7:5557", replay: "tcp://10.0.0.7:5558"}
      - {events: "tcp://10.0.0.7:5559"}
  - {ip: "fd00::7", ranks: [{events: "tcp://[fd00::7]:5557"}]}
  - ip: host-only
mooncakeMasters:
  - http: http://10.0.0.20:9003
"""


def test_the_watched_file_holds_what_the_static_section_holds(tmp_path, write):
    engines = tmp_path / "engines.yaml"
    engines.write_text(STATIC)
    inline = yaml.safe_dump({"discovery": {"source": "static", "static": yaml.safe_load(STATIC)}})
    static = load_static(engines)
    assert static == load(write(inline)).pools[0].discovery.static
    assert static.engines[0].ranks[0].replay == "tcp://10.0.0.7:5558"
    assert static.engines[0].incarnation == "a1"
    assert static.engines[2].ranks == ()
    assert static.mooncake_masters[0].http == "http://10.0.0.20:9003"


def test_an_option_may_bring_whole_engines():
    config = load(
        overrides={"discovery.source": "static", "discovery.static": {"engines": [{"ip": "10.0.0.1"}]}}
    )
    assert [engine.ip for engine in config.pools[0].discovery.static.engines] == ["10.0.0.1"]


def test_an_empty_watched_file_is_a_fleet_of_none(tmp_path):
    empty = tmp_path / "engines.yaml"
    empty.write_text("")
    assert load_static(empty) == Static()


def test_the_tree_is_frozen():
    with pytest.raises(AttributeError):
        Config().http.workers = 2
    assert structs.replace(Config(), pools=(Pool("x"),)).pools[0].name == "x"


def test_every_key_is_described():
    assert [key.path for key in schema.keys(File) if not key.doc] == []


def test_the_configuration_page_is_up_to_date():
    assert (ROOT / "docs/configuration.md").read_text() == markdown(), "run `make docs`"
