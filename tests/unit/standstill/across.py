"""Nodes that share the ranks of a model, and the coordinator that leads them: each order and answer takes a while."""

from dataclasses import dataclass, field
from random import Random

from agents import closing_of
from ranks import Job

from gcr.cluster.messages import Direct, Obeyed
from gcr.cluster.standstill import Standstill
from gcr.engine.closing import Closing
from gcr.engine.led import ALONE_S, Led
from gcr.standstill.decision import Admit
from gcr.standstill.messages import Tier

WAY_S = 0.002  # of a message, at most


class Exact(Closing):
    """Tells the model the tier of each admission, which the protocol does not: it checks more then."""

    def admit(self, step: Admit) -> None:
        (job,) = {target.job for target in self.targets}
        for each in step.admissions:
            job.admit(each, step.furthest)
        self.tiers.update(each.tier for each in step.admissions)


@dataclass
class Across:
    """The nodes of a job. `led`: tiers of what was admitted by the coordinator's orders."""

    job: Job
    rng: Random
    nodes: dict[str, Led]
    together: Standstill
    led: list[Tier] = field(default_factory=list)

    @classmethod
    def of(cls, job: Job, rng: Random, number: int) -> "Across":
        """Gives each rank to one of so many nodes, and each node at least one rank."""
        homes = [*range(number), *(rng.randrange(number) for _ in job.ranks)][: len(job.ranks)]
        rng.shuffle(homes)
        ranks: dict[str, list[int]] = {f"n{node}": [] for node in range(number)}
        for rank, home in zip(job.ranks, homes, strict=True):
            ranks[f"n{home}"].append(rank)
        nodes = {node: Led(closing_of(job, of, Exact)) for node, of in ranks.items()}
        return cls(job, rng, nodes, Standstill([*nodes]))

    def stand_still(self, deadline: float = 60.0) -> bool:
        """Returns whether all ranks came to one standstill, by themselves or led."""
        self.job.close()
        if self.alone():
            return True
        self.together.want()
        end, orders = self.job.now + deadline, self.together.begin()
        while orders and self.job.now < end:
            orders += self.obeyed(orders.pop(self.rng.randrange(len(orders))))
        return self.together.is_still

    def alone(self) -> bool:
        """Lets each node come as far as it comes by itself. Returns whether no order is needed."""
        found = [led.closing.come_alone(ALONE_S) for led in self.nodes.values()]
        for led in self.nodes.values():
            led.is_closed = True
        return all(found)

    def obeyed(self, order: Direct) -> list[Direct]:
        closing = self.nodes[order.node].closing
        closing.sleep(max(self.rng.random() * WAY_S, order.at - self.job.now))
        ranks = self.nodes[order.node].obey(order.lead)
        self.led += [each.tier for each in order.lead.admissions]
        closing.sleep(self.rng.random() * WAY_S)
        return self.together.on(Obeyed(order.node, order.number, self.job.now, ranks))
