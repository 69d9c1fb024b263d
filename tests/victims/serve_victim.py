"""A server whose answers come from its device memory, for tests of `gcr serve`: --name NAME --port PORT --bytes N.

An answer is the digest of the memory at a place that the prompt names, and the name. So an answer of another model, or
from other bytes, is noticed. `stream` in the body asks for so many events; `die` ends the process at once.
"""

import argparse
import hashlib
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECE = 4096
PATTERN = 1 << 20
PAUSE = 0.02  # seconds between two events


def pattern(name: str) -> bytes:
    """A MiB that follows from the name; the memory has it again and again."""
    return hashlib.shake_128(name.encode()).digest(PATTERN)


def answer_of(name: str, prompt: str, pattern_bytes: bytes) -> str:
    """The answer that a server of that name gives to a prompt."""
    at = place(prompt, PATTERN)
    return f"{name} {hashlib.sha256(pattern_bytes[at : at + PIECE]).hexdigest()[:16]} {prompt}"


def place(prompt: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % (size // PIECE) * PIECE


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, name: str, port: int, size: int) -> None:
        from cuda_device import CudaDevice

        self.name, self.size, self.device = name, size, CudaDevice()
        self.memory = self.device.allocate(size)
        filling = pattern(name)
        for at in range(0, size, PATTERN):
            self.device.write(self.memory + at, filling)
        super().__init__(("127.0.0.1", port), Handler)

    def answer(self, prompt: str) -> str:
        self.device.enter()
        at = place(prompt, PATTERN) + PATTERN * (len(prompt) % (self.size // PATTERN))
        found = bytes(self.device.read(self.memory + at, PIECE))
        return f"{self.name} {hashlib.sha256(found).hexdigest()[:16]} {prompt}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.said(b"ok" if self.path == "/health" else self.path.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("die"):
            os._exit(9)
        if count := body.get("stream"):
            self.streamed(body["prompt"], int(count))
        else:
            time.sleep(float(body.get("sleep", 0)))
            self.said(self.server.answer(body["prompt"]).encode())

    def said(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def streamed(self, prompt: str, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(count):
            event = f"data: {number} {self.server.answer(prompt)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            time.sleep(PAUSE)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None: ...


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    options = parser.parse_args()
    Server(options.name, options.port, options.bytes).serve_forever()
