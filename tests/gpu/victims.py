"""The programs that are swapped on a real device while they compute: what each is, and what is wanted of it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "victims"
COMPILE_SECONDS = 120.0
COMPILERS = {
    ".c": ("cc", "-std=gnu11", "-O1", "-ldl", "-lpthread"),
    ".cu": ("nvcc", "-std=c++17", "-O2", "-cudart", "static", "-arch", "native"),
}
RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?")


class Wanted(StrEnum):
    """The wanted result of a checkpoint. The output must be that of a bare run in any case."""

    SWAPPED = "swapped"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Victim:
    """command: a file of tests/victims and its arguments, but for `--hold`, which all in Python are given

    package: the Python module whose version counts · gap: seconds at most from a sign of work to the next checkpoint
    """

    name: str
    what: str
    command: str
    package: str = ""
    wanted: Wanted = Wanted.SWAPPED
    gap: float = 0.3
    devices: int = 1
    swaps: int = 20


TORCH = (
    Victim("torch", "PyTorch, training with AdamW", "torch_victim.py", "torch"),
    Victim(
        "compile", 'PyTorch, inference by `torch.compile(mode="reduce-overhead")`', "graph_victim.py --compile", "torch"
    ),
    Victim(
        "torch-bf16",
        "PyTorch, AdamW, autocast to bf16, 4 processes that load the data, pinned",
        "torch_victim.py --precision bf16 --workers 4",
        "torch",
    ),
    Victim(
        "torch-fp16",
        "PyTorch, AdamW, autocast to fp16, `GradScaler`, 2 processes that load the data, pinned",
        "torch_victim.py --precision fp16 --workers 2",
        "torch",
    ),
    Victim(
        "torch-expandable", "PyTorch, `expandable_segments:True`", "torch_victim.py --allocator expandable", "torch"
    ),
    Victim("torch-async", "PyTorch, `backend:cudaMallocAsync`", "torch_victim.py --allocator async", "torch"),
    Victim("torch-uncached", "PyTorch, no caching", "torch_victim.py --allocator none", "torch"),
    Victim("torch-streams", "PyTorch, threads × streams", "streams_victim.py", "torch"),
    Victim("graph", "PyTorch, inference by a CUDA graph", "graph_victim.py", "torch"),
)
OTHERS = (
    Victim("transformers", "Transformers, generation with a static cache", "generate_victim.py", "transformers"),
    Victim("triton", "Triton, a kernel of its own", "triton_victim.py", "triton"),
    Victim("cupy", "CuPy, its device pool and its pinned pool", "cupy_victim.py", "cupy"),
    Victim("cupy-async", "CuPy, `MemoryAsyncPool`", "cupy_victim.py --pool async", "cupy"),
    Victim("jax", "JAX, training step with donated buffers", "jax_victim.py", "jax"),
    Victim("runtime", "C++, CUDA runtime linked statically", "runtime_victim.cu 1 hold"),
    Victim("c", "C, driver API, threads × streams", "c_victim.c 4 3 hold 2000"),
    Victim("alloc", "driver API, threads that allocate and free", "alloc_victim.py --kernels add.ptx"),
    Victim("alloc-ordered", "driver API, the same in stream order", "alloc_victim.py --ordered --kernels add.ptx"),
    Victim("vmm", "driver API, memory that it maps itself", "vmm_victim.py --pause 0.005"),
    Victim("vmm-exportable", "driver API, the same, exportable", "vmm_victim.py --pause 0.005 --exportable"),
)
OFFLOAD = (
    Victim(
        "offload",
        "PyTorch, 16 GiB of optimizer state in pinned host memory",
        "offload_victim.py --gib 16",
        "torch",
        gap=0.8,
    ),
)
TWO = (Victim("peers", "C++, two GPUs that read each other's memory", "runtime_victim.cu 2 hold", devices=2),)
SHARED = 50  # swaps of jobs whose processes share device memory
TRAINING = (
    Victim("ddp", "PyTorch, two ranks of DDP", "distributed_victim.py", "torch", devices=2, swaps=SHARED),
    Victim(
        "fsdp", "PyTorch, two ranks of FSDP2", "distributed_victim.py --kind fsdp", "torch", devices=2, swaps=SHARED
    ),
    Victim(
        "pipeline",
        "PyTorch, a pipeline of two stages (1F1B)",
        "distributed_victim.py --kind pipeline",
        "torch",
        devices=2,
        swaps=SHARED,
    ),
)
GRAPHS = (
    Victim(
        "tensor",
        "PyTorch, two tensor-parallel ranks, all-reduces in a captured graph",
        "distributed_victim.py --kind tensor",
        "torch",
        devices=2,
        swaps=SHARED,
    ),
)
OTHER_SHARING = (
    Victim(
        "symmetric",
        "PyTorch, symmetric memory of two ranks",
        "distributed_victim.py --kind symmetric",
        "torch",
        devices=2,
        swaps=SHARED,
    ),
    Victim(
        "queue",
        "PyTorch, `torch.multiprocessing` with CUDA tensors, on one GPU",
        "torch_queue_victim.py",
        "torch",
        swaps=SHARED,
    ),
)


def _on_all(kind: str, what: str) -> Victim:
    command = f"distributed_victim.py --kind {kind} --ranks 0"
    return Victim(f"all-{kind}", what, command, "torch", devices=3, swaps=SHARED)


ON_ALL = (
    _on_all("ddp", "PyTorch, DDP, a rank on each device"),
    _on_all("tensor", "PyTorch, tensor-parallel ranks, one on each device, all-reduces in a captured graph"),
)
SHARDED_ON_ALL = (_on_all("fsdp", "PyTorch, FSDP2, a rank on each device"),)
NCCL = (
    Victim(
        "ddp-shm",
        "PyTorch, two ranks of DDP with NCCL, `NCCL_P2P_DISABLE=1`",
        "distributed_victim.py --transport shm",
        "torch",
        devices=2,
    ),
)
SOCKETS = (
    Victim(
        "ddp-sockets",
        "PyTorch, two ranks of DDP with NCCL, `NCCL_P2P_DISABLE=1` and `NCCL_SHM_DISABLE=1`",
        "distributed_victim.py --transport sockets",
        "torch",
        devices=2,
    ),
)
PIECES: dict[str, Sequence[Victim]] = {
    "victims-torch": TORCH,
    "victims-others": OTHERS,
    "victims-offload": OFFLOAD,
    "victims-two": TWO,
    "shared-training": TRAINING,
    "shared-graphs": GRAPHS,
    "shared-others": OTHER_SHARING,
    "all-ranks": ON_ALL,
    "all-fsdp": SHARDED_ON_ALL,
    "nccl": NCCL,
    "nccl-sockets": SOCKETS,
}
EVERY = {victim.name: victim for piece in PIECES.values() for victim in piece}


def program(victim: Victim, folder: Path) -> list[str]:
    """The command line; what must be compiled is, into `folder`. Raises CalledProcessError."""
    name, *arguments = victim.command.split()
    words = [str(PROGRAMS / word) if word.endswith(".ptx") else word for word in arguments]
    if name.endswith(".py"):
        return [sys.executable, str(PROGRAMS / name), "--hold", *words]
    return [str(compiled([PROGRAMS / name], folder / victim.name)), *words]


def compiler(victim: Victim) -> str:
    """Returns the version of the compiler that a program needs, in its own words; empty for none."""
    found = COMPILERS.get(Path(victim.command.split()[0]).suffix)
    if found is None or shutil.which(found[0]) is None:
        return ""
    words = [found[0], "--version"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=True).stdout
    return f"{found[0]} {RELEASE.findall(said)[0]}"


def compiled(sources: Sequence[Path], to: Path) -> Path:
    """Sources of one language, by the compiler for it. Raises CalledProcessError."""
    name, *flags = COMPILERS[sources[0].suffix]
    words = [name, "-o", str(to), *map(str, sources), *flags]
    subprocess.run(words, check=True, timeout=COMPILE_SECONDS)
    return to
