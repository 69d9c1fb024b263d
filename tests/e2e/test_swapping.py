"""One job leaves, another comes back in its place; and what is said where it finds no room."""

import re

from machine import Machine

from gcr.testing import SimulatedMachine

MIB = 1 << 20


def test_a_swap_and_one_that_is_undone_since_a_stranger_has_the_room(machine: Machine) -> None:
    back = machine.told("bb", "alloc 15 10000000")
    theirs = back.ask()
    assert machine.ask("checkpoint", "bb").code == 0
    out = machine.told("llm", "alloc 12 10000000")
    ours = out.ask()

    refused = machine.ask("restore", "bb")
    error = refused.body["error"]
    assert (refused.code, error["code"], error["state"], error["device"][:3]) == (3, "no_room", "suspended", "GPU")
    assert re.search(r" short on nvidia:0, which has .* MiB free; there is: job llm 1", error["message"]), error
    assert error["hint"] == "gcr checkpoint llm, or gcr swap llm bb"

    done = machine.gcr("swap", "llm", "bb")
    assert (done.code, done.body["out"]["state"], done.body["in"]["state"]) == (0, "suspended", "running"), done
    assert back.ask() == theirs

    done = machine.gcr("swap", "bb", "llm")
    assert done.code == 0, done.body
    taker = machine.stranger()
    assert int(taker.ask(f"take {60 * MIB}")) > 0
    failed = SimulatedMachine.gcr(machine, "swap", "llm", "bb")  # a process of its own: the log names its command line
    error = failed.body["error"]
    assert (failed.code, error["code"], error["state"]) == (4, "swap_failed", "running"), failed.body
    assert error["message"].endswith("; llm is back and running")
    assert f"process {taker.supervisor.pid} (python" in error["message"]
    assert out.ask() == ours
    assert machine.job("bb")["state"] == "suspended"
    taker.supervisor.kill()
    taker.supervisor.wait(10)
    assert machine.ask("checkpoint", "llm").code == 0
    assert machine.ask("restore", "bb").code == 0
    assert back.ask() == theirs

    lines = [line for line in machine.logs()["gcrd.log"].splitlines() if "; asked by uid " in line]
    told = [re.sub(r".* gcr.daemon (job.*?)[,:]? [^:]*: .*", r"\1", line) for line in lines]
    assert sum(" checkpoint done" in line for line in lines) == 5, told
    assert sum(" restore done" in line for line in lines) == 4, told
    assert sum(" refused" in line for line in lines) == 2, told
    assert any("job llm, bb: swap failed" in line and "swap llm bb" in line for line in lines), told
