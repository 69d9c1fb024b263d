"""The front's HTTP: routes, bodies, streams, limits, and clients that behave badly. Sockets are real."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
import uvloop
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from serving import Client, FakeJobs, code_of, config_of, front
from yarl import URL

from gcr.serve import refusals
from gcr.serve.server import check_descriptors
from gcr.serveerrors import BadServeConfig

MIB = 1 << 20
LABELS = ("model", "code", "direction", "state")


def on_front(tmp_path, test, **config):
    """Runs a test with a front of two models."""

    async def run() -> None:
        async with front(config_of(tmp_path, **config), FakeJobs()) as client:
            await test(client)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as gcr serve has it
        runner.run(asyncio.wait_for(run(), 60))


def test_what_a_request_must_say(tmp_path):
    async def test(client: Client) -> None:
        async def post(path: str, **more: object) -> tuple[int, str]:
            async with client.session.post(client.url + path, **more) as answer:
                return code_of((answer.status, await answer.json()))

        assert await post("/v1/x", json={"model": "c"}) == (404, "unknown_model")
        assert await post("/v1/x", json={"model": "../a"}) == (404, "unknown_model")
        assert await post("/v1/x", json={"model": 3}) == (400, "no_model")
        assert await post("/v1/x", json=[]) == (400, "no_model")
        assert await post("/v1/x", json={}) == (400, "no_model")
        assert await post("/v1/x", data=b"{") == (400, "not_json")
        assert await post("/v1/x", data=b"[" * 100_000) == (400, "not_json")
        assert await post("/v1/x") == (400, "no_model")
        assert await post("/elsewhere", json={"model": "a"}) == (404, "no_such_path")
        assert await post("/upstream/c/x") == (404, "unknown_model")
        assert await post("/upstream/..%2Fa/x") == (404, "unknown_model")
        assert client.jobs.done == []

    on_front(tmp_path, test)


def test_paths_queries_headers_and_methods_are_passed_on(tmp_path):
    async def test(client: Client) -> None:
        url = URL(f"{client.url}/upstream/a/deep/p%20a%2Fth?q=1&r=%2F", encoded=True)
        headers = {"X-Mine": "1", "Connection": "close, X-Hop", "X-Hop": "2"}
        async with client.session.put(url, data=b"raw", headers=headers) as answer:
            body = await answer.json()
            assert (body["path"], body["bytes"]) == ("/deep/p%20a%2Fth?q=1&r=%2F", 3)
            assert answer.headers["X-Own"] == "kept"
        head = client.jobs.servers["a"].heads[-1]
        assert (head["X-Mine"], "X-Hop" in head) == ("1", False)
        assert (await client.get("/upstream/b"))[0] == 200

    on_front(tmp_path, test)


def test_a_stream_arrives_as_it_is_made(tmp_path):
    async def test(client: Client) -> None:
        await client.ask("a")
        client.jobs.servers["a"].hold.clear()
        async with client.session.post(f"{client.url}/v1/x", json={"model": "a", "pieces": 2}) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert await answer.content.readuntil(b"\n\n") == b"data: 0\n\n"
            client.jobs.servers["a"].hold.set()
            assert await answer.content.read() == b"data: 1\n\n"

    on_front(tmp_path, test)


def test_a_client_that_leaves_is_dropped_by_the_server_too(tmp_path):
    async def test(client: Client) -> None:
        await client.ask("a")
        server = client.jobs.servers["a"]
        server.hold.clear()
        answer = await client.session.post(f"{client.url}/v1/x", json={"model": "a", "pieces": 2})
        await answer.content.readuntil(b"\n\n")
        waiting = asyncio.create_task(client.ask("a"))
        await client.until(lambda: server.active == 2, "both are with it")
        answer.close()
        waiting.cancel()
        await client.until(lambda: (server.active, server.left) == (0, 2), "both are gone")
        await client.until(lambda: client.server.pool.models["a"].active == 0, "none is counted")

    on_front(tmp_path, test)


def test_an_answer_that_breaks_off_does_not_look_whole(tmp_path):
    async def test(client: Client) -> None:
        import aiohttp

        with pytest.raises(aiohttp.ClientError):
            async with client.session.post(f"{client.url}/v1/x", json={"model": "a", "pieces": 2, "cut": 1}) as answer:
                await answer.read()
        assert (await client.ask("a"))[0] == 200

    on_front(tmp_path, test)


def test_large_bodies(tmp_path):
    async def test(client: Client) -> None:
        assert (await client.ask("a", "x" * (MIB - 100)))[1]["bytes"] > MIB - 100
        assert code_of(await client.ask("a", "x" * MIB)) == (413, "too_large")
        chunked = {"data": _pieces(20), "headers": {"Content-Type": "application/json"}}
        async with client.session.post(f"{client.url}/v1/x", **chunked) as answer:
            assert code_of((answer.status, await answer.json())) == (413, "too_large")
        async with client.session.post(f"{client.url}/upstream/a/x", data=_pieces(15)) as answer:
            assert (await answer.json())["bytes"] == 15 * 65536

    on_front(tmp_path, test, serve='max_body = "1MiB"')


async def _pieces(count: int):
    for _ in range(count):
        yield b"x" * 65536


def test_a_client_that_announces_much_is_answered_before_it_sends(tmp_path):
    async def test(client: Client) -> None:
        head = "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n"
        assert b" 413 " in await _raw(client, head)

    on_front(tmp_path, test)


def test_a_client_that_waits_to_be_told_to_go_on(tmp_path):
    async def test(client: Client) -> None:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"model": "a"}'
        writer.write(
            b"POST /v1/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()

    on_front(tmp_path, test)


def test_what_is_no_http(tmp_path):
    async def test(client: Client) -> None:
        assert b" 400 " in await _raw(client, "rubbish\r\n\r\n")
        assert (await client.ask("a"))[0] == 200

    on_front(tmp_path, test)


async def _raw(client: Client, text: str) -> bytes:
    host, port = client.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text.encode())
    found = await reader.readline()
    writer.close()
    return found


def test_a_connection_beyond_the_most_is_refused_and_has_its_turn_later(tmp_path):
    async def test(client: Client) -> None:
        async with _opened(client), _opened(client) as (_, second):
            await client.until(lambda: len(client.server.clients.open) == 2, "both are there")
            async with _opened(client) as (reader, writer):
                writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert (head.split()[1], b"Retry-After: 5" in head) == (b"503", True)
            assert json.loads(body)["error"]["code"] == "too_many_connections"
            second.close()
            await client.until(lambda: len(client.server.clients.open) == 1, "one has left")
            assert (await client.get("/health"))[0] == 200

    on_front(tmp_path, test, serve="clients = { connections = 2 }")


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ("", b""),
        ("GET /health HTTP/1.1\r\nX-", b"HTTP/1.1 408"),
        ("GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200"),
    ],
)
def test_a_connection_without_a_whole_head_is_closed_after_its_idle_time(sent, answer, tmp_path):
    """Bytes of a head that never ends do not keep it open."""

    async def test(client: Client) -> None:
        async with _opened(client) as (reader, writer):
            writer.write(sent.encode())
            reading = asyncio.create_task(reader.read())
            while not reading.done():
                await asyncio.wait([reading], timeout=0.05)
                writer.write(b"x" if sent.endswith("X-") else b"")
            assert (await reading)[:12] == answer
            await client.until(lambda: not client.server.clients.open, "it is gone")

    on_front(tmp_path, test, serve='clients = { idle = "400ms" }')


def test_a_head_that_is_too_large(tmp_path):
    async def test(client: Client) -> None:
        async with _opened(client) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n" + b"X-Much: 1\r\n" * 7000)
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 431 ") and b"head_too_large" in answer

    on_front(tmp_path, test)


def test_more_connections_than_this_process_may_have(tmp_path):
    with pytest.raises(BadServeConfig, match="need 2000064 descriptors"):
        check_descriptors(config_of(tmp_path, serve="clients = { connections = 1000000 }").clients)


@contextlib.asynccontextmanager
async def _opened(client: Client) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = client.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_a_token(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret")
    secret.chmod(0o600)

    async def test(client: Client) -> None:
        assert (await client.get("/health"))[0] == 200
        for path in ("/metrics", "/v1/models", "/upstream/a/x"):
            assert (await client.get(path))[0] == 401
            assert (await client.get(path, headers={"Authorization": "Bearer wrong"}))[0] == 401
            assert (await client.get(path, headers={"Authorization": "Bearer s3cret"}))[0] == 200
        assert all("Authorization" not in head for head in client.jobs.servers["a"].heads)

    on_front(tmp_path, test, serve='token_file = "token"')


def test_without_a_token_the_servers_get_the_clients(tmp_path):
    async def test(client: Client) -> None:
        await client.get("/upstream/a/x", headers={"Authorization": "Bearer theirs"})
        assert client.jobs.servers["a"].heads[-1]["Authorization"] == "Bearer theirs"

    on_front(tmp_path, test)


def test_its_own_pages(tmp_path):
    async def test(client: Client) -> None:
        await client.ask("a")
        health = json.loads((await client.get("/health"))[1])
        assert health == {"status": "ok", "models": {"a": "ready", "b": "cold"}}
        models = json.loads((await client.get("/v1/models"))[1])
        assert [(row["id"], row["state"]) for row in models["data"]] == [
            ("a", "ready"),
            ("org/A", "ready"),
            ("b", "cold"),
        ]

    on_front(tmp_path, test)


def test_one_model_by_its_name_or_alias(tmp_path):
    async def test(client: Client) -> None:
        listed = json.loads((await client.get("/v1/models"))[1])["data"]
        for row, path in zip(listed, ("a", "org/A", "b"), strict=True):
            assert json.loads((await client.get(f"/v1/models/{path}"))[1]) == row
            assert (row["object"], row["state"]) == ("model", "cold")
        encoded = URL(f"{client.url}/v1/models/org%2FA?x=1", encoded=True)
        async with client.session.get(encoded) as answer:
            assert (await answer.json())["id"] == "org/A"
        for path in ("c", "", "a/", "..%2Fa"):
            async with client.session.get(URL(f"{client.url}/v1/models/{path}", encoded=True)) as answer:
                assert code_of((answer.status, await answer.json())) == (404, "unknown_model")
        async with client.session.delete(f"{client.url}/v1/models/a") as answer:
            assert code_of((answer.status, await answer.json())) == (400, "no_model")
        assert client.jobs.done == []

    on_front(tmp_path, test)


@pytest.mark.parametrize(
    ("accept", "parse"), [("text/plain", prometheus), ("application/openmetrics-text; version=1.0.0", openmetrics)]
)
def test_metrics_are_read_by_their_own_parsers(accept, parse, tmp_path):
    async def test(client: Client) -> None:
        await client.ask("a")
        await client.ask("a")
        await client.ask("unknown-\n-model")
        text = (await client.get("/metrics", headers={"Accept": accept}))[1]
        samples = [sample for family in parse(text) for sample in family.samples]
        found = {(each.name, *map(each.labels.get, LABELS)): each.value for each in samples}
        assert found["gcr_serve_requests_total", "a", "200", None, None] == 2
        assert found["gcr_serve_requests_total", "", "404", None, None] == 1
        assert found["gcr_serve_swaps_total", "a", None, "start", None] == 1
        assert found["gcr_serve_model_state", "a", None, None, "ready"] == 1
        assert found["gcr_serve_model_state", "a", None, None, "cold"] == 0
        assert found["gcr_serve_model_state", "b", None, None, "cold"] == 1
        assert found["gcr_serve_requests_in_flight", "a", None, None, None] == 0
        assert found["gcr_serve_wait_seconds_count", "a", None, None, None] == 1

    on_front(tmp_path, test)


def test_every_refusal_is_documented():
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs/serve.md").read_text()
    for kind in refusals.ALL:
        assert f"| {kind.status} | `{kind.code}` |" in page, kind.code
