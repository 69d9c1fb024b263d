"""SGLang's release of memory by gcr: a process without a device asks for it, and the scheduler reads on meanwhile.

SGLang itself is a stand-in here (tests/victims/sglang_standin); unit/test_sglang_interface.py looks at the real one.
"""

import sys

import pytest
from machine import VICTIMS, Machine, Victim
from test_resident import resident


@pytest.fixture
def server(machine: Machine) -> Victim:
    machine.extra["GCR_SGLANG"] = "1"
    return started(machine)


def started(machine: Machine) -> Victim:
    job = machine.run("llm", sys.executable, str(VICTIMS / "release_victim.py"))
    assert job.ask("scheduler alloc 6 3000000") == "ok"
    return job


def test_a_server_releases_and_resumes_again_and_again(machine: Machine, server: Victim) -> None:
    before = server.ask("scheduler digest")
    for _ in range(2):
        assert server.ask("release") == "ok"
        assert machine.job("llm")["state"] == "suspended"
        assert resident(machine) > 0
        assert server.ask("scheduler ping") == "paused 0"
        assert server.ask("resume") == "ok"
        assert machine.job("llm")["state"] == "running"
        assert server.ask("scheduler ping") == "serving 0"
        assert server.ask("scheduler digest") == before


def test_it_comes_back_though_its_scheduler_waits_in_the_driver(machine: Machine, server: Victim) -> None:
    before = server.ask("scheduler digest")
    assert server.ask("release kv_cache weights cuda_graph") == "ok"
    assert server.ask("later digest") == "ok"
    assert server.ask("waits") == "True"
    assert machine.job("llm")["state"] == "suspended"
    assert server.ask("resume weights") == "ok"
    assert server.ask("answer") == before
    assert server.ask("resume kv_cache cuda_graph") == "ok"
    assert server.ask("scheduler ping") == "serving 0"


def test_it_is_restored_by_others_and_suspended_by_others(machine: Machine, server: Victim) -> None:
    before = server.ask("scheduler digest")
    assert server.ask("release") == "ok"
    assert machine.gcr("restore", "llm").code == 0
    assert server.ask("resume") == "ok"
    assert server.ask("scheduler digest") == before


def test_some_tags_alone_are_sglangs_own_matter(machine: Machine, server: Victim) -> None:
    assert server.ask("release weights") == "ok"
    assert machine.job("llm")["state"] == "running"
    assert server.ask("scheduler ping") == "serving 1"


def test_where_gcr_refuses_the_server_runs_on(machine: Machine) -> None:
    machine.extra |= {"GCR_SGLANG": "1", "GCR_SIM_DRIVER": "550.90.07"}  # it cannot save control state
    server = started(machine)
    before = server.ask("scheduler digest")
    said = server.ask("release")
    assert said.startswith("driver_too_old: "), said
    assert server.ask("scheduler ping") == "serving 0"
    assert server.ask("scheduler digest") == before


def test_without_the_switch_nothing_is_hooked(machine: Machine) -> None:
    server = started(machine)
    assert server.ask("release") == "ok"
    assert machine.job("llm")["state"] == "running"
    assert server.ask("scheduler ping") == "serving 1"
