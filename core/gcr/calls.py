"""A driver's calls as a table: `cuda.cuMemRelease(handle)` returns the value, or raises with the call and its result.

A vendor says how one call is made and what a result is called; what its results mean is said where the call is made.
`Bindings` is the table over a vendor's Python module. Nothing of a vendor is loaded before the first call.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gcr.errors import BackendMissing, DeadlinePassed, DriverError

SUCCESS = 0
_NONE: Mapping[int, Callable[[str], Exception]] = MappingProxyType({})


class Calls(ABC):
    """A driver as attributes: each one that is not defined here is a call of the driver; 0 is success."""

    @abstractmethod
    def attempt(self, call: str, *arguments: Any) -> tuple[int, Any]:
        """Make a call; its result and its value (None, one value, or a tuple).

        Raises BackendMissing without the driver or with one that lacks the call. Must give up the GIL meanwhile.
        """

    @abstractmethod
    def describe(self, call: str, result: int) -> str:
        """`cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)`."""

    def failure(self, call: str, result: int) -> DriverError:
        return DriverError(self.describe(call, result))

    def checked(self, call: str, *arguments: Any, errors: Mapping[int, Callable[[str], Exception]] = _NONE) -> Any:
        """The value of a call. Raises what `errors` makes of a result's description, DriverError where it has none."""
        result, value = self.attempt(call, *arguments)
        if result != SUCCESS:
            raise errors.get(result, DriverError)(self.describe(call, result))
        return value

    def ready(self, call: str, *arguments: Any, not_yet: int) -> bool:
        """Returns whether a call succeeded; False for the answer `not_yet`. Raises DriverError for another answer."""
        result, _ = self.attempt(call, *arguments)
        if result not in (SUCCESS, not_yet):
            raise self.failure(call, result)
        return result == SUCCESS

    def bounded(
        self, call: str, *arguments: Any, deadline: float, errors: Mapping[int, Callable[[str], Exception]] = _NONE
    ) -> None:
        """A call on a thread of its own, which outlives the deadline (seconds) when the driver does.

        Raises DeadlinePassed when the driver is not back by then; otherwise what `checked` raises.
        """
        outcome = _Outcome()
        work = threading.Thread(target=outcome.run, args=(self.attempt, call, *arguments), name=call, daemon=True)
        work.start()
        if not outcome.over.wait(deadline):
            raise DeadlinePassed(
                f"{call} is not back after {deadline:.1f} s",
                hint="gcr ps says where the job stands; gcr recover once the call is back",
            )
        if outcome.error is not None:
            raise outcome.error
        if outcome.result != SUCCESS:
            raise errors.get(outcome.result, DriverError)(self.describe(call, outcome.result))

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call.startswith("_"):
            raise AttributeError(call)

        def made(*arguments: Any) -> Any:
            return self.checked(call, *arguments)

        setattr(self, call, made)
        return made


class _Outcome:
    """The outcome of a call on another thread."""

    def __init__(self) -> None:
        self.result = SUCCESS
        self.error: Exception | None = None
        self.over = threading.Event()

    def run(self, attempt: Callable[..., tuple[int, Any]], call: str, *arguments: Any) -> None:
        try:
            self.result, _ = attempt(call, *arguments)
        except Exception as error:  # raised again in the thread that waits for it
            self.error = error
        finally:
            self.over.set()


class Bindings(Calls):
    """A vendor's own module. Its calls return (result, *values) and raise RuntimeError where the library lacks one.

    `results` is the module's enumeration of results, `hint` what to do without the module or the library.
    """

    def __init__(self, package: str, load: Callable[[], Any], *, results: str, hint: str) -> None:
        self._package, self._load, self._results, self._hint = package, load, results, hint
        self._module: Any = None

    def module(self) -> Any:
        """Raises BackendMissing when it is not installed."""
        if self._module is None:
            try:
                self._module = self._load()
            except (ImportError, AttributeError) as missing:
                raise BackendMissing(f"{self._package} cannot be imported: {missing}", hint=self._hint) from missing
        return self._module

    def attempt(self, call: str, *arguments: Any) -> tuple[int, Any]:
        try:
            result, *values = getattr(self.module(), call)(*arguments)
        except AttributeError as missing:
            raise BackendMissing(f"this {self._package} has no {call}", hint=self._hint) from missing
        except RuntimeError as missing:  # no library, or a symbol it does not have
            raise BackendMissing(f"{call}: {missing}", hint=self._hint) from missing
        return int(result), values[0] if len(values) == 1 else tuple(values) or None

    def describe(self, call: str, result: int) -> str:
        try:
            name = getattr(self.module(), self._results)(result).name
        except ValueError:  # a result newer than these bindings
            name = self._results
        return f"{call}: {name} ({result})"

    def enum(self, kind: str, member: str) -> Any:
        """A constant of the module, as `enum("CUmemLocationType", "CU_MEM_LOCATION_TYPE_DEVICE")`."""
        return getattr(getattr(self.module(), kind), member)
