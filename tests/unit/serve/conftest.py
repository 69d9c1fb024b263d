"""The helpers of these tests lie beside them, and those of all unit tests above."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
