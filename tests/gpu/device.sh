#!/usr/bin/env bash
# Everything that needs a real GPU, in pieces of less than 8 minutes that can be run one by one and again.
#
#   tests/gpu/device.sh OUT PIECE...      each piece leaves OUT/PIECE.json; `list` names them, `report` makes OUT/report.md
#
# Works without a network: Python, PyTorch, cuda-bindings, cmake, ninja and a compiler are taken as found; wheels of
# whatever Python lacks (rich, msgspec, platformdirs, torch_memory_saver; for images blake3, obstore, liburing, cryptography, cffi)
# lie in the folder that GCR_WHEELS names.
# GCR_WARM_GIB (48): host memory touched once before timing; 0 for none. GCR_BENCHMARK_STORE: a folder on the disk that
# images are measured on, with room for two of GCR_IMAGES_GIB (32).
# `victims-*` swap the programs of tests/gpu/victims.py while they compute, each goes on where it stopped; `victims-two`
# needs two GPUs, as `shared-*`, `nccl`, `nccl-sockets`, `two-devices`, `two-driver` and `whole-two` do. `shared-training`,
# `shared-graphs`, `shared-others`: jobs of PyTorch whose processes share device memory, 50 swaps each; what they compute
# must be a bare run's. `nccl`: DDP with data that passes through host memory.
# `sharing-*` need two GPUs, and are for ranks that share device memory. `sharing-rates`: collectives and communicators,
# bare and under gcr; `sharing-alone`: the smallest, by many communicators. `sharing-swap`: swaps of 16 GiB a rank;
# `sharing-handles`: of many shared allocations. `sharing-standstill`: 60 standstills of each of three programs.
# `sharing-heartbeat`: suspended for longer than PyTorch's watchdog waits.
# `sharing-devices`: exchanged devices, then a failure at each step. With more GPUs these have a rank on each.
# `all-jobs`, `all-process`: 32 GiB a GPU (GCR_DEVICE_GIB) on all GPUs at once, by a job on each, and by one process.
# `all-ranks`: DDP and tensor-parallel ranks on all GPUs, three at least, 50 swaps each; `all-fsdp`: FSDP2.
# `python tests/gpu/compatibility.py OUT COMMIT` makes docs/compatibility.md of what they leave.
# `cold10` restores ten minutes after its checkpoint: the first call begins it and leaves a process behind (in a session
# of its own), later calls say how long is left, then bring the result. `soak` likewise: one training job, 1,000 swaps.
# `whole-8`, `whole-32`, `whole-context`, `whole-two` and `criu-8` need GCR_CRIU, a CRIU that works there (tools/fetch_criu.py brings one); `criu-8` also
# GCR_BENCHMARK_CRIU, a folder with CRIU's cuda_plugin.so of the same version and NVIDIA's cuda-checkpoint.
# `migrate` moves a job of GCR_MIGRATE_GIB (16) between two daemons through TCP, to another GPU where there are two, `migrate-host`
# with 2 GiB on the host, `migrate-busy` one that does not rest, GCR_MIGRATE_TIMES (1); needs
# GCR_CRIU, and a wheel of cryptography. Stores and arenas are in memory: 4 times that size.
# `restored-beside`: work of other processes beside a program that the driver restored, and traps of its kernels.
# `nodes-ddp`, `nodes-tensor`: two daemons with a rank each, joined by NCCL through sockets, cut as one job; needs two GPUs.
# `control-copies`, `control-at-once`: the driver's own checkpoint beside copies, by how they are queued, and of several programs.
# `resident-8`, `resident-32`: back from memory that stayed on the device, beside back from the host, in turns.
# `serve-room`, `serve-there`, `serve-warm`, `serve-others`: two models in turns behind `gcr serve` and without it; `serve-load`: 50 clients;
# `serve-image`: a server that is killed comes back from its image, which needs GCR_CRIU. `kept-copy`: swaps of a job that changes little.
# `saves`, `saves-every`, `saves-trained`: saves of a training's tensors by gcr.torch; `saves-others`, `saves-pccheck`: by torch.save
# and DCP, and by the method of PCcheck.
# `endings`: 300 programs that end, each in one of twelve ways at a random instant of a swap; a later call goes on.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
build=${GCR_DEVICE_BUILD:-$root/build/device}
site=$build/site

if [ $# -lt 2 ]; then
  sed -n '2,37s/^# \{0,1\}//p' "$0"
  exit 2
fi
mkdir -p "$1" "$site"
out=$(cd "$1" && pwd)
shift

unpack_wheels() {
  [ -n "${GCR_WHEELS:-}" ] || return 0
  local wheel
  for wheel in "$GCR_WHEELS"/*.whl; do
    [ -e "$site/.$(basename "$wheel")" ] && continue
    "$python" -m zipfile -e "$wheel" "$site"
    touch "$site/.$(basename "$wheel")"
  done
}

build_native() {
  cmake -S "$root" -B "$build/native" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$build/cmake.log"
  cmake --build "$build/native" >>"$build/cmake.log"
}

unpack_wheels
export -n GCR_WHEELS GCR_DEVICE_BUILD  # settings of this script, which gcr would warn of
build_native || { tail -40 "$build/cmake.log"; exit 1; }

private=$(mktemp -d)
chmod 700 "$private"
export PYTHONPATH="$root/core:$root/integrations/torch:$root/backends/nvidia:$root/benchmarks:$site${PYTHONPATH:+:$PYTHONPATH}"
export GCR_PLUGINS=gcr_nvidia GCR_NATIVE_DIR="$build/native" PYTHONDONTWRITEBYTECODE=1
export XDG_RUNTIME_DIR="$private" XDG_STATE_HOME="$private/state" XDG_DATA_HOME="$private/data"
finish() {
  "$python" -m gcr daemon stop >/dev/null 2>&1 || true
  find "$private/state" -name '*.log' -exec cat {} + >"$out/daemon.log" 2>/dev/null || true
  rm -rf "$private"
}
trap finish EXIT

status=0
for piece in "$@"; do
  echo "== $piece"
  result=0
  timeout --kill-after=40 470 "$python" "$root/tests/gpu/device.py" "$out" "$piece" || result=$?
  case $result in
    0) ;;
    3) echo "== $piece: under way, run it again later" ;;
    *) status=$result; echo "== $piece: FAILED ($result)" ;;
  esac
done
exit "$status"
