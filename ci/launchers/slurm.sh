#!/usr/bin/env bash
# The conformance suite over the hosts of a Slurm job: sbatch --nodes 2 ci/launchers/slurm.sh --devices cpu-2x4
# The arguments are those of `run`; the first host writes the results.
#SBATCH --job-name=conformance
#SBATCH --ntasks-per-node=1
#SBATCH --time=01:00:00
set -euo pipefail

# A word that only this job knows: it keeps other programs of the network away from the run.
export HOSTCB_CONFORMANCE_KEY="${HOSTCB_CONFORMANCE_KEY:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}"

# JAX reads this host's place from the variables that srun sets.
exec srun --kill-on-bad-exit=0 "${PYTHON:-python3}" -m conformance run --spread hosts "$@"
