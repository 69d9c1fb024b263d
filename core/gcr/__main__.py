"""`python -m gcr` is `gcr`."""

import sys

from gcr.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
