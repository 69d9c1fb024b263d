"""The hooks that a plugin may implement. A plugin is a module found by an entry point of group `gcr`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from gcr.backend import Backend
    from gcr.policy import Policy

PROJECT = "gcr"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def gcr_backends() -> "Sequence[Backend]":  # type: ignore[empty-body]  # a specification
    """The vendors this plugin serves; more than one plugin may answer.

    Called once in every process of gcr that needs a vendor: the command line (`backends`, `devices`, `doctor`), each
    worker, the control helper, and by `gcr run` of a named backend before its supervisor begins (for `shim` and
    `simulator` alone); never in a target, and in the daemon and the supervisor never.
    It may touch nothing but its own Python modules: no vendor library, no device, no file, no environment variable.
    Vendor libraries are loaded by the first call of a Backend's own methods. A name already taken by another plugin
    makes this one broken.
    """


@hookspec
def gcr_policies() -> "Sequence[Policy]":  # type: ignore[empty-body]  # a specification
    """The policies this plugin brings for `gcr serve`; more than one plugin may answer.

    Called once, in the process of `gcr serve`, when its file names a policy that is not gcr's own; never in a worker,
    the daemon or a target. It may touch nothing but its own Python modules. A name that gcr has, or an earlier plugin,
    is passed over.
    """
