"""A coordinator of three nodes, and what follows from events. The aims of images, and what a world has come to."""

from nodes_that_obey import CUT, World

from gcr.api.barriers import Barrier
from gcr.cluster.coordination import Aim, Coordination, Task
from gcr.cluster.messages import (
    Came,
    Deadline,
    Event,
    Outcome,
    Place,
)

NODES = ["a", "b", "c"]
TO_STOP = Aim(Place.STOPPED, imaged=True)
TO_RUN_ON = Aim(Place.RUNNING, imaged=True)
TO_KEEP = Aim(Place.SUSPENDED, imaged=True)


def begun(task: Task = Task.CHECKPOINT) -> Coordination:
    coordination = Coordination.of(task, CUT, NODES)
    coordination.start()
    return coordination


def after(coordination: Coordination, *events: Event) -> list[object]:
    """Returns the orders that follow from the last of these events, without deadlines."""
    orders: list[object] = []
    for event in events:
        orders = [order for order in coordination.on(event) if not isinstance(order, Deadline)]
    return orders


def all_came(coordination: Coordination, barrier: Barrier) -> list[object]:
    return after(coordination, *(Came(node, barrier) for node in NODES))


def is_mix(world: World) -> bool:
    return len({node.suspended for node in world.nodes.values()}) > 1


def recovered(world: World) -> World:
    """Lets every node answer again, and has a new coordinator recover the job, whose parts were taken back by then."""
    for node in world.nodes.values():
        world.left_alone(node)
        node.unreachable = node.given_up = node.cannot_restore = False
        node.at = None
    again = World.of(world.chance, Task.RECOVER, [*world.nodes.values()], 0.0)
    assert again.run() is Outcome.DONE
    return again
