#!/usr/bin/env bash
# One node: one rank per GPU, over NCCL; without a GPU, two ranks over gloo.
#
#   bash jobs/one_node.sh                                             train
#   bash jobs/one_node.sh jobs/train.py --strategy ddp fsdp           with arguments
#   bash jobs/one_node.sh -m collectives.measure.bandwidth                    measure instead
#   RANKS_PER_NODE=4 bash jobs/one_node.sh                            another number of ranks
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"

gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)   # 0 without a driver; `|| true` because pipefail is set
[ $# -gt 0 ] || set -- jobs/train.py --strategy fsdp

# --standalone: there are no other nodes, so torchrun picks a free port.
exec torchrun --standalone --nproc-per-node="${RANKS_PER_NODE:-$((gpus > 0 ? gpus : 2))}" "$@"
