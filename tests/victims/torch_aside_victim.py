"""A training whose tensors lie in device memory of a simulated driver, and that saves them by gcr.torch.

PyTorch here knows no device: tensors are made upon the addresses, and gcr.torch is told that these are device memory.
A processor cannot touch them, so any access of this process ends it. Its small saves are written by a save helper, as
large ones are. Each line gets one line back:

    save STEP     saves, writes other bytes as soon as it may, and says the way and the reason
    durable       waits for the oldest save; says `ok` or the error
    load STEP     says whether the step has the bytes of its moment
    host STEP     saves tensors of the host that are taken for device memory
    helper        says the pid of the save helper
    holds         says how many saves hold memory of gcr's worker; the collector of cycles never runs
    ?             says whether the device has the bytes of the last round
"""

import ctypes
import gc
import hashlib
import sys
from typing import Any

import torch
from device import open_device
from dialogue import say

from gcr.checkpoints import helper
from gcr.checkpoints.aside import Aside
from gcr.errors import GcrError
from gcr.torch import Checkpointer
from gcr_torch import tensors

SHAPES = {
    "bytes": ((5001,), torch.uint8),
    "weights": ((300, 1000), torch.float32),
    "half": ((7, 33, 11), torch.bfloat16),
}
helper.WORTH_BYTES = 0
TURNED = "weights"  # this one is saved transposed as well


class Training:
    def __init__(self, store: str) -> None:
        self.device = open_device("nvidia")
        self.addresses = {name: self.device.allocate(self.size(name)) for name in SHAPES}
        self.lying: set[int] = set()
        tensors.is_on_device = lambda tensor: tensor.data_ptr() in {*self.addresses.values(), *self.lying}
        self.keeper = Checkpointer(store, in_flight=3)
        self.round, self.saves, self.rounds = 0, list[Any](), dict[int, int]()
        self.write()

    def size(self, name: str) -> int:
        shape, dtype = SHAPES[name]
        return torch.Size(shape).numel() * dtype.itemsize

    def pattern(self, name: str, number: int) -> bytes:
        block = hashlib.sha256(f"{number} {name}".encode()).digest()
        return (block * (self.size(name) // len(block) + 1))[: self.size(name)]

    def write(self) -> None:
        self.round += 1
        for name, address in self.addresses.items():
            self.device.write(address, self.pattern(name, self.round))

    def state(self) -> dict[str, Any]:
        found = {name: self.tensor(name) for name in SHAPES}
        return {"model": found, "again": [found["half"], found[TURNED].T], "round": self.round, "host": self.host()}

    def tensor(self, name: str) -> torch.Tensor:
        shape, dtype = SHAPES[name]
        memory = (ctypes.c_ubyte * self.size(name)).from_address(self.addresses[name])
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def host(self) -> torch.Tensor:
        return torch.arange(100) + self.round

    def save(self, step: str) -> str:
        self.rounds[int(step)] = self.round
        save = self.keeper.save(int(step), self.state())
        save.safe.result(30)
        self.write()
        self.saves.append(save)
        return f"{save.way} {save.why}"

    def helper(self) -> str:
        process = self.keeper._writers._helper._process
        return str(process.pid if process else None)

    def holds(self) -> str:
        return str(sum(isinstance(each, Aside) for each in gc.get_objects()))

    def durable(self) -> str:
        self.saves.pop(0).durable.result(60)
        return "ok"

    def load(self, step: str) -> str:
        number = self.rounds[int(step)]
        empty = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in SHAPES.items()}
        turned = torch.empty(tuple(reversed(SHAPES[TURNED][0])), dtype=SHAPES[TURNED][1])
        again = [torch.empty_like(empty["half"]), turned]
        state = {"model": empty, "again": again, "round": 0, "host": torch.empty(100, dtype=torch.int64)}
        self.keeper.load(int(step), state)
        right = all(raw(state["model"][name]) == self.pattern(name, number) for name in SHAPES)
        right &= raw(again[0]) == self.pattern("half", number) and raw(again[1].T) == self.pattern(TURNED, number)
        right &= state["round"] == number and bool((state["host"] == torch.arange(100) + number).all())
        return "right" if right else "wrong"

    def host_state(self, step: str) -> str:
        state = {"a": torch.arange(1000), "b": torch.ones(3)}
        self.lying = {tensor.data_ptr() for tensor in state.values()}
        save = self.keeper.save(int(step), state)
        save.durable.result(60)
        self.lying = set()
        loaded = {"a": torch.zeros(1000, dtype=torch.int64), "b": torch.zeros(3)}
        self.keeper.load(int(step), loaded)
        right = all(torch.equal(loaded[name], state[name]) for name in state)
        return f"{save.way} {'right' if right else 'wrong'} {save.why}"

    def steps(self) -> str:
        return str(self.keeper.steps())

    def look(self) -> str:
        found = all(
            bytes(self.device.read(at, self.size(name))) == self.pattern(name, self.round)
            for name, at in self.addresses.items()
        )
        return "right" if found else "wrong"

    def answer(self, line: str) -> str:
        name, *words = line.split()
        told = {"?": self.look, "host": self.host_state}.get(name) or getattr(self, name)
        try:
            return str(told(*words))
        except GcrError as error:
            return f"{error.code}: {error}"


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def main() -> None:
    gc.disable()
    training = Training(sys.argv[1])
    say("ready")
    for line in sys.stdin:
        say(training.answer(line))


if __name__ == "__main__":
    main()
