# SPDX-License-Identifier: Apache-2.0
"""Shows that a wheel works on an old distribution: `python tools/wheel_check.py dist/gpu_cr-*.whl`.

Its tag and each native file in it ask for glibc 2.28 at most. Then it is installed into a fresh environment, without
extras, and `gcr demo` runs there.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from elftools.elf.elffile import ELFFile

OLDEST = (2, 28)  # RHEL 8; Debian 11 and Ubuntu 20.04 have 2.31
_TAG = re.compile(r"manylinux_(\d+)_(\d+)_x86_64")
_VERSION = re.compile(r"GLIBC_(\d+)\.(\d+)")
_MAGIC = b"\x7fELF"
# Before glibc 2.34 all other calls of threads were in libpthread.
_THREADS_IN_LIBC = re.compile(
    r"pthread_(attr_(destroy|init|[gs]et(detachstate|inheritsched|schedparam|schedpolicy|scope))"
    r"|cond_(broadcast|destroy|init|signal|timedwait|wait)|condattr_(destroy|init)|equal|exit|[gs]etschedparam"
    r"|mutex_(destroy|init|lock|unlock)|self|setcancelstate|setcanceltype)\Z"
)
_HOMES = {"libpthread.so.0": re.compile(r"pthread_|sem_"), "libdl.so.2": re.compile(r"dl[a-z]")}


def too_new(file: BinaryIO) -> list[str]:
    """Returns the needs of an ELF file that an x86-64 machine with glibc 2.28 lacks; empty if it loads there."""
    elf = ELFFile(file)
    dynamic, versions = elf.get_section_by_name(".dynamic"), dict(_versions(elf))
    if dynamic is None:
        return []
    needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    return [fault for name, weak, index in _wanted(elf) for fault in _faults(name, weak, versions.get(index), needed)]


def _versions(elf: ELFFile) -> Iterator[tuple[int, str]]:
    if section := elf.get_section_by_name(".gnu.version_r"):
        for _library, wanted in section.iter_versions():
            for version in wanted:
                yield version.entry.vna_other, version.name


def _wanted(elf: ELFFile) -> Iterator[tuple[str, bool, Any]]:
    """Each symbol that other libraries must have: its name, whether it may be missing, its version's index."""
    symbols, indices = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
    for number, symbol in enumerate(symbols.iter_symbols()):
        if number and symbol.entry.st_shndx == "SHN_UNDEF":
            index = indices.get_symbol(number).entry.ndx if indices else None
            yield symbol.name, symbol.entry.st_info.bind == "STB_WEAK", index


def _faults(name: str, weak: bool, version: str | None, needed: set[str]) -> Iterator[str]:
    match = _VERSION.match(version or "")
    if match and (int(match[1]), int(match[2])) > OLDEST:
        yield f"{name}@{version}"
    for library, pattern in _HOMES.items():
        if match and not weak and pattern.match(name) and not _THREADS_IN_LIBC.match(name) and library not in needed:
            yield f"{name} without {library}"


def faults_of(wheel: Path) -> list[str]:
    """Returns why a wheel does not load with glibc 2.28. Raises SystemExit where it has no native file."""
    tags = [(int(major), int(minor)) for major, minor in _TAG.findall(wheel.name)]
    found = [] if tags and min(tags) <= OLDEST else [f"{wheel.name}: its tag asks for more than glibc 2.28"]
    count = 0
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            data = files.read(name)
            if data.startswith(_MAGIC):
                count += 1
                found += [f"{name}: {fault}" for fault in too_new(BytesIO(data))]
    if not count:
        raise SystemExit(f"{wheel.name} has no native file")
    print(f"{wheel.name}: {count} native files looked at")
    return found


def demonstrate(wheel: Path) -> None:
    """Raises CalledProcessError where the wheel cannot be installed, or its `gcr demo` fails."""
    with tempfile.TemporaryDirectory(prefix="gcr-wheel-") as folder:
        venv.create(folder, with_pip=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, str(wheel)], check=True)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("GCR_", "PYTHON"))}
        subprocess.run([f"{folder}/bin/gcr", "demo"], check=True, cwd=folder, env=plain)


def main(paths: list[str]) -> None:
    for path in paths:
        wheel = Path(path).absolute()
        if faults := faults_of(wheel):
            raise SystemExit("\n".join(faults))
        demonstrate(wheel)


if __name__ == "__main__":
    main(sys.argv[1:])
