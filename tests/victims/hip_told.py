"""The dialogue of `told.py` on HIP's runtime, through hip-python."""

from hip_device import HipDevice
from told import MIB, Program, serve

if __name__ == "__main__":
    program = Program(HipDevice())
    program.alloc(4, MIB)
    serve(program)
