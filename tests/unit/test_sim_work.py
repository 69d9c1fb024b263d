"""The simulator's streams, kernels, captures: order, waits that hang, copies that are torn."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import Machine

MASK = (1 << 64) - 1


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def splitmix(seed: int, index: int) -> int:
    """The generator's published form (Steele, Lea, Flood 2014), written apart from the kernel's."""
    state = (seed + 0x9E3779B97F4A7C15 * (index + 1)) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_kernels_compute_what_they_say(machine: Machine) -> None:
    program = """
        import struct
        use()
        k = Kernels()
        a, b = int(ck(cu.cuMemAlloc(800))), int(ck(cu.cuMemAlloc(800)))
        k.launch('fill', (U64, a), (U64, 100), (U64, 9))
        k.launch('add', (U64, a), (U64, 50), (U64, 1))
        ck(cu.cuCtxSynchronize())
        say(*words(read(a, 800))[[0, 49, 50, 99][0]::1][0:1], words(read(a, 800))[49], words(read(a, 800))[50])
        write(a, struct.pack('4f', 1, 2, 3, 4)); write(b, struct.pack('4f', 10, 20, 30, 40))
        k.launch('axpy', (U64, a), (U64, b), (F32, 0.5), (U64, 4))
        ck(cu.cuCtxSynchronize())
        say(*struct.unpack('4f', read(a, 16)))
        f = ck(cu.cuModuleGetFunction(k.module, b'axpy'))
        say([tuple(ck(cu.cuFuncGetParamInfo(f, i))) for i in range(4)], code(cu.cuFuncGetParamInfo(f, 4)))
        pointer, size = ck(cu.cuModuleGetGlobal(k.module, b'answer'))
        say(size, words(read(int(pointer), 8))[0], code(cu.cuModuleGetGlobal(k.module, b'question')))
        say(code(cu.cuModuleGetFunction(k.module, b'nothing')), code(cu.cuModuleLoadData(b'no image at all ' * 8)))
    """
    first, axpy, params, variable, errors = machine.run(program)
    assert first.split() == [str(splitmix(9, 0) + 1), str(splitmix(9, 49) + 1), str(splitmix(9, 50))]
    assert axpy == "6.0 12.0 18.0 24.0"
    assert params == "[(0, 8), (8, 8), (16, 4), (24, 8)] 1"
    assert variable == "8 42 500"
    assert errors == "500 200"


@pytest.mark.parametrize("count", [1, 3, 4095, 4097, 10001])
def test_a_fill_writes_every_value_of_its_rows_and_no_byte_beside_them(machine: Machine, count: int) -> None:
    program = f"""
        use()
        data = int(ck(cu.cuMemAlloc(1 << 17)))
        for unit, value in ((1, 0xA1), (2, 0xB1B2), (4, 0xC1C2C3C4)):
            whole = value.to_bytes(unit, 'little') * {count}
            ck(cu.cuMemsetD8(data, 0x11, 1 << 17))
            ck(getattr(cu, f'cuMemsetD{{8 * unit}}')(data + 64, value, {count}))
            beside = read(data, 64), read(data + 64 + len(whole), 64)
            say(bytes(read(data + 64, len(whole))) == whole, set(map(bytes, beside)) == {{b'\\x11' * 64}})
            pitch = (len(whole) + 24) & ~7
            ck(cu.cuMemsetD8(data, 0x11, 1 << 17))
            ck(getattr(cu, f'cuMemsetD2D{{8 * unit}}')(data, pitch, value, {count}, 3))
            rows = (whole + b'\\x11' * (pitch - len(whole))) * 3
            say(bytes(read(data, len(rows))) == rows)
    """
    assert machine.run(program) == ["True True", "True"] * 3


@pytest.mark.parametrize("offset", [0, 8, 4097, (2 << 20) - 1])
def test_a_first_copy_is_all_there_and_nothing_beside_it(machine: Machine, offset: int) -> None:
    """Some of the memory exists before, and one copy goes over two allocations that lie side by side."""
    program = f"""
        import random
        use()
        size, offset = 16 * MiB, {offset}
        data = random.Random(offset).randbytes(9 * MiB + 77)
        held = len(os.listdir('/proc/self/fd'))
        for parts in (1, 2):
            base = int(ck(cu.cuMemAddressReserve(size, 0, 0, 0)))
            for part in range(parts):
                mapped(create(size // parts), size // parts, at=base + part * (size // parts))
            write(base + 5 * MiB, b'there before')
            write(base + size - 1, b'!')
            write(base + offset, data)
            now = read(base, size)
            say(now[offset:offset + len(data)] == data, set(now[:offset]), set(now[offset + len(data):-1]), now[-1:])
        say(len(os.listdir('/proc/self/fd')) - held)
    """
    before = "set()" if offset == 0 else "{0}"
    assert machine.run(program) == [f"True {before} {{0}} b'!'"] * 2 + ["0"]


def test_one_changed_word_changes_the_digest(machine: Machine) -> None:
    program = """
        use()
        k = Kernels()
        data, out = int(ck(cu.cuMemAlloc(8000))), int(ck(cu.cuMemAlloc(8)))
        def digest():
            k.launch('digest', (U64, data), (U64, 1000), (U64, out)); ck(cu.cuCtxSynchronize())
            return words(read(out, 8))[0]
        k.launch('fill', (U64, data), (U64, 1000), (U64, 1))
        first = digest()
        again = digest()
        k.launch('add', (U64, data + 8 * 777), (U64, 1), (U64, 1)); changed = digest()
        k.launch('add', (U64, data + 8 * 777), (U64, 1), (U64, 2**64 - 1)); back = digest()
        say(first == again == back, first != changed)
    """
    assert machine.run(program) == ["True True"]


def test_a_stream_keeps_its_order_and_waits_for_events(machine: Machine) -> None:
    program = """
        use()
        k = Kernels()
        one, two = ck(cu.cuStreamCreate(1)), ck(cu.cuStreamCreate(1))
        word = int(ck(cu.cuMemAlloc(8)))
        event = ck(cu.cuEventCreate(2))
        k.launch('spin', (U32, 80), stream=one)
        k.launch('stamp', (U64, word), (U64, 1), (U64, 5), stream=one)
        ck(cu.cuEventRecord(event, one))
        say(code(cu.cuEventQuery(event)), code(cu.cuStreamQuery(one)), code(cu.cuStreamQuery(two)))
        ck(cu.cuStreamWaitEvent(two, event, 0))
        k.launch('add', (U64, word), (U64, 1), (U64, 1), stream=two)
        ck(cu.cuStreamSynchronize(two))
        say(words(read(word, 8))[0], code(cu.cuEventQuery(event)))
    """
    assert machine.run(program) == ["600 600 0", "6 0"]


def test_a_destroyed_stream_ends_its_work_and_leaves_its_place(machine: Machine) -> None:
    """A worker makes streams for every drain: what each left behind would grow for as long as it lives."""
    program = """
        use()
        k = Kernels()
        word, event = int(ck(cu.cuMemAlloc(8))), ck(cu.cuEventCreate(2))
        old = ck(cu.cuStreamCreate(1))
        k.launch('spin', (U32, 80), stream=old)
        k.launch('stamp', (U64, word), (U64, 1), (U64, 5), stream=old)
        ck(cu.cuEventRecord(event, old))
        ck(cu.cuStreamDestroy(old))
        young = ck(cu.cuStreamCreate(0))
        k.launch('spin', (U32, 1), stream=young)
        ck(cu.cuStreamSynchronize(young))
        say(code(cu.cuEventQuery(event)), code(cu.cuStreamQuery(old)), int(old) != int(young))
        ck(cu.cuEventSynchronize(event))
        say(words(read(word, 8))[0])
        places, names = set(), set()
        for turn in range(200):
            stream = ck(cu.cuStreamCreate(turn % 2))
            k.launch('add', (U64, word), (U64, 1), (U64, 1), stream=stream)
            ck(cu.cuStreamSynchronize(stream))
            places.add(int(stream)), names.add(int(ck(cu.cuStreamGetId(stream))))
            assert int(ck(cu.cuStreamGetFlags(stream))) == turn % 2
            ck(cu.cuStreamDestroy(stream))
        say(words(read(word, 8))[0], len(places) < 20, len(names))
    """
    assert machine.run(program) == ["600 400 True", "5", "205 True 200"]


def test_the_default_stream_orders_blocking_streams_only(machine: Machine) -> None:
    program = """
        use()
        k = Kernels()
        blocking, free = ck(cu.cuStreamCreate(0)), ck(cu.cuStreamCreate(1))
        k.launch('spin', (U32, 100), stream=blocking)
        k.launch('spin', (U32, 1))              # default stream: behind the blocking one
        later = ck(cu.cuStreamCreate(0))
        k.launch('spin', (U32, 1), stream=later)  # blocking: behind the default one
        k.launch('spin', (U32, 1), stream=free)
        ck(cu.cuStreamSynchronize(free))
        say(code(cu.cuStreamQuery(blocking)), code(cu.cuStreamQuery(0)), code(cu.cuStreamQuery(later)))
        ck(cu.cuStreamSynchronize(later))
        say(code(cu.cuStreamQuery(blocking)), code(cu.cuStreamQuery(0)))
    """
    assert machine.run(program) == ["600 600 600", "0 0"]


def test_per_thread_default_streams_do_not_wait_for_each_other(machine: Machine) -> None:
    program = """
        import threading
        use()
        k = Kernels()
        free = ck(cu.cuStreamCreate(1))
        flag = int(ck(cu.cuMemAlloc(8))); ck(cu.cuMemsetD8(flag, 0, 8)); ck(cu.cuCtxSynchronize())
        k.launch('spin_until', (U64, flag), (U32, 1))
        over = threading.Event()
        def work():
            use()
            k.launch('spin', (U32, 1))
            cu.cuStreamSynchronize(0)
            over.set()
        other = threading.Thread(target=work)
        other.start()
        say(over.wait(WAIT), code(cu.cuStreamQuery(0)))
        ck(cu.cuMemsetD32Async(flag, 1, 1, free))
        other.join()
    """
    each_its_own = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}
    assert machine.run(program.replace("WAIT", "30"), **each_its_own) == ["True 600"]
    assert machine.run(program.replace("WAIT", "1")) == ["False 600"]


def test_a_stream_waits_for_a_value_until_another_call_writes_it(machine: Machine) -> None:
    program = """
        use()
        one, two = ck(cu.cuStreamCreate(1)), ck(cu.cuStreamCreate(1))
        word = int(ck(cu.cuMemAlloc(8))); ck(cu.cuMemsetD8(word, 0, 8))
        EQ = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        ck(cu.cuStreamWaitValue32(one, word, 7, int(EQ)))
        time.sleep(0.05)
        say(code(cu.cuStreamQuery(one)))
        ck(cu.cuStreamWriteValue32(two, word, 7, 0))
        ck(cu.cuStreamSynchronize(one))
        say(code(cu.cuStreamQuery(one)))
    """
    assert machine.run(program) == ["600", "0"]


def test_a_persistent_kernel_ends_when_its_flag_is_written_or_its_context_goes(machine: Machine) -> None:
    program = """
        use()
        k = Kernels()
        stream, other = ck(cu.cuStreamCreate(1)), ck(cu.cuStreamCreate(1))
        flag = int(ck(cu.cuMemAlloc(8))); ck(cu.cuMemsetD8(flag, 0, 8))
        k.launch('spin_until', (U64, flag), (U32, 1), stream=stream)
        time.sleep(0.05)
        say(code(cu.cuStreamQuery(stream)))
        ck(cu.cuMemsetD32Async(flag, 1, 1, other))
        ck(cu.cuStreamSynchronize(stream))
        k.launch('spin_until', (U64, flag), (U32, 2), stream=stream)
        say(code(cu.cuDevicePrimaryCtxReset(0)))
    """
    assert machine.run(program) == ["600", "0"]


def test_a_copy_is_torn_by_a_kernel_that_writes_meanwhile(machine: Machine) -> None:
    program = """
        use()
        k = Kernels()
        writer, reader = ck(cu.cuStreamCreate(1)), ck(cu.cuStreamCreate(1))
        count = 4 * MiB // 8
        data = int(ck(cu.cuMemAlloc(4 * MiB))); ck(cu.cuMemsetD8(data, 0, 4 * MiB))
        host = bytearray(4 * MiB)
        torn = False
        for epoch in range(1, 400, 4):
            for i in range(4): k.launch('stamp', (U64, data), (U64, count), (U64, epoch + i), stream=writer)
            ck(cu.cuMemcpyDtoHAsync(host, data, 4 * MiB, reader)); ck(cu.cuStreamSynchronize(reader))
            torn = torn or len(set(words(bytes(host))[::512])) > 1
            ck(cu.cuStreamSynchronize(writer))
            if torn: break
        say(torn, len(set(words(read(data, 4 * MiB)))))
    """
    assert machine.run(program) == ["True 1"]


def test_host_functions_run_in_order(machine: Machine) -> None:
    program = """
        use()
        seen = []
        k = Kernels()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        calls = [kind(lambda _, i=i: seen.append(i)) for i in range(3)]
        stream = ck(cu.cuStreamCreate(1))
        for call in calls:
            k.launch('spin', (U32, 5), stream=stream)
            ck(cu.cuLaunchHostFunc(stream, cu.CUhostFn(_ptr=ctypes.addressof(call)), 0))
        ck(cu.cuStreamSynchronize(stream))
        say(seen)
    """
    assert machine.run(program) == ["[0, 1, 2]"]


def test_a_captured_graph_replays(machine: Machine) -> None:
    program = """
        use()
        k = Kernels()
        stream = ck(cu.cuStreamCreate(1))
        word = int(ck(cu.cuMemAlloc(8))); ck(cu.cuMemsetD8(word, 0, 8))
        relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        ck(cu.cuStreamBeginCapture(stream, relaxed))
        k.launch('add', (U64, word), (U64, 1), (U64, 3), stream=stream)
        k.launch('add', (U64, word), (U64, 1), (U64, 4), stream=stream)
        ck(cu.cuMemAlloc(4096))
        graph = ck(cu.cuStreamEndCapture(stream))
        before = words(read(word, 8))[0]
        replay = ck(cu.cuGraphInstantiate(graph, 0))
        ck(cu.cuGraphDestroy(graph))
        for _ in range(10): ck(cu.cuGraphLaunch(replay, stream))
        ck(cu.cuStreamSynchronize(stream))
        say(before, words(read(word, 8))[0])
    """
    assert machine.run(program) == ["0 70"]


def test_a_forbidden_call_breaks_the_capture(machine: Machine) -> None:
    program = """
        import threading
        use()
        stream = ck(cu.cuStreamCreate(1))
        modes = cu.CUstreamCaptureMode
        codes = []
        def from_another_thread():
            use(); codes.append(code(cu.cuMemAlloc(4096)))
        for mode in (modes.CU_STREAM_CAPTURE_MODE_GLOBAL, modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL):
            ck(cu.cuStreamBeginCapture(stream, mode))
            thread = threading.Thread(target=from_another_thread); thread.start(); thread.join()
            codes.append(code(cu.cuStreamEndCapture(stream)))
        say(codes)
    """
    assert machine.run(program) == ["[900, 901, 0, 0]"]


def test_the_speed_limit_holds(tmp_path: Path) -> None:
    machine = Machine(tmp_path, BPS=100 << 20)
    program = """
        use()
        data = int(ck(cu.cuMemAlloc(32 * MiB)))
        started = time.monotonic()
        read(data, 32 * MiB)
        say(0.28 < time.monotonic() - started < 10)
    """
    assert machine.run(program) == ["True"]


def test_a_full_stream_holds_the_next_call_inside_the_driver(tmp_path: Path) -> None:
    program = """
        import threading
        use()
        flag, k = int(ck(cu.cuMemAlloc(64))), Kernels()
        ck(cu.cuMemsetD32(flag, 0, 1))
        busy, other = (ck(cu.cuStreamCreate(1)) for _ in range(2))
        k.launch('spin_until', (U64, flag), (U32, 1), stream=busy)
        made = []
        def call():
            use()
            for number in range(6):
                ck(cu.cuMemsetD32Async(flag + 32, number, 1, busy))
                made.append(number)
        caller = threading.Thread(target=call)
        caller.start()
        caller.join(0.5)
        say(len(made), caller.is_alive())
        ck(cu.cuMemsetD32Async(flag, 1, 1, other))
        caller.join(20)
        say(len(made), caller.is_alive())
        ck(cu.cuCtxSynchronize())
        say(words(read(flag + 32, 8))[0] & 0xffffffff)
    """
    assert Machine(tmp_path, QUEUE=4).run(program) == ["3 True", "6 False", "5"]


@pytest.mark.parametrize("waits", [False, True])
def test_memory_that_is_unmapped_under_a_running_kernel_is_told(machine: Machine, waits: bool) -> None:
    program = f"""
        import time
        use()
        size, k = 2 << 20, Kernels()
        flag, beside = mapped(create(size), size), mapped(create(size), size)
        ck(cu.cuMemsetD32(flag, 0, 16))
        ck(cu.cuStreamSynchronize(0))
        k.launch('spin', (U32, 300)) if {waits} else k.launch('spin_until', (U64, flag), (U32, 1))
        ck(cu.cuCtxSynchronize()) if {waits} else time.sleep(0.1)
        ck(cu.cuMemUnmap(beside, size))
        ck(cu.cuMemUnmap(flag, size))
        say('unmapped')
        import os
        os._exit(0)
    """
    assert machine.run(program) == ["unmapped"]
    told = machine.state / "violations"
    lines = told.read_text().splitlines() if told.exists() else []
    assert len(lines) == (0 if waits else 1)
    assert all("unmapped under running work" in line for line in lines)
