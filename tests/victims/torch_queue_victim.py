"""CUDA tensors through torch.multiprocessing's queues: processes of one job that have each other's memory open.

Every round the parent sends tensors to each worker, which adds to them in place and sends one of its own back. Prints a
digest of all of them a round, and at the end that of what the workers saw.
"""

import argparse
import hashlib
import time
from typing import Any

from dialogue import note, say

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between rounds")
    options = parser.parse_args()
    import torch
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    pipes = [(context.Queue(), context.Queue()) for _ in range(WORKERS)]
    workers = [context.Process(target=work, args=(number, *pipe)) for number, pipe in enumerate(pipes)]
    for worker in workers:
        worker.start()
    torch.manual_seed(3)
    tensors = [torch.randint(0, 1 << 20, (size,), device="cuda") for size in SIZES]
    for turn in range(options.rounds):
        sums = []
        for inbox, outbox in pipes:
            inbox.put(tensors)
            sums.append(outbox.get().tolist())
            inbox.put("read")
        say(f"round {turn} sums {sums} digest {digest_of(*tensors)}")
        time.sleep(options.pause)
    for inbox, outbox in pipes:
        inbox.put(None)
        say(f"seen {outbox.get()}")
    for worker in workers:
        worker.join()
    note(f"workers ended with {[worker.exitcode for worker in workers]}")


if __name__ == "__main__":
    main()
