"""Plugins by entry point. One that fails is left out, and the server goes on."""

import logging
from importlib.metadata import entry_points

from sglang.srt.plugins.hook_registry import HookRegistry

GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"

log = logging.getLogger(__name__)


def load_plugins() -> None:
    for each in entry_points(group=GENERAL_PLUGINS_GROUP):
        try:
            each.load()()
        except Exception:
            log.exception("plugin %s failed", each.name)
    HookRegistry.apply_hooks()
