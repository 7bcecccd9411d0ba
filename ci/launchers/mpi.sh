#!/usr/bin/env bash
# The conformance suite over the hosts of an Open MPI job: HOSTS=host1,host2 ci/launchers/mpi.sh --devices cpu-2x4
# JAX reads this host's place from the variables of mpirun; mpi4py is needed from Open MPI 5 on, and not before.
set -euo pipefail

export HOSTCB_CONFORMANCE_KEY="${HOSTCB_CONFORMANCE_KEY:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}"

# One process on each host. -x hands a variable on to the other hosts.
exec mpirun --host "${HOSTS:?the hosts, with commas between them}" --map-by ppr:1:node \
  -x HOSTCB_CONFORMANCE_KEY -x PYTHONPATH -x PATH \
  "${PYTHON:-python3}" -m conformance run --spread hosts "$@"
