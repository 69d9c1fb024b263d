"""Saves and loads by DCP with its own planning and commit, and without its words to a process that is alone.

`dcp.save` and `dcp.load` warn such a process, on its stderr, that nothing is distributed. It did not ask.
"""

from collections.abc import MutableMapping
from typing import Any

from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from gcr_torch.reader import Reader
from gcr_torch.writer import Writer

Group = ProcessGroup | None  # None: this process is alone


def save(state: dict[str, Any], writer: Writer, planner: SavePlanner, group: Group) -> None:
    """Saves a staged state: tensors and plain values. Raises CheckpointException."""
    _save_state_dict(state, writer, process_group=group, no_dist=group is None, planner=planner)


def load(into: MutableMapping[str, Any], reader: Reader, group: Group) -> None:
    """Loads tensors in place, and objects by their `load_state_dict`. Raises CheckpointException."""
    plain = {name: part.state_dict() if isinstance(part, Stateful) else part for name, part in sorted(into.items())}
    _load_state_dict(plain, reader, process_group=group, no_dist=group is None)
    for name, part in plain.items():
        if isinstance(into[name], Stateful):
            into[name].load_state_dict(part)
        else:
            into[name] = part


def load_all(reader: Reader) -> dict[str, Any]:
    """Returns all that was saved, plain values and tensors in host memory. Raises CheckpointException."""
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(state, reader, planner=planner, no_dist=True)
    return state
