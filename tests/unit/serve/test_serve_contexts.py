"""Contexts of parked models leave the device: that of an idle one with its memory, or when another model wants the
room; with `data_only` only then; that of a model that was parked for another one while that one comes in.
"""

import asyncio
from collections.abc import Mapping

import pytest
from serving import FakeJobs, config_of, front, served

from gcr.errors import GcrError, NoRoom
from gcr.serve.contexts import Contexts, Stay

STAY = "data_only=true"


def jobs(**more) -> FakeJobs:
    return FakeJobs(total=20, sizes={"a": 6, "b": 6}, contexts=True, **more)


async def idle(client) -> None:
    await client.until(lambda: client.state("a") == client.state("b") == "parked", "both are parked")


@served
async def test_they_stay_while_models_wake_and_are_parked(tmp_path):
    async with front(config_of(tmp_path, STAY, a='idle="50ms"', b='idle="50ms"'), jobs()) as client:
        for name in ("a", "b", "a", "b"):
            assert (await client.ask(name))[0] == 200
            await client.until(lambda name=name: client.state(name) == "parked", "it is parked")
        assert client.jobs.ways("leave") == ["a"]  # before b started, which may size itself by the free memory
        assert client.jobs.ways("wake") == ["a", "b"]


@served
async def test_they_leave_where_a_model_that_wakes_finds_no_room(tmp_path):
    async with front(config_of(tmp_path, STAY, a='idle="50ms"', b='idle="50ms"'), jobs()) as client:
        await client.ask("a")
        await client.ask("b")
        await idle(client)
        client.jobs.done.clear()
        client.jobs.raises["wake"] = [NoRoom("full", missing=3)]
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.done[:3] == [("wake", "a"), ("leave", "b"), ("wake", "a")]


@served
async def test_several_leave_at_once():
    class Meeting(FakeJobs):
        """A context leaves once all are on their way."""

        async def leave(self, name: str, memory: bool) -> Mapping[str, float]:
            self.done.append(("leave", name))
            while len(self.done) < 3:
                await asyncio.sleep(0)
            return {"control": 0.5}

    told: list[Mapping[str, float]] = []
    contexts = Contexts(jobs := Meeting(), Stay.ALWAYS, told.append)
    for name in ("a", "b", "c"):
        contexts.stays(name, True)
    assert await asyncio.wait_for(contexts.leave(), 10)
    assert jobs.ways("leave") == ["a", "b", "c"]
    assert told == [{"control": 0.5}] * 3
    assert not await contexts.leave()


@served
@pytest.mark.parametrize("error", [NoRoom("full", missing=3), GcrError("no")])
async def test_a_context_that_does_not_leave_is_left_alone(error, tmp_path):
    async with front(config_of(tmp_path, STAY, a='idle="50ms"', b='idle="50ms"'), jobs()) as client:
        await client.ask("a")
        await client.ask("b")
        await idle(client)
        client.jobs.done.clear()
        client.jobs.raises |= {"leave": [error], "wake": [NoRoom("full", missing=3)] * 2}
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.done[:4] == [("wake", "a"), ("leave", "b"), ("wake", "a"), ("wake", "a")]


@served
async def test_a_model_wakes_once_its_context_has_left(tmp_path):
    config = config_of(tmp_path, STAY, a='idle="50ms"', b="memory=6")
    async with front(config, jobs(way=0.1)) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
        client.jobs.done.clear()
        starting = asyncio.create_task(client.ask("b"))
        await client.until(lambda: client.jobs.ways("leave") == ["a"], "its context is leaving")
        assert (await client.ask("a"))[0] == 200
        assert (await starting)[0] == 200
        assert client.jobs.done[:1] == [("leave", "a")]
        assert client.jobs.ways("wake") == ["a"]


@served
async def test_those_of_an_earlier_serve_are_known(tmp_path):
    fakes = jobs()
    config = config_of(tmp_path, STAY, a='idle="50ms"')
    async with front(config, fakes) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
    async with front(config, fakes) as client:
        await client.until(lambda: client.state("a") == "parked", "it is found")
        await client.ask("b")
        assert fakes.ways("leave") == ["a"]


@served
@pytest.mark.parametrize("how", ["by hand", "dies"])
async def test_a_model_that_runs_again_is_left_alone(how, tmp_path):
    """Its context stays with it: to have that leave would suspend the model."""
    async with front(config_of(tmp_path, STAY, a="memory=6", b="memory=6"), jobs()) as client:
        await client.ask("a")
        await client.jobs.park("a")
        await client.until(lambda: client.state("a") == "parked", "it is noticed")
        if how == "by hand":
            await client.jobs.wake("a")
            await client.until(lambda: client.state("a") == "ready", "it is noticed")
        else:
            await client.jobs.die("a")
            await client.until(lambda: client.state("a") == "cold", "it is noticed")
            assert (await client.ask("a"))[0] == 200
        client.jobs.done.clear()
        assert (await client.ask("b"))[0] == 200
        assert client.jobs.ways("leave") == []


def turns(tmp_path, **more):
    """A front of two models that have no room together, and whose contexts do not stay."""
    return front(config_of(tmp_path, "memory=10"), FakeJobs(sizes={"a": 6, "b": 6}, **more))


async def both_known(client) -> None:
    """Each model has run once, so that its need is known, and b is there."""
    await client.ask("a")
    await client.ask("b")
    client.jobs.done.clear()


@served
async def test_a_model_comes_in_while_the_context_of_the_one_before_leaves(tmp_path):
    async with turns(tmp_path, way=0.05) as client:
        await both_known(client)
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.done[:3] == [("park", "b"), ("follow", "b"), ("wake", "a")]
        await client.until(lambda: not client.jobs.jobs["b"].context, "its context has left")
        control = 'gcr_serve_phase_seconds_total{direction="park",phase="control"} 0.25'
        assert control in (await client.get("/metrics"))[1], "of the second step"
        assert (await client.ask("b"))[0] == 200


@served
async def test_a_model_that_is_parked_for_one_that_starts_leaves_as_a_whole(tmp_path):
    """A server may size itself by the free memory that it sees when it starts."""
    async with turns(tmp_path) as client:
        await client.ask("a")
        await client.ask("b")
        assert client.jobs.done[2:] == [("park", "a"), ("start", "b"), ("healthy", "b")]


@served
@pytest.mark.parametrize("how", ["data_only=false", "resident=false"])
async def test_an_idle_model_leaves_as_a_whole_where_that_is_configured(how, tmp_path):
    async with front(config_of(tmp_path, how, a='idle="50ms"'), FakeJobs(sizes={"a": 6})) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
        assert (client.jobs.ways("follow"), client.jobs.jobs["a"].context) == ([], False)


@served
async def test_an_idle_model_keeps_its_context_until_another_one_starts(tmp_path):
    async with front(config_of(tmp_path, a='idle="50ms"'), FakeJobs(sizes={"a": 6, "b": 6})) as client:
        for _ in range(2):
            assert (await client.ask("a"))[0] == 200
            await client.until(lambda: client.state("a") == "parked", "it is parked")
            assert client.jobs.jobs["a"].context
        assert (await client.ask("b"))[0] == 200
        assert client.jobs.done[-3:] == [("leave", "a"), ("start", "b"), ("healthy", "b")]
        assert client.jobs.ways("follow") == []


@served
async def test_a_context_leaves_once_the_memory_beside_it_is_gone(tmp_path):
    """Another program wanted the room. It leaves once, also where that fails."""
    async with front(config_of(tmp_path, a='idle="50ms"'), FakeJobs(sizes={"a": 6})) as client:
        for error in ([], [GcrError("no")]):
            client.jobs.done.clear()
            await client.ask("a")
            await client.until(lambda: client.state("a") == "parked", "it is parked")
            client.jobs.raises["follow"] = error
            client.jobs.evict("a")
            client.server.pool.suspect()
            await client.until(lambda: client.jobs.ways("follow") == ["a"], "its context leaves")
            client.server.pool.suspect()
            await asyncio.sleep(0.05)
            assert client.jobs.ways("follow") == ["a"]


@served
async def test_a_context_that_the_daemon_had_leave_is_asked_for_no_more(tmp_path):
    async with front(config_of(tmp_path, a='idle="50ms"'), FakeJobs(sizes={"a": 6})) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
        await client.jobs.leave("a", memory=True)
        client.server.pool.suspect()
        await asyncio.sleep(0.05)
        client.jobs.done.clear()
        assert (await client.ask("b"))[0] == 200
        assert client.jobs.ways("leave") == client.jobs.ways("follow") == []


@served
async def test_a_context_leaves_at_once_where_the_memory_cannot_stay(tmp_path):
    async with front(config_of(tmp_path, a='idle="50ms"'), FakeJobs(sizes={"a": 6}, memory=False)) as client:
        await client.ask("a")
        await client.until(lambda: client.jobs.ways("follow") == ["a"], "its context leaves")


@served
async def test_an_idle_context_of_an_earlier_serve_stays(tmp_path):
    fakes = FakeJobs(sizes={"a": 6})
    config = config_of(tmp_path, a='idle="50ms"')
    async with front(config, fakes) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
    async with front(config, fakes) as client:
        client.server.pool.suspect()
        await asyncio.sleep(0.05)
        assert (fakes.ways("follow"), fakes.jobs["a"].context) == ([], True)


@served
async def test_a_model_that_is_asked_for_while_its_context_leaves_wakes_after_that(tmp_path):
    async with turns(tmp_path, way=0.1) as client:
        await both_known(client)
        coming = asyncio.create_task(client.ask("a"))
        await client.until(lambda: client.jobs.ways("follow") == ["b"], "its context is leaving")
        again = asyncio.create_task(client.ask("b"))
        assert (await coming)[0] == (await again)[0] == 200


@served
async def test_a_model_that_finds_no_room_waits_for_the_context_that_is_leaving(tmp_path):
    async with turns(tmp_path, way=0.1) as client:
        await both_known(client)
        client.jobs.raises["wake"] = [NoRoom("full", missing=3)]
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.done == [("park", "b"), ("follow", "b"), ("wake", "a"), ("wake", "a")]


@served
async def test_a_context_that_is_leaving_has_left_when_serve_ends(tmp_path):
    async with turns(tmp_path, way=0.1) as client:
        await both_known(client)
        assert (await client.ask("a"))[0] == 200
    assert not client.jobs.jobs["b"].context


@served
async def test_a_context_that_an_earlier_serve_left_there_follows(tmp_path):
    """It was killed between the two steps."""
    fakes = FakeJobs(sizes={"a": 6, "b": 6})
    config = config_of(tmp_path, a='idle="50ms"')
    async with front(config, fakes) as client:
        await client.ask("a")
        await client.until(lambda: client.state("a") == "parked", "it is parked")
    await fakes.park("a", context_later=True)
    fakes.evict("a")
    async with front(config, fakes) as client:
        await client.until(lambda: client.jobs.ways("follow") == ["a"], "its context leaves")


@served
async def test_a_model_whose_context_does_not_leave_is_served_all_the_same(tmp_path):
    async with turns(tmp_path) as client:
        await both_known(client)
        client.jobs.raises["follow"] = [GcrError("no")]
        for name in ("a", "b", "a"):
            assert (await client.ask(name))[0] == 200
