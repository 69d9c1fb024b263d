"""Environment variables besides those of the settings: the table of docs/configuration.md."""

from collections.abc import Iterable

from gcr.config import environment_name, settings
from gcr.names import meant

VARIABLES: tuple[tuple[str, str], ...] = (
    ("GCR_SOCKET", "the daemon's socket, instead of the one in the runtime directory; set in every target"),
    ("GCR_CONFIG", "the configuration file"),
    ("GCR_LOG_LEVEL", "how much the daemon, workers and control helper log: DEBUG, INFO, WARNING; INFO by default"),
    ("GCR_PLUGINS", "modules to load as plugins besides the installed ones, comma-separated"),
    ("GCR_NATIVE_DIR", "a CMake build folder to take the shim and the simulated drivers from"),
    ("GCR_JOB", "set in every target: the job's name"),
    ("GCR_TOKEN", "set in every target: the job's secret"),
    ("GCR_NODES", "set in every part that `gcr cluster run` starts: the number of nodes"),
    ("GCR_NODE_RANK", "set in every part that `gcr cluster run` starts: its node, counted from 0"),
    (
        "GCR_CLUSTER_RUN",
        "set in every part that `gcr cluster run` starts: the id of that start",
    ),
    ("GCR_SGLANG", "1: SGLang under `gcr run` releases its device memory by gcr"),
    ("GCR_SIMULATE", "set in targets under --simulate: whose driver is simulated"),
    ("GCR_SIM_STATE", "directory of the simulated machine; programs with the same one share its devices"),
    ("GCR_SIM_DEVICES", "simulated devices, read when the machine is made"),
    ("GCR_SIM_MEMORY", "memory of a simulated device, bytes"),
    ("GCR_SIM_GRANULARITY", "allocation granularity of the simulated driver, bytes"),
    ("GCR_SIM_CONTEXT_BYTES", "device memory a simulated context takes, bytes"),
    ("GCR_SIM_CONTROL_MS", "how long a simulated control checkpoint takes, milliseconds"),
    ("GCR_SIM_QUEUE", "operations that a simulated stream takes before a call waits inside the driver"),
    ("GCR_SIM_BPS", "copy rate of each direction of the simulated link, bytes per second; 0: no limit"),
    ("GCR_SIM_MACHINE", "number of the simulated machine, below 256: a part of its devices' UUIDs"),
    ("GCR_SIM_DRIVER", "the driver's version as the simulated NVML says it"),
    ("GCR_SIM_HIP_VERSION", "the version the simulated HIP runtime says it is, MAJOR.MINOR[.PATCH]"),
    ("GCR_SIM_CANN_VERSION", "the CANN release that the simulated Ascend runtime plays: 8.0, 8.5, 9.0 or 9.1"),
    ("GCR_SIM_NO_P2P", "pairs of devices that do not reach each other's memory: 0-2,1-2"),
    ("GCR_SIM_QUIRKS", "what some real drivers do wrong: leak, leak-hard, noexport, elsewhere; comma-separated"),
    ("GCR_SIM_FAULTS", "faults the simulated driver makes on purpose; for tests"),
    ("GCR_FAULTS", "file with faults that gcr's own processes make on purpose; for tests"),
    ("GCR_E2E_ON_DEVICE", "for the test suite: run the end-to-end tests on a real device instead of a simulated one"),
    ("GCR_STRICT_SKIPS", "for the test suite: 1 makes a skip that is not on the list a failure"),
)
# Of gcr's own tests and benchmarks, without the prefix.
_TESTS = (
    *("ACL_HEADERS", "ALONE", "BENCHMARK_CRIU", "BENCHMARK_STORE", "IMAGES_GIB", "LLMD_SOURCE", "SGLANG_SOURCE"),
    *("TEST_PYTHON", "VLLM_SOURCE", "WARM_GIB"),
)
_OF_SIMULATORS = "GCR_SIM_"  # a plugin's may know others


def misnamed(environ: Iterable[str]) -> list[str]:
    """A line for each variable of gcr's prefix that has no meaning, with the one that may have been meant."""
    known = {*(name for name, _ in VARIABLES), *map(environment_name, [*settings(), *_TESTS])}
    ours = (name for name in environ if name.startswith("GCR_") and not name.startswith(_OF_SIMULATORS))
    strange = sorted(name for name in ours if name not in known)
    return [f"{name} is set and means nothing{meant(name, known)}" for name in strange]


def markdown_table() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES]
    return "\n".join(["| variable | meaning |", "|---|---|", *rows])
