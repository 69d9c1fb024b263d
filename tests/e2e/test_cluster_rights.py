"""Clusters that gcr may not or cannot use: one that wants a token, two at hand, none. An error says which it is."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from machine import Answer
from ray_nodes import RayNodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # Ray tries a wrong token for 20 s

TOKEN = "a" * 64
WITH_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}


@pytest.fixture
def clusters() -> Iterator[tuple[RayNodes, RayNodes]]:
    """One that any program may use, and one that wants a token; of one node each."""
    with ExitStack() as until:
        made = RayNodes(), RayNodes(variables=WITH_TOKEN)
        for each in made:
            until.callback(each.close)
            each.add("one")
        yield made


def refused(said: Answer) -> dict[str, str]:
    assert (said.code, said.body["error"]["code"]) == (3, "no_cluster"), said
    error: dict[str, str] = said.body["error"]
    return error


def test_a_cluster_that_gcr_may_not_use_is_refused(clusters: tuple[RayNodes, RayNodes]) -> None:
    free, guarded = clusters
    missing = refused(guarded.gcr("cluster", "up", RAY_AUTH_MODE="token"))
    assert "no authentication token was found" in missing["message"]
    wrong = refused(guarded.gcr("cluster", "up", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="b" * 64))
    assert "RAY_AUTH_TOKEN" in wrong["hint"]
    said = guarded.gcr("cluster", "up", **WITH_TOKEN)
    assert (said.code, [row["reachable"] for row in said.body["nodes"]]) == (0, [True]), said
    assert said.body["nodes"][0]["exchange"]
    for words in (("cluster", "status"), ("pull", "night", "--from", "cluster")):
        both = refused(free.gcr(*words, RAY_ADDRESS=""))
        assert all(f":{each.port}" in both["message"] for each in clusters) and "--address" in both["hint"]
    assert free.gcr("cluster", "status").code == 0
    assert "Ray Client" in refused(free.gcr("cluster", "status", "--address", "ray://127.0.0.1:10001"))["message"]
    assert "127.0.0.1:1" in refused(free.gcr("cluster", "status", RAY_ADDRESS="127.0.0.1:1"))["message"]
