"""Stream-ordered memory: handed over like any other, given out in stream order, given back as a program asked for."""

import pytest

MiB = 1 << 20
SEGMENT = 32 * MiB
POOL = 1  # a reason of codes.h
KEEP = 0xFFFFFFFFFFFFFFFF  # a threshold
NO_MEMORY = "2"


def test_its_bytes_go_and_come_back(target):
    puppet, agent = target
    puppet.must("asyncalloc a 5000 s", "asyncalloc b 0x4000000 s", "fill a 1 s", "fill b 2 s", "sync s")
    assert agent.status().uncovered == {}
    handles, size = agent.take()
    assert (handles, size) == (2, SEGMENT + 64 * MiB)
    agent.bring_back()
    puppet.must("check a 1", "check b 2", "asyncfree a s", "asyncalloc c 5000 s", "fill c 3 s", "sync s", "check c 3")


def test_the_default_pool_keeps_nothing_that_is_not_used(target):
    puppet, agent = target
    puppet.must("asyncalloc a 0x4000000 s", "asyncalloc b 100 s", "asyncfree a s", "spin 300 s")
    assert agent.status().covered_bytes == SEGMENT + 64 * MiB
    puppet.must("sync s")
    assert agent.status().covered_bytes == SEGMENT
    puppet.must("asyncfree b s", "sync")
    assert agent.status().covered_bytes == 0


@pytest.mark.parametrize("wait", ["sync s", "sync", "query s", "alloc x 100"])
def test_only_the_waiting_give_back(target, wait):
    puppet, agent = target
    puppet.must("asyncalloc a 100 s", "sync s", "asyncfree a s", "spin 1 s")
    puppet.tell(wait)
    assert agent.status().covered_bytes == {"sync s": 0, "sync": 0, "query s": SEGMENT}.get(wait, SEGMENT + 2 * MiB)


def test_a_threshold_is_kept_and_trimmed(target):
    puppet, agent = target
    puppet.must(f"setpoolattribute default 4 {SEGMENT}", "asyncalloc a 0x2000000 s", "asyncalloc b 0x2000000 s")
    assert [puppet.tell(f"poolattribute default {which}") for which in (5, 6, 7, 8)] == [f"ok {2 * SEGMENT}"] * 4
    puppet.must("asyncfree a s", "asyncfree b s", "sync s")
    assert agent.status().covered_bytes == SEGMENT
    assert puppet.tell("poolattribute default 7") == "ok 0"
    puppet.must("setpoolattribute default 6 0", "setpoolattribute default 8 0", "trim default 100")
    assert agent.status().covered_bytes == SEGMENT
    puppet.must("trim default 0")
    assert [puppet.tell(f"poolattribute default {which}") for which in (5, 6, 7, 8)] == [
        "ok 0",
        f"ok {SEGMENT}",
        "ok 0",
        "ok 0",
    ]


def test_what_a_stream_freed_is_its_own_until_it_got_there(target):
    puppet, _agent = target
    puppet.must("stream u", "asyncalloc a 0x1e00000 s", "spin 400 s", "asyncfree a s")
    puppet.must("asyncalloc b 0x1e00000 u", "asyncalloc c 0x1e00000 s")
    assert puppet.script(["sameplace a b", "sameplace a c"]) == ["no", "yes"]
    puppet.must("asyncfree c s", "sync s", "asyncalloc d 0x1e00000 u", "asyncfree b u", "asyncfree d u", "sync u")


@pytest.mark.parametrize("destroy", ["destroystream u", "destroystream u 1"])
def test_a_stream_may_be_destroyed_meanwhile(target, destroy):
    puppet, agent = target
    puppet.must("stream u", "asyncalloc a 100 u", "spin 200 u", "asyncfree a u", destroy)
    assert agent.status().covered_bytes == SEGMENT
    puppet.must("sync", "sync")
    assert agent.status().covered_bytes == 0


def test_a_destroyed_pool_lives_until_its_memory_is_freed(target):
    puppet, agent = target
    puppet.must("newpool p", "poolalloc a 100 s p", "fill a 1 s", "deletepool p", "newpool q", "sync s", "check a 1")
    assert agent.status().covered_bytes == SEGMENT
    handles, _size = agent.take()
    assert handles == 1
    agent.bring_back()
    puppet.must("check a 1", "asyncfree a s", "sync s")
    assert agent.status().covered_bytes == 0


def test_what_another_process_may_have_stays_with_the_driver(target):
    puppet, agent = target
    puppet.must("newpool p 1", "poolalloc a 5000 s p")
    status = agent.status()
    assert (status.covered_bytes, status.uncovered) == (0, {POOL: (False, 5000, 1)})
    puppet.must("asyncfree a s")
    assert agent.status().uncovered == {}


def test_a_limit_is_kept(target):
    """Nor does the driver grant as much once more, which knows of no memory of ours."""
    puppet, agent = target
    puppet.must(f"newpool p 0 {2 * SEGMENT}", f"setpoolattribute p 4 {KEEP}")
    puppet.must(f"poolalloc a {SEGMENT} s p", f"poolalloc b {SEGMENT} s p")
    assert puppet.script(["poolalloc c 100 s p", "poolattribute p 5"]) == [NO_MEMORY, f"ok {2 * SEGMENT}"]
    puppet.must("asyncfree a s", "asyncfree b s", "sync s", "poolalloc a 0x3000000 s p")
    assert agent.status().uncovered == {}


def test_more_than_any_device_has_is_not_had(same):
    same([
        "asyncalloc a 0x1000 s", "asyncalloc b 0x20000000000 s", "asyncalloc b 0x20000000400 s",
        "asyncalloc b 0xffffffffffffff9c s", "newpool p", "poolalloc c 100 s p", "poolalloc b 0x20000000000 s p",
        "fill a 1 s", "sync s", "check a 1",
    ])  # fmt: skip


# ---- captures


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_stream_beside_a_capture_has_its_memory_back(machine, mode):
    """There is no room for it twice. A thread in relaxed mode, as frameworks have it, may ask for it in any case."""
    machine.memory = 128 * MiB
    puppet = machine.ready()
    puppet.must(f"setpoolattribute default 4 {KEEP}", "stream u", "asyncalloc a 0x5000000 s", "asyncfree a s")
    assert puppet.tell("capturemode 2") == "ok 0"
    puppet.must(f"capture u {mode}", "asyncalloc a 0x5000000 s", "asyncfree a s", "asyncalloc b 0x5000000 s")
    puppet.must("asyncfree b s", "stream v", "asyncalloc c 0x5000000 v")
    puppet.must("endcapture u", "fill c 1 v", "sync v", "check c 1")


def test_a_pool_grows_beside_a_capture(target):
    puppet, agent = target
    assert puppet.tell("capturemode 2") == "ok 0"
    puppet.must(
        "stream u", "capture u 0", "asyncalloc a 0x4000000 s", "fill a 1 s", "endcapture u", "sync s", "check a 1"
    )
    assert (agent.status().covered_bytes, agent.status().uncovered) == (64 * MiB, {})


@pytest.mark.parametrize("call", ["asyncalloc b 100 s", "asyncfree a s", "free a"])
@pytest.mark.parametrize(("mode", "of_thread"), [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2)])
def test_a_capture_forbids_what_it_would_bare(same, mode, of_thread, call):
    """And is broken by it. What the driver does not hear of cannot break it."""
    same([
        "asyncalloc a 0x100000 s", "sync", "stream u", f"capture u {mode}", f"capturemode {of_thread}", call,
        "endcapture u", "capturemode 0", "asyncalloc c 100 s", "sync",
    ])  # fmt: skip


def test_a_capture_ends_by_whichever_call(target):
    """Libraries built with and without a default stream per thread mean the same stream by its handle."""
    puppet, agent = target
    puppet.must("stream u", "capture u 0")
    assert agent.status().captures == 1
    puppet.must("endcapture u ptsz")
    assert agent.status().captures == 0


@pytest.mark.parametrize("call", ["newpool p 0 0x8000000", "admit default 0 3"])
@pytest.mark.parametrize("mode", [0, 1])
def test_what_gcr_asks_of_a_pool_breaks_no_capture(same, mode, call):
    same(["stream u", f"capture u {mode}", call, "endcapture u", "asyncalloc c 100 s", "sync"])


@pytest.mark.parametrize("begin", [[], ["capture u 2"]])
def test_the_driver_has_what_pools_hold(same, begin):
    """Memory that others may be given is the driver's to allocate."""
    same([
        f"setpoolattribute default 4 {KEEP}", "stream u", "asyncalloc a 0x19000000 s", "asyncfree a s", "sync s",
        *begin, "newpool p 1", "poolalloc c 0x19000000 s p", "endcapture u",
    ])  # fmt: skip


def test_what_is_freed_beside_a_capture_is_not_lost(same):
    """Frees in a thread's own stream, and in one that is destroyed afterwards."""
    same([
        "stream u", "stream v", "ownalloc a 0xc800000", "asyncalloc b 0xc800000 v", "capture u 0", "ownfree a",
        "asyncfree b v", "destroystream v", "endcapture u", "sync", "asyncalloc c 0x18000000 s",
    ])  # fmt: skip


# ---- cuMemFree


def test_a_plain_free_does_not_wait(machine):
    """A stream waits for a later call of this very thread."""
    puppet = machine.ready()
    puppet.must("stream u", "asyncalloc a 0x2000000 s", "sync s", "callback u", "free a", "opendoor 0 s", "sync")
    assert puppet.tell("free a") == "1"


@pytest.mark.parametrize("destroyed", [[], ["destroystream s"]])
def test_plainly_freed_memory_is_not_given_to_another_stream_early(machine, destroyed):
    """An earlier user may still use the memory, though its last user is done. The current context does not matter."""
    puppet = machine.ready()
    puppet.must("stream u", "context c 0", "use p", "asyncalloc a 0x1e00000 s", "callback s")
    puppet.must("asyncfree a s", "asyncalloc b 0x1e00000 s", *destroyed, "use c", "free b", "use p")
    assert puppet.tell("sameplace a b") == "yes"
    puppet.must("asyncalloc c 0x1e00000 u")
    assert puppet.tell("sameplace a c") == "no"
    puppet.must("opendoor 0 u", "sync", "asyncalloc d 0x1e00000 u")
    assert puppet.tell("sameplace a d") == "yes"


# ---- policies


@pytest.mark.parametrize(("on", "reused"), [(1, "yes"), (0, "no")])
@pytest.mark.parametrize("before", [True, False])
def test_a_pool_reuses_what_others_freed_if_it_may(machine, before, on, reused):
    puppet = machine.ready()
    policy = f"setpoolattribute default 2 {on}"
    puppet.must("stream u", *([policy] if before else []), "asyncalloc a 0x1e00000 s", "asyncfree a s", policy)
    puppet.must("asyncalloc b 0x1e00000 u")
    assert puppet.tell("sameplace a b") == reused


@pytest.mark.parametrize(("on", "said"), [(1, "ok"), (0, NO_MEMORY)])
def test_a_stream_is_made_to_wait_if_it_may_be(machine, on, said):
    puppet = machine.ready()
    puppet.must("stream u", "newpool p 0 0x2000000", f"setpoolattribute p 3 {on}", "poolalloc a 0x1e00000 s p")
    puppet.must("callback s", "asyncfree a s")
    assert puppet.tell("poolalloc b 0x1e00000 u p") == said
    puppet.must("opendoor 0 s", "sync")


# ---- devices


@pytest.mark.parametrize("abi", ["", " 1"])
@pytest.mark.parametrize("end", ["primaryreset 0", "primaryrelease 0"])
def test_a_device_that_is_reset_has_no_pool_memory(target, end, abi):
    puppet, agent = target
    puppet.must("asyncalloc a 100 s", "asyncalloc b 0x4000000 s", end + abi)
    assert agent.status().covered_bytes == 0
    puppet.must("primary p 0", "stream u", "asyncalloc a 100 u")
    assert agent.status().covered_bytes == SEGMENT


def test_a_device_with_another_context_keeps_its_pool_memory(target):
    puppet, agent = target
    puppet.must("asyncalloc a 100 s", "context c 0", "primaryreset 0")
    assert agent.status().covered_bytes == SEGMENT
    puppet.must("destroy c")
    assert agent.status().covered_bytes == SEGMENT
    puppet.must("primary p 0", "primaryrelease 0", "primaryrelease 0")
    assert agent.status().covered_bytes == 0


def test_it_is_handed_over_without_any_context(machine):
    puppet, agent = machine.target()
    puppet.must("context c 0", "use c", machine.kernels(), "stream u", "asyncalloc a 5000 u", "fill a 1 u", "sync u")
    puppet.must("primaryrelease 0", "destroy c")
    assert agent.take() == (1, SEGMENT)
    agent.bring_back()
    puppet.must("context d 0", "check a 1")


def test_a_peer_reaches_it(target):
    puppet, _agent = target
    puppet.must("asyncalloc a 100 s", "admit default 1 3")
    assert puppet.script(["getaccess a 0 1", "getaccess a 0 0"]) == ["ok 3", "ok 3"]
    puppet.must("asyncalloc b 0x4000000 s")
    assert puppet.script(["getaccess b 0 1"]) == ["ok 3"]
    puppet.must("admit default 1 0")
    assert puppet.script(["getaccess a 0 1", "getaccess b 0 1"]) == ["ok 0", "ok 0"]
