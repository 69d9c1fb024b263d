"""The contract of ControlState, on a victim: a program that uses a device and proves what it computed.

`victim_command` starts one. It prints one line when it holds device memory, then answers each line on its standard
input with one line that depends on all of that memory and on nothing else, having made at least one device call.
"""

import os
import selectors
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, takewhile
from typing import IO, ClassVar

import pytest

from gcr.backend import Device
from gcr.control import ControlMeans, ControlPhase
from gcr.declarations import Declaration
from gcr.devices import is_simulated
from gcr.errors import BackendMissing, DriverError
from gcr.processes import maps_contain, open_files
from gcr.testing.contract import ContractBase, MakePeer
from gcr.testing.drain import eventually
from gcr.testing.peer import Peer

START_SECONDS = 60.0
ANSWER_SECONDS = 30.0
CALL_SECONDS = 20.0
QUIET_SECONDS = 0.3
TRIES = 5


class Victim:
    """A running victim. `ask` sends a line; `answer` waits for the reply, None when it does not come."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.answer(START_SECONDS) is not None, "the victim did not start"

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"digest\n")

    def answer(self, seconds: float) -> str | None:
        line = b""
        with selectors.DefaultSelector() as ready:
            ready.register(self._output, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not ready.select(seconds):
                    return None
                byte = self._output.read(1)
                assert byte, f"the victim ended with {self._process.wait(ANSWER_SECONDS)}"
                line += byte
        return line.decode().strip()

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def digest(self) -> str:
        self.ask()
        answer = self.answer(ANSWER_SECONDS)
        assert answer is not None, "the victim does not answer"
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait(ANSWER_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class InspectContract(ContractBase):
    """The contract of every ControlState. A backend with means AGENT or PROCESS sets `means` in its subclass."""

    victim_command: ClassVar[Sequence[str]]

    @pytest.fixture
    def victim(self, environment: Mapping[str, str]) -> Iterator[Victim]:
        running = Victim(self.victim_command, environment)
        yield running
        running.end()

    @pytest.fixture
    def control(self, new_peer: MakePeer) -> Peer:
        """The process that makes the driver's checkpoint calls."""
        return new_peer()

    def test_a_process_with_a_device_runs(self, control: Peer, victim: Victim) -> None:
        victim.digest()
        assert control.call("phase", victim.pid) is ControlPhase.RUNNING
        assert eventually(lambda: sum(control.call("inspect", victim.pid).bytes_by_device.values()) > 0)

    def test_a_program_is_recognised_by_what_the_plugin_declares(
        self, declaration: Declaration, victim: Victim, device: Device
    ) -> None:
        """The daemon looks at programs that gcr hears nothing of from outside: at their files, real devices' too."""
        assert maps_contain(victim.pid, declaration.libraries), "the program has none of these libraries loaded"
        opened = [path for path in declaration.device_files if open_files(victim.pid, path)]
        assert opened or is_simulated(device.name), "the program has none of these device files open"

    def test_a_process_without_a_device_is_absent(self, control: Peer) -> None:
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            assert control.call("phase", sleeper.pid) is ControlPhase.ABSENT
            view = control.call("inspect", sleeper.pid)
            assert (view.phase, dict(view.bytes_by_device), list(view.refusals)) == (ControlPhase.ABSENT, {}, [])
        finally:
            sleeper.kill()
            sleeper.wait(ANSWER_SECONDS)

    def test_a_process_that_is_gone_is_absent(self, control: Peer) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait(ANSWER_SECONDS)
        assert control.call("phase", gone.pid) is ControlPhase.ABSENT

    def test_inspecting_touches_nothing(self, control: Peer, victim: Victim) -> None:
        before = victim.digest()
        view = control.call("inspect", victim.pid)
        assert (view.pid, view.phase, list(view.refusals)) == (victim.pid, ControlPhase.RUNNING, [])
        assert victim.digest() == before

    def test_what_is_told_of_reach_is_of_devices_that_are_there(self, control: Peer) -> None:
        """For a backend that tells: `TellsReach`."""
        if not control.call("tells_reach"):
            return
        found = [device.uuid for device in control.call("devices")]
        answers = [control.call("reaches", one, other) for one, other in permutations(found, 2)]
        assert all(isinstance(answer, bool) for answer in answers)
        with pytest.raises(BackendMissing):
            control.call("reaches", found[0], "GPU-00000000-0000-0000-0000-00000000dead")


class ControlContract(InspectContract):
    """The contract of a ControlState with means DRIVER: the driver's calls, from another process."""

    means = ControlMeans.DRIVER

    def test_a_cycle_through_every_phase_keeps_the_bytes(self, control: Peer, victim: Victim) -> None:
        before = victim.digest()
        assert control.call("phase", victim.pid) is ControlPhase.RUNNING
        control.call("lock", victim.pid, CALL_SECONDS)
        assert control.call("phase", victim.pid) is ControlPhase.LOCKED
        control.call("checkpoint", victim.pid, CALL_SECONDS)
        assert control.call("phase", victim.pid) is ControlPhase.CHECKPOINTED
        control.call("restore", victim.pid, {}, CALL_SECONDS)
        assert control.call("phase", victim.pid) is ControlPhase.LOCKED
        control.call("unlock", victim.pid, CALL_SECONDS)
        assert control.call("phase", victim.pid) is ControlPhase.RUNNING
        assert victim.digest() == before

    def test_a_locked_process_makes_no_device_call(self, control: Peer, victim: Victim) -> None:
        before = victim.digest()
        control.call("lock", victim.pid, CALL_SECONDS)
        victim.ask()
        assert victim.answer(QUIET_SECONDS) is None
        control.call("unlock", victim.pid, CALL_SECONDS)
        assert victim.answer(ANSWER_SECONDS) == before

    def test_a_checkpointed_process_holds_no_device_memory(self, control: Peer, victim: Victim) -> None:
        assert sum(control.call("inspect", victim.pid).bytes_by_device.values()) > 0
        control.call("lock", victim.pid, CALL_SECONDS)
        control.call("checkpoint", victim.pid, CALL_SECONDS)
        assert eventually(lambda: not control.call("inspect", victim.pid).bytes_by_device)
        control.call("restore", victim.pid, {}, CALL_SECONDS)
        control.call("unlock", victim.pid, CALL_SECONDS)

    def test_another_process_may_finish_what_one_began(self, control: Peer, new_peer: MakePeer, victim: Victim) -> None:
        before = victim.digest()
        control.call("lock", victim.pid, CALL_SECONDS)
        control.call("checkpoint", victim.pid, CALL_SECONDS)
        control.kill()
        other = new_peer()
        assert other.call("phase", victim.pid) is ControlPhase.CHECKPOINTED
        other.call("restore", victim.pid, {}, CALL_SECONDS)
        other.call("unlock", victim.pid, CALL_SECONDS)
        assert victim.digest() == before

    def test_a_process_that_is_gone_cannot_be_locked(self, control: Peer) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait(ANSWER_SECONDS)
        with pytest.raises(DriverError):
            control.call("lock", gone.pid, CALL_SECONDS)

    def test_a_step_out_of_order_fails_and_harms_no_process(self, control: Peer, victim: Victim) -> None:
        before = victim.digest()
        for step, arguments in (("checkpoint", ()), ("restore", ({},)), ("unlock", ())):
            with pytest.raises(DriverError):
                control.call(step, victim.pid, *arguments, CALL_SECONDS)
        assert control.call("phase", victim.pid) is ControlPhase.RUNNING
        assert victim.digest() == before

    def test_other_threads_run_while_the_driver_works(self, control: Peer, victim: Victim) -> None:
        """Once is enough: where a call keeps them from running, it does each time; a busy machine does it by chance."""
        tries = (self._silence(control, victim) for _ in range(TRIES))
        silent = list(takewhile(lambda found: found[1] >= max(0.1, found[0] / 2), tries))
        assert len(silent) < TRIES, f"no other thread ran, of each call's seconds: {silent}"

    @staticmethod
    def _silence(control: Peer, victim: Victim) -> tuple[float, float]:
        """Seconds that a checkpoint took, and the longest of them in which no other thread ran."""
        control.call("lock", victim.pid, CALL_SECONDS)
        found: tuple[float, float] = control.call("longest_silence", "checkpoint", victim.pid)
        control.call("restore", victim.pid, {}, CALL_SECONDS)
        control.call("unlock", victim.pid, CALL_SECONDS)
        return found
