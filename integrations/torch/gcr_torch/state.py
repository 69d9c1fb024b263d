"""The state that a Checkpointer takes: modules and optimizers themselves, and all that DCP accepts.

DCP asks an object with `state_dict` and `load_state_dict` for its state. A new optimizer has none before its first
step, so a load would pass over the saved one, and say nothing. And its keys are numbers of parameters, which mean
others in a model with one layer more. So an optimizer goes by the names of the parameters of its module, in the way
that PyTorch has for that, `torch.distributed.checkpoint.state_dict`.

PyTorch's way takes 50 ms for 290 parameters, while the training waits, since it looks for wrappers on the way to each
parameter. Where no module is a wrapper, the states of module and optimizer are read as they are.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from gcr.imageerrors import NotSaveable

WRAPPERS = ("torch.distributed", "torch.nn.parallel", "torch._dynamo")  # modules of PyTorch with classes of wrappers


class _Module:
    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        if _wraps_nothing(self._module):
            return dict(self._module.state_dict())
        return dict(get_model_state_dict(self._module))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_model_state_dict(self._module, state)


class _Optimizer:
    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self._module, self._optimizer = module, optimizer

    def state_dict(self) -> dict[str, Any]:
        if self._optimizer.state and _wraps_nothing(self._module):
            return _by_names(self._module, self._optimizer)
        return dict(get_optimizer_state_dict(self._module, self._optimizer))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._module, self._optimizer, optim_state_dict=state)


def _wraps_nothing(module: nn.Module) -> bool:
    """Tells whether the module has none of PyTorch's wrappers in it. They change the names of parameters in a state."""
    kinds = {type(each) for each in module.modules()}
    return not any(base.__module__.startswith(WRAPPERS) for kind in kinds for base in kind.__mro__)


def _by_names(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Returns what `get_optimizer_state_dict` returns where nothing is wrapped."""
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    names = [known[id(each)] for group in optimizer.param_groups for each in group["params"]]
    found: dict[str, Any] = optimizer.state_dict()
    return {
        "state": {names[number]: state for number, state in found["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in found["param_groups"]
        ],
    }


def adapted(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state as DCP is to see it. Raises NotSaveable for an optimizer whose parameters are in no module."""
    return {name: _adapted(name, value, state) for name, value in state.items()}


def _adapted(name: str, value: Any, state: Mapping[str, Any]) -> Any:
    if isinstance(value, nn.Module):
        return _Module(value)
    if isinstance(value, Optimizer):
        return _Optimizer(_owner(name, value, state), value)
    return value


def _owner(name: str, optimizer: Optimizer, state: Mapping[str, Any]) -> nn.Module:
    """Returns the module in the state that has the parameters of an optimizer."""
    mine = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for module in _modules(state):
        if mine <= {id(each) for each in module.parameters()}:
            return module
    text = f"{name}: no module in the state has all parameters of this optimizer"
    raise NotSaveable(text, hint="put the module beside it, or optimizer.state_dict() for a state by numbers")


def _modules(state: Mapping[str, Any]) -> Iterator[nn.Module]:
    return (each for each in state.values() if isinstance(each, nn.Module))


def states_of(adapted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state with each object that has one replaced by its own."""
    return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in adapted.items()}


def take_back(loaded: Mapping[str, Any], state: MutableMapping[str, Any]) -> None:
    """Puts values that were loaded into the state. Objects with a state of their own have loaded it."""
    for name, value in loaded.items():
        if not isinstance(value, Stateful):
            state[name] = value
