"""Pods as the Kubernetes API writes them, as far as discovery reads them.

Only these fields are decoded; the rest of a pod, often tens of kilobytes, is skipped. The API may write an
empty list or mapping as null.
"""

import msgspec
from msgspec import Struct


class Wire(Struct, frozen=True, rename="camel"):
    """A part of an answer."""


class Metadata(Wire, frozen=True):
    """Of a pod."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Port(Wire, frozen=True):
    """A container port."""

    container_port: int
    name: str = ""


class Container(Wire, frozen=True):
    """A container as asked for."""

    name: str
    ports: list[Port] | None = None


class Spec(Wire, frozen=True):
    """What was asked for."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None


class Running(Wire, frozen=True):
    """A container that runs."""

    started_at: str | None = None


class State(Wire, frozen=True):
    """What a container does; `running` None: it waits or has ended."""

    running: Running | None = None


class ContainerStatus(Wire, frozen=True):
    """A container as it is."""

    name: str
    restart_count: int = 0
    state: State | None = None


class Status(Wire, frozen=True):
    """What is."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(Wire, frozen=True):
    """One pod."""

    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()


class ListMetadata(Wire, frozen=True):
    """Of a list: its version, and where the next page begins."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class PodList(Wire, frozen=True):
    """One page of a list."""

    metadata: ListMetadata
    items: list[Pod] | None = None


class Event(Struct, frozen=True):
    """One line of a watch. `object` is a Pod, or a Failure for the type ERROR."""

    type: str
    object: msgspec.Raw


class Failure(Struct, frozen=True):
    """The API's own words about a request that failed."""

    code: int = 0
    message: str = ""
    reason: str = ""


pods = msgspec.json.Decoder(PodList)
pod = msgspec.json.Decoder(Pod)
event = msgspec.json.Decoder(Event)
failure = msgspec.json.Decoder(Failure)
