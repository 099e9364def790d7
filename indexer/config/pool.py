"""The configuration of a pool: how its engines name blocks, and where they are."""

from typing import Annotated, Literal

from msgspec import Meta

from indexer.config.section import Port, Section, Text
from indexer.config.units import Duration


class BlockKey(Section, frozen=True):
    """How the pool's engines name blocks. Must equal their settings, on every engine."""

    engine: Annotated[Text, Meta(description="Whose hash rule and event dialect: `vllm`.")] = "vllm"
    python_hash_seed: Annotated[
        str | None,
        Meta(
            description="The engines' `PYTHONHASHSEED`, exactly as they have it; "
            "`null`: unset there (engines from 0.29 on, sha256 algorithms only)."
        ),
    ] = "0"
    prefix_caching_hash_algo: Annotated[
        Text,
        Meta(
            description="The engines' `--prefix-caching-hash-algo`: "
            "`sha256_cbor`, `sha256`, `xxhash_cbor` or `xxhash`."
        ),
    ] = "sha256_cbor"
    use_int_block_hashes: Annotated[
        bool,
        Meta(description="The engines' `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`; both forms are understood."),
    ] = True
    dialect: Annotated[
        str,
        Meta(
            description="Engine version, such as `0.18.0`, for rules that changed between versions; "
            "`auto`: take what fits."
        ),
    ] = "auto"


class StaticRank(Section, frozen=True):
    """One data-parallel rank's sockets."""

    events: Annotated[Text, Meta(description="ZMQ endpoint of the KV events, `tcp://host:port`.")]
    replay: Annotated[str | None, Meta(description="ZMQ endpoint of the replay socket, if any.")] = None


class StaticEngine(Section, frozen=True):
    """One engine, as written down by hand."""

    ip: Annotated[Text, Meta(description="The instance, as routers name it.")]
    incarnation: Annotated[
        str | None, Meta(description="Any text; a change of it means a new engine process.")
    ] = None
    ranks: Annotated[
        tuple[StaticRank, ...],
        Meta(description="By data-parallel rank; empty for a host of Mooncake memory only."),
    ] = ()


class StaticMaster(Section, frozen=True):
    """One Mooncake master, as written down by hand."""

    http: Annotated[Text, Meta(description="Its admin HTTP address, `http://host:port`.")]


class Static(Section, frozen=True):
    """Engines and masters written down by hand; also the content of the file of source `file`."""

    engines: Annotated[tuple[StaticEngine, ...], Meta(description="The engines.")] = ()
    mooncake_masters: Annotated[tuple[StaticMaster, ...], Meta(description="The Mooncake masters.")] = ()


class Labels(Section, frozen=True):
    """Which pods are engines and masters."""

    engine_key: Annotated[Text, Meta(description="Label key of engine pods.")] = "openfuyao.com/engine"
    engine_value: Annotated[Text, Meta(description="Its value.")] = "vllm"
    pd_role_key: Annotated[
        str, Meta(description="Label key of an engine pod's role; empty: every role counts.")
    ] = "openfuyao.com/pdRole"
    pd_role_value: Annotated[
        tuple[str, ...], Meta(description="Roles that count; one text or a list.", min_length=1)
    ] = ("prefill", "aggregate")
    kv_manager_key: Annotated[Text, Meta(description="Label key of Mooncake master pods.")] = (
        "openfuyao.com/kvmanager"
    )
    kv_manager_value: Annotated[Text, Meta(description="Its value.")] = "mooncake"


class VllmPorts(Section, frozen=True):
    """How an engine pod names its ports, and how many data-parallel ranks are in it."""

    zmq_port_name: Annotated[Text, Meta(description="Container port of the KV events.")] = "zmq-pub"
    replay_port_name: Annotated[
        Text, Meta(description="Container port of the replay socket; an engine may have none.")
    ] = "zmq-replay"
    dp_size: Annotated[
        int,
        Meta(ge=1, le=256, description="Data-parallel ranks in a pod; rank r is at the named port + r."),
    ] = 1
    dp_size_key: Annotated[
        str, Meta(description="Annotation or label by which a pod tells its own number; empty: none.")
    ] = "cache-indexer/dpSize"
    dp_index_key: Annotated[
        str,
        Meta(
            description="Annotation or label with the pod's number in a group that shares one numbering of "
            "ranks: its first rank is that times its number of ranks; empty: every pod begins at 0."
        ),
    ] = "leaderworkerset.sigs.k8s.io/worker-index"


class MooncakeMaster(Section, frozen=True):
    """How a Mooncake master pod names its ports."""

    http_port_name: Annotated[Text, Meta(description="Container port of the admin HTTP API.")] = "http"
    rpc_port_name: Annotated[Text, Meta(description="RPC port by name; taken, not used.")] = "rpc"
    http_port: Annotated[Port, Meta(description="Used if the pod has no port of that name; 0: none.")] = 9003
    rpc_port: Annotated[Port, Meta(description="Number of the RPC port; taken, not used.")] = 0


class Discovery(Section, frozen=True):
    """How engines and Mooncake masters are found."""

    source: Annotated[
        Literal["kubernetes", "static", "file"],
        Meta(description="`static`: from `discovery.static`; `file`: from the watched `discovery.file`."),
    ] = "kubernetes"
    namespace: Annotated[
        str, Meta(description="Kubernetes namespace to look in; empty: `POD_NAMESPACE` of the environment.")
    ] = ""
    kubeconfig: Annotated[
        str,
        Meta(
            description="kubeconfig file; empty: the pod's service account, or what `KUBECONFIG` of the "
            "environment names."
        ),
    ] = ""
    file: Annotated[str, Meta(description="File with what `discovery.static` would hold.")] = ""
    static: Static = Static()
    refresh_interval: Annotated[
        Duration, Meta(description="How often pods are listed anew, and the file is looked at.")
    ] = Duration(10)
    grace: Annotated[
        Duration,
        Meta(
            description="How long an engine may be missing from the list before its blocks are dropped, "
            "unless its deletion was seen."
        ),
    ] = Duration(30)
    segments_fetch_timeout: Annotated[
        Duration, Meta(description="Longest wait for a master's list of segments.")
    ] = Duration(2)
    labels: Labels = Labels()
    vllm: VllmPorts = VllmPorts()
    mooncake_master: MooncakeMaster = MooncakeMaster()


class Pool(Section, frozen=True):
    """Engines that serve one model with one hash configuration."""

    name: Annotated[str, Meta(description="Name of the pool; part of every Redis key.")] = "default"
    block_key: BlockKey = BlockKey()
    discovery: Discovery = Discovery()
