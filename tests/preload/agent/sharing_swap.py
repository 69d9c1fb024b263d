"""Two processes that share memory leave their device and come back."""

import pytest
from agent import Agent
from packets import Refused


def swap(owner: Agent, importer: Agent) -> None:
    """Both hand over; then each has its own back, and the importer the owner's."""
    for agent in (owner, importer):
        agent.export()
    for agent in (owner, importer):
        agent.quiesce()
    _, (lent,) = owner.shared()
    _, (foreign,) = importer.shared()
    assert foreign.there == lent.id
    assert [agent.count("hand_over")[0] for agent in (owner, importer)] == [1, 1]
    with pytest.raises(Refused):
        importer.count("map")  # it lacks the other's
    owner.give_back([lent.id])
    importer.give([foreign.id], [owner.custody.held[lent.id]])
    for agent in (owner, importer):
        agent.count("map")
        agent.ask("resume")
        agent.custody.keep_all()
