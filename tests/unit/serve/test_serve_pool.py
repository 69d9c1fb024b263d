"""Models come and go by the requests for them: states, queues, deadlines, deaths. Jobs are fakes, sockets are real."""

import asyncio
import time

import pytest
from serving import TIGHT, Client, FakeJobs, code_of, config_of, front, served

from gcr.errors import NoRoom
from gcr.serve.schedule import Schedule
from gcr.serve.upstream import Next


@served
async def test_a_model_is_started_by_its_first_request_and_stays(tmp_path):
    async with front(config_of(tmp_path), FakeJobs()) as client:
        assert client.state("a") == "cold"
        assert (await client.ask("a"))[1]["from"] == "a"
        await client.ask("org/A")
        assert client.jobs.done == [("start", "a"), ("healthy", "a")]


@served
async def test_models_that_have_no_room_together_take_turns(tmp_path):
    async with front(config_of(tmp_path), FakeJobs(**TIGHT)) as client:
        for name in ("a", "b", "a", "b", "a"):
            assert (await client.ask(name))[1]["from"] == name
        assert (client.state("a"), client.state("b")) == ("ready", "parked")
        assert client.jobs.ways("start") == ["a", "b"]
        assert client.jobs.ways("park") == ["a", "b", "a", "b"]
        assert client.jobs.ways("wake") == ["a", "b", "a"]


@served
async def test_models_that_have_room_together_stay(tmp_path):
    async with front(config_of(tmp_path), FakeJobs(total=10, sizes={"a": 6, "b": 4})) as client:
        for name in ("a", "b", "a", "b"):
            await client.ask(name)
        assert client.jobs.ways("park") == ["a"]  # how much b takes was not known before its first start
        assert (client.state("a"), client.state("b")) == ("ready", "ready")


@served
async def test_a_model_whose_time_of_day_has_come_is_brought_in_without_a_request(tmp_path):
    """The other one leaves, for no request is with it. Later nothing brings it back."""
    config = config_of(tmp_path, a='wake = ["0 8 * * *"]')
    async with front(config, FakeJobs(**TIGHT)) as client:
        await client.ask("b")
        assert client.state("a") == "cold"
        client.server.schedule = Schedule({"a": ["* * * * *"]}, time.time() - 60)
        await client.until(lambda: client.state("a") == "ready", "it is there")
        assert client.jobs.done[-3:] == [("park", "b"), ("start", "a"), ("healthy", "a")]
        client.server.schedule = Schedule({}, time.time())
        await client.ask("b")
        client.server.pool.step()
        assert (client.state("a"), client.state("b")) == ("parked", "ready")


@served
async def test_no_model_is_parked_in_the_middle_of_a_request(tmp_path):
    """FakeJobs fails where one is. The other model's request waits, and so do new ones for the first."""
    async with front(config_of(tmp_path), FakeJobs(**TIGHT)) as client:
        await client.ask("a")
        client.jobs.servers["a"].hold.clear()
        long = asyncio.create_task(client.ask("a"))
        await client.until(lambda: client.jobs.servers["a"].active, "it is asked")
        other = asyncio.create_task(client.ask("b"))
        await client.until(lambda: client.server.pool.models["a"].draining, "it drains")
        late = asyncio.create_task(client.ask("a"))
        await client.until(lambda: client.server.pool.models["a"].queue, "the late one waits")
        assert client.jobs.ways("park") == []
        client.jobs.servers["a"].hold.set()
        assert [(await each)[1]["from"] for each in (long, other, late)] == ["a", "b", "a"]
        assert client.jobs.ways("park") == ["a", "b"]


@served
async def test_many_clients_of_two_models_are_all_answered(tmp_path):
    async with front(config_of(tmp_path), FakeJobs(way=0.002, **TIGHT)) as client:

        async def one(number: int) -> None:
            for turn in range(12):
                name, prompt = "ab"[(number + turn) % 2], f"{number} {turn}"
                status, body = await client.ask(name, prompt)
                assert (status, body["from"], body["prompt"]) == (200, name, prompt)

        await asyncio.gather(*(one(number) for number in range(20)))
        assert len(client.jobs.ways("wake")) > 4


@served
async def test_a_request_that_has_no_turn_by_its_deadline(tmp_path):
    config = config_of(tmp_path, b='wait = "150ms"')
    async with front(config, FakeJobs(**TIGHT)) as client:
        await client.ask("a")
        client.jobs.servers["a"].hold.clear()
        long = asyncio.create_task(client.ask("a"))
        await client.until(lambda: client.jobs.servers["a"].active, "it is asked")
        async with client.session.post(f"{client.url}/v1/x", json={"model": "b"}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "deadline")
            assert int(answer.headers["Retry-After"]) >= 1
        assert not client.server.pool.models["b"].queue
        client.jobs.servers["a"].hold.set()
        assert (await long)[0] == 200
        assert (await client.ask("b"))[0] == 200


@served
async def test_a_full_queue(tmp_path):
    async with front(config_of(tmp_path, serve="queue = 1"), FakeJobs(way=0.1)) as client:
        first, second = await asyncio.gather(client.ask("a"), client.ask("a"))
        assert sorted(each[0] for each in (first, second)) == [200, 503]
        assert code_of(max(first, second, key=lambda each: each[0])) == (503, "queue_full")


@served
async def test_a_client_that_leaves_while_it_waits_is_forgotten(tmp_path):
    async with front(config_of(tmp_path), FakeJobs(way=0.5)) as client:
        leaving = asyncio.create_task(client.ask("a"))
        await client.until(lambda: client.server.pool.models["a"].queue, "it waits")
        leaving.cancel()
        await client.until(lambda: not client.server.pool.models["a"].queue, "it has left")
        assert client.state("a") == "starting"
        assert (await client.ask("a"))[0] == 200
        assert client.server.pool.models["a"].active == 0


@served
async def test_idle_models_are_parked(tmp_path):
    async with front(config_of(tmp_path, a='idle = "100ms"'), FakeJobs()) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.ways("wake") == ["a"]


@served
async def test_a_pinned_model_is_there_before_it_is_asked_and_never_leaves(tmp_path):
    config = config_of(tmp_path, serve="memory = 10", a="pinned = true\nmemory = 6", b="memory = 4")
    jobs = FakeJobs(total=10, sizes={"a": 6, "b": 6})  # b takes more than it says
    async with front(config, jobs) as client:
        await client.until(lambda: client.state("a") == "ready", "it is started")
        assert (await client.ask("b"))[0] == 200
        await client.until(lambda: client.state("b") == "ready", "it is started")
        assert jobs.ways("park") == []


@served
async def test_no_room_beside_a_pinned_model(tmp_path):
    """Seen once the device was asked, since the file does not say how much there is."""
    jobs = FakeJobs(total=10, sizes={"a": 6, "b": 6})
    async with front(config_of(tmp_path, a="pinned = true", b="memory = 6"), jobs) as client:
        await client.until(lambda: client.state("a") == "ready", "it is started")
        assert code_of(await client.ask("b")) == (503, "no_room")
        again = await client.ask("b")  # at once: it is not tried again so soon
        assert code_of(again) == (503, "no_room")
        assert "beside a (it needs 6 B; all models together have 10 B)" in again[1]["error"]["message"]


@served
async def test_a_device_that_has_no_room_in_spite_of_the_count(tmp_path):
    jobs = FakeJobs(total=20, sizes={"a": 6, "b": 6})
    async with front(config_of(tmp_path, a="memory=6", b="memory=6"), jobs) as client:
        await client.ask("b")
        await client.ask("a")
        await jobs.park("b")
        await client.until(lambda: client.state("b") == "parked", "it is noticed")
        jobs.done.clear()
        jobs.raises["wake"] = [NoRoom("full", missing=3)]
        assert (await client.ask("b"))[0] == 200
        assert jobs.done == [("wake", "b"), ("park", "a"), ("wake", "b")]
        assert (await client.ask("a"))[0] == 200
        assert jobs.done[3:] == [("park", "b"), ("follow", "b"), ("wake", "a")]  # it is remembered


async def left(client: Client) -> None:
    """The front ends as by a kill, and its servers go on."""
    for server in client.jobs.servers.values():
        server.outlives = True


@served
async def test_jobs_of_an_earlier_serve_are_found(tmp_path):
    config, jobs = config_of(tmp_path), FakeJobs(**TIGHT)
    async with front(config, jobs) as client:
        await client.ask("a")
        await client.ask("b")
        await left(client)
    jobs.done.clear()
    async with front(config, jobs) as client:
        assert client.state("a") == "parked"
        assert (await client.ask("b"))[1]["from"] == "b"
        assert (await client.ask("a"))[1]["from"] == "a"
        assert jobs.ways("start") == []


@served
async def test_a_job_that_is_on_its_way_is_waited_for(tmp_path):
    """Its server answers health requests while it is suspended: the state alone tells."""
    config, jobs = config_of(tmp_path), FakeJobs()
    async with front(config, jobs) as client:
        await client.ask("a")
        await left(client)
    jobs.change("a")
    parking = asyncio.create_task(parked_later(jobs))
    async with front(config, jobs) as client:
        assert client.state("a") == "parked"
        assert (await client.ask("a"))[0] == 200
    await parking


async def parked_later(jobs: FakeJobs) -> None:
    await asyncio.sleep(0.3)
    await jobs.park("a")


@served
async def test_a_model_that_is_parked_by_hand_with_a_request_comes_back_for_it(tmp_path):
    async with front(config_of(tmp_path), FakeJobs()) as client:
        await client.ask("a")
        client.jobs.servers["a"].hold.clear()
        long = asyncio.create_task(client.ask("a"))
        await client.until(lambda: client.jobs.servers["a"].active, "it is asked")
        client.jobs._set("a", parked=True)
        await client.until(lambda: client.jobs.ways("wake"), "it is woken")
        client.jobs.servers["a"].hold.set()
        assert (await long)[0] == 200


@served
async def test_a_job_that_was_parked_or_woken_by_hand(tmp_path):
    async with front(config_of(tmp_path), FakeJobs()) as client:
        await client.ask("a")
        await client.jobs.park("a")
        await client.until(lambda: client.state("a") == "parked", "it is noticed")
        await client.jobs.wake("a")
        await client.until(lambda: client.state("a") == "ready", "it is noticed")


@pytest.mark.parametrize(("on_stop", "ended"), [("leave", []), ("end", ["a"])])
def test_its_end_lets_requests_finish_and_leaves_or_ends_the_jobs(on_stop, ended, tmp_path):
    async def run() -> None:
        jobs = FakeJobs()
        async with front(config_of(tmp_path, serve=f'on_stop = "{on_stop}"'), jobs) as client:
            await client.ask("a")
            jobs.servers["a"].hold.clear()
            long = asyncio.create_task(client.ask("a"))
            await client.until(lambda: jobs.servers["a"].active, "it is asked")
            closing = asyncio.create_task(client.server.pool.close())
            await asyncio.sleep(0)
            assert code_of(await client.ask("b")) == (503, "shutting_down")
            jobs.servers["a"].hold.set()
            assert (await long)[0] == 200
            await closing
            assert jobs.ways("end") == ended

    asyncio.run(asyncio.wait_for(run(), 30))


class NeverReady(FakeJobs):
    """Jobs that start, and whose servers never become healthy."""

    async def healthy(self, model, job) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(("on_stop", "ended"), [("leave", []), ("end", ["a"])])
def test_its_end_does_not_wait_for_a_server_to_become_healthy(on_stop, ended, tmp_path):
    async def run() -> None:
        jobs = NeverReady()
        async with front(config_of(tmp_path, serve=f'on_stop = "{on_stop}"'), jobs) as client:
            asked = asyncio.create_task(client.ask("a"))
            await client.until(lambda: jobs.servers, "it is started")
            await client.server.pool.close()
            assert code_of(await asked) == (503, "shutting_down")
            assert jobs.ways("end") == ended

    asyncio.run(asyncio.wait_for(run(), 30))


@served
async def test_a_model_that_is_waited_for_comes_in_where_there_is_room_while_the_other_leaves(tmp_path):
    jobs = FakeJobs(total=10, sizes={"a": 6, "b": 6})
    async with front(config_of(tmp_path), jobs) as client:
        for name in ("a", "b", "a"):
            await client.ask(name)
        assert jobs.ways("park") == ["a", "b"]
        assert jobs.nexts == [None, Next("a", 4)]  # b was to be started
