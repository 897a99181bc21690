"""Requests that are sent again when they are late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastdata.remote.hedge import Hedge

SIZE = 1000


class Server:
    """Answers at once, but for some requests, given by their numbers: these wait until `go`, or for 30 s."""

    def __init__(self, *stuck: int, errors: tuple[int, ...] = ()) -> None:
        self.go = threading.Event()
        self.count = 0
        self._stuck = stuck
        self._errors = errors
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            number = self.count
            self.count += 1
        if number in self._stuck:
            self.go.wait(30)
        if number in self._errors:
            raise OSError(f"request {number}")
        return number


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def send(pool: ThreadPoolExecutor) -> Callable[[Callable[[], int]], int]:
    hedge = Hedge()
    for _ in range(3):
        hedge.send(pool, lambda: 0, SIZE).result()
    return lambda call: hedge.send(pool, call, SIZE).result()


def test_a_second_request_answers_for_one_that_is_stuck(send: Callable[[Callable[[], int]], int]) -> None:
    server = Server(0)
    try:
        assert send(server) == 1
    finally:
        server.go.set()


def test_a_request_that_answers_in_time_is_sent_once(send: Callable[[Callable[[], int]], int]) -> None:
    server = Server()
    assert [send(server) for _ in range(20)] == list(range(20))


def test_an_error_of_the_second_request_leaves_the_first(send: Callable[[Callable[[], int]], int]) -> None:
    server = Server(0, errors=(1,))

    def fails() -> int:
        try:
            return server()
        except OSError:
            server.go.set()
            raise

    assert send(fails) == 0
    assert server.count == 2


def test_if_both_fail_the_first_error_is_raised(send: Callable[[Callable[[], int]], int]) -> None:
    server = Server(0, errors=(0, 1))

    def fails() -> int:
        try:
            return server()
        finally:
            server.go.set()

    with pytest.raises(OSError, match="request 0"):
        send(fails)


def test_of_many_late_requests_few_are_sent_again(pool: ThreadPoolExecutor) -> None:
    """The server is slow for all of them, and would only be slower."""
    hedge = Hedge()
    server = Server(*range(6))
    hedge.send(pool, lambda: 0, SIZE).result()
    requests = [hedge.send(pool, server, SIZE) for _ in range(6)]
    threads = [threading.Thread(target=request.result) for request in requests]
    for thread in threads:
        thread.start()
    threads[0].join(2)
    assert server.count <= 6 + 2 + 1
    server.go.set()
    for thread in threads:
        thread.join()


def test_sizes_have_times_of_their_own(pool: ThreadPoolExecutor) -> None:
    """A large request is not late by what small ones took."""
    hedge = Hedge()
    server = Server(0)
    hedge.send(pool, lambda: 0, 10).result()
    request = hedge.send(pool, server, 1 << 24)
    thread = threading.Thread(target=request.result)
    thread.start()
    thread.join(1)
    assert server.count == 1
    server.go.set()
    thread.join()
