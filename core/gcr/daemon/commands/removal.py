"""`note_removal`: `gcr rm` or `gcr prune` has removed images, or has failed to. The daemon remembers it as an event."""

from typing import Any

from gcr.api.jobevents import IMAGES, TEXT, ImagesRemoved, RemovalFailed
from gcr.api.requests import NoteRemovalRequest
from gcr.daemon.history import History


def noted(history: History, request: NoteRemovalRequest, owner: int, by: str) -> None:
    """Notes it among the events of this user. `by`: the caller in words; its own are believed for the rest."""
    facts: dict[str, Any] = {
        "command": request.command,
        "by": by,
        "store": request.store[:TEXT],
        "images": request.images[:IMAGES],
        "count": len(request.images),
        "took_s": request.took_s,
    }
    if request.code is None:
        history.note(owner, ImagesRemoved(**facts, bytes_freed=request.bytes_freed))
    else:
        failed: dict[str, Any] = {"code": request.code[:TEXT], "exit": request.exit, "message": request.message[:TEXT]}
        history.note(owner, RemovalFailed(**facts, **failed))
