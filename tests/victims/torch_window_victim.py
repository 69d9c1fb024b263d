"""A training with a module and an optimizer in simulated device memory, whose saves are read in place.

As in torch_aside_victim.py a processor cannot touch the tensors; the optimizer has the device write other bytes. Each
line gets one line back:

    save STEP     saves, and overwrites at once what is no part of module and optimizer; says the way and the reason
    step          makes a step, and says whether it waited
    writes        overwrites all past the optimizer, as PyTorch counts it
    durable       waits for the oldest save; says `ok` or the error
    load STEP     says whether the step has the bytes of its moment
    ?             says whether the device has the bytes of the last round
"""

import ctypes
import hashlib
import sys
from typing import Any

import torch
from device import open_device
from dialogue import say

from gcr.errors import GcrError
from gcr.torch import Checkpointer
from gcr_torch import tensors

ROWS, WIDTH = 300, 1000
SIZE = ROWS * WIDTH * 4
NAMES = ("weight", "momentum", "loose")
SAVED = {"weight": "model.weight", "momentum": "optimizer.state.weight.momentum", "loose": "loose"}


class Writing(torch.optim.Optimizer):
    def __init__(self, training: "Training", parameter: torch.nn.Parameter, momentum: torch.Tensor) -> None:
        super().__init__([parameter], {})
        self.training = training
        self.state[parameter] = {"momentum": momentum}

    def step(self, closure: Any = None) -> None:
        self.training.write(*NAMES)


class Training:
    def __init__(self, store: str, way: Any) -> None:
        self.device = open_device("nvidia")
        self.addresses = {name: self.device.allocate(SIZE) for name in NAMES}
        tensors.is_on_device = lambda tensor: tensor.data_ptr() in self.addresses.values()
        self.model, self.loose = torch.nn.Module(), self.tensor("loose")
        self.model.weight = torch.nn.Parameter(self.tensor("weight"))
        self.optimizer = Writing(self, self.model.weight, self.tensor("momentum"))
        self.state = {"model": self.model, "optimizer": self.optimizer, "loose": self.loose}
        self.keeper = Checkpointer(store, in_flight=2, way=way)
        self.round, self.saves, self.rounds = 0, list[Any](), dict[str, int]()
        self.write(*NAMES)

    def tensor(self, name: str) -> torch.Tensor:
        memory = (ctypes.c_ubyte * SIZE).from_address(self.addresses[name])
        return torch.frombuffer(memory, dtype=torch.float32).view(ROWS, WIDTH)

    def pattern(self, name: str, number: int) -> bytes:
        return hashlib.sha256(f"{number} {name}".encode()).digest() * (SIZE // 32)

    def write(self, *names: str) -> None:
        self.round += 1
        for name in names:
            self.device.write(self.addresses[name], self.pattern(name, self.round))

    def save(self, step: str) -> str:
        self.rounds[step] = self.round
        self.saves.append(self.keeper.save(int(step), self.state))
        self.write("loose")
        return f"{self.saves[-1].way} {self.saves[-1].why}"

    def step(self) -> str:
        before = sum(save.waited_s for save in self.saves)
        self.optimizer.step()
        return "waited" if sum(save.waited_s for save in self.saves) > before + 0.05 else "did not wait"

    def writes(self) -> str:
        self.write(*NAMES)
        torch.autograd.graph.increment_version(self.model.weight)
        return "ok"

    def durable(self) -> str:
        self.saves.pop(0).durable.result(60)
        return "ok"

    def load(self, step: str) -> str:
        found = dict(tensors.named(self.keeper.load_all(int(step))))
        wrong = [name for name in NAMES if raw(found[SAVED[name]]) != self.pattern(name, self.rounds[step])]
        return "right" if not wrong else f"wrong: {wrong}"

    def look(self) -> str:
        right = all(
            bytes(self.device.read(at, SIZE)) == self.pattern(name, self.round) for name, at in self.addresses.items()
        )
        return "right" if right else "wrong"

    def answer(self, line: str) -> str:
        name, *words = line.split()
        try:
            return str((self.look if name == "?" else getattr(self, name))(*words))
        except GcrError as error:
            return f"{error.code}: {error}"


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def main() -> None:
    training = Training(*sys.argv[1:])
    say("ready")
    for line in sys.stdin:
        say(training.answer(line))


if __name__ == "__main__":
    main()
