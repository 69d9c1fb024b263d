"""The dialogue of `told.py` on HIP's runtime."""

from hip_device import HipDevice
from lending import Lending
from told import MIB, serve

if __name__ == "__main__":
    program = Lending(HipDevice())
    program.alloc(4, MIB)
    serve(program)
