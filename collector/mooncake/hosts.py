"""Which instance an address in a Mooncake master's answers belongs to.

The master shows two kinds of addresses: segment names (`local_hostname` of a client) and transport endpoints
(where an object's bytes are). Only the host is the same in both, and only the host survives a restart of the
process; the port is random in most set-ups. So an instance is found by host, except where discovery itself
names instances by host and port, as it must when several pods share their node's address.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from msgspec import Struct

_WITH_PORT = re.compile(r"(?P<host>.+):(?P<port>\d{1,5})(?::npu_\d+)?", re.DOTALL)


class Endpoint(Struct, frozen=True):
    """A parsed address. `host` is normal: no brackets, shortest form, lower case. The port may be missing."""

    host: str
    port: int | None

    @property
    def name(self) -> str:
        """Host and port as an instance would be named by them; IPv6 in brackets."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@lru_cache(maxsize=65536)
def endpoint(text: str) -> Endpoint:
    """Parse `host:port`, `[v6]:port`, `v6:port`, any of them with `:npu_N` behind it, or a bare host."""
    found = _WITH_PORT.fullmatch(text.strip())
    if found and (":" not in found["host"] or _is_v6(found["host"])):
        return Endpoint(host(found["host"]), int(found["port"]))
    return Endpoint(host(text.strip()), None)


def host(text: str) -> str:
    """The normal form of a host: what two spellings of one address have in common."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ip_address(bare)
    except ValueError:
        return bare.lower()
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def is_address(text: str) -> bool:
    """Whether `text` is an IP address (brackets allowed) and not a name."""
    try:
        ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


class Hosts:
    """Names instances for endpoints.

    `instances` are the names that discovery uses (and routers ask for), `names` the addresses of hosts that
    Mooncake knows by name, `segments` the segment name of each transport endpoint where the master tells it.
    """

    def __init__(
        self,
        instances: Iterable[str] = (),
        names: Mapping[str, str] | None = None,
        segments: Mapping[str, str] | None = None,
    ) -> None:
        self._by_host: dict[str, str] = {}
        self._by_port: dict[Endpoint, str] = {}
        for instance in instances:
            # An instance is an address first; an endpoint of a master always has a port.
            at = Endpoint(host(instance), None) if is_address(instance) else endpoint(instance)
            if at.port is None:
                self._by_host.setdefault(at.host, instance)
            else:
                self._by_port.setdefault(at, instance)
        self._names = {host(name): host(address) for name, address in (names or {}).items()}
        self._segments = dict(segments or {})

    @property
    def by_port(self) -> bool:
        """Whether any instance is told apart from others on its host by a port."""
        return bool(self._by_port)

    def instance(self, text: str) -> str:
        """The instance at endpoint or segment `text`; its host where discovery knows no such instance."""
        at = endpoint(text)
        places = [at]
        if text in self._segments:
            places.append(endpoint(self._segments[text]))
        resolved = [Endpoint(self._names[p.host], p.port) for p in places if p.host in self._names]
        places += resolved
        for place in places:
            if place in self._by_port:
                return self._by_port[place]
        for place in places:
            if place.host in self._by_host:
                return self._by_host[place.host]
        return places[-1].host


def _is_v6(text: str) -> bool:
    try:
        return isinstance(ip_address(text.strip("[]")), IPv6Address)
    except ValueError:
        return False
