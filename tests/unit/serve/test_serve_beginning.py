"""Servers that begin from an image. Jobs are fakes, sockets are real."""

from serving import FakeJobs, config_of, front, served

from gcr.errors import CriuUnusable
from gcr.imageerrors import FilesChanged


@served
async def test_a_server_with_an_image_is_saved_before_its_first_request_and_comes_from_it_afterwards(tmp_path):
    async with front(config_of(tmp_path, a='image = "1"'), FakeJobs()) as client:
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.done == [("restored", "a"), ("start", "a"), ("healthy", "a"), ("saved", "a")]
        del client.jobs.done[:]
        await client.jobs.die("a")
        await client.until(lambda: client.state("a") == "cold", "its death is noticed")
        assert (await client.ask("a"))[1]["from"] == "a"
        assert client.jobs.done == [("end", "a"), ("restored", "a"), ("healthy", "a")]


@served
async def test_an_image_that_fails_is_told_of_and_the_command_starts_the_server(tmp_path):
    raises = {"restored": [FilesChanged("serve.py is another")], "saved": [CriuUnusable("no root")]}
    async with front(config_of(tmp_path, a='image = "1"'), FakeJobs(raises=raises)) as client:
        assert (await client.ask("a"))[0] == 200
        assert client.jobs.done == [("restored", "a"), ("start", "a"), ("healthy", "a"), ("saved", "a")]
        counted = (await client.get("/metrics"))[1]
        for code in ("files_changed", "criu_unusable"):
            assert f'gcr_serve_failures_total{{model="a",reason="{code}"}} 1.0' in counted
