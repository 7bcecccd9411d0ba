#!/usr/bin/env bash
# The conformance suite over the hosts of a Cloud TPU slice: ci/launchers/cloud_tpu.sh NAME ZONE --devices tpu-2x4
# The folder of the project, with its environment in .venv, is on every host at the same place (FOLDER).
set -euo pipefail

name="${1:?the name of the TPU}" zone="${2:?its zone}"
shift 2
key="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"

# JAX asks the TPU's metadata for this host's place. Each host runs the same command.
exec gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all --command \
  "cd ${FOLDER:-hostcb} && HOSTCB_CONFORMANCE_KEY=$key .venv/bin/python -m conformance run --spread hosts --platform tpu ${*@Q}"
