"""The gate: it closes, work in flight ends, and nothing that needs a waiting call can hang it."""

import threading
import time

import pytest
from packets import DRIVER, PREPARED, QUIESCE, QUIESCED, RUNNING, STUCK, STUCK_CODE, Refused
from patience import wait_for

MiB = 1 << 20


def begin_quiesce(agent, deadline_ms=10000, pulse_ms=20):
    return agent.begin("quiesce", QUIESCE.pack(agent.transaction, deadline_ms, pulse_ms))


def quiesced(agent, request):
    agent.reply("quiesce", request)
    assert agent.status().phase == QUIESCED


def test_a_closed_gate_parks_and_an_open_one_lets_go(target):
    puppet, agent = target
    puppet.must("alloc a 4096")
    agent.export()
    agent.quiesce()
    puppet.must("thread t fill a 1", "thread u alloc b 4096", "thread v stream another")
    time.sleep(0.2)
    assert puppet.script(["done t", "done u", "done v"]) == ["running"] * 3
    assert agent.status().in_flight == 0
    agent.ask("resume")
    for name in "tuv":
        assert wait_for(lambda name=name: puppet.tell(f"done {name}") == "ok")
    puppet.must("sync", "check a 1")


def test_work_in_flight_is_waited_for(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000")
    began = time.monotonic()
    puppet.must("spin 1500 s", "fill a 8 s")
    agent.export()
    agent.quiesce(pulse_ms=0)
    assert time.monotonic() - began >= 1.5
    agent.export()
    agent.count("hand_over")
    agent.bring_back()
    puppet.must("check a 8")


def test_a_call_in_flight_is_waited_for(target):
    puppet, agent = target
    puppet.must("alloc a 4096", "stream u", "spin 1500 u", "thread t check a 0", "thread w asyncalloc x 100 s")
    puppet.must("thread t2 sync u")
    agent.export()
    agent.quiesce()
    assert agent.status().in_flight == 0


@pytest.mark.parametrize("calls", [1, 12])
def test_a_host_callback_that_waits_for_a_parked_thread(target, calls):
    """The thread that will open the door parks first; without pulses no thread would ever open it."""
    puppet, agent = target
    puppet.must("alloc a 4096", "stream u", "callback s")
    agent.export()
    request = begin_quiesce(agent)
    time.sleep(0.1)
    puppet.must(f"thread t opendoor {calls} u")
    quiesced(agent, request)
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    agent.ask("resume")
    puppet.must("fill a 1", "sync", "check a 1")


def test_without_pulses_that_callback_is_stuck(target):
    puppet, agent = target
    puppet.must("alloc a 4096", "stream u", "callback s")
    agent.export()
    request = begin_quiesce(agent, deadline_ms=5000, pulse_ms=0)
    time.sleep(1)
    puppet.must("thread t opendoor 1 u")
    with pytest.raises(Refused) as caught:
        agent.reply("quiesce", request)
    assert caught.value.code == STUCK_CODE
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_a_stream_that_waits_for_a_value_a_parked_thread_writes(target):
    puppet, agent = target
    puppet.must("alloc flag 4096", "setword flag 0", "stream u", "sync", "waitvalue flag 5 s")
    agent.export()
    request = begin_quiesce(agent)
    time.sleep(0.1)
    puppet.must("thread t writevalue flag 5 u")
    quiesced(agent, request)
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_a_spinning_kernel_that_a_parked_copy_ends(target):
    puppet, agent = target
    puppet.must("alloc flag 4096", "setword flag 0", "stream u", "sync", "spinuntil flag 3 s")
    agent.export()
    request = begin_quiesce(agent)
    time.sleep(0.1)
    puppet.must("thread t writevalue flag 3 u")
    quiesced(agent, request)


def test_what_a_pulse_admitted_is_waited_for_as_well(target):
    """One stream is busy for a while; meanwhile a parked thread is let through and starts something longer."""
    puppet, agent = target
    puppet.must("alloc a 4096", "stream u", "spin 4000 s")
    agent.export()
    request = begin_quiesce(agent)
    time.sleep(0.1)
    puppet.must("thread t spin 4500 u")
    quiesced(agent, request)
    assert puppet.script(["done t", "query u", "query s"]) == ["ok", "ok", "ok"]


def test_a_persistent_kernel_is_named_and_the_program_runs_on(target):
    puppet, agent = target
    puppet.must("alloc flag 4096", "setword flag 0", "stream u", "sync", "spinuntil flag 1 s")
    agent.export()
    with pytest.raises(Refused) as caught:
        agent.quiesce(deadline_ms=300)
    assert caught.value.code == STUCK_CODE
    records = list(STUCK.iter_unpack(caught.value.details))
    assert len(records) == 1
    assert records[0][0] != 0
    assert records[0][2:] == (0, 0)
    assert agent.status().phase == PREPARED
    puppet.must("alloc b 4096", "fill b 2 u", "writevalue flag 1 u", "sync s", "sync", "check b 2")
    agent.export(after=0)
    agent.quiesce()  # the thread that was stuck is used again
    agent.ask("resume")


def test_stuck_twice_with_one_helper(target):
    puppet, agent = target
    puppet.must("alloc flag 4096", "setword flag 0", "sync", "stream u", "spinuntil flag 1 s")
    agent.export()
    threads = set()
    for _ in range(3):
        with pytest.raises(Refused):
            agent.quiesce(deadline_ms=150)
        threads.add(puppet.tell("threads"))
    assert len(threads) == 1
    puppet.must("writevalue flag 1 u", "sync s")


def test_threads_with_always_one_more_kernel_do_not_hold_it_up(target):
    """Each pulse admits kernels longer than the pulse; pulses come slower, so the devices do become idle."""
    puppet, agent = target
    puppet.must("alloc a 4096", "stream u")
    puppet.must("thread t repeat 2000 spinsync 30 s", "thread v repeat 2000 spinsync 30 u")
    agent.export()
    agent.quiesce(deadline_ms=20000)
    agent.ask("resume")


def test_a_capture_delays_and_is_not_disturbed(target):
    puppet, agent = target
    puppet.must("alloc a 4096", "capture s 0", "fill a 1 s")
    agent.export()
    assert agent.status().captures == 1
    request = begin_quiesce(agent)
    time.sleep(0.2)
    puppet.must("fill a 2 s", "fill a 3 s")  # the capturing thread is not parked
    puppet.must("stream u", "thread t capture u 0")  # but none may begin now
    time.sleep(0.1)
    assert puppet.tell("done t") == "running"
    puppet.must("endcapture s")
    quiesced(agent, request)
    assert puppet.tell("done t") == "running"
    agent.ask("resume")
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_a_capture_that_begins_just_before_the_gate_closes(machine, target):
    """Its call is in flight when the agent looks for captures; once it left, the gate must open again for its end."""
    puppet, agent = target
    puppet.must("alloc a 4096")
    agent.export()
    (machine.folder / "sim/faults").write_text("cuStreamBeginCapture:1:delay=400\n")
    puppet.must("capturemode 2", "thread t capture s 2")
    assert wait_for(lambda: agent.status().in_flight == 1 or puppet.tell("done t") == "ok")
    request = begin_quiesce(agent)
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    puppet.must("fill a 1 s", "fill a 2 s", "endcapture s")
    quiesced(agent, request)


def test_a_capture_that_never_ends_is_stuck(target):
    puppet, agent = target
    puppet.must("alloc a 4096", "capture s 0")
    agent.export()
    puppet.must("stream u")
    with pytest.raises(Refused) as caught:
        agent.quiesce(deadline_ms=200)
    assert caught.value.code == STUCK_CODE
    puppet.must("fill a 1 s", "endcapture s")
    agent.quiesce()
    agent.ask("resume")


def test_a_destroyed_stream_takes_its_capture_along(target):
    puppet, agent = target
    puppet.must("alloc a 4096", "capture s 0", "destroystream s")
    assert agent.status().captures == 0
    agent.export()
    agent.quiesce()


def test_memory_freed_during_a_capture_goes_after_it(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000", "capture s 2", "capturemode 2", "free a")
    assert agent.status().handles == 1
    puppet.must("endcapture s", "alloc b 0x200000")
    assert agent.status().handles == 1


def test_a_lost_context_is_an_error_not_a_hang(target):
    puppet, agent = target
    puppet.must("alloc a 4096", "reserve v 0x200000", "fill v 1 s")
    agent.export()
    with pytest.raises(Refused) as caught:
        agent.quiesce(deadline_ms=2000)
    assert caught.value.code == DRIVER
    assert caught.value.vendor_error == 700
    assert agent.status().phase == PREPARED
    agent.ask("resume")
    assert agent.status().phase == RUNNING


def test_slots_of_ended_threads_are_reused(target):
    puppet, agent = target
    puppet.must("shortthreads 500")
    assert agent.status().in_flight == 0
    agent.cycle()
    puppet.must("shortthreads 5")


def test_no_context_no_memory(machine):
    """A process that only called cuInit can be prepared, quiesced, handed over and resumed, too."""
    daemon = machine.listen()
    puppet = machine.puppet()
    puppet.must("init")
    agent = daemon.accept()
    assert agent.cycle() == (0, 0)
    assert agent.status().generation == 1
    puppet.must("primary p 0", "alloc a 4096")


def test_what_has_ended_is_said_to_have_while_the_driver_is_frozen(target):
    """A watchdog asks on and on, also for what is current; all else waits for the thaw."""
    puppet, agent = target
    puppet.must("alloc a 4096", "stream u", "fill a 1 u", "sync")
    agent.take()
    agent.ask("freeze")
    assert puppet.script(["query u", "sync u", "sync", "query s"]) == ["ok", "ok", "ok", "ok"]
    puppet.must("thread t fill a 1")  # it makes a context current first: that is answered, and made up for
    assert [puppet.tell(f"capturemode {mode}") for mode in (2, 1)] == ["ok 0", "ok 2"]
    began = time.monotonic()
    thaw = threading.Timer(0.3, lambda: agent.ask("thaw"))
    thaw.start()
    puppet.must("freebytes")
    assert time.monotonic() - began > 0.3
    assert puppet.tell("capturemode 0") == "ok 1"  # the driver's answer
    thaw.join()
    agent.bring_back()
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    puppet.must("sync")
    puppet.must("check a 1")
