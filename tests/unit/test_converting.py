"""Threads may convert JSON to the same type at once, also when none has before: the process would die."""

import re
import subprocess
import sys
from pathlib import Path

CORE = Path(__file__).parents[2] / "core/gcr"
PROGRAM = """
import sys, threading
from gcr.api.answers import Answer

sys.setswitchinterval(1e-6)

def made(name, kinds):
    kind = type(Answer)(name, (Answer,), {"__annotations__": kinds, "__module__": __name__}, frozen=True, kw_only=True)
    globals()[name] = kind
    return kind

def convert(kind, document, barrier):
    barrier.wait()
    assert kind.from_json(document).to_json() == document

for number in range(50):
    made(f"Inner{number}", {f"x{each}": "int" for each in range(12)})
    outer = made(f"Outer{number}", {f"a{each}": f"tuple[Inner{number}, ...]" for each in range(8)})
    document = {f"a{each}": [{f"x{field}": field for field in range(12)}] for each in range(8)}
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=convert, args=(outer, document, barrier)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""


def test_threads_convert_to_a_new_type_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_each_conversion_goes_this_way() -> None:
    straight = re.compile(r"from msgspec import .*\bconvert\b|msgspec\.convert|json\.decode\(.*type=")
    found = {path.relative_to(CORE) for path in CORE.rglob("*.py") if straight.search(path.read_text())}
    assert found == {Path("converting.py")}
