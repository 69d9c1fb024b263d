"""A worker as vLLM has it, which sleeps and wakes by gcr's backend: it asks the driver right after it fell asleep."""

import sys
from pathlib import Path

from cuda_driver import driver
from told import serve
from told_victim import Program

import gcr_vllm


class Worker(Program):
    def __init__(self) -> None:
        super().__init__()
        sys.path.insert(0, str(Path(__file__).with_name("vllm_standin")))
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

        gcr_vllm.register()
        self.backend = SleepModeBackendFactory.get_backend_class("gcr")()
        assert self.backend.is_supported()

    def sleep(self) -> str:
        """Says how many bytes became free."""
        self.synchronise()
        before = driver.cuMemGetInfo_v2()[0]
        try:
            self.backend.suspend(1)
        except RuntimeError as error:
            return f"{self.backend.state()}: {error}"
        self.synchronise()
        return str(driver.cuMemGetInfo_v2()[0] - before)

    def wake(self) -> str:
        self.backend.resume()
        return self.backend.state()


if __name__ == "__main__":
    serve(Worker())
