"""Host memory that this process can take, in bytes, by the kernel's own counts."""

from collections.abc import Iterator
from pathlib import Path

_FIXED = 1 << 62  # cgroup v1 says "no limit" with a number about this large


def available_host_bytes(root: Path = Path("/")) -> int:
    """Returns the least of MemAvailable and the room that each cgroup above this process leaves.

    A cgroup's page cache that the kernel would give up first counts as room, as it does in MemAvailable.
    """
    return max(0, min([_mem_available(root), *_cgroup_rooms(root)]))


def free_huge_bytes(page: int, root: Path = Path("/")) -> int:
    """Returns the bytes in free huge pages of `page` bytes that no mapping has reserved."""
    folder = root / f"sys/kernel/mm/hugepages/hugepages-{page // 1024}kB"
    free, promised = _number(folder / "free_hugepages"), _number(folder / "resv_hugepages")
    return max(0, (free or 0) - (promised or 0)) * page


def _mem_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup_rooms(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:  # a kernel without cgroups
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _rooms(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            yield from _rooms(mount, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _rooms(mount: Path, path: str, limit_file: str, usage_file: str, cache_key: str) -> Iterator[int]:
    """Yields the room in the cgroup and in each above it.

    Inside a container the path may lead nowhere; the mount is then this process's cgroup.
    """
    own = mount / path.strip("/")
    for folder in (own, *own.parents):
        limit = _number(folder / limit_file)
        if limit is not None and limit < _FIXED and (usage := _number(folder / usage_file)) is not None:
            yield limit - usage + _stat(folder, cache_key)
        if folder == mount:
            return


def _number(path: Path) -> int | None:
    """Returns the number in a kernel file; None without such a file, or where it says "max"."""
    try:
        text = path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return int(text) if text.isdigit() else None


def _stat(folder: Path, key: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key + " ")), 0)
