"""The simulation of cuts over many nodes (benchmarks/cluster_simulation)."""

import json
import sys
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from cluster_simulation import plots
from cluster_simulation.assumptions import Assumptions, Cost, Faults, Limits, Link, Part, Spread
from cluster_simulation.clock import Clock
from cluster_simulation.cost import carried, decided
from cluster_simulation.distribution import Receivers, Sharing
from cluster_simulation.node import Node, State
from cluster_simulation.relays import groups
from cluster_simulation.tables import tables
from cluster_simulation.ways import Tally, Way
from cluster_simulation.world import Found, is_whole, simulated

from gcr.api.barriers import Barrier
from gcr.cluster.messages import Begin, Failed, Go, Left, Outcome

ROOT = Path(__file__).resolve().parents[3]
FAULTS = Faults(straggler_share=0.05, deaths=20.0)
EVEN = Part(Spread(0.5), Spread(0.02), Spread(0.7), Spread(0.6))
NEAR = Link(Spread(0.001), thin_share=0.0)
RESULTS = ROOT / "benchmarks" / "results" / "2026-11-28-cluster-simulation.json"


def even(nodes: int, **what: object) -> Assumptions:
    """Returns assumptions under which all nodes are the same and nothing is left to chance."""
    return replace(Assumptions(nodes, part=EVEN, link=NEAR), **what)


def test_equal_times_keep_their_order_and_time_never_runs_back():
    clock, seen = Clock(), []
    for name in "abc":
        clock.after(1.0, lambda name=name: seen.append((clock.now, name)))
    clock.after(0.5, lambda: clock.at(0.1, lambda: seen.append((clock.now, "late"))))
    clock.run()
    assert seen == [(0.5, "late"), (1.0, "a"), (1.0, "b"), (1.0, "c")]


def test_the_same_seed_gives_the_same_result_and_another_one_another():
    assumed = Assumptions(60, faults=FAULTS)
    assert simulated(assumed, 3) == simulated(assumed, 3)
    assert simulated(Assumptions(60), 3).reached != simulated(Assumptions(60), 4).reached


def test_a_cut_of_even_nodes_takes_their_own_time_and_six_ways():
    found = simulated(even(50), 0)
    assert found.outcome is Outcome.DONE
    assert found.end_s == pytest.approx(0.5 + 0.02 + 0.7 + 6 * 0.001)
    assert found.stood_s == pytest.approx(0.02 + 0.7 + 2 * 0.001)


@pytest.mark.parametrize("nodes", [1, 10, 300])
def test_a_node_has_six_messages_of_a_cut_however_many_nodes_there_are(nodes: int):
    assert simulated(even(nodes), 0).messages == 6 * nodes


def test_words_are_told_again_each_second_of_a_wait():
    found = simulated(even(2, part=replace(EVEN, admitted=Spread(0.5, 2.0)), told_again_grows=1.0), 6)
    waited = int(found.reached["still"])
    assert waited > 3
    assert 2 * 6 + waited - 2 <= found.messages <= 2 * 6 + waited


def test_pauses_that_grow_save_messages():
    slow = replace(Assumptions(50), part=Part(admitted=Spread(2.0, 0.8)))
    assert simulated(slow, 1).messages < simulated(replace(slow, told_again_grows=1.0), 1).messages


@pytest.mark.parametrize("seed", range(40))
def test_no_message_is_lost_and_all_that_live_are_at_one_place(seed: int):
    found = simulated(Assumptions(30, faults=FAULTS, cost=Cost(1e-4, 1e-4)), seed)
    assert found.arrived == found.messages
    assert sum(found.states.values()) == 30
    assert is_whole(found)
    if found.outcome is Outcome.DONE and State.RUNNING.value in found.states:
        raise AssertionError("a cut that is done has a running node")


def test_faults_lead_to_each_way_a_cut_can_end():
    outcomes = {simulated(Assumptions(30, faults=FAULTS), seed).outcome for seed in range(40)}
    assert {Outcome.DONE, Outcome.TAKEN_BACK, Outcome.UNSETTLED} <= outcomes


def test_a_node_that_stands_still_too_late_has_the_cut_given_up():
    late = even(5, part=replace(EVEN, still=Spread(5.0, 1.0)), limits=Limits(cut=2.0))
    found = simulated(late, 1)
    assert found.outcome is Outcome.TAKEN_BACK
    assert found.states == {"running": 5}
    assert found.reached["over"] < found.reached["still"] + 2.0 + 0.1


def test_a_node_gives_up_by_itself_where_no_go_comes():
    clock, told = Clock(), []
    node = Node("a", clock, Random(0), even(1), told.append, told.append)
    node.hear(Begin("a"))
    clock.at(1.0, lambda: node.hear(Go("a", Barrier.ADMITTED)))
    clock.run()
    assert told[-1] == Failed("a", Left.TAKEN_BACK)
    assert clock.now == pytest.approx(1.0 + 0.02 + 10.0 + EVEN.taken_back.median)
    assert node.stood_s == pytest.approx(clock.now - 1.0)


def test_the_coordinators_own_work_is_one_message_after_another():
    found, free = simulated(even(100, cost=Cost(0.001, 0.001)), 0), simulated(even(100), 0)
    assert found.busy_s == pytest.approx(100 * 6 * 0.001)
    assert found.end_s > free.end_s + 0.1
    assert found.longest_line > 1


def test_messages_of_one_way_keep_their_order():
    clock, tally, heard = Clock(), Tally(), []
    way = Way[int](clock, Random(0), Spread(0.01, 2.0), tally, heard.append)
    for number in range(50):
        clock.at(number / 1000, lambda number=number: way.send(number))
    clock.run()
    assert heard == [*range(50)]
    assert tally.sent == tally.arrived == 50


def test_relays_share_the_coordinators_work():
    cost = Cost(0.001, 0.001)
    flat, tree = simulated(even(400, cost=cost), 0), simulated(even(400, cost=cost, relays=20), 0)
    assert tree.outcome is flat.outcome is Outcome.DONE
    assert tree.states == flat.states == {"suspended": 400}
    assert tree.end_s < flat.end_s
    assert tree.events == 3 * 20


def test_each_node_has_one_relay():
    names = [str(number) for number in range(17)]
    assert sorted(name for group in groups(names, 4) for name in group) == sorted(names)


def test_the_real_decisions_are_measured():
    found = decided(20, 1)
    assert min(found.word, found.slowest, found.undone) > 0
    assert carried(3, 1) > 0


def test_dead_nodes_do_not_make_a_mix():
    assert is_whole(_ended({"suspended": 3, "dead": 1}))
    assert not is_whole(_ended({"suspended": 3, "running": 1}))


def _ended(states: dict[str, int]) -> Found:
    return replace(simulated(even(1), 0), states=states)


SMALL = Sharing(nodes=6, image=64 << 20, packs=10, piece=1 << 20, link=1e8, store=1e8)


def test_an_image_comes_to_every_node_and_not_before_its_links_could_carry_it():
    found = Receivers(SMALL, 1).run("small")
    assert (found.pieces, found.rounds) == (64, 1)
    assert 1.0 <= found.copies < 2.5 and 0.0 < found.bound < 1.0
    assert SMALL.bound_s < found.first_s <= found.last_s < found.alone_s
    assert found == Receivers(SMALL, 1).run("small") != Receivers(SMALL, 2).run("small")


def test_a_long_round_trip_costs_little_of_the_bound():
    """A link carries 25 pieces in a round trip, the image in 2.6 s. Eight in flight reached 0.29 of the bound."""
    far = Sharing(nodes=2, image=256 << 20, packs=10, piece=1 << 19, link=1e8, store=1e8, away=0.0625)
    assert Receivers(far, 1).run("far").bound > 0.6


def test_an_image_of_many_packs_comes_in_rounds_and_a_slow_store_is_the_bound():
    many = replace(SMALL, packs=200)
    assert (many.rounds, Receivers(many, 1).run("many").rounds) == ((16, 16, 16, 16), 4)
    slow = replace(SMALL, store=1e7)
    assert slow.bound_s == 10 * SMALL.bound_s < Receivers(slow, 1).run("slow").last_s


def test_the_plots_and_tables_of_the_page_are_those_of_the_results():
    found = json.loads(RESULTS.read_text())
    assert found["simulated"] is True
    for name, drawn in plots.drawn(found).items():
        assert (ROOT / "docs" / "pictures" / name).read_text() == drawn, name
    page = (ROOT / "docs" / "cluster-scale.md").read_text()
    for name, table in tables(found).items():
        assert table in page, name
