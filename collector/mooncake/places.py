"""Which instance is at a place, as discovery and DNS know it at the moment."""

import asyncio
import socket
from collections.abc import Iterable, Mapping

from collector.mooncake.hosts import Hosts, endpoint, host, is_address
from collector.mooncake.master import KNOWN
from indexer import clock
from indexer.holders import POOL_WIDE

_AGAIN = 60.0
"""Seconds after which a name is resolved anew."""


class Instances:
    """Names the instance at a place; places are endpoints, segment names, or what the index remembered."""

    def __init__(self) -> None:
        self._instances: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        self._segments: dict[str, dict[str, str]] = {}
        self._unresolved: set[str] = set()
        self._resolved_at: dict[str, float] = {}
        self._hosts = Hosts()

    @property
    def by_port(self) -> bool:
        """Whether instances on one host are told apart by ports."""
        return self._hosts.by_port

    def name(self, place: str) -> str:
        """The instance; "" when it is not known where in the pool the place is."""
        if place.startswith(KNOWN):
            known = place[len(KNOWN) :]
            return "" if known == POOL_WIDE else known
        at = endpoint(place)
        if not is_address(at.host):
            self._unresolved.add(at.host)
        return self._hosts.instance(place)

    def follow(self, instances: Iterable[str]) -> bool:
        """Take discovery's instances; True when a place may belong to another instance now."""
        now = tuple(sorted(instances))
        changed = now != self._instances
        self._instances = now
        return self._rebuild(changed)

    def segments(self, master: str, names: Mapping[str, str]) -> bool:
        """Take a master's segment names by endpoint; True as for `follow`."""
        changed = self._segments.get(master, {}) != dict(names)
        self._segments[master] = dict(names)
        return self._rebuild(changed)

    async def resolve(self) -> bool:
        """Look up hosts that Mooncake knows by name; True as for `follow`. Never raises."""
        now = clock.monotonic()
        due = [name for name in self._unresolved if now - self._resolved_at.get(name, -_AGAIN) >= _AGAIN]
        self._unresolved.clear()
        self._resolved_at |= dict.fromkeys(due, now)
        found = await asyncio.gather(*map(self._address, due))
        news = {name: address for name, address in zip(due, found, strict=True) if address}
        changed = any(self._names.get(name) != address for name, address in news.items())
        self._names |= news
        return self._rebuild(changed)

    async def _address(self, name: str) -> str | None:
        """The address of `name` that discovery knows as an instance; None when there is none."""
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            return None
        known = {host(instance) for instance in self._instances}
        addresses = (host(str(info[4][0])) for info in infos)
        return next((address for address in addresses if address in known), None)

    def _rebuild(self, changed: bool) -> bool:
        if changed:
            segments = {key: value for names in self._segments.values() for key, value in names.items()}
            self._hosts = Hosts(self._instances, self._names, segments)
        return changed
