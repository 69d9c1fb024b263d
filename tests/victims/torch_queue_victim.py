"""CUDA tensors through torch.multiprocessing's queues: processes of one job that have each other's memory open.

Every step the parent sends tensors to each worker, which adds to them in place and sends one of its own back. Prints a
digest of all of them a step, and at the end that of what the workers saw.
"""

import hashlib
from typing import Any

from dialogue import note, parser, perform

SIZES = (7, 1000, 300_000, 5_000_000)  # words: within one block of the caching allocator, and blocks of their own
WORKERS = 2


def digest_of(*tensors: Any) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.cpu().numpy().tobytes())
    return state.hexdigest()


def work(number: int, inbox: Any, outbox: Any) -> None:
    """None ends it."""
    import torch

    seen = hashlib.sha256()
    while (tensors := inbox.get()) is not None:
        seen.update(digest_of(*tensors).encode())
        for tensor in tensors:
            tensor.add_(number + 1)
        mine = torch.stack([tensor.sum() for tensor in tensors])
        torch.cuda.synchronize()
        outbox.put(mine)
        inbox.get()  # until the parent has read it: it is ours
        del tensors, tensor, mine
    outbox.put(seen.hexdigest())


class Lending:
    def __init__(self) -> None:
        import torch
        import torch.multiprocessing as mp

        context = mp.get_context("spawn")
        self.pipes = [(context.Queue(), context.Queue()) for _ in range(WORKERS)]
        self.workers = [context.Process(target=work, args=(number, *pipe)) for number, pipe in enumerate(self.pipes)]
        for worker in self.workers:
            worker.start()
        torch.manual_seed(3)
        self.tensors = [torch.randint(0, 1 << 20, (size,), device="cuda") for size in SIZES]

    def step(self) -> str:
        sums = []
        for inbox, outbox in self.pipes:
            inbox.put(self.tensors)
            sums.append(outbox.get().tolist())
            inbox.put("read")
        return f"sums {sums} digest {digest_of(*self.tensors)}"

    def digest(self) -> str:
        """Ends the workers."""
        for inbox, _ in self.pipes:
            inbox.put(None)
        seen = " ".join(outbox.get() for _, outbox in self.pipes)
        for worker in self.workers:
            worker.join()
        note(f"workers ended with {[worker.exitcode for worker in self.workers]}")
        return seen


def main() -> None:
    options = parser(__doc__).parse_args()
    perform(options, Lending())


if __name__ == "__main__":
    main()
