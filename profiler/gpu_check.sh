#!/usr/bin/env bash
# Throughput and co-location on a GPU, in under six minutes: MiniLM, and a random-initialised decoder of
# about a billion parameters in bfloat16. Needs a CUDA build of torch.
#
#   profiler/gpu_check.sh [FOLDER]     writes gpu.db, profiles.json, all.csv and gpu.html (default: out/gpu)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-out/gpu}
mkdir -p "$out"
store="sqlite:///$out/gpu.db"
plan=$(command -v ymir-plan || echo .venv/bin/ymir-plan)
export OMP_NUM_THREADS=1

"$(dirname "$(readlink -f "$plan")")/python" - <<'PYTHON'
import sys
import torch
sys.exit(None if torch.cuda.is_available() else "gpu_check: no CUDA device, or torch without CUDA")
PYTHON

# what is measured stays: a second call goes on where the first was stopped
measure() {
    local code=0
    timeout "$3" "$plan" profile "$1" "examples/recipes/$2.toml" --budget "$4" --store "$store" || code=$?
    # running out of time is expected, failing is not
    ((code == 0 || code == 124)) || exit "$code"
}
measure throughput gpu-minilm 75 50s
measure colocation gpu-minilm 110 85s
measure throughput gpu-decoder 60 40s
measure colocation gpu-decoder 90 65s

"$plan" profile export --store "$store" -o "$out/profiles.json"
"$plan" profile export --store "$store" -o "$out/all.csv"
"$plan" profile report --store "$store" -o "$out/gpu.html"
echo "gpu_check: see $out/gpu.html"
