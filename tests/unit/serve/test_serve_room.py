"""Models that need more device memory by themselves than all models may have together."""

import asyncio

from serving import Client, FakeJobs, code_of, config_of, front, served

from gcr.errors import NoRoom


def tight() -> FakeJobs:
    """One of them fits."""
    return FakeJobs(total=10, sizes={"a": 6, "b": 6})


async def grown(client: Client) -> None:
    """Both have been there, and b takes more than there is when it is parked."""
    await client.ask("b")
    client.jobs.sizes["b"] = 12
    await client.ask("a")


@served
async def test_a_model_that_grew_beyond_the_memory_is_served_alone(tmp_path, caplog):
    config = config_of(tmp_path, serve="memory = 10")
    async with front(config, tight()) as client:
        await grown(client)
        for name in ("b", "a", "b", "a"):
            assert (await client.ask(name))[1]["from"] == name
        assert client.jobs.ways("park") == ["b", "a"] * 2 + ["b"]
    said = [record.getMessage() for record in caplog.records if "alone" in record.getMessage()]
    assert said == ["b: it needs 12 B, more than the 10 B for all models (`memory`): it is served alone"]


@served
async def test_a_model_that_the_device_refuses_alone_is_not_tried_again_for_a_minute(tmp_path):
    async with front(config_of(tmp_path), tight()) as client:
        await grown(client)
        client.jobs.raises["wake"] = [NoRoom("2 B short", missing=2)] * 2  # also once the other context has left
        for _ in range(3):
            refused = await client.ask("b")
            assert code_of(refused) == (503, "no_room")
            assert "it needs 12 B; all models together have 10 B): 2 B short" in refused[1]["error"]["message"]
        assert client.jobs.ways("park") == ["b", "a"]
        assert (await client.ask("a"))[0] == 200
        track = client.server.pool.models["b"].track
        assert 50 < track.begins - asyncio.get_running_loop().time() <= 60
        track.begins = 0.0
        assert (await client.ask("b"))[0] == 200


@served
async def test_a_usual_model_that_the_device_refuses_alone_is_tried_again_soon(tmp_path):
    async with front(config_of(tmp_path, b='wait = "500ms"'), tight()) as client:
        client.jobs.raises["wake"] = [NoRoom("2 B short", missing=2)] * 2  # also once the other context has left
        await client.ask("b")
        await client.ask("a")
        assert code_of(await client.ask("b")) == (503, "model_failed")
        track = client.server.pool.models["b"].track
        assert track.begins - asyncio.get_running_loop().time() <= 1
