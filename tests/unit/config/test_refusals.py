"""What is wrong is refused at load, and the message names the key, the value and what is allowed."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indexer.config import Config, load, load_static
from indexer.errors import ConfigError

STATIC = "discovery: {source: static, static: {engines: [%s]}}"

WRONG = {
    # keys
    "htp: {}": ["htp: unknown key; did you mean http? Allowed here: log, http, redis"],
    "ingest: {l1: {bakoffInitial: 1s}}": [
        "ingest.l1.bakoffInitial: unknown key; did you mean backoffInitial?"
    ],
    "blockKey: {python_hash_seed: '0'}": ["blockKey.python_hash_seed", "did you mean pythonHashSeed?"],
    "HTTP: {}": ["HTTP: unknown key; did you mean http?"],
    "redis: {urlGiven: true}": ["redis.urlGiven: unknown key", "Allowed here: url, readUrl"],
    "log: {zzz: 1}": ["log.zzz: unknown key. Allowed here: level"],
    "pools: [{name: a}, {nme: b}]": ["pools[1].nme: unknown key; did you mean name?"],
    STATIC % "{ip: a, rank: []}": ["discovery.static.engines[0].rank: unknown key; did you mean ranks?"],
    "pool: a\npool: b": ["line 2", "pool stands twice"],
    "http: {addr: ':1', addr: ':2'}": ["addr stands twice"],
    "1: 2": ["line 1", "a key is not text"],
    "{pool: a, [b]: c}": ["line 1", "a key is not text"],
    # types
    "http: 28080": ["http: 28080 is not allowed; allowed: mapping of keys"],
    "pools: {}": ["pools: a mapping is not allowed; allowed: list of mappings"],
    "pools: [a]": ['pools[0]: "a" is not allowed; allowed: mapping of keys'],
    "http: {workers: '2'}": ['http.workers: "2" is not allowed; allowed: integer from 1 to 64'],
    "http: {workers: true}": ["http.workers: true is not allowed"],
    "http: {workers: 1.5}": ["http.workers: 1.5 is not allowed"],
    "http: {workers: null}": ["http.workers: null is not allowed"],
    "http: {maxHeaderBytes: .nan}": ["http.maxHeaderBytes: nan is not allowed"],
    "blockKey: {useIntBlockHashes: 1}": [
        "blockKey.useIntBlockHashes: 1 is not allowed; allowed: true or false"
    ],
    "blockKey: {pythonHashSeed: 0}": ["blockKey.pythonHashSeed: 0 is not", "text or null", 'Quote it: "0"'],
    "blockKey: {dialect: 0.18}": ["blockKey.dialect: 0.18 is not allowed", 'Quote it: "0.18"'],
    "redis: {password: 7777777}": ["redis.password: the value is not allowed; allowed: text. Quote it ("],
    "redis: !!set {hunter2}": ["redis: a value of another kind is not allowed"],
    "http: {addr: !!binary aHVudGVyMg==}": ["http.addr: a value of another kind is not allowed"],
    "http: {addr: 2026-01-01}": ["http.addr: 2026-01-01 is not allowed"],
    "http: {addr: 28080}": ["http.addr: 28080 is not allowed; allowed: text"],
    "discovery: {labels: {pdRoleValue: [1]}}": ["discovery.labels.pdRoleValue[0]: 1 is not allowed"],
    "discovery: {labels: {pdRoleValue: []}}": ["discovery.labels.pdRoleValue: a list is not allowed"],
    "[]": ["the file is no mapping"],
    "text": ["the file is no mapping"],
    # ranges and choices
    "http: {workers: 0}": ["http.workers: 0 is not allowed; allowed: integer from 1 to 64"],
    "http: {workers: 65}": ["http.workers: 65"],
    "http: {maxHitRateBodyBytes: 0}": ["http.maxHitRateBodyBytes: 0 is not allowed; allowed: integer from 1"],
    "discovery: {mooncakeMaster: {httpPort: 65536}}": ["httpPort: 65536", "integer from 0 to 65535"],
    "log: {level: loud}": ['log.level: "loud" is not allowed; allowed: one of debug, info, warn'],
    "blockKey: {prefixCachingHashAlgo: md5}": [
        "blockKey.prefixCachingHashAlgo: 'md5' is unknown",
        "sha256_cbor, sha256, xxhash_cbor",
    ],
    "blockKey: {engine: foo}": ["blockKey.engine: 'foo' is unknown; known: vllm"],
    "ingest: {l1: {onGap: drop}}": ["ingest.l1.onGap", "one of keep, wipe"],
    "ingest: {l3: {scheme: ftp}}": ["ingest.l3.scheme", "one of http, https"],
    "discovery: {source: consul}": ["discovery.source", "one of kubernetes, static, file"],
    # durations
    "ingest: {l1: {backoffInitial: 1}}": ["ingest.l1.backoffInitial: 1 is a bare number", 'such as "1s"'],
    "http: {readTimeout: 5x}": ['http.readTimeout: "5x" is not a duration'],
    "redis: {timeout: 0s}": ['redis.timeout: "0s" is out of range'],
    "redis: {timeout: 1000h}": ["at most 720h"],
    "redis: {timeout: [1s]}": ["redis.timeout: a list is not a duration"],
    # forms of text
    "http: {addr: '28080:'}": ['http.addr: "28080:" is not a listen address', "[::1]:28080"],
    "collector: {addr: x}": ["collector.addr"],
    "blockKey: {dialect: newest}": ["blockKey.dialect: 'newest' is neither auto nor an engine version"],
    "blockKey: {dialect: 'v18'}": ["blockKey.dialect"],
    "pool: 'a}b'": ['pool: "a}b" is not allowed'],
    "pool: ''": ["pool:"],
    "pool: a b": ["pool:"],
    "pools: [{name: a/b}]": ["pools[0].name"],
    "discovery: {labels: {engineKey: 'a b'}}": ["discovery.labels.engineKey", "label key"],
    "discovery: {labels: {engineValue: a/b}}": ["discovery.labels.engineValue", "label value"],
    "discovery: {labels: {pdRoleValue: [ok, -x]}}": ["discovery.labels.pdRoleValue[1]"],
    "discovery: {vllm: {zmqPortName: Zmq}}": ["discovery.vllm.zmqPortName"],
    "discovery: {mooncakeMaster: {httpPortName: abcdefghijklmnop}}": ["httpPortName"],
    STATIC % "{ranks: []}": ["discovery.static.engines[0].ip: is missing"],
    STATIC % "null": ["discovery.static.engines[0].ip: is missing"],
    STATIC % "{ip: 'a b'}": ["discovery.static.engines[0].ip"],
    STATIC % "{ip: '*'}": ["discovery.static.engines[0].ip"],
    STATIC % "{ip: a, ranks: [{events: 'a:1'}]}": ["engines[0].ranks[0].events", "tcp://host:port"],
    STATIC % "{ip: a, ranks: [{events: 'tcp://*:5557'}]}": ["engines[0].ranks[0].events"],
    STATIC % "{ip: a, ranks: [{events: 'tcp://a:70000'}]}": ["engines[0].ranks[0].events"],
    STATIC % "{ip: a, ranks: [{events: 'tcp://a:1', replay: x}]}": ["engines[0].ranks[0].replay"],
    "discovery: {source: static, static: {mooncakeMasters: [{http: 'a:1'}]}}": ["mooncakeMasters[0].http"],
    "redis: {url: 'http://h'}": ["redis.url", "redis+sentinel://h1:26379"],
    "redis: {readUrl: 'h'}": ["redis.readUrl"],
    # contradictions
    "ingest: {l1: {backoffInitial: 31s}}": [
        "ingest.l1.backoffInitial: 31s is longer than ingest.l1.backoffMax (30s)"
    ],
    "redis: {timeout: 700ms}": [
        "collector.leaseDuration: 2s is shorter than three times redis.timeout (700ms)"
    ],
    "collector: {leaseDuration: 1s}": ["collector.leaseDuration: 1s is shorter"],
    "collector: {addr: ':28080'}": ["collector.addr", "is also http.addr"],
    "{pool: a, pools: [{name: b}]}": ["pool: stands beside pools"],
    "pools: [{name: a}, {name: a, discovery: {namespace: x}}]": [
        'pools[1].name: "a" is the name of two pools'
    ],
    "pools: [{name: a}, {name: b}]": ["pools[1].discovery: the pod selector", 'also belongs to pool "a"'],
    "{discovery: {source: file, file: /e}, pools: [{name: a}, {name: b}]}": ["the file /e also belongs"],
    "{discovery: {source: static, static: {engines: [{ip: a}]}}, pools: [{name: a}, {name: b}]}": [
        'pools[1].discovery: engine a also belongs to pool "a"'
    ],
    "discovery: {source: file}": ["discovery.file: is missing"],
    "discovery: {file: /e}": ['discovery.file: is given, but discovery.source is "kubernetes"'],
    "discovery: {static: {engines: [{ip: a}]}}": ["discovery.static: is given, but discovery.source"],
    STATIC % "{ip: a}, {ip: a}": ['discovery.static.engines[1].ip: "a" stands twice'],
    STATIC % "{ip: a, ranks: [{events: 'tcp://a:1', replay: 'tcp://a:1'}]}": [
        "ranks[0].replay",
        "stands twice",
    ],
    STATIC % "{ip: a, ranks: [{events: 'tcp://a:1'}]}, {ip: b, ranks: [{events: 'tcp://a:1'}]}": [
        'engines[1].ranks[0].events: "tcp://a:1" stands twice'
    ],
    "discovery: {source: static, static: {mooncakeMasters: [{http: 'http://a'}, {http: 'http://a/'}]}}": [
        "mooncakeMasters[1].http",
        "stands twice",
    ],
    "blockKey: {pythonHashSeed: null, prefixCachingHashAlgo: xxhash_cbor}": [
        "blockKey.pythonHashSeed: unset is random in every engine process with xxhash_cbor",
        "set PYTHONHASHSEED there and here",
    ],
    "blockKey: {pythonHashSeed: null, dialect: 0.28.1}": [
        "blockKey.pythonHashSeed: unset is random in every engine process before vLLM 0.29"
    ],
    "redis: {password: a, passwordFile: /dev/null}": ["redis.passwordFile: stands beside redis.password"],
    "redis: {url: 'redis://:a@h', password: b}": ["redis.password: is given in the URL and beside it"],
    "redis: {passwordFile: /no/such}": ['redis.passwordFile: "/no/such" cannot be read: No such file'],
    "redis: {url: 'rediss://h', tls: {caFile: /no/such}}": ["redis.tls.caFile", "cannot be read"],
    "redis: {tls: {insecure: true}}": ["redis.tls: is given, but no URL asks for TLS"],
    "redis: {url: embedded, readUrl: 'redis://h'}": ["redis.readUrl", "embedded"],
    # no YAML
    "a: [": ["line 1", "not valid YAML"],
    "a: b: c": ["line 1", "not valid YAML"],
    "a: 1\n---\nb: 2": ["not valid YAML"],
    "!!python/object:os.system {}": ["not valid YAML"],
    "a: &x [*x]": ["a: unknown key"],
    "http: &x {addr: *x}": ["http.addr: a mapping is not allowed"],
    "\x00": ["not valid YAML"],
}


@pytest.fixture
def write(tmp_path):
    def write(text):
        file = tmp_path / "config.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


@pytest.mark.parametrize("text", WRONG)
def test_wrong_files(write, text):
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    message = str(caught.value)
    for part in [*WRONG[text], str(file)]:
        assert part in message


@pytest.mark.parametrize(
    "text",
    [
        "blockKey: {pythonHashSeed: null}",
        "blockKey: {pythonHashSeed: null, dialect: 0.29.0, prefixCachingHashAlgo: sha256}",
        "blockKey: {pythonHashSeed: random, dialect: 0.14.0rc1, prefixCachingHashAlgo: xxhash}",
        "{redis: {timeout: 1s}, collector: {leaseDuration: 3s}}",
        "{http: {addr: '127.0.0.1:0'}, collector: {addr: '127.0.0.1:0'}}",
        "{ingest: {l1: {backoffInitial: 5s, backoffMax: 5s}}}",
        "redis: {url: 'rediss://u:p@h/0', tls: {insecure: true}}",
        "pools: [{name: a}, {name: b, discovery: {labels: {engineValue: b}}}]",
        "pools: [{name: a}, {name: b, discovery: {labels: {pdRoleValue: decode}}}]",
        STATIC
        % "{ip: a, ranks: [{events: 'ipc:///run/a'}]}, {ip: '::1', ranks: [{events: 'tcp://[::1]:1'}]}",
        "http: {<<: {workers: 2, addr: ':1'}, addr: ':2'}",
    ],
)
def test_right_at_the_border(write, text):
    assert isinstance(load(write(text)), Config)


def test_a_file_that_was_named_must_be_there_and_readable(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: there is no such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load(None, {"CACHE_INDEXER_CONFIG": str(tmp_path / "absent.yaml")})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_text_that_is_no_utf8(write):
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(write(b"pool: \xff\xfe\xfd"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("CACHE_INDEXER_HTTP_WORKERS", "many", 'http.workers: "many" is not allowed'),
        ("CACHE_INDEXER_HTTP_WORKERS", "[", "is not readable as YAML"),
        ("CACHE_INDEXER_REDIS_TIMEOUT", "5", 'redis.timeout: "5" is a bare number'),
        ("CACHE_INDEXER_REDIS_TIMEOUT", "0s", "environment variable CACHE_INDEXER_REDIS_TIMEOUT"),
        ("CACHE_INDEXER_LOG_LEVEL", "x", "one of debug"),
        ("CACHE_INDEXER_POOLS", "[{nme: a}]", "pools[0].nme"),
        ("CACHE_INDEXER_REDIS_URI", "redis://h", "did you mean CACHE_INDEXER_REDIS_URL?"),
        ("CACHE_INDEXER_REDIS_URL_GIVEN", "true", "unknown environment variable"),
        ("CACHE_INDEXER_ZZZ", "1", "CACHE_INDEXER_ZZZ: unknown environment variable"),
    ],
)
def test_wrong_variables_are_named(name, value, says):
    with pytest.raises(ConfigError) as caught:
        load(env={name: value})
    assert says in str(caught.value)
    assert name in str(caught.value)


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match=r"redis\.uri: unknown key; did you mean redis\.url\? \(option\)"):
        load(overrides={"redis.uri": "x"})
    with pytest.raises(ConfigError, match=r"http\.workers: 0 is not allowed.*\(option\)"):
        load(overrides={"http.workers": 0})


def test_a_wrong_watched_file_is_named(tmp_path):
    file = tmp_path / "engines.yaml"
    file.write_text("engines: [{ip: a}, {ip: a}]")
    with pytest.raises(ConfigError, match=r'engines\[1\]\.ip: "a" stands twice.*engines\.yaml'):
        load_static(file)
    with pytest.raises(ConfigError, match="no such file"):
        load_static(tmp_path / "absent")


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"redis: {{password: [{SECRET}]}}",
        f"redis: {{url: 'redis:/u:{SECRET}@h'}}",
        f"redis: {{url: 'redis://u:{SECRET}@h/x'}}",
        f"redis: {{url: 'redis://u:{SECRET}@a,b'}}",
        f"redis: 'redis://u:{SECRET}@h'",
        f"redis: {{password: {SECRET}, passwordFile: /dev/null}}",
        f"redis: {{password: {SECRET}\nurl: [",
        f"redis: {{password: {SECRET}, timeout: 5}}",
        f"redis: {{password: {SECRET}, password: {SECRET}}}",
        f"pool: 'redis://u:{SECRET}@h'",
    ],
)
def test_no_message_shows_a_secret(write, text):
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    assert SECRET not in str(caught.value)


def test_nor_does_a_configuration_that_is_printed():
    config = load(overrides={"redis.url": f"redis://u:{SECRET}@h", "redis.readUrl": f"redis://u:{SECRET}@i"})
    assert SECRET not in repr(config) + str(config)
    config = load(overrides={"redis.password": SECRET})
    assert SECRET not in repr(config) + repr(config.redis.target())


def refusal(file):
    """The message of a refused file; None when it was taken. Any other exception is a failure."""
    try:
        load(file)
    except ConfigError as error:
        return str(error)
    return None


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_configuration_or_refused_by_the_file_s_name(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    assert "any.yaml" in (refusal(file) or "any.yaml")


SECTIONS = ["log", "http", "redis", "collector", "pool", "blockKey", "discovery", "pools", "ingest"]
KEYS = [
    "addr",
    "workers",
    "url",
    "timeout",
    "tls",
    "name",
    "blockKey",
    "discovery",
    "static",
    "engines",
    "ip",
]
JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(SECTIONS), JSON_LIKE)
@example("pool", "\U00010000")  # JSON writes it as two halves
def test_any_data_in_a_section_is_taken_or_refused_by_its_name(tmp_path_factory, section, value):
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps({section: value}))
    message = refusal(file)
    assert message is None or section in message


@pytest.mark.parametrize("text", [r'pool: "\ud800"', r'{"blockKey": {"pythonHashSeed": "\udfff\ud800"}}'])
def test_half_a_character_is_refused(write, text):
    assert "not valid YAML" in refusal(write(text))


def test_bytes_that_are_no_utf8_in_the_environment_and_in_options():
    with pytest.raises(ConfigError, match="CACHE_INDEXER_POOL: the value is no valid UTF-8"):
        load(env={"CACHE_INDEXER_POOL": "\udcff"})
    with pytest.raises(ConfigError, match="no valid Unicode"):
        load(overrides={"log.level": "\udcff"})
