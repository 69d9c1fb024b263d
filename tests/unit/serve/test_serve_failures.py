"""Models that fail, and servers that die: requests wait for the next try as long as they may."""

import asyncio

import pytest
from serving import TIGHT, FakeJobs, code_of, config_of, front, served

from gcr.errors import CannotStart, DriverError, Lost
from gcr.serve.config import ModelConfig
from gcr.serve.model import Model
from gcr.serve.upstream import Found
from gcr.serveerrors import NeverHealthy


@served
async def test_a_command_that_does_not_start(tmp_path):
    """A request without time for the next try is refused at once, and told when that is."""
    jobs = FakeJobs(raises={"start": [CannotStart("no such program")]})
    async with front(config_of(tmp_path, a='wait = "300ms"'), jobs) as client:
        for _ in range(2):
            async with client.session.post(f"{client.url}/v1/x", json={"model": "a"}) as answer:
                assert code_of((answer.status, error := await answer.json())) == (503, "model_failed")
                assert "no such program" in error["error"]["message"]
                assert answer.headers["Retry-After"] == "1"
        assert jobs.ways("start") == ["a"]
        assert (await client.ask("b"))[0] == 200
        await client.until(lambda: client.state("a") == "cold", "it may be tried again")
        assert (await client.ask("a"))[0] == 200


@served
@pytest.mark.parametrize("what", ["start", "wake"])
async def test_requests_with_time_for_the_next_try_wait_for_it(what, tmp_path):
    """Those that saw the failure, and those that come in the pause after it."""
    jobs = FakeJobs()
    async with front(config_of(tmp_path, a='idle = "50ms"'), jobs) as client:
        if what == "wake":
            await client.ask("a")
            await client.until(lambda: client.state("a") == "parked", "it is parked")
        jobs.done.clear()
        jobs.raises[what] = [CannotStart("not now")]
        first = asyncio.create_task(client.ask("a"))
        track = client.server.pool.models["a"].track
        await client.until(lambda: track.failures == 1, "it has failed")
        second = asyncio.create_task(client.ask("a"))
        assert [(await each)[0] for each in (first, second)] == [200, 200]
        assert jobs.ways(what) == ["a", "a"]


@served
async def test_a_request_is_refused_once_the_next_try_comes_after_its_deadline(tmp_path):
    """The pauses are 1 s, 2 s and so on."""
    jobs = FakeJobs(raises={"start": [CannotStart("not now")] * 9})
    async with front(config_of(tmp_path, a='wait = "1.5s"'), jobs) as client:
        async with client.session.post(f"{client.url}/v1/x", json={"model": "a"}) as answer:
            assert code_of((answer.status, await answer.json())) == (503, "model_failed")
            assert answer.headers["Retry-After"] == "2"
        assert jobs.ways("start") == ["a", "a"]


@served
async def test_a_deadline_that_passes_in_a_later_try_says_why_the_first_one_failed(tmp_path):
    class Hanging(FakeJobs):
        async def healthy(self, model: ModelConfig, job: Found) -> None:
            await super().healthy(model, job)
            if len(self.ways("healthy")) == 1:
                raise NeverHealthy("a ended")
            await asyncio.sleep(1.0)

    async with front(config_of(tmp_path, a='wait = "1.5s"'), Hanging()) as client:
        refused = await client.ask("a")
        assert code_of(refused) == (503, "deadline")
        assert refused[1]["error"]["message"].endswith("s: a ended")


@served
async def test_a_request_waits_for_room_beside_a_model_that_could_not_be_parked(tmp_path):
    """It is tried again. Beside a pinned one no try would help."""
    jobs = FakeJobs(**TIGHT, raises={"park": [DriverError("no")]})
    async with front(config_of(tmp_path), jobs) as client:
        await client.ask("a")
        asking = asyncio.create_task(client.ask("b"))
        track = client.server.pool.models["b"].track
        await client.until(lambda: track.failures, "there is no room")
        client.server.pool.models["a"].track.stays_until = 0.0
        assert (await asking)[0] == 200


@served
async def test_a_server_that_dies_is_started_again(tmp_path):
    async with front(config_of(tmp_path), FakeJobs()) as client:
        await client.ask("a")
        await client.jobs.die("a")
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.ways("start") == ["a", "a"]


@served
async def test_the_slow_end_of_a_server_leaves_its_successor_alone(tmp_path):
    jobs = FakeJobs(end_s=0.3)
    async with front(config_of(tmp_path), jobs) as client:
        await client.ask("a")
        await jobs.die("a")
        await client.until(lambda: client.jobs.ways("end"), "it is noticed")
        await client.ask("a")
        jobs.servers["a"].hold.clear()
        long = asyncio.create_task(client.ask("a"))
        await client.until(lambda: jobs.servers["a"].active, "the successor is asked")
        await asyncio.sleep(2 * jobs.end_s)
        jobs.servers["a"].hold.set()
        assert (await long)[0] == 200


@served
async def test_a_server_that_dies_while_it_is_parked(tmp_path):
    async with front(config_of(tmp_path, a='idle = "50ms"'), FakeJobs()) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
        await client.jobs.die("a")
        assert (await client.ask("a"))[0] in (200, 503)  # it may be noticed by the wake that fails
        await client.until(lambda: client.state("a") == "cold" or client.state("a") == "ready", "it is noticed")
        await client.until(lambda: client.server.pool.models["a"].track.begins < asyncio.get_running_loop().time(), "")
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.ways("start") == ["a", "a"]


@served
async def test_a_model_that_cannot_be_parked_runs_on(tmp_path):
    jobs = FakeJobs(**TIGHT, raises={"park": [DriverError("no")]})
    async with front(config_of(tmp_path, b='wait = "300ms"'), jobs) as client:
        await client.ask("a")
        assert code_of(await client.ask("b")) in ((503, "no_room"), (503, "deadline"))
        assert (await client.ask("a"))[0] == 200
        assert client.state("a") == "ready"


@served
async def test_a_model_that_does_not_come_back_is_tried_again(tmp_path):
    jobs = FakeJobs(raises={"wake": [DriverError("not now")]})
    async with front(config_of(tmp_path, a='idle = "50ms"\nwait = "500ms"'), jobs) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
        assert code_of(await client.ask("a")) == (503, "model_failed")
        assert client.state("a") == "parked"
        track = client.server.pool.models["a"].track
        await client.until(lambda: track.begins < asyncio.get_running_loop().time(), "it may be tried again")
        assert (await client.ask("a"))[0] == 200
        assert jobs.ways("start") == ["a"]


@served
async def test_a_model_that_is_lost_is_started_anew(tmp_path):
    jobs = FakeJobs(raises={"wake": [Lost("gone")]})
    async with front(config_of(tmp_path, a='idle = "50ms"\nwait = "500ms"'), jobs) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
        assert code_of(await client.ask("a")) == (503, "model_failed")
        assert ("end", "a") in jobs.done
        track = client.server.pool.models["a"].track
        await client.until(lambda: track.begins < asyncio.get_running_loop().time(), "it may be tried again")
        assert (await client.ask("a"))[0] == 200
        assert jobs.ways("start") == ["a", "a"]


def test_the_pause_after_a_failure_doubles_up_to_a_minute_however_many_there_are(tmp_path):
    model = Model(config_of(tmp_path).models["a"], lambda *_: None)
    pauses = []
    for _ in range(2000):
        model.failed(100.0, "it does not start")
        pauses.append(model.track.begins - 100.0)
    assert (pauses[:4], {*pauses[6:]}) == ([1, 2, 4, 8], {60})


@served
async def test_no_request_waits_for_a_third_try_of_a_model_that_never_answered(tmp_path):
    """Its command may be wrong, so the client is told; a model that has answered once is waited for."""
    jobs = FakeJobs(raises={"start": [NeverHealthy("a ended with code 1")] * 9})
    async with front(config_of(tmp_path, a='wait = "60s"'), jobs) as client:
        began = asyncio.get_running_loop().time()
        assert code_of(await client.ask("a")) == (503, "model_failed")
        assert asyncio.get_running_loop().time() - began < 10
        assert jobs.ways("start") == ["a", "a"]
    model = Model(config_of(tmp_path).models["a"], lambda *_: None)
    model.arrived(1.0, 1.0)
    for _ in range(5):
        model.failed(100.0, "it does not start")
        assert model.may_wait(1000.0)
