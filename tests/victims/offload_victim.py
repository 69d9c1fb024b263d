"""A trainer with its optimizer's state in pinned host memory: copied to the device and back at each step.

Two streams take turns, so that one layer's state is on its way while another's is used. --gib: of pinned state.
"""

import hashlib
import os
from typing import Any

from dialogue import parser, perform

WIDTH, BATCH = 8192, 64
WORDS = WIDTH * WIDTH  # of a layer
MOMENTS = 2
SAMPLE = 1 << 16  # words of each layer that the digest looks at, besides its sum
RATE, MEAN, SQUARE, SMALL = 1e-5, 0.9, 0.99, 1e-8


class Layer:
    """A weight on the device, and its two moments on the host."""

    def __init__(self, torch: Any) -> None:
        self.weight = (torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5).requires_grad_()
        self.moments = [torch.zeros(WIDTH, WIDTH, pin_memory=True) for _ in range(MOMENTS)]


class Training:
    def __init__(self, gib: float) -> None:
        import torch

        torch.manual_seed(17)
        torch.use_deterministic_algorithms(True)
        self.torch = torch
        self.layers = [Layer(torch) for _ in range(max(1, int(gib * (1 << 30)) // (MOMENTS * 4 * WORDS)))]
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        self.there = [[torch.empty(WIDTH, WIDTH, device="cuda") for _ in range(MOMENTS)] for _ in self.streams]
        self.inputs, self.targets = (torch.randn(BATCH, WIDTH, device="cuda") for _ in range(2))

    def step(self) -> str:
        state = self.inputs
        for layer in self.layers:
            state = self.torch.tanh(state @ layer.weight)
        loss = ((state - self.targets) ** 2).mean()
        loss.backward()
        for stream in self.streams:
            stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.no_grad():
            for number, layer in enumerate(self.layers):
                with self.torch.cuda.stream(self.streams[number % 2]):
                    self._update(layer, self.there[number % 2])
        self.torch.cuda.synchronize()
        return f"loss {loss.item().hex()}"

    @staticmethod
    def _update(layer: Layer, there: list[Any]) -> None:
        for moment, here in zip(layer.moments, there, strict=True):
            here.copy_(moment, non_blocking=True)
        (mean, square), gradient = there, layer.weight.grad
        mean.mul_(MEAN).add_(gradient, alpha=1 - MEAN)
        square.mul_(SQUARE).addcmul_(gradient, gradient, value=1 - SQUARE)
        gradient.copy_(square).sqrt_().add_(SMALL)
        layer.weight.addcdiv_(mean, gradient, value=-RATE)
        gradient.zero_()
        for moment, here in zip(layer.moments, there, strict=True):
            moment.copy_(here, non_blocking=True)

    def digest(self) -> str:
        state = hashlib.sha256()
        for layer in self.layers:
            for tensor in (layer.weight.detach(), *layer.moments):
                on_device = tensor.cuda()
                state.update(float(on_device.double().sum()).hex().encode())
                state.update(on_device.view(-1)[:: WORDS // SAMPLE].cpu().numpy().tobytes())
        return state.hexdigest()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--gib", type=float, default=16.0)
    options = arguments.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    perform(options, Training(options.gib))


if __name__ == "__main__":
    main()
