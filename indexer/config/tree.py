"""The configuration as the program sees it: frozen, checked, complete.

Keys are camelCase in the file and snake_case here. Every field carries its own description and limits;
`docs/configuration.md` and the messages about wrong values are made from them. Durations are seconds.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from indexer.config.pool import BlockKey, Discovery, Pool
from indexer.config.redis_url import RedisTarget, parse_redis_url, redacted
from indexer.config.section import Port, Positive, Section
from indexer.config.units import Duration, parse_addr
from indexer.errors import ConfigError

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


class Log(Section, frozen=True):
    """What is written to stderr."""

    level: Annotated[
        Literal["debug", "info", "warn", "warning", "error"],
        Meta(description="Least severe level that is logged."),
    ] = "info"


class Listening(Section, frozen=True):
    """Whatever listens at an address."""

    addr: str = ""

    @property
    def host(self) -> str | None:
        """Host of `addr`; None for every interface."""
        return parse_addr(self.addr)[0]

    @property
    def port(self) -> int:
        """Port of `addr`."""
        return parse_addr(self.addr)[1]


class Http(Listening, frozen=True):
    """The query service."""

    addr: Annotated[str, Meta(description="Listen address of the query service.")] = ":28080"
    workers: Annotated[
        int, Meta(ge=1, le=64, description="Processes that share the port; one uses one core.")
    ] = 1
    shutdown_timeout: Annotated[
        Duration, Meta(description="On SIGTERM, how long running requests may still take.")
    ] = Duration(10)
    read_header_timeout: Annotated[
        Duration, Meta(description="How long a client may take to send a request's head.")
    ] = Duration(10)
    read_timeout: Annotated[
        Duration, Meta(description="How long a client may take to send a whole request.")
    ] = Duration(30)
    write_timeout: Annotated[
        Duration, Meta(description="How long answering may take, once the request has been read.")
    ] = Duration(30)
    idle_timeout: Annotated[Duration, Meta(description="How long an idle keep-alive connection is kept.")] = (
        Duration(120)
    )
    max_header_bytes: Annotated[Positive, Meta(description="Longest request head, in bytes.")] = 1048576
    max_hit_rate_body_bytes: Annotated[
        Positive, Meta(description="Longest body of a query, in bytes; a longer one is answered 413.")
    ] = 4194304


class RedisTls(Section, frozen=True):
    """TLS towards Redis, for the URL forms that start with `rediss`."""

    ca_file: Annotated[
        str, Meta(description="PEM file of the authorities to trust; empty: the system's.")
    ] = ""
    insecure: Annotated[
        bool, Meta(description="Accept any certificate. For trials only: it gives up what TLS is for.")
    ] = False


class Redis(Section, frozen=True):
    """Where the index lies."""

    url: Annotated[
        str,
        Meta(
            description="`redis://host:port/db`, `rediss://` (TLS), `unix:///path`, "
            "`redis+sentinel://h1:26379,h2:26379/service/db`, `redis+cluster://h1:6379,h2:6379`, "
            "or `embedded`: start the bundled Valkey.",
            extra={"secret": True},
        ),
    ] = DEFAULT_REDIS_URL
    read_url: Annotated[
        str,
        Meta(
            description="Where queries read, for example replicas; empty: `redis.url`.",
            extra={"secret": True},
        ),
    ] = ""
    timeout: Annotated[
        Duration, Meta(description="Longest wait for Redis, connecting included, before a call fails.")
    ] = Duration(0.5)
    username: Annotated[str, Meta(description="ACL user; empty: the one in the URL, or the default.")] = ""
    password: Annotated[str, Meta(description="Password; better a file.", extra={"secret": True})] = ""
    password_file: Annotated[
        str, Meta(description="File that holds the password; read again at each connect.")
    ] = ""
    tls: RedisTls = RedisTls()
    url_given: Annotated[bool, Meta(extra={"internal": True})] = False
    """True when `url` stood in the file, the environment or an option. Set by the loader, no key."""

    def target(self, *, read: bool = False) -> RedisTarget:
        """The URL taken apart, with the credentials that stand beside it; of `read_url` when `read`.

        Reads the password file anew; raises ConfigError when that is impossible.
        """
        target = parse_redis_url((self.read_url if read else "") or self.url)
        password = self.password
        if self.password_file:
            try:
                password = Path(self.password_file).read_text().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f'redis.passwordFile: "{self.password_file}" cannot be read: {error}'
                ) from None
        return structs.replace(
            target, username=self.username or target.username, password=password or target.password
        )

    def __repr__(self) -> str:
        return f"Redis(url={redacted(self.url)!r}, username={self.username!r}, timeout={self.timeout})"

    def __rich_repr__(self) -> Any:
        yield repr(self)


class Collector(Listening, frozen=True):
    """The write side."""

    addr: Annotated[
        str, Meta(description="Listen address of the collector's `/metrics`, `/healthz`, `/readyz`.")
    ] = ":28081"
    lease_duration: Annotated[
        Duration,
        Meta(
            description="How long leadership lasts unrenewed; renewed each third of it. "
            "At least three times `redis.timeout`."
        ),
    ] = Duration(2)
    buffer_batches: Annotated[
        Positive, Meta(description="Event batches kept for each stream, so that a takeover loses nothing.")
    ] = 10000
    buffer_bytes: Annotated[
        Positive, Meta(description="Bytes of event batches kept in one collector, all streams together.")
    ] = 67108864


class IngestL1(Section, frozen=True):
    """Event streams of engines."""

    backoff_initial: Annotated[
        Duration, Meta(description="Pause after a replay attempt that failed; doubles each time.")
    ] = Duration(1)
    backoff_max: Annotated[Duration, Meta(description="Longest such pause.")] = Duration(30)
    on_gap: Annotated[
        Literal["keep", "wipe"],
        Meta(description="What becomes of a stream's blocks when lost events can't be had again."),
    ] = "keep"


class ExpectedRanks(Section, frozen=True):
    """How many ranks store a part of each block, where that is not to be learnt from the keys (0: learnt)."""

    tp: Annotated[
        int, Meta(ge=0, description="Head or tensor-parallel ranks: smaller of TP and KV heads.")
    ] = 0
    pp: Annotated[int, Meta(ge=0, description="Pipeline-parallel ranks.")] = 0


class IngestL3(Section, frozen=True):
    """Polling of Mooncake masters."""

    scheme: Annotated[Literal["http", "https"], Meta(description="Of a discovered master's admin API.")] = (
        "http"
    )
    poll_interval: Annotated[Duration, Meta(description="How often each master is asked.")] = Duration(10)
    http_timeout: Annotated[Duration, Meta(description="Longest wait for one answer of a master.")] = (
        Duration(5)
    )
    sweep_interval: Annotated[
        Duration,
        Meta(
            description="How often every key is located anew, on masters whose call for it leaves no trace."
        ),
    ] = Duration(60)
    completeness: Annotated[
        Literal["all", "any"],
        Meta(description="A block counts on an instance with every rank's object of it there, or any."),
    ] = "all"
    expected_ranks: ExpectedRanks = ExpectedRanks()
    models: Annotated[
        tuple[str, ...],
        Meta(description="Models whose keys count, as the keys name them; empty: every model of the master."),
    ] = ()
    kv_events_port: Annotated[
        Port,
        Meta(
            description="Port of a master's own KV events, if it was built with them: an event then makes "
            "the next poll immediate. 0: off."
        ),
    ] = 0


class Ingest(Section, frozen=True):
    """How the two tiers are filled."""

    l1: IngestL1 = IngestL1()
    l3: IngestL3 = IngestL3()


class Config(Struct, frozen=True):
    """All of it. `pools` has at least one entry; its names differ."""

    log: Log = Log()
    http: Http = Http()
    redis: Redis = Redis()
    collector: Collector = Collector()
    ingest: Ingest = Ingest()
    pools: tuple[Pool, ...] = (Pool(),)


class File(Section, frozen=True):
    """The shape of the file. `pool`, `blockKey` and `discovery` at the top are the short form of one pool."""

    log: Log = Log()
    http: Http = Http()
    redis: Redis = Redis()
    collector: Collector = Collector()
    pool: Annotated[str, Meta(description="Name of the only pool; part of every Redis key.")] = "default"
    block_key: BlockKey = BlockKey()
    discovery: Discovery = Discovery()
    pools: Annotated[
        tuple[Pool, ...],
        Meta(
            description="Several pools, in place of `pool`. What one does not say itself it takes from "
            "`blockKey` and `discovery` at the top."
        ),
    ] = ()
    ingest: Ingest = Ingest()
