"""A server of a model for benchmarks: layers of matrices in bf16, of which each token needs all, as in a decoder.

    GET /health           200
    POST /v1/completions  {"model", "prompt", "tokens"}: the tokens, one a chunk, as soon as each is known
    POST /sleep, /wake    with --saver: memory out to the host and back, by torch_memory_saver

A token follows from the prompt, the tokens before it and --seed. One thread computes them all, as in an engine: PyTorch
makes a cuBLAS workspace for each thread that computes. `--plain`: words of device memory through the driver alone, for
a rehearsal on a simulated device; else PyTorch.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "victims"))

WIDTH = 8192
MATRIX = WIDTH * WIDTH * 2  # bytes
GIB = 1 << 30
INSIDE = "GCR_BENCH_SAVER_INSIDE"


class Model(Protocol):
    def start(self, prompt: str) -> None: ...

    def token(self) -> str:
        """Returns the next one; its state is that of one request at a time."""


class Torch:
    def __init__(self, total: int, seed: int, region: Any) -> None:
        import torch

        self.torch = torch
        generator = torch.Generator("cuda").manual_seed(seed)
        with region:
            self.layers = [self._matrix(generator) for _ in range(max(2, total // MATRIX) // 2 * 2)]
        self.state = torch.zeros(WIDTH, 1, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()

    def _matrix(self, generator: Any) -> Any:
        made = self.torch.empty(WIDTH, WIDTH, dtype=self.torch.bfloat16, device="cuda")
        return made.normal_(0.0, WIDTH**-0.5, generator=generator)

    def start(self, prompt: str) -> None:
        data = hashlib.shake_128(prompt.encode()).digest(WIDTH)
        numbers = self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8)
        self.state = (numbers.to("cuda").to(self.torch.bfloat16) / 128 - 1).unsqueeze(1)

    def token(self) -> str:
        x = self.state
        for first, second in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = self.torch.nn.functional.layer_norm(x + second @ (first @ x).relu(), (WIDTH, 1))
        self.state = x
        return f"{int(x.view(self.torch.int16).sum(dtype=self.torch.int64)) & 0xFFFFFFFF:08x}"


class Plain:
    def __init__(self, total: int, seed: int) -> None:
        from device import open_device

        self.device, self.total, self.at = open_device("nvidia"), total, 0
        self.address = self.device.allocate(total)
        self.device.write(self.address, hashlib.shake_128(str(seed).encode()).digest(total))

    def start(self, prompt: str) -> None:
        self.at = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big")

    def token(self) -> str:
        self.device.enter()
        found = self.device.read(self.address + self.at % (self.total - 4096), 4096)
        self.at = int.from_bytes(hashlib.sha256(found).digest()[:4], "big")
        return f"{self.at:08x}"


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, port: int, model: Model, saver: Any) -> None:
        self.model, self.saver, self.turn = model, saver, Lock()
        self.engine = ThreadPoolExecutor(1)
        super().__init__(("127.0.0.1", port), Handler)

    def tokens(self, prompt: str, count: int) -> Iterator[str]:
        with self.turn:
            self.engine.submit(self.model.start, prompt).result()
            for _ in range(count):
                yield self.engine.submit(self.model.token).result()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        self.said(b"ok")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/sleep":
            self.server.saver.pause()
            self.said(b"ok")
        elif self.path == "/wake":
            self.server.saver.resume()
            self.said(b"ok")
        else:
            self.streamed(self.server.tokens(asked["prompt"], int(asked["tokens"])))

    def said(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def streamed(self, tokens: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for token in tokens:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(token), token.encode()))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None: ...


def begun_by_saver() -> int:
    """Starts this program again with the preload that torch_memory_saver needs."""
    from torch_memory_saver import configure_subprocess

    with configure_subprocess():
        return subprocess.run([sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}, check=False).returncode


def model_of(options: argparse.Namespace) -> tuple[Model, Any]:
    """Returns the model, and the saver if it is to have one."""
    total = int(options.gib * GIB)
    if options.plain:
        return Plain(total, options.seed), None
    if not options.saver:
        return Torch(total, options.seed, nullcontext()), None
    from torch_memory_saver import torch_memory_saver as saver

    return Torch(total, options.seed, saver.region(enable_cpu_backup=True)), saver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--saver", action="store_true")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    if options.saver and not os.environ.get(INSIDE):
        return begun_by_saver()
    server = Server(options.port, *model_of(options))
    list(server.tokens("warm", 1))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
