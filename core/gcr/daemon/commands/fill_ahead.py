"""A stopped job is on its way back: its devices are filled from its image while CRIU makes its processes.

It is read as a restore reads it, each chunk compared with its name before it goes to the device, and nothing of the
memory is known to any process. The restore takes the memory if it is of the very same image, and else reads the image.
Nothing depends on it. It ends, and the memory goes, where the processes do not come, or where a program needs the room.
"""

import logging
import os
import time
from functools import partial

from gcr.control import ControlMeans
from gcr.daemon.coming import Coming
from gcr.daemon.commands.filling import Filling
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.imaging import NO_TIMEOUT
from gcr.daemon.images.opened import readers_of
from gcr.daemon.jobs import Job
from gcr.engine.node import Course
from gcr.engine.side_by_side import on_thread
from gcr.engine.tidying import quietly
from gcr.peers.image import ImagePeer, StorePlace
from gcr.protocol.operations.daemon import ParkedIn

log = logging.getLogger("gcr.daemon")

WANTED_S = 600.0  # after it began; the restore follows as soon as CRIU has made the processes


def begin(node: Coordinator, job: Job, image: ParkedIn, nbytes: int) -> None:
    """Begins on a thread. `nbytes`: of the job's device memory. Raises nothing."""
    end, id = time.monotonic() + WANTED_S, f"return.{job.token}"
    if job.owner != os.getuid() or node.residents.arriving.known(job.name):  # of a migration, say
        return

    def is_wanted() -> bool:
        return time.monotonic() < end and not job.ends.finished and node.jobs.by_name.get(job.name) is job

    coming = node.residents.arriving.of(job.name, id, is_wanted)
    coming.lock.acquire()  # a restore waits for the fill from here on
    try:
        on_thread("gcr-fill", partial(_fill, node, job, image, nbytes, coming))
    except RuntimeError as error:  # the system has no thread left
        log.info("job %s: its devices are not filled ahead: %s", job.name, error)
        coming.lock.release()


def _fill(node: Coordinator, job: Job, image: ParkedIn, nbytes: int, coming: Coming) -> None:
    """Fills, and releases the lock. Raises nothing."""
    helpers = list[ImagePeer]()
    try:
        control = node.control(job.world)
        if control.means is not ControlMeans.DRIVER:  # CRIU's plugin needs the room first
            return
        helpers += [node.fleet.image_helper() for _ in range(readers_of(nbytes) - 1)]
        course = Course("fill", node.next_transaction(), NO_TIMEOUT, partial(setattr, coming, "told"), coming.over)
        present = {device.uuid for device in control.devices()}
        filling = Filling(
            node, coming, job.name, job.world, {}, course, StorePlace(image.store), tuple(helpers), present
        )
        filling.run(image.image)
    except Exception as error:
        log.info("job %s: its devices are not filled ahead: %s", job.name, error)
        quietly("give up what was filled", coming.give_up)
    finally:
        for helper in helpers:
            helper.channel.close()
        coming.lock.release()
