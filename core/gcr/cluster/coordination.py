"""Decides how the nodes of a job come to one cut, or back from it: events in, orders out; no socket and no clock.

    checkpoint   every node begins · all are admitted: go · all stand still: go · all are suspended: done
    with images  … all stand still: go · all images are durable: keep · all stores have the list of them: go · done
                 ranks of a node stand still only together with those of others: all are led (standstill.py), and go
    restore      every node is asked: all are suspended by one cut · all begin · all are ready: go · all run: done
    recover      every node is asked: all are suspended by one cut, or all run: done; else those suspended are restored

Anything else gives the cut up. Before the last go a checkpoint leaves every node running, and a restore leaves every
node suspended. After the last go of a checkpoint, nodes that are suspended already are restored. After the last go of
a restore, and wherever one node runs already, the others are restored, too: their parts are of the same cut, and lie
where they were. So no mix stays, unless a node is silent or cannot restore its part. A node that is stopped, with its
processes in its part of an image, counts as one that is suspended.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct, field

from gcr.api.barriers import BEFORE_IMAGED, BEFORE_RUNNING, BEFORE_SUSPENDED, Barrier
from gcr.cluster.messages import (
    AWAY,
    BUSY,
    BY_COMMAND,
    Ask,
    Begin,
    Came,
    Done,
    Event,
    Failed,
    Finish,
    GiveUp,
    Go,
    Keep,
    Kept,
    Late,
    Left,
    Lost,
    Obeyed,
    Order,
    Outcome,
    Place,
    Restore,
    Stands,
    Stopped,
    Wait,
)
from gcr.cluster.places import Orders, Places
from gcr.cluster.standstill import Stage, Standstill

TRIES = 3  # times that one node restores its part


class Task(StrEnum):
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    RECOVER = "recover"


class Phase(StrEnum):
    LOOKING = "looking"  # every node is asked where it stands
    GATHERING = "gathering"  # at the next barrier
    KEEPING = "keeping"  # every store gets the list of all parts of the image
    ENDING = "ending"  # of a checkpoint: the last barrier was passed
    SETTLING = "settling"  # every node goes to the same place
    OVER = "over"


UNDER_WAY = (Phase.GATHERING, Phase.KEEPING, Phase.ENDING)


class Aim(Struct, frozen=True):
    """The place to which a checkpoint leads each node. `imaged`: the parts are in images, or come from them."""

    place: Place = Place.SUSPENDED
    imaged: bool = False

    @property
    def places(self) -> Sequence[Place]:
        """Returns where a node may be after the last go: one that is to be stopped may be suspended by the same cut."""
        return AWAY if self.place is Place.STOPPED else (self.place,)

    def is_met(self, place: Place, by_this_cut: bool) -> bool:
        """Returns whether a node that has come to rest there is where it was to be."""
        return place in self.places and (place is Place.RUNNING or by_this_cut)


TO_SUSPEND = Aim()


class Coordination(Struct):
    """One task over nodes, by name. Call `start` once, then `on` with each event, and carry out the orders in turn.

    barriers: those that all must reach · passed: how many of them all have passed
    target: where every node is to be in the end · failed: it is not where the task was to lead
    together: the standstill of all ranks, wanted once a node's own did not come to rest by themselves
    """

    task: Task
    cut: str
    places: Places
    together: Standstill
    aim: Aim = TO_SUSPEND
    phase: Phase = Phase.LOOKING
    passed: int = 0
    target: Place = Place.RUNNING
    failed: bool = False
    _touched: bool = False  # a node has failed in another way than by a refusal
    _orders: Orders = field(default_factory=Orders)

    @classmethod
    def of(cls, task: Task, cut: str, nodes: Sequence[str], aim: Aim = TO_SUSPEND) -> "Coordination":
        return cls(task, cut, Places.of(nodes), Standstill(nodes), aim)

    @property
    def barriers(self) -> Sequence[Barrier]:
        if self.task is Task.CHECKPOINT:
            return BEFORE_IMAGED if self.aim.imaged else BEFORE_SUSPENDED
        return BEFORE_RUNNING if self.task is Task.RESTORE else ()

    def start(self) -> list[Order]:
        if self.task is Task.CHECKPOINT:
            self._begin()
        else:
            for node in self.places.by_node:
                self._ask(node)
            self._orders.wait_for(Wait.ANSWERS)
        return self._orders.taken()

    def on(self, event: Event) -> list[Order]:
        """Returns the orders that follow from an event; none once it is over."""
        if self.phase is Phase.OVER:
            return []
        match event:
            case Late():
                self._late(event)
            case Stopped():
                self._stopped()
            case _ if event.node not in self.places.by_node:
                pass
            case Came():
                self._came(event)
            case Kept():
                self._kept(event.node)
            case Done():
                self._done(event.node)
            case Failed():
                self._has_failed(event)
            case Lost():
                self._lost(event.node)
            case Stands():
                self._stands(event)
            case Obeyed():
                self._obeyed(event)
        return self._orders.taken()

    # ---- forth ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.phase = Phase.GATHERING
        for node, place in self.places.by_node.items():
            self.places.before[node] = place
            self.places.move(node, Place.WORKING)
            self._orders.add(Begin(node))
        self._orders.wait_for(Wait(self.barriers[0].value))

    def _came(self, event: Came) -> None:
        node, barrier = event.node, event.barrier
        if self.places.by_node[node] not in BY_COMMAND or barrier not in (Barrier.APART, *self.barriers):
            return
        may_pass = self.together.is_still if barrier is Barrier.APART else barrier in self.barriers[: self.passed]
        if self.phase is Phase.SETTLING and (self.failed or not may_pass):
            self._orders.add(GiveUp(node, self.cut))
        elif may_pass:  # it has not heard of it
            self._orders.add(Go(node, barrier))
        elif self.phase is Phase.GATHERING and (barrier is Barrier.APART or barrier is self.barriers[self.passed]):
            if barrier is Barrier.APART:
                self.together.want()
            self.places.move(node, Place.HELD)
            if self.places.all(Place.HELD):
                self._pass(barrier)

    def _kept(self, node: str) -> None:
        if self.phase is Phase.KEEPING and self.places.by_node[node] is Place.HELD:
            self.places.move(node, Place.NAMED)
            if self.places.all(Place.NAMED):
                self._pass(Barrier.DURABLE)

    def _obeyed(self, event: Obeyed) -> None:
        """Leads on. Once all ranks stand still, every node comes to that barrier again."""
        if self.phase is not Phase.GATHERING or not self.together.is_under_way:
            return
        self._orders.add(*self.together.on(event))
        if self.together.stage is Stage.GIVEN_UP:
            self._undo()
        elif self.together.is_still:
            for node in self.places.by_node:
                self.places.move(node, Place.WORKING)
                self._orders.add(Go(node, Barrier.APART))

    def _pass(self, barrier: Barrier) -> None:
        """Lets every node go on, once ranks were led to their standstill, and each store has the list of all parts."""
        if self.together.is_under_way:
            self._orders.add(*self.together.begin())
            return
        if barrier is Barrier.DURABLE and self.phase is Phase.GATHERING:
            self.phase = Phase.KEEPING
            self._orders.add(*map(Keep, self.places.by_node))
            self._orders.wait_for(Wait.KEPT)
            return
        self.passed += 1
        for node in self.places.by_node:
            self.places.move(node, Place.WORKING)
            self._orders.add(Go(node, barrier))
        if self.passed < len(self.barriers):
            self._orders.wait_for(Wait(self.barriers[self.passed].value))
        else:
            self.phase = Phase.ENDING if self.task is Task.CHECKPOINT else Phase.SETTLING
            self._orders.wait_for(Wait.END)

    def _done(self, node: str) -> None:
        place = self.places.by_node[node]
        if place is Place.RETURNING or (place in BY_COMMAND and self.task is Task.RESTORE):
            self._settle(node, Place.RUNNING)
        elif place in BY_COMMAND:
            self.places.cuts[node] = self.cut
            self._settle(node, self.aim.place)

    def _has_failed(self, event: Failed) -> None:
        node, place = event.node, self.places.by_node[event.node]
        if place is Place.RETURNING:
            self._ask(node)
        elif place in BY_COMMAND and event.left is Left.REFUSED:
            self._settle(node, Place.AS_BEFORE)
        elif place in BY_COMMAND and event.left is Left.TAKEN_BACK:
            self._settle(node, Place.RUNNING if self.task is Task.CHECKPOINT else self.places.before[node])
        elif place in BY_COMMAND:
            self._touched = True
            self._ask(node)
            self._undo_unless_settling()

    def _lost(self, node: str) -> None:
        place = self.places.by_node[node]
        if place is Place.ASKED:
            self._answered(node, Place.SILENT)
        elif place in BUSY:
            self._touched = True
            self._ask(node)
            self._undo_unless_settling()

    def _undo_unless_settling(self) -> None:
        """Gives up while nodes gather. Later one that is asked may have come where it was to be."""
        if self.phase in (Phase.GATHERING, Phase.KEEPING):
            self._undo()

    def _late(self, event: Late) -> None:
        if event.wait != self._orders.wait:
            return
        if self.phase in UNDER_WAY:
            self._touched = self._touched or self.passed > 0
            self._undo()
            return
        for node in self.places.at(*BUSY):
            self.places.move(node, Place.SILENT)
        if self.phase is Phase.LOOKING:
            self._look()
        else:
            self._finish()

    def _stopped(self) -> None:
        """Gives up what can be given up; a way back goes on."""
        if self.phase is Phase.LOOKING:
            self._over(Outcome.REFUSED)
        elif self.phase in UNDER_WAY:
            self._undo()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _ask(self, node: str) -> None:
        self.places.move(node, Place.ASKED)
        self._orders.add(Ask(node))

    def _stands(self, event: Stands) -> None:
        node = event.node
        if self.places.by_node[node] not in (Place.ASKED, Place.SILENT):
            return
        self.places.cuts[node] = event.cut
        if event.place is not Place.HELD:
            self._answered(node, event.place)
        elif self.phase is Phase.LOOKING and self.task is Task.RESTORE:
            self._answered(node, Place.HELD)  # by another coordinator: refused
        else:
            self._orders.add(GiveUp(node, event.cut))
            self._ask(node)

    def _answered(self, node: str, place: Place) -> None:
        if self.phase is Phase.LOOKING:
            self.places.move(node, place)
            self._look()
        else:
            self._settle(node, place)

    def _look(self) -> None:
        """Decides once every node has answered, or is silent."""
        if self.places.count(Place.ASKED):
            return
        one_cut = self.places.may_be_one_cut()
        away = AWAY if self.aim.imaged else (Place.SUSPENDED,)
        if self.task is Task.RESTORE and one_cut and self.places.all(*away):
            self._begin()
        elif self.task is Task.RESTORE:
            self._over(Outcome.REFUSED)
        elif one_cut:  # with one that is silent it is not known whether the cut stands
            self._over(Outcome.UNSETTLED if self.places.count(Place.SILENT) else Outcome.DONE)
        else:
            self._settle_all(Place.RUNNING)

    # ---- back -------------------------------------------------------------------------------------------------------

    def _undo(self) -> None:
        """Gives the cut up on every node."""
        self.failed = True
        for node in self.places.at(*BY_COMMAND):
            self._orders.add(GiveUp(node, self.cut))
        self._settle_all(Place.RUNNING if self.task is Task.CHECKPOINT else Place.SUSPENDED)

    def _settle_all(self, target: Place) -> None:
        if self.places.count(Place.RUNNING):
            target = Place.RUNNING
        self.phase, self.target = Phase.SETTLING, target
        self._orders.wait_for(Wait.WAY_BACK)
        for node in self.places.at(*AWAY, Place.AS_BEFORE):
            self._return_if_due(node)
        self._finish()

    def _settle(self, node: str, place: Place) -> None:
        """Takes note of a node that has come to rest, and leads it on where it is to be elsewhere."""
        self.places.move(node, place)
        if self.phase is Phase.ENDING and self.aim.is_met(place, self.places.cuts.get(node) == self.cut):
            if self.places.all(*self.aim.places):
                self._over(Outcome.DONE)
        elif self.phase is Phase.ENDING and self.aim.place is Place.RUNNING:
            self._settle_all(Place.RUNNING)  # the image counts, and each job is to run on
        elif self.phase is not Phase.SETTLING:
            self._undo()
        elif place is Place.RUNNING and self.target is Place.SUSPENDED:
            self._settle_all(Place.RUNNING)
        else:
            self._return_if_due(node)
            self._finish()

    def _return_if_due(self, node: str) -> None:
        """Has a node restore its part where all are to run, unless it was tried too often.

        A node that refused a checkpoint was suspended by another caller, if it is suspended at all.
        """
        place = self.places.by_node[node]
        due = AWAY if self.task is Task.CHECKPOINT else (*AWAY, Place.AS_BEFORE)
        wanted = self.target is Place.RUNNING and place in due
        if wanted and self.places.tries[node] < TRIES:
            self.places.tries[node] += 1
            self.places.move(node, Place.RETURNING)
            self._orders.add(Restore(node, Place.STOPPED in (place, self.places.before.get(node))))

    def _finish(self) -> None:
        """Ends the task once every node has come to rest."""
        if self.places.busy:
            return
        target = AWAY if self.target is Place.SUSPENDED else (self.target,)
        settled = self.places.all(*target, Place.GONE, Place.AS_BEFORE)
        if not settled or (self.task is Task.RESTORE and self.places.count(Place.GONE) and not self.failed):
            self._over(Outcome.UNSETTLED)
        elif not self.failed:
            self._over(Outcome.DONE)
        elif self.task is Task.RESTORE and self.target is Place.RUNNING:
            self._over(Outcome.DONE)  # it was given up too late, and is done all the same
        else:
            self._over(Outcome.TAKEN_BACK if self._touched or self.passed else Outcome.REFUSED)

    def _over(self, outcome: Outcome) -> None:
        self.phase = Phase.OVER
        self._orders.add(Finish(outcome))
