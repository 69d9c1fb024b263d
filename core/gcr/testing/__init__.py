"""The contract every backend holds, as pytest classes to subclass: for gcr's own backends and for strangers'.

    from gcr.testing import BackendContract, ControlContract, DrainContract

    class TestMyBackend(BackendContract, DrainContract, ControlContract):
        backend = "my_package:MyBackend"            # a factory, importable in a child process
        vendor_libraries = ("libmyvendor",)         # must not be mapped by importing it
        victim_command = (sys.executable, "victim.py")  # see ControlContract

        @pytest.fixture
        def environment(self): return {"LD_LIBRARY_PATH": ...}   # what the children need to find the driver

Everything vendor-specific happens in child processes (`gcr.testing.peer`), each with a deadline: the two ends of a
hand-over are two processes, and the descriptors cross between them as they do in gcr. Needs pytest.
"""

from gcr.testing.contract import BackendContract
from gcr.testing.control import ControlContract
from gcr.testing.drain import DrainContract
from gcr.testing.peer import Peer

__all__ = ["BackendContract", "ControlContract", "DrainContract", "Peer"]
