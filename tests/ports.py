"""Free ports on the loopback interface."""

import random
import socket

_random = random.SystemRandom()  # not seeded by test runners: parallel workers must not agree
_given: set[int] = set()


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which nobody listens now.

    Below the range from which systems take the ports of outgoing connections (and with room for a cluster
    bus at +10000), so that it can't be taken meanwhile by someone who only connects.
    """
    for _ in range(200):
        port = _random.randrange(20000, 32000)
        if port in _given:  # a hundred of them would hit one twice in every third run
            continue
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise RuntimeError("no free port between 20000 and 32000 on 127.0.0.1")
