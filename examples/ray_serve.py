"""A deployment of Ray Serve that knows nothing of gcr: it answers from a table in device memory.

    gcr run -d --name ray -- ray start --block --head …       # on each node: what uses a GPU there is the job `ray`
    gcr cluster up
    cd examples; serve run ray_serve:app
    curl 'http://127.0.0.1:8000/?word=7'
    gcr cluster checkpoint ray; gcr cluster restore ray       # requests wait meanwhile

Needs Ray Serve and cuda-python: pip install 'gpu-cr[nvidia,ray]' 'ray[serve]'.
"""

from typing import Any

from ray import serve
from starlette.requests import Request

WORDS = 1 << 24  # 4 bytes each


@serve.deployment(ray_actor_options={"num_gpus": 1})
class Table:
    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._check(driver.cuInit(0))
        self._context = self._check(driver.cuDevicePrimaryCtxRetain(self._check(driver.cuDeviceGet(0))))
        self._enter()
        self._words = int(self._check(driver.cuMemAlloc(4 * WORDS)))
        self._check(driver.cuMemsetD32(self._words, 0x9E3779B1, WORDS // 2))
        self._check(driver.cuMemsetD32(self._words + 2 * WORDS, 0x85EBCA6B, WORDS // 2))

    def __call__(self, request: Request) -> str:
        self._enter()
        found = bytearray(4)
        at = int(request.query_params["word"]) % WORDS
        self._check(self._driver.cuMemcpyDtoH(found, self._words + 4 * at, 4))
        return found.hex()

    def _enter(self) -> None:
        self._check(self._driver.cuCtxSetCurrent(self._context))

    @staticmethod
    def _check(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(f"the driver returned {result[0]!r}")
        return result[1] if len(result) == 2 else None


app = Table.bind()
