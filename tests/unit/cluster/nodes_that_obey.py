"""Nodes that obey a coordinator's orders, in a world in which anything may fail and everything may be late."""

import random
from dataclasses import dataclass, field

from gcr.api.barriers import BEFORE_IMAGED, BEFORE_SUSPENDED, Barrier
from gcr.cluster.coordination import TO_SUSPEND, Aim, Coordination, Task
from gcr.cluster.messages import (
    AWAY,
    Ask,
    Begin,
    Came,
    Deadline,
    Direct,
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
)
from gcr.standstill.messages import Incomplete, Parked, Report

CUT = "c" * 32
SUM = 9  # a signature


@dataclass
class Node:
    """One node's daemon and its part of the job: what it is, whatever the coordinator knows.

    suspended: it does not run; `stopped`: since its processes are in an image alone · kept: its store has the root
    at: the barrier at which it waits · behind: calls of a rank here that ranks of other nodes wait for
    unreachable: it does not answer · cannot_restore: each restore of it fails
    """

    name: str
    suspended: bool = False
    cut: str = ""
    command: Task | None = None
    passed: int = 0
    at: Barrier | None = None
    go: set[Barrier] = field(default_factory=set)
    given_up: bool = False
    behind: int = 0
    unreachable: bool = False
    cannot_restore: bool = False
    stopped: bool = False
    kept: bool = False


@dataclass
class World:
    """Runs a coordination to its end. `chance`: decides all that may happen; `faults`: how much goes wrong, 0 to 1."""

    chance: random.Random
    coordination: Coordination
    nodes: dict[str, Node]
    faults: float
    inbox: list[Event] = field(default_factory=list)
    messages: int = 0
    outcome: Outcome | None = None
    deadline: int = 0
    now: float = 0.0

    @classmethod
    def of(cls, chance: random.Random, task: Task, nodes: list[Node], faults: float, aim: Aim = TO_SUSPEND) -> "World":
        coordination = Coordination.of(task, CUT, [n.name for n in nodes], aim)
        return cls(chance, coordination, {n.name: n for n in nodes}, faults)

    def run(self, most: int = 20_000) -> Outcome:
        self.obey(self.coordination.start())
        for _ in range(most):
            if self.outcome:
                return self.outcome
            self.step()
        raise AssertionError(f"it does not end: {self.coordination}")

    def step(self) -> None:
        """One thing happens: an event arrives, a node goes on, or fails, or time passes."""
        busy = [node for node in self.nodes.values() if node.command]
        kinds = ["arrive"] * (4 * bool(self.inbox)) + ["go on"] * (4 * bool(busy))
        if self.chance.random() < self.faults * 0.2:
            kinds += ["break"]
        if not kinds or self.chance.random() < self.faults * 0.05:
            self.obey(self.coordination.on(Late(self.deadline)))
            return
        match self.chance.choice(kinds):
            case "arrive":
                event = self.inbox.pop(self.chance.randrange(len(self.inbox)))
                if self.chance.random() < 0.1 and isinstance(event, Came):
                    self.inbox.append(event)  # told twice, as barriers are; a command ends once
                self.obey(self.coordination.on(event))
            case "go on":
                self.go_on(self.chance.choice(busy))
            case "break":
                self.fail(self.chance.choice([*self.nodes.values()]))

    # ---- the nodes -----------------------------------------------------------------------------------------------

    def go_on(self, node: Node) -> None:
        barriers = self.barriers(node)
        if node.given_up:
            self.taken_back(node, Left.TAKEN_BACK)
        elif node.passed < len(barriers):
            barrier = barriers[node.passed]
            if barrier in node.go:
                assert barrier is not Barrier.DURABLE or all(each.kept for each in self.nodes.values())
                node.passed += 1
                node.at = None
            elif node.at is Barrier.APART and Barrier.APART in node.go:
                node.at = None
            elif node.at is None:
                node.at = Barrier.APART if barrier is Barrier.STILL and self.is_apart(node) else barrier
                self.tell(node, Came(node.name, node.at))
            elif self.chance.random() < 0.02:  # it tells again, in case it was not heard
                self.tell(node, Came(node.name, node.at))
        elif node.cannot_restore and node.command is not Task.CHECKPOINT:
            self.taken_back(node)
        else:
            self.finish(node)
            self.tell(node, Done(node.name))

    def finish(self, node: Node) -> None:
        """Its command is done: it is where that leads."""
        place = self.aim.place if node.command is Task.CHECKPOINT else Place.RUNNING
        node.suspended, node.stopped = place in AWAY, place is Place.STOPPED
        node.cut = CUT if node.suspended else ""
        node.command = None

    def left_alone(self, node: Node) -> None:
        """No word comes any more: its part is taken back, unless its store has the root."""
        if node.command is Task.CHECKPOINT and node.kept and node.at is Barrier.DURABLE and not node.given_up:
            self.finish(node)
        node.command = None

    def reborn(self, node: Node) -> None:
        """Its daemon has a successor, which finds what was decided: a part that has passed `still` is suspended."""
        if node.command is Task.CHECKPOINT and self.aim.imaged and node.passed >= len(BEFORE_SUSPENDED):
            node.suspended, node.cut = True, CUT
        if node.command is Task.RESTORE:
            node.stopped = False  # its processes were made, and stay
        node.command = None

    @property
    def aim(self) -> Aim:
        return self.coordination.aim

    def is_apart(self, node: Node) -> bool:
        """Returns whether a rank of the node waits for a call of another node's rank."""
        return any(each.behind for each in self.nodes.values() if each is not node)

    def direct(self, node: Node, order: Direct) -> None:
        """Its ranks obey: one that is behind makes its calls."""
        if node.at not in (Barrier.STILL, Barrier.APART) or node.given_up or node.unreachable:
            return
        node.at = Barrier.APART
        node.behind = max(0, node.behind - sum(each.calls for each in order.lead.admissions))
        waits = (Incomplete(SUM, 1, 9),) if self.is_apart(node) else ()
        parked = (Parked(1, SUM, launched=9 - node.behind),) if node.behind else ()
        self.now = max(self.now, order.at)
        report = Report(7, 0, bool(waits), 0, 0, -1.0, parked, waits)
        self.tell(node, Obeyed(node.name, order.number, self.now, () if order.lead.admissions else (report,)))

    def barriers(self, node: Node) -> tuple[Barrier, ...]:
        if node.command is Task.CHECKPOINT:
            return BEFORE_IMAGED if self.aim.imaged else BEFORE_SUSPENDED
        return (Barrier.READY,) if node.command is Task.RESTORE else ()

    def taken_back(self, node: Node, left: Left = Left.UNKNOWN) -> None:
        node.command = None
        self.tell(node, Failed(node.name, left))

    def fail(self, node: Node) -> None:
        """A command fails, a daemon dies and has a successor, or a node is not heard of any more."""
        kind = self.chance.choice(["command", "daemon", "silence"])
        if kind == "command" and node.command:
            self.taken_back(node)
        elif kind == "daemon":  # what was decided stands
            if node.command:
                self.reborn(node)
                self.tell(node, Lost(node.name))
        elif kind == "silence" and self.chance.random() < 0.3:
            if node.command:
                self.left_alone(node)
                self.inbox.append(Lost(node.name))
            node.unreachable = True

    def tell(self, node: Node, event: Event) -> None:
        if not node.unreachable:
            self.inbox.append(event)
            self.messages += 1

    # ---- orders --------------------------------------------------------------------------------------------------

    def obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Finish():
                    self.outcome = order.outcome
                case Deadline():
                    self.deadline = order.number
                case _:
                    self.messages += 1
                    self.on_node(self.nodes[order.node], order)

    def on_node(self, node: Node, order: Order) -> None:
        if node.unreachable:
            if isinstance(order, Begin | Restore | Ask):
                self.inbox.append(Lost(node.name))
            elif isinstance(order, Keep):
                self.inbox.append(Failed(node.name))
            return
        match order:
            case Begin():
                self.begin(node, self.coordination.task)
            case Restore():
                assert order.revives or not node.stopped
                self.begin(node, Task.RECOVER)
            case Keep():
                self.keep(node)
            case Go():
                node.go.add(order.barrier)
                if order.barrier is Barrier.STILL:
                    others = len(self.nodes) > 1
                    assert not (others and any(each.behind for each in self.nodes.values())), "a device works"
            case Direct():
                self.direct(node, order)
            case GiveUp():
                node.given_up = node.command in (Task.CHECKPOINT, Task.RESTORE)
            case Ask():
                self.answer(node)

    def begin(self, node: Node, task: Task) -> None:
        suspends = task is Task.CHECKPOINT
        if node.suspended is suspends or node.command or self.chance.random() < self.faults * 0.05:
            self.tell(node, Failed(node.name, Left.REFUSED))
            return
        node.command, node.passed, node.at, node.given_up = task, 0, None, False

    def keep(self, node: Node) -> None:
        waits = node.command is Task.CHECKPOINT and node.at is Barrier.DURABLE and not node.given_up
        if not waits or self.chance.random() < self.faults * 0.05:
            self.tell(node, Failed(node.name))
            return
        node.kept = True
        self.tell(node, Kept(node.name))

    def answer(self, node: Node) -> None:
        """Only once it is at rest, or held at a barrier."""
        if node.command and node.at is None:
            self.left_alone(node)  # its caller is gone
        if node.command:
            self.tell(node, Stands(node.name, Place.HELD, CUT))
        elif node.stopped:
            self.tell(node, Stands(node.name, Place.STOPPED, node.cut))
        elif node.suspended:
            self.tell(node, Stands(node.name, Place.SUSPENDED, node.cut))
        else:
            self.tell(node, Stands(node.name, Place.RUNNING))
