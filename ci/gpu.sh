#!/usr/bin/env bash
# All that a machine with an NVIDIA GPU can show, with one command, from a bare machine with Python and pip:
# the whole CUDA matrix, the recipes for DLPack, the benchmarks, and a bundle of the results.
#
#   ci/gpu.sh [FOLDER]      writes everything to FOLDER, by default gpu-results
#   ci/gpu.sh --dry-run     prints the commands
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run=false
if [ "${1:-}" = "--dry-run" ]; then
  dry_run=true
  shift
fi
results="${1:-gpu-results}"
python="${PYTHON:-python3}"
# Newer releases of JAX need a newer Python.
if "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then newest=0.10.2; else newest=0.12.0.1; fi
jax="${JAX_VERSION:-$newest}"
environment="${ENVIRONMENT:-.venv-gpu}"
failed=""

# Each step runs, also after one that failed; the exit code is 1 if any did.
step() {
  name="$1"
  shift
  echo "== $name: $*"
  if [ "$dry_run" = false ] && ! "$@"; then
    echo "== $name FAILED"
    failed="$failed $name"
  fi
}

required() {
  echo "== $*"
  if [ "$dry_run" = false ]; then
    "$@"
  fi
}

if [ "$dry_run" = false ] && ! command -v nvidia-smi > /dev/null; then
  echo "ERROR: there is no nvidia-smi, so this machine has no NVIDIA GPU or no driver; ci/gpu.sh --dry-run prints the steps" >&2
  exit 2
fi
required "$python" -m venv "$environment"
run="$environment/bin/python"
required "$run" -m pip install --quiet -e . "jax[cuda13]==$jax" "pytest>=8.3" "pytest-xdist>=3.6" "hypothesis>=6.130"
if [ -n "${LIBRARIES:-}" ]; then
  # For the recipes, for example LIBRARIES="torch cupy-cuda13x numba-cuda triton"; words are packages.
  # shellcheck disable=SC2086
  step libraries "$run" -m pip install --quiet $LIBRARIES
fi
required mkdir -p "$results"

# Taps that C hands over on CUDA are not in main: commit ccbc018 has them and a check, ci/gpu_taps.py.
# A GPU is there: a run that would only compile must fail.
step matrix "$run" -m conformance run --platform cuda --depth run --results "$results"
# The tests use the CPU, with stand-ins for libraries; the recipes use the GPU, with the libraries that are installed.
step dlpack "$run" -m pytest -q tests/contract/test_dlpack_callback.py tests/contract/test_dlpack_results_on_gpu.py \
  tests/contract/test_buffer_callback.py
step recipes "$run" ci/gpu_recipes.py
step benchmarks "$run" -m benchmarks --json "$results/benchmarks.json"
step report "$run" -m conformance report "$results" --html "$results/matrix.html" --markdown "$results/matrix.md"
step bundle "$run" -m conformance bundle "$results"

if [ -n "$failed" ]; then
  echo "FAILED:$failed"
  exit 1
fi
echo "all is in $results"
