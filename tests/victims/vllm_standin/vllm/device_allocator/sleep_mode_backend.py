"""The interface of vLLM 0.33: tests/unit/test_vllm_interface.py holds it against the real one where that is there."""

import importlib
from abc import ABC, abstractmethod
from typing import ClassVar


class SleepModeBackend(ABC):
    def __init__(self) -> None:
        self._state = "RUNNING"

    @abstractmethod
    def suspend(self, level: int = 1) -> None: ...

    @abstractmethod
    def resume(self, tags: list[str] | None = None) -> None: ...

    def state(self) -> str:
        return self._state

    @classmethod
    def is_supported(cls) -> bool:
        return True

    @classmethod
    def preserves_communicators(cls) -> bool:
        return False

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return False

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        return False


class SleepModeBackendFactory:
    _registry: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls._registry:
            raise ValueError(name)
        cls._registry[name] = module_path, class_name

    @classmethod
    def get_backend_class(cls, name: str) -> type[SleepModeBackend]:
        module, name_of_class = cls._registry[name]
        found: type[SleepModeBackend] = getattr(importlib.import_module(module), name_of_class)
        return found
