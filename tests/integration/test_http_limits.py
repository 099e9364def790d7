"""Limits and timeouts of the `http` section, on raw sockets against the real service."""

import contextlib
import gzip
import json
import select
import socket
import time
from collections.abc import Iterator

import pytest

from tests import query_service, servers
from tests.query_service import HIT_RATE, Service, read_from

BODY = json.dumps({"server_ip": ["10.0.0.1"], "body": {"token_ids": [1, 2, 3], "block_size": 2}}).encode()
MAX_BODY = 20_000
MAX_HEAD = 2_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with small limits over a Redis of its own."""
    redis = servers.start("valkey")
    limits = {
        "maxHitRateBodyBytes": MAX_BODY,
        "maxHeaderBytes": MAX_HEAD,
        "readHeaderTimeout": "1s",
        "readTimeout": "1500ms",
        "writeTimeout": "1s",
        "idleTimeout": "2s",
    }
    try:
        with query_service.start(tmp_path_factory.mktemp("query"), redis.url, http_=limits) as running:
            yield running
    finally:
        redis.close()


def head(length: int | None = len(BODY), extra: str = "", path: str = HIT_RATE) -> bytes:
    size = "" if length is None else f"Content-Length: {length}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{size}{extra}\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def is_closed(sock: socket.socket) -> bool:
    """Whether the peer has closed: end of file or a reset, within the socket's own timeout."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def send_for_ever(sock: socket.socket, data: bytes) -> None:
    """Until the peer objects or the socket's timeout; bounded, so that a service that takes all fails."""
    for _ in range(20_000):
        sock.sendall(data)


def refused(answer: query_service.Answer, status: int) -> str:
    """Checks the error envelope and returns its message."""
    code, headers, body = answer
    assert code == status
    assert headers["content-type"] == "application/json"
    assert set(body) == {"server_score_list", "message", "status"}
    assert body["server_score_list"] == []
    assert body["status"] == status
    assert body["message"]
    return str(body["message"])


def test_keep_alive_serves_many_requests(service: Service) -> None:
    with service.connect() as sock:
        for _ in range(3):
            sock.sendall(head() + BODY)
            assert read_from(sock)[0] == 200


def read_codes(sock: socket.socket, count: int) -> list[int]:
    """Status codes of the next `count` answers, which may come in one piece."""
    response = sock.makefile("rb")
    codes = []
    for _ in range(count):
        codes.append(int(response.readline().split()[1]))
        length = 0
        while (line := response.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        response.read(length)
    return codes


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall((head() + BODY) * 2 + head(2) + b"{}")
        assert read_codes(sock, 3) == [200, 200, 400]


@pytest.mark.parametrize("piece", [700, 5_001, 300_000])
def test_bodies_of_pipelined_requests_are_no_heads(service: Service, piece: int) -> None:
    """However the pieces fall, and also when more wait than the server takes in at once."""
    size = 4 * MAX_HEAD
    stream = (head(size) + BODY.ljust(size)) * 60
    with service.connect() as sock:
        for start in range(0, len(stream), piece):
            sock.sendall(stream[start : start + piece])
        assert read_codes(sock, 60) == [200] * 60


def test_announced_body_over_the_limit_is_413_before_it_comes(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(MAX_BODY + 1))
        assert "maxHitRateBodyBytes" in refused(read_from(sock), 413)
        assert is_closed(sock)


def test_body_of_exactly_the_limit_is_read(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(MAX_BODY) + BODY.ljust(MAX_BODY))
        assert read_from(sock)[0] == 200


def test_chunked_body_over_the_limit_is_413_while_it_still_comes(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(None, "Transfer-Encoding: chunked\r\n") + chunk(b" " * (MAX_BODY + 1)))
        refused(read_from(sock), 413)
        assert is_closed(sock)


def test_chunked_body_within_the_limit_is_read(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(None, "Transfer-Encoding: chunked\r\n"))
        for start in range(0, len(BODY), 10):
            sock.sendall(chunk(BODY[start : start + 10]))
        sock.sendall(b"0\r\n\r\n")
        assert read_from(sock)[0] == 200


def test_endless_body_is_cut(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(None, "Transfer-Encoding: chunked\r\n"))
        with pytest.raises(ConnectionError):
            send_for_ever(sock, chunk(b" " * 65_000))


@pytest.mark.parametrize(("length", "status"), [(MAX_BODY + 1, 413), (len(BODY), 200)])
def test_expect_continue_is_asked_before_the_body(service: Service, length: int, status: int) -> None:
    with service.connect() as sock:
        sock.sendall(head(length, "Expect: 100-continue\r\n"))
        if status == 200:
            assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(BODY)
        assert read_from(sock)[0] == status


def test_expect_continue_of_an_older_client_gets_no_interim_answer(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(extra="Expect: 100-continue\r\n").replace(b"1.1", b"1.0") + BODY)
        assert sock.recv(12) == b"HTTP/1.0 200"


def test_content_length_longer_than_the_body_is_408(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(len(BODY) + 1) + BODY)
        assert "readTimeout" in refused(read_from(sock), 408)
        assert is_closed(sock)


def test_slow_body_is_408_although_bytes_keep_coming(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(1000))
        for _ in range(200):
            sock.sendall(b" ")
            if select.select([sock], [], [], 0.1)[0]:
                break
        assert "readTimeout" in refused(read_from(sock), 408)


def test_body_that_ends_early_harms_nobody(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head(1000) + BODY)
        time.sleep(0.1)
    assert service.get("/healthz")[0] == 200
    assert "unexpectedly" not in service.log, "clients come and go: that is no error of ours"


def test_slow_head_is_408(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost:")
        assert "readHeaderTimeout" in refused(read_from(sock), 408)
        assert is_closed(sock)


def test_slow_head_on_a_used_connection_is_408(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head() + BODY)
        assert read_from(sock)[0] == 200
        for letter in "POST / HTTP":
            sock.sendall(letter.encode())
            time.sleep(0.01)
        refused(read_from(sock), 408)
        assert is_closed(sock)


def test_silent_connection_is_closed(service: Service) -> None:
    with service.connect() as sock:
        refused(read_from(sock), 408)
        assert is_closed(sock)


def test_idle_connection_is_closed_without_a_word(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(head() + BODY)
        assert read_from(sock)[0] == 200
        assert is_closed(sock)


@pytest.mark.parametrize("size", [MAX_HEAD, MAX_HEAD + 1, 100_000, 3_000_000])
@pytest.mark.parametrize("lines", [1, 40])
def test_head_is_bounded_to_the_byte(service: Service, size: int, lines: int) -> None:
    start = head()[:-2]
    room = size - len(start) - 2
    each = room // lines
    extra = b"".join(b"X: " + b"a" * (each - 5) + b"\r\n" for _ in range(lines - 1))
    last = room - len(extra)
    request = start + extra + b"X: " + b"a" * (last - 5) + b"\r\n\r\n"
    assert len(request) == size
    with service.connect() as sock:
        try:
            sock.sendall(request + BODY)
            answer = read_from(sock)
        except ConnectionError:
            assert size > 100_000, "a reset may only overtake the answer when much was still on its way"
            return
    if size <= MAX_HEAD:
        assert answer[0] == 200
    else:
        assert "maxHeaderBytes" in refused(answer, 431)


def test_head_in_many_pieces(service: Service) -> None:
    with service.connect() as sock:
        for byte in head():
            sock.sendall(bytes([byte]))
        sock.sendall(BODY)
        assert read_from(sock)[0] == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHo\x00st: x\r\n\r\n",
        b"POST /kv-cache/hit-rate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_400_and_closed(service: Service, garbage: bytes) -> None:
    with service.connect() as sock:
        sock.sendall(garbage)
        refused(read_from(sock), 400)
        assert is_closed(sock)


@pytest.mark.parametrize(
    "rest", [b"zz\r\n", chunk(b"{")[:-2] + b"xx", chunk(b"{") + b"zz\r\n", b"0\r\nno trailer\r\n\r\n"]
)
@pytest.mark.parametrize("before", [b"", head() + BODY])
def test_a_body_that_turns_out_to_be_no_http_is_400_at_once(
    service: Service, before: bytes, rest: bytes
) -> None:
    with service.connect() as sock:
        sock.sendall(before + head(None, "Transfer-Encoding: chunked\r\n"))
        if before:
            assert read_from(sock)[0] == 200
        time.sleep(0.1)
        sock.sendall(rest)
        assert "not a valid HTTP request" in refused(read_from(sock), 400)
        assert is_closed(sock)


def test_an_unread_body_that_is_no_http_harms_nobody(service: Service) -> None:
    with service.connect() as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert read_from(sock, "GET")[0] == 200
        sock.sendall(b"zz\r\n")
        assert is_closed(sock)
    assert "Unhandled" not in service.log


def test_compressed_body_is_not_expanded(service: Service) -> None:
    code, _, body = service.request("POST", HIT_RATE, gzip.compress(BODY), **{"Content-Encoding": "gzip"})
    assert code == 400
    assert body["status"] == 400


def test_client_that_does_not_take_its_answers_is_dropped(service: Service) -> None:
    many = {"server_ip": ["x"] * 6000, "body": {"token_ids": [], "block_size": 1}}
    body = json.dumps(many, separators=(",", ":")).encode().replace(b'"x"', b'""')
    assert len(body) <= MAX_BODY
    data = head(len(body)) + body
    deadline = time.monotonic() + 30
    with service.connect() as sock:
        sock.settimeout(0.1)
        sent = 0
        while "did not take its answer" not in service.log:
            assert time.monotonic() < deadline, service.log
            with contextlib.suppress(ConnectionError, TimeoutError):
                sent = (sent + sock.send(data[sent:])) % len(data)
    assert service.get("/healthz")[0] == 200


@pytest.mark.parametrize("path", ["/nowhere", "/healthz"])
def test_answer_before_the_body_has_come_is_the_only_one(service: Service, path: str) -> None:
    """What still comes of the body is no next request: neither its size nor its time is a head's."""
    with service.connect() as sock:
        sock.sendall(head(10 * MAX_HEAD, path=path))
        code, headers, _ = read_from(sock)
        assert code in (404, 405)
        assert headers["connection"] == "close"
        sock.sendall(b" " * (5 * MAX_HEAD))
        assert is_closed(sock)


def test_answer_after_an_unread_body_keeps_the_connection(service: Service) -> None:
    with service.connect() as sock:
        for _ in range(2):
            sock.sendall(head(100, path="/nowhere") + b" " * 100)
            time.sleep(0.1)
            assert read_from(sock)[0] == 404
        sock.sendall(head() + BODY)
        assert read_from(sock)[0] == 200
