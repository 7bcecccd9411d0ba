#!/bin/bash
# Slurm: the cells of one platform in an array of jobs, and one report after them.
#
#   job=$(sbatch --parsable --array=1-8 ci/matrix/slurm.sh --platform cuda)
#   sbatch --dependency=afterany:$job ci/matrix/slurm.sh --merge
#
# The arguments select cells, and the environment has JAX and the suite. SHARDS is a folder that all machines see.
#SBATCH --job-name=conformance
#SBATCH --requeue
set -euo pipefail

shards=${SHARDS:-shards}

if [ "${1:-}" = --merge ]; then
    code=0
    python -m conformance merge "$shards"/shard-* --results "${RESULTS:-results}" || code=$?
    python -m conformance report "${RESULTS:-results}" --html "${RESULTS:-results}/page.html"
    exit $code
fi

number=$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN + 1))
results=$shards/shard-$number
# A job that was requeued, after its machine stopped or somebody else needed it, goes on.
resume=()
if compgen -G "$results/journal-*.jsonl" > /dev/null && ! compgen -G "$results/conformance-*.json" > /dev/null; then
    resume=(--resume)
fi
exec python -m conformance run "$@" --shard "$number/$SLURM_ARRAY_TASK_COUNT" --results "$results" "${resume[@]}"
