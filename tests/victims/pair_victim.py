"""Two processes that both hold device memory: this one, and a child that it speaks with.

Each line is answered for both: "parent ANSWER | child ANSWER", or "child gone" once the child has died. With --late the
child comes after the parent's own memory.
"""

import subprocess
import sys
from pathlib import Path

import told_victim
from dialogue import note, say


def start_child() -> "subprocess.Popen[str]":
    program = Path(told_victim.__file__)
    child = subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert hear(child) == "ready"
    return child


def hear(child: "subprocess.Popen[str]") -> str:
    assert child.stdout
    return child.stdout.readline().strip() or "gone"


def ask(child: "subprocess.Popen[str]", line: str) -> str:
    assert child.stdin
    try:
        child.stdin.write(line)
        child.stdin.flush()
    except BrokenPipeError:
        return "gone"
    return hear(child)


def main() -> None:
    late = "--late" in sys.argv
    child = None if late else start_child()
    program = told_victim.Program()
    program.alloc(3, 3 << 20)
    child = child or start_child()
    note(f"child {child.pid}")
    say("ready")
    for line in sys.stdin:
        say(f"parent {program.digest()} | child {ask(child, line)}")
    assert child.stdin
    child.stdin.close()
    child.wait()


if __name__ == "__main__":
    main()
