"""An image that is made step by step, of which packs are sent ahead."""

import threading
from collections.abc import Callable

from imaging import described, mapped
from remotes import COMMON, OWN

from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter

PATIENCE_S = 20.0


class Making:
    """An image that a thread makes step by step: each allocation is sent ahead, but the last."""

    def __init__(self, store: Store, may_go_on: Callable[[int], object], fails: bool = False) -> None:
        """`may_go_on`: called with the number of packs that were sent."""
        self._store, self._may_go_on, self._fails = store, may_go_on, fails
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def _make(self) -> None:
        with ImageWriter(self._store, "warm", threads=3) as writer:
            for number, data in enumerate((COMMON, OWN), 1):
                writer.add([(mapped(data), ())])
                writer.send_ahead()
                self._may_go_on(number)
            writer.add([(mapped(b"last"), ())])
            if not self._fails:
                writer.commit(described("warm", [len(COMMON), len(OWN), 4]))

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def packs(store: Store) -> int:
    return len([*store.packs.folder.glob("*.pack")])
