"""The server of the benchmarks of `gcr serve`: one thread computes, and each token is sent as soon as it is known."""

import http.client
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import model_server

PATIENCE = 20.0


class Counting:
    """Counts its tokens, and notes which threads compute. The second token of a request waits for `go_on`."""

    def __init__(self) -> None:
        self.prompt, self.count = "", 0
        self.threads: set[int] = set()
        self.go_on = threading.Event()

    def start(self, prompt: str) -> None:
        self.threads.add(threading.get_ident())
        self.prompt, self.count = prompt, 0

    def token(self) -> str:
        self.threads.add(threading.get_ident())
        if self.count:
            assert self.go_on.wait(PATIENCE)
        self.count += 1
        return f"{self.prompt}{self.count} "


@pytest.fixture
def server() -> Iterator[model_server.Server]:
    made = model_server.Server(0, Counting(), None)
    serving = threading.Thread(target=made.serve_forever, args=(0.01,))
    serving.start()
    yield made
    made.shutdown()
    serving.join()
    made.server_close()
    made.engine.shutdown()


@contextmanager
def asked(server: model_server.Server, prompt: str) -> Iterator[http.client.HTTPResponse]:
    """Yields the answer to a request for three tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    with closing(connection):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "tokens": 3}))
        yield connection.getresponse()


def text_of(server: model_server.Server, prompt: str) -> str:
    with asked(server, prompt) as answer:
        return answer.read().decode()


def test_one_thread_computes_for_all_connections_and_for_one_request_at_a_time(server: model_server.Server) -> None:
    server.model.go_on.set()
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda prompt: text_of(server, prompt), "abcdefgh"))
    assert found == [f"{prompt}1 {prompt}2 {prompt}3 " for prompt in "abcdefgh"]
    assert len(server.model.threads) == 1


def test_a_token_is_sent_before_the_next_one_is_known(server: model_server.Server) -> None:
    with asked(server, "a") as answer:
        assert answer.read(3) == b"a1 "
        server.model.go_on.set()
        assert answer.read() == b"a2 a3 "
