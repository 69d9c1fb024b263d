"""`python -m gcr.simulated VENDOR` prints, as JSON, the environment that leads to a plugin's simulated driver.

The daemon starts it for simulated drivers that gcr does not bring itself: plugins are never loaded in the daemon.
"""

import json
import sys

from gcr.cli.parts import simulator_of
from gcr.errors import GcrError


def main(argv: list[str]) -> int:
    try:
        simulator = simulator_of(argv[0])
    except GcrError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit
    sys.stdout.write(json.dumps({**simulator.environment, "LD_LIBRARY_PATH": str(simulator.folder)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
