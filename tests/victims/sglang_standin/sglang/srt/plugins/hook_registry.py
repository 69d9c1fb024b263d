"""Hooks around methods, of the one kind that gcr uses."""

import functools
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    _hooks: ClassVar[dict[str, Callable[..., Any]]] = {}

    @classmethod
    def register(
        cls, target: str, hook: Callable[..., Any], hook_type: HookType = HookType.AFTER, *, source: object = None
    ) -> None:
        assert hook_type is HookType.AROUND
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook in cls._hooks.items():
            owner, _, name = target.rpartition(".")
            found = pkgutil.resolve_name(owner)
            setattr(found, name, _around(getattr(found, name), hook))
        cls._hooks.clear()


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return wrapper
