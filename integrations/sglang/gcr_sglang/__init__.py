"""SGLang's release of its device memory by gcr: `GCR_SGLANG=1 gcr run -- sglang serve …`."""

import logging
import os

log = logging.getLogger("gcr.sglang")

SWITCH = "GCR_SGLANG"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"


def register() -> None:
    """Registers the hooks. SGLang calls this in each of its processes; without GCR_SGLANG=1 it does nothing."""
    if os.environ.get(SWITCH) != "1":
        return
    from gcr.checkpoints.aside import under_gcr

    if not under_gcr():
        log.warning("%s is set, and SGLang was not started by gcr run: it releases its memory itself", SWITCH)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from gcr_sglang.release import Release

    release = Release()
    for name, hook in release.hooks().items():
        HookRegistry.register(f"{MANAGER}.{name}", hook, HookType.AROUND)
