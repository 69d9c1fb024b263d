"""`gcr serve` on the simulated device: two servers, of which one has room at a time, and what kills what.

Each answer says which model gave it and what was in its device memory, so a wrong one is noticed.
"""

import json
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from dumps import CRIU
from machine import kill, until
from serve_victim import answer_of
from served import EACH, FILE, MIB, PATTERNS, Served, command

from gcr.criu import program
from gcr.criu.preflight.sockets import saves_ip_sockets

CLIENTS = 50
STARTS = 'gcr_serve_swaps_total{direction="start",model="chat"'
STALE = 'gcr_serve_failures_total{model="chat",reason="files_changed"}'


def test_two_servers_take_turns_and_answer_from_their_memory(served: Served) -> None:
    served.start()
    for number, name in enumerate(("chat", "embed", "chat", "embed")):
        served.ask(name, f"prompt {number}")
    assert served.wrong == []
    assert served.models() == {"chat": "parked", "embed": "ready"}
    assert served.machine.job("chat")["state"] == "suspended"
    assert served.metric('gcr_serve_swaps_total{direction="start"') == 2
    counted = 'gcr_job_swap_seconds_count{direction="checkpoint"}'
    until(lambda: served.metric(counted) >= 3, 30.0, "the daemon's events are counted")
    there = 'gcr_jobs{state="suspended"}', 'gcr_jobs{state="running"}'
    until(lambda: [served.metric(name) for name in there] == [1, 1], 30.0, "jobs are shown by state")
    pid = served.machine.job("embed")["pid"]
    assert served.end() == 0
    assert served.machine.job("embed")["pid"] == pid  # its jobs are left


def test_a_model_comes_in_while_the_other_one_leaves_where_there_is_room_for_it(served: Served) -> None:
    """By the file's count one has room at a time. What is left of that is enough for the memory of `chat`."""
    served.machine.memory = 256 * MIB
    served.start(f"memory = {95 * MIB}", more=f"memory = {60 * MIB}")
    for number, name in enumerate(("chat", "embed", "chat")):
        served.ask(name, f"prompt {number}")
    assert served.wrong == []
    logged = served.machine.logs()["gcrd.log"]
    started = re.findall(r"job (\w+): a head start of (\d+) bytes", logged)
    assert [(name, int(size) >= EACH) for name, size in started] == [("chat", True)], started
    assert served.end() == 0


def test_clients_at_once_of_both_while_they_are_swapped(served: Served) -> None:
    served.start()

    def client(number: int) -> None:
        for turn in range(6):
            served.ask(("chat", "embed")[(number + turn) % 2], f"{number} {turn}")

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(8)))
    assert (served.asked, served.wrong) == (48, [])
    assert served.metric('gcr_serve_swaps_total{direction="wake"') >= 2


def test_a_stream_goes_on_while_the_other_model_waits(served: Served) -> None:
    served.start()
    served.ask("chat")
    with ThreadPoolExecutor(2) as clients:
        stream = clients.submit(served.post, "chat", "long", stream=20)
        until(lambda: served.metric('gcr_serve_requests_in_flight{model="chat"}'), 10, "the stream has begun")
        other = clients.submit(served.ask, "embed")
        status, text = stream.result()
        other.result()
    events = [f"data: {number} {answer_of('chat', 'long', PATTERNS['chat'])}" for number in range(20)]
    assert (status, text.split("\n\n")) == (200, [*events, ""])
    assert served.wrong == []


def test_serve_that_is_killed_goes_on_with_its_jobs(served: Served) -> None:
    served.start()
    served.ask("chat")
    served.ask("embed")
    pids = {name: served.machine.job(name)["pid"] for name in ("chat", "embed")}
    served.kill()
    served.start()
    assert served.models()["chat"] == "parked"
    served.ask("embed", "after")
    served.ask("chat", "after")
    assert served.wrong == []
    assert {name: served.machine.job(name)["pid"] for name in ("chat", "embed")} == pids


def test_parked_with_their_contexts_they_wake_without_the_driver(served: Served) -> None:
    """The memory of an idle model stays too, until the other one wants the room; a context leaves for a new server."""
    machine = served.machine
    served.start(more='idle = "200ms"')
    served.ask("chat")
    until(lambda: served.models()["chat"] == "parked", 10, "it is parked")
    job = machine.job("chat")
    assert (job["state"], sum(row["resident_bytes"] for row in job["processes"]) >= EACH) == ("data_suspended", True)
    served.ask("chat", "again")
    assert served.metric('gcr_serve_phase_seconds_total{direction="wake",phase="control"}') == 0
    until(lambda: served.models()["chat"] == "parked", 10, "it is parked again")
    served.ask("embed")
    assert machine.job("chat")["state"] == "suspended"
    served.ask("chat", "at last")
    served.ask("embed", "at last")
    assert served.wrong == []


def test_a_program_outside_finds_nothing_of_an_idle_model_on_the_device(served: Served) -> None:
    machine = served.machine
    served.start(more='idle = "200ms"')
    served.ask("chat")
    until(lambda: served.models()["chat"] == "parked", 10, "it is parked")
    assert machine.job("chat")["state"] == "data_suspended"
    machine.end(machine.told("other"))
    chat = machine.job("chat")
    assert (chat["state"], sum(row["resident_bytes"] for row in chat["processes"])) == ("suspended", 0)
    served.ask("chat", "again")
    assert served.wrong == []


def test_a_server_that_is_killed_is_started_again(served: Served) -> None:
    served.start()
    served.ask("chat")
    served.ask("embed")
    for name in ("embed", "chat"):  # the one answers, the other is parked
        kill(served.machine.job(name)["pid"])
        until(lambda each=name: served.models()[each] == "cold", 10, "it is noticed")
    served.ask("chat", "after")
    served.ask("embed", "after")
    assert served.wrong == []
    status, text = served.post("embed", die=True)
    assert (status, json.loads(text)["error"]["code"]) == (502, "upstream_gone")
    until(lambda: served.models()["embed"] == "cold", 10, "it is noticed")  # one that is ending still takes connections
    served.ask("embed", "again")
    assert served.wrong == []


def test_what_is_refused_before_anything_starts(served: Served) -> None:
    served.start(serve='on_stop = "end"')
    served.ask("chat")
    file = served.machine.folder / "gcr.toml"
    second = served.machine.gcr("serve", *served.machine.world, str(file))
    assert (second.code, second.body["error"]["code"]) == (3, "model_taken")
    assert str(served.process.pid) in second.body["error"]["message"]
    port = served.url.rpartition(":")[2]
    file.write_text(f'[serve]\nport = {port}\n[models.other]\ncommand = "x {{port}}"\n')
    third = served.machine.gcr("serve", str(file))
    assert (third.code, third.body["error"]["code"]) == (3, "port_in_use")
    checked = served.machine.gcr("serve", "--check", str(file))
    assert (checked.code, checked.body["models"], checked.body["url"]) == (0, ["other"], None)
    served.ask("chat", "unharmed")
    assert served.wrong == []
    pid = served.machine.job("chat")["pid"]
    assert served.end() == 0
    until(lambda: not os.path.exists(f"/proc/{pid}"), 10, "its jobs are ended")  # noqa: PTH110


def test_a_command_that_ends_at_once_and_one_of_another_job(served: Served) -> None:
    machine = served.machine
    served.start()
    served.kill()
    file = machine.folder / "gcr.toml"
    forked = json.dumps([sys.executable, "-c", "print('last words')", "{port}"])
    file.write_text(FILE.format(serve="", more="", chat=forked, embed=command("embed")))
    served.process = machine.begin("serve", *machine.world, str(file))
    served.url = json.loads(served.process.stdout.readline())["url"].removeprefix("http://")
    began = time.monotonic()
    status, text = served.post("chat")
    assert (status, json.loads(text)["error"]["code"]) == (503, "model_failed")
    assert "ended with code 0" in text and "last words" not in text  # these are for the operator
    assert time.monotonic() - began < 40  # two tries, of a deadline of 60 s
    served.ask("embed")
    assert served.wrong == []
    served.kill()
    assert "gcr: chat: never_healthy while starting" in (said := (machine.folder / "stderr").read_text())
    assert "gcr logs chat, which ends with: last words" in said
    file.write_text(FILE.format(serve="", more="", chat=forked, embed=command("embed", MIB)))
    refused = machine.gcr("serve", *machine.world, str(file))
    assert (refused.code, refused.body["error"]["code"]) == (3, "model_taken")


def images_of(served: Served) -> list[str]:
    return [image["image"] for image in served.machine.gcr("images").body["images"]]


@pytest.fixture
def saved_sockets(criu: None) -> None:
    if not saves_ip_sockets(program.look(CRIU).version):
        pytest.skip("this CRIU saves no IP sockets on this kernel")


def test_a_server_that_dies_comes_back_from_its_image_until_its_files_or_its_version_change(
    served: Served, saved_sockets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = served.machine
    monkeypatch.setenv("GCR_STORE", str(machine.folder / "store"))
    weights = machine.folder / "weights"
    weights.write_text("1 2 3")
    chat = json.dumps(["sh", "-c", f'exec "$@" 9<{weights}', "sh", *json.loads(command("chat"))])
    served.start(chat=chat, more='image = "1"')
    served.ask("chat")
    (image,) = images_of(served)
    assert image.startswith("serve.chat.1.")
    first = machine.job("chat")["pid"]

    def asked_after_its_death(prompt: str) -> int:
        kill(machine.job("chat")["pid"])
        until(lambda: served.models()["chat"] == "cold", 10, "it is noticed")
        served.ask("chat", prompt)
        return int(machine.job("chat")["pid"])

    assert [asked_after_its_death(prompt) for prompt in ("from the image", "and again")] == [first, first]
    assert (images_of(served), served.metric(STARTS), served.metric(STALE)) == ([image], 3, 0)
    weights.write_text("4 5 6")
    second = asked_after_its_death("by its command")
    assert second != first
    assert (images_of(served), served.metric(STALE)) == ([image], 1)
    assert asked_after_its_death("from the new image") == second
    assert served.wrong == []
    assert served.end() == 0
    machine.end_by_pid(second)
    served.start(chat=chat, more='image = "2"')
    served.ask("chat", "of another version")
    assert (served.wrong, len(images_of(served))) == ([], 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_swaps_under_50_clients(served: Served) -> None:
    served.start()
    over = threading.Event()
    told: list[float] = []

    def client(number: int) -> None:
        turn = 0
        while not over.is_set():
            began = time.monotonic()
            served.ask(("chat", "embed")[(number + turn) % 2], f"{number} {turn}")
            told.append(time.monotonic() - began)
            turn += 1

    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = [clients.submit(client, number) for number in range(CLIENTS)]
        try:
            until(lambda: served.metric('gcr_serve_swaps_total{direction="wake"') >= 200, 800, "200 swaps")
        finally:
            over.set()
        for each in asked:
            each.result()
    told.sort()
    print(f"{served.asked} requests; p50 {told[len(told) // 2]:.2f} s, p99 {told[len(told) * 99 // 100]:.2f} s")
    assert served.wrong == []
    assert served.metric("gcr_serve_requests_total") >= served.asked
