"""Two calls at once, of which the second has to wait for the first."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

LIMIT_S = 10.0
LOOK_S = 0.05


@dataclass
class Held:
    """The first call stands where it calls `stand`, until the second one has been seen to wait."""

    _stands: threading.Event = field(default_factory=threading.Event)
    _may_go: threading.Event = field(default_factory=threading.Event)

    def stand(self) -> None:
        self._stands.set()
        assert self._may_go.wait(LIMIT_S)

    def second_waits(
        self, first: Callable[[], object], second: Callable[[], object], meanwhile: Callable[[], object]
    ) -> None:
        """Runs both; `meanwhile` is called while the first stands. Both have ended when this returns."""
        threads = [threading.Thread(target=call) for call in (first, second)]
        threads[0].start()
        assert self._stands.wait(LIMIT_S)
        meanwhile()
        threads[1].start()
        threads[1].join(LOOK_S)
        assert threads[1].is_alive()
        self._may_go.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in threads)
