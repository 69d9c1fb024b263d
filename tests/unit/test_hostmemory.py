import pytest

from gcr.memory.hostmemory import available_host_bytes, free_huge_bytes

GiB = 1 << 30
MiB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """A root directory with the kernel files that are asked for."""

    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("proc/meminfo", f"MemTotal: 999 kB\nMemAvailable: {16 * MiB} kB\n")
    write.root = tmp_path
    return write


def test_without_a_limit_it_is_what_the_machine_has(machine):
    assert available_host_bytes(machine.root) == 16 * GiB


def test_a_cgroup_without_limits_changes_nothing(machine):
    machine("proc/self/cgroup", "0::/user\n")
    machine("sys/fs/cgroup/user/memory.max", "max\n")
    machine("sys/fs/cgroup/user/memory.current", "123\n")
    assert available_host_bytes(machine.root) == 16 * GiB


def test_the_limit_of_a_cgroup_counts_less_what_is_used_of_it(machine):
    machine("proc/self/cgroup", "0::/user/job\n")
    machine("sys/fs/cgroup/user/job/memory.max", f"{8 * GiB}\n")
    machine("sys/fs/cgroup/user/job/memory.current", f"{5 * GiB}\n")
    assert available_host_bytes(machine.root) == 3 * GiB
    machine("sys/fs/cgroup/user/job/memory.stat", f"anon 5\ninactive_file {GiB}\n")
    assert available_host_bytes(machine.root) == 4 * GiB


def test_a_cgroup_above_counts_as_well(machine):
    machine("proc/self/cgroup", "0::/user/job\n")
    for folder, limit in (("user/job", 8), ("user", 2)):
        machine(f"sys/fs/cgroup/{folder}/memory.max", f"{limit * GiB}\n")
        machine(f"sys/fs/cgroup/{folder}/memory.current", f"{GiB}\n")
    assert available_host_bytes(machine.root) == GiB


def test_inside_a_container_the_mount_is_our_cgroup(machine):
    machine("proc/self/cgroup", "0::/docker/abc\n")
    machine("sys/fs/cgroup/memory.max", f"{4 * GiB}\n")
    machine("sys/fs/cgroup/memory.current", f"{GiB}\n")
    assert available_host_bytes(machine.root) == 3 * GiB


def test_version_one_counts(machine):
    machine("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/job\n1:name=systemd:/x\n")
    machine("sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{4 * GiB}\n")
    machine("sys/fs/cgroup/memory/job/memory.usage_in_bytes", f"{GiB}\n")
    machine("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine("sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GiB}\n")
    assert available_host_bytes(machine.root) == 3 * GiB


def test_more_used_than_allowed_is_nothing_left(machine):
    machine("proc/self/cgroup", "0::/\n")
    machine("sys/fs/cgroup/memory.max", f"{GiB}\n")
    machine("sys/fs/cgroup/memory.current", f"{2 * GiB}\n")
    assert available_host_bytes(machine.root) == 0


def test_this_machine_has_some():
    assert 0 < available_host_bytes() < 1 << 50


def test_huge_pages_that_are_promised_are_not_free(machine):
    assert free_huge_bytes(2 * MiB, machine.root) == 0
    machine("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n")
    machine("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "4\n")
    assert free_huge_bytes(2 * MiB, machine.root) == 12 * MiB
