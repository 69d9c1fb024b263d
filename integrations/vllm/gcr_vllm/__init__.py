"""The sleep mode of vLLM by gcr: `vllm serve … --enable-sleep-mode --sleep-mode-backend gcr`, under `gcr run`."""

from contextlib import suppress

NAME = "gcr"


def register() -> None:
    """Registers the backend. vLLM calls this in each of its processes; a vLLM without such backends is left alone."""
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    except ImportError:
        return
    with suppress(ValueError):  # it is registered already
        SleepModeBackendFactory.register_backend(NAME, "gcr_vllm.backend", "GcrBackend")
