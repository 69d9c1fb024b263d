"""An inference server that knows nothing of gcr: a small language model whose weights lie in device memory.

    gcr run -d --name server -- python examples/server.py --port 8000
    curl 'http://127.0.0.1:8000/generate?prompt=The+program&tokens=40'

The model counts which byte follows which three bytes of a text. A request reads one row of the weights from the device
for each token. Needs cuda-python: pip install 'gpu-cr[nvidia]'. On a simulated device: gcr run --simulate nvidia ….
"""

import argparse
import ctypes
from array import array
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cuda.bindings import driver

CONTEXT = 3  # bytes of text that the next one follows from
ROWS = 1 << 16
ROW_BYTES = 256 * 4  # a count for each byte that may follow


def check(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise RuntimeError(f"the driver returned {result[0]!r}")
    return result[1] if len(result) == 2 else None


def row_of(context: bytes) -> int:
    return int.from_bytes(context, "big") * 0x9E3779B1 % (1 << 32) >> 16


def train(text: bytes) -> array:
    """Counts, row by row: 64 MiB."""
    weights = array("I", bytes(ROWS * ROW_BYTES))
    for at in range(CONTEXT, len(text)):
        weights[row_of(text[at - CONTEXT : at]) * 256 + text[at]] += 1
    return weights


class Model:
    """Weights in device memory. Usable from any thread."""

    def __init__(self, weights: array) -> None:
        check(driver.cuInit(0))
        self._context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
        self._enter()
        self._weights = int(check(driver.cuMemAlloc(ROWS * ROW_BYTES)))
        check(driver.cuMemcpyHtoD(self._weights, weights.buffer_info()[0], ROWS * ROW_BYTES))

    def generate(self, prompt: bytes, tokens: int) -> bytes:
        """The prompt, and up to so many bytes after it, each the most likely one."""
        self._enter()
        text = bytearray(prompt.rjust(CONTEXT))
        row = (ctypes.c_uint32 * 256)()
        for _ in range(tokens):
            where = self._weights + row_of(bytes(text[-CONTEXT:])) * ROW_BYTES
            check(driver.cuMemcpyDtoH(ctypes.addressof(row), where, ROW_BYTES))
            best = max(range(256), key=row.__getitem__)
            if not row[best]:
                break
            text.append(best)
        return bytes(text)

    def _enter(self) -> None:
        check(driver.cuCtxSetCurrent(self._context))


def serve(model: Model, host: str, port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            prompt, tokens = asked.get("prompt", ["The"])[0], int(asked.get("tokens", ["40"])[0])
            answer = model.generate(prompt.encode(), tokens) + b"\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer((host, port), Handler)
    print(f"serving on http://{host}:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="serve a small language model from device memory")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: every interface")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--text", type=Path, default=Path(__file__), help="the text to learn from")
    options = parser.parse_args()
    serve(Model(train(options.text.read_bytes())), options.host, options.port)
