"""Fetches CRIU and runc from Debian's packages into a folder, and touches nothing else.

    python tools/fetch_criu.py build/criu

Debian 12's CRIU cannot work on kernels from 6.13 on, and that of Debian 13 saves no IP sockets from 6.16 on. That of
Debian 14, and else that of 13, runs on Debian 12 as well, by its own loader and with its own libraries. runc starts
itself again, so no loader can start it. That of Debian 12 runs on later systems.
The archive's index must be signed with Debian's keys, and each package must have the hash that the index has.
"""

import hashlib
import lzma
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

SUITES = ("forky", "trixie")  # the first that the archive still has
RUNC_SUITE = "bookworm"
INDEX = "main/binary-amd64/Packages.xz"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
SECONDS = 60.0
LAUNCHER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")/root
exec "$here/{loader}" --library-path "{libraries}" "$here/usr/sbin/criu" "$@"
"""

Package = Mapping[str, str]


class NotFetched(Exception):
    """It is not to be had here; the text says why."""


def main(argv: list[str]) -> int:
    folder = Path(argv[1])
    for name, fetch in {"criu": fetch_criu, "runc": fetch_runc}.items():
        if (folder / name).exists():
            continue
        try:
            fetch(folder)
        except (NotFetched, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: not fetched, tests that need it are skipped: {error}")
        else:
            print(f"{name}: {folder / name}")
    return 0


def fetch_criu(folder: Path) -> None:
    source, known = first_of(SUITES)
    with TemporaryDirectory(prefix="gcr-criu-") as scratch:
        root = Path(scratch) / "root"
        root.mkdir()
        for name in sorted(needed("criu", known)):
            unpack(source, known[name], Path(scratch), root)
        shutil.rmtree(folder / "root", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(root, folder / "root", symlinks=True)
    launcher = folder / "criu"
    libraries = ":".join(f"$here/{each}" for each in LIBRARIES)
    launcher.write_text(LAUNCHER.format(loader=LOADER, libraries=libraries))
    launcher.chmod(0o755)


def fetch_runc(folder: Path) -> None:
    source, known = known_packages(RUNC_SUITE)
    with TemporaryDirectory(prefix="gcr-runc-") as scratch:
        unpack(source, known["runc"], Path(scratch), Path(scratch))
        fetched = Path(scratch) / "usr/sbin/runc"
        subprocess.run([fetched, "--version"], check=True, capture_output=True, timeout=SECONDS)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(fetched, folder / "runc")


def first_of(suites: Sequence[str]) -> tuple[str, Mapping[str, Package]]:
    """Returns what `known_packages` does, of the first suite that can be had. Raises NotFetched."""
    *others, last = suites
    for suite in others:
        try:
            return known_packages(suite)
        except (NotFetched, OSError) as error:
            print(f"criu: not that of {suite}: {error}")
    return known_packages(last)


def known_packages(suite: str) -> tuple[str, Mapping[str, Package]]:
    """Returns the address of the archive, and its packages by their names. Raises NotFetched."""
    for program in ("apt-get", "dpkg-deb", "gpgv"):
        if not shutil.which(program):
            raise NotFetched(f"there is no {program}")
    source = archive()
    return source, {each["Package"]: each for each in packages(source, suite)}


def archive() -> str:
    """Returns the address of Debian's archive from which this system installs."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout
    found = [uri for line in told.splitlines() if (uri := line.rstrip("/")).endswith("/debian")]
    if not found:
        raise NotFetched("apt has no source of Debian")
    return found[0]


def packages(source: str, suite: str) -> Iterator[Package]:
    """Yields the fields of each package of the archive. Raises NotFetched where a signature or a hash is wrong."""
    release = signed(read(f"{source}/dists/{suite}/InRelease")).decode()
    hashes = {
        words[2]: words[0] for words in map(str.split, release.splitlines()) if len(words) == 3 and len(words[0]) == 64
    }
    index = checked(read(f"{source}/dists/{suite}/{INDEX}"), hashes[INDEX], INDEX)
    for block in lzma.decompress(index).decode().split("\n\n"):
        if block:
            lines = (line.partition(": ") for line in block.splitlines() if not line.startswith(" "))
            yield {name: value for name, _, value in lines}


def signed(text: bytes) -> bytes:
    """Returns what Debian's keys have signed."""
    if not KEYS.exists():
        raise NotFetched(f"{KEYS} is not there")
    done = subprocess.run(
        ["gpgv", "--quiet", "--keyring", KEYS, "--output", "-"], input=text, capture_output=True, timeout=SECONDS
    )
    if done.returncode:
        raise NotFetched(f"the archive's signature: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def needed(name: str, known: Mapping[str, Package]) -> set[str]:
    """Returns the package and all that it depends on; of alternatives the first that the archive has."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        if (next_one := waiting.pop()) not in found:
            found.add(next_one)
            waiting += depends(known[next_one], known)
    return found


def depends(package: Package, known: Mapping[str, Package]) -> Iterator[str]:
    words = ", ".join(filter(None, (package.get("Depends"), package.get("Pre-Depends"))))
    for alternatives in filter(None, words.split(", ")):
        names = [each.split()[0].partition(":")[0] for each in alternatives.split(" | ")]
        yield from [each for each in names if each in known][:1]


def unpack(source: str, package: Package, scratch: Path, root: Path) -> None:
    file = scratch / "package.deb"
    file.write_bytes(checked(read(f"{source}/{package['Filename']}"), package["SHA256"], package["Package"]))
    subprocess.run(["dpkg-deb", "--extract", file, root], check=True, capture_output=True, timeout=SECONDS)


def checked(content: bytes, sha256: str, what: str) -> bytes:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise NotFetched(f"{what} has another hash than the archive says")
    return content


def read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    sys.exit(main(sys.argv))
