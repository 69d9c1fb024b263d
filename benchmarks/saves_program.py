"""Trains without a pause, saves its state in one of several ways, and says what each save cost it.

`ready`; then a line for a line, each dealt with between two steps: `watch` · `gaps` as of standstill_program.py ·
`save STEP`: by the way, answered when the save is durable, while steps go on · `load STEP`: reads it back into the same
tensors · `every SECONDS`: a save with each step, one that finds no room is skipped · `end`: closes what saves.

Ways: `gcr` (a Checkpointer: `copy` under `gcr run`, else staged), `window` (a Checkpointer that reads in place; the
state is a module with its optimizer), `torch_save`, `async_save` (DCP's, as shipped), `async_pinned` (DCP's, with a
stager that pins and is kept), `pccheck` (its method, of a module with its optimizer).
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

import torch
from pccheck_way import ByPccheck
from standstill_program import GIB, TENSOR, WIDTH, Loop, Torch, serve, took

Row = dict[str, Any]
Done = Callable[[], bool]

LAYERS, FEATURES, WORDS, HEADS = 24, 2048, 50257, 16  # 1.3 billion parameters
BATCH, LENGTH = 8, 512
CHUNK = 1 << 22
ODD = torch.arange(1, 2 * CHUNK, 2, dtype=torch.int32)  # a factor that is odd loses no bit
MEMORY = ("RssAnon", "RssShmem", "VmLck", "VmPin")


class Gpt:
    """A transformer with AdamW, as large as the figure asks for; small on a processor. float32, autocast to bf16."""

    def __init__(self, device: str) -> None:
        layers, width, words = (LAYERS, FEATURES, WORDS) if device == "cuda" else (2, 64, 100)
        with torch.device(device):
            layer = torch.nn.TransformerEncoderLayer(width, HEADS, 4 * width, 0.0, batch_first=True)
            self.model = torch.nn.Sequential(
                torch.nn.Embedding(words, width),
                torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
                torch.nn.Linear(width, words, bias=False),
            )
            self.text = torch.randint(words, (BATCH, LENGTH if device == "cuda" else 16))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda")
        self.state = {"model": self.model, "optimizer": self.optimizer}
        self.device = device

    def step(self) -> None:
        with torch.autocast(self.device, torch.bfloat16):
            said = self.model(self.text)
        loss = torch.nn.functional.cross_entropy(said.flatten(0, 1).float(), self.text.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        float(loss.detach())


class Stepped:
    """A module and AdamW, a third of the bytes each for parameters and both averages; gradients are beside them."""

    def __init__(self, total: int, device: str) -> None:
        width = WIDTH if device == "cuda" else 256
        sizes = [min(TENSOR, total // 3 - at) // 4 for at in range(0, total // 3, TENSOR)]
        self.activations = torch.randn(width, width, device=device)
        self.model = torch.nn.ParameterList(torch.randn(size, device=device) for size in sizes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda")
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def step(self) -> None:
        loss = (self.activations @ self.activations).mean() + sum(each.square().mean() for each in self.model)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        float(loss.detach())


class Way(Protocol):
    def save(self, step: int, state: Row) -> Done:
        """Returns when the training may go on; what it returns says whether the save is durable, or raises."""

    def load(self, step: int, state: Row) -> None: ...

    def close(self) -> None: ...


class ByGcr:
    def __init__(self, store: Path, keep: int | None, in_flight: int, when_full: Any, way: Any) -> None:
        from gcr.torch import Checkpointer

        self.keeper = Checkpointer(store, keep_last=keep, in_flight=in_flight, when_full=when_full, way=way)
        self.way: Row = {}

    def save(self, step: int, state: Row) -> Done:
        save = self.keeper.save(step, state)
        way = {"way": save.way, "why": save.why, "blocked_s": save.blocked_s, "skipped": save.skipped}
        self.way = way

        def done() -> bool:
            way["waited_s"] = save.waited_s
            return save.durable.done() and (save.skipped or save.durable.result() is None)

        return done

    def load(self, step: int, state: Row) -> None:
        self.keeper.load(step, state)

    def close(self) -> None:
        self.keeper.close()


class ByTorch:
    def __init__(self, store: Path) -> None:
        self.store = store
        store.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, state: Row) -> Done:
        torch.save(state, self.store / str(step))
        return lambda: True

    def load(self, step: int, state: Row) -> None:
        for name, tensor in torch.load(self.store / str(step), map_location="cpu", mmap=True).items():
            state[name].copy_(tensor)

    def close(self) -> None:
        pass


class ByDcp:
    """pinned: with a stager that is kept. PyTorch 2.11 closes it after the first save, and the second one fails."""

    def __init__(self, store: Path, pinned: bool) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager

        class Kept(DefaultStager):
            def close(self) -> None:
                """Keeps the page-locked memory, until `end`."""

            def end(self) -> None:
                super().close()

        self.store = store
        self.stager = Kept() if pinned else None

    def save(self, step: int, state: Row) -> Done:
        import torch.distributed.checkpoint as dcp

        saving: Any = dcp.async_save(state, checkpoint_id=self.store / str(step), async_stager=self.stager)
        if self.stager is None:
            return lambda: saving.done() and (saving.result(), True)[1]
        staged, done = saving.staging_completion, saving.upload_completion
        staged.result()  # the next step changes the tensors
        return lambda: done.done() and (done.result(), True)[1]

    def load(self, step: int, state: Row) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load(state, checkpoint_id=self.store / str(step))

    def close(self) -> None:
        if self.stager:
            self.stager.end()


class Saver:
    """A training, and the way in which it is saved."""

    def __init__(self, training: Any, way: Way) -> None:
        self.loop, self.way, self.training = Loop(training), way, training

    def answer(self, line: str) -> Row:
        word, *rest = line.split()
        match word:
            case "watch" | "gaps":
                return self.loop.answer(line)
            case "save":
                return self.save(int(rest[0]))
            case "load":
                return self.load(int(rest[0]))
            case "every":
                return self.every(float(rest[0]))
            case "end":
                self.way.close()
                return {}
        raise SystemExit(f"no such word: {line}")

    def save(self, step: int) -> Row:
        before, digest = memory(), self.digest()
        with took() as call:
            done = self.way.save(step, self.training.state)
        self.loop.watch()
        began = time.perf_counter()
        while not done() or not self.loop.gaps:
            self.loop.step()
        steps = list(self.loop.gaps)
        grown = {name: now - before[name] for name, now in memory().items()}
        told = dict(getattr(self.way, "way", {}))
        done_s = time.perf_counter() - began
        return {
            "step": step,
            **call,
            **told,
            "done_s": done_s,
            "steps_s": steps,
            "grown_bytes": grown,
            "digest": digest,
        }

    def load(self, step: int) -> Row:
        with took() as call:
            self.way.load(step, self.training.state)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        return {**call, "digest": self.digest()}

    def digest(self) -> str:
        """Tells states apart: sums of their tensors' words, each word times its place, as far as these wrap around."""
        found = []
        for tensor in tensors_of(self.training.state):
            words = tensor.detach().view(torch.int32)
            found.append(sum(int((part * ODD.to(part.device)[: part.numel()]).sum()) for part in words.split(CHUNK)))
        return f"{found}"

    def every(self, seconds: float) -> Row:
        """Counts also what is durable only after the time; `saved_s`: until the last one is."""
        began, steps, under_way, saved, blocked = time.perf_counter(), 0, list[Done](), 0, list[float]()
        while time.perf_counter() - began < seconds:
            self.loop.step()
            steps += 1
            with took() as call:
                done = self.way.save(steps, self.training.state)
            if not getattr(self.way, "way", {}).get("skipped"):
                under_way.append(done)
                saved += 1
                blocked.append(call["call_s"])
        trained = time.perf_counter() - began
        while not all(done() for done in under_way):
            time.sleep(0.01)
        whole = time.perf_counter() - began
        size = sum(each.numel() * each.element_size() for each in tensors_of(self.training.state))
        return {
            "steps": steps,
            "trained_s": trained,
            "saved": saved,
            "saved_s": whole,
            "blocked_s": blocked,
            "state_bytes": size,
        }


def tensors_of(state: Row) -> Iterator[torch.Tensor]:
    for each in state.values():
        if isinstance(each, torch.nn.Module):
            yield from each.parameters()
        elif isinstance(each, torch.optim.Optimizer):
            yield from (part for of in each.state.values() for part in of.values() if part.dim())
        elif isinstance(each, torch.Tensor):
            yield each


def memory() -> dict[str, int]:
    """Returns bytes of this process in host memory, by what the kernel calls them."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value) << 10 for name, value, *_ in map(_named, lines) if name in MEMORY}


def _named(words: Sequence[str]) -> tuple[str, str]:
    return words[0].rstrip(":"), words[1] if len(words) > 1 else "0"


def training_of(options: argparse.Namespace) -> Any:
    if options.gpt:
        return Gpt(options.device)
    total = int(options.gib * GIB) // TENSOR * TENSOR or int(options.gib * GIB)
    if options.way in ("window", "pccheck"):
        return Stepped(total, options.device)
    return Torch(total, options.trained, options.device)


def way_of(options: argparse.Namespace, training: Any) -> Way:
    if options.way == "pccheck":
        while not any(training.optimizer.state.values()):  # it has its tensors from the first step on
            training.step()
        return ByPccheck(options.store, [*tensors_of(training.state)], options.in_flight)
    if options.way in ("gcr", "window"):
        way = "copy" if options.way == "gcr" else "window"
        return ByGcr(options.store, options.keep, options.in_flight, options.when_full, way)
    return ByTorch(options.store) if options.way == "torch_save" else ByDcp(options.store, "pinned" in options.way)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("gcr", "window", "torch_save", "async_save", "async_pinned", "pccheck"))
    parser.add_argument("store", type=Path)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--trained", type=float, default=1.0, help="share of the state that each step changes")
    parser.add_argument("--gpt", action="store_true", help="a transformer of 1.3 billion parameters with AdamW")
    parser.add_argument("--keep", type=int, help="steps that stay; without it all")
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--when-full", default="wait")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    training = training_of(options)
    saver = Saver(training, way_of(options, training))
    serve(saver.loop, saver.answer)


if __name__ == "__main__":
    main()
