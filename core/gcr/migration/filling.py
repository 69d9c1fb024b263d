"""The target's devices are filled with the images of the rounds, each beside the next. No migration fails by it."""

from collections.abc import Mapping
from threading import Thread

from msgspec import Struct

from gcr.api.migrations import Fill, Filled, World
from gcr.errors import typed
from gcr.migration.ways import Between


class Filler(Struct):
    """The fills of one migration. `bytes`: copied so far · `refused`: why nothing is on the devices, empty if they are.

    After a refusal no other fill is begun: the target reads the last image whole.
    """

    between: Between
    id: str
    world: World | None = None
    devices: Mapping[str, str] = {}
    bytes: int = 0
    refused: str = ""
    _under_way: Thread | None = None

    def begin(self, image: str) -> None:
        """Begins to fill with an image that the target has, once the fill before has ended."""
        self.wait()
        if step := self.step(image):
            self._under_way = Thread(target=self._fill, args=(step,), name="gcr-filling", daemon=True)
            self._under_way.start()

    def step(self, image: str) -> Fill | None:
        """Returns the step that fills with an image; None where it would be of no use."""
        if self.refused or self.world is None:
            return None
        return Fill(job=self.between.job, id=self.id, image=image, world=self.world, devices=self.devices)

    def wait(self) -> None:
        """Waits until no fill is under way: each ends by the time of a step."""
        if self._under_way:
            self._under_way.join()
            self._under_way = None

    def note(self, filled: Filled | None) -> None:
        """Notes the end of a fill."""
        if filled:
            self.bytes, self.refused = self.bytes + filled.bytes, filled.refused

    def _fill(self, step: Fill) -> None:
        try:
            self.note(self.between.target.take(step, Filled, self.between.timeout))
        except Exception as error:
            self.refused = typed(error).message
