#!/usr/bin/env bash
# What a machine with an NVIDIA GPU is rented for: checks, losses, and the benchmark beside the machine's own PyTorch.
#
#   tests/gpu/run.sh PART...    check, losses, 124m, 350m, 1.5b, llama, or all
#
#   --output DIR     where results go: PART.json, PART.log, traces [default: $OUT, or gpu-results]
#   --sequence N     of the benchmark, may be repeated [default: 1024 and 2048]
#   --rehearse       on the processor with toys, to see that the scripts themselves work
#
# It needs the repository (or what pack.sh made of it), the stripped binary, and Python 3.11 or later with PyTorch and NumPy; no
# Rust and no network. TRAINYARD names the binary [default: bin/trainyard, or target/release/trainyard], PYTHON the Python
# [default: python3]. Each part ends within 8 minutes; one that fails does not stop the others. The exit status is 1 if any
# did.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
parts_known=(check losses 124m 350m 1.5b llama)
# A part ends by itself after the first, so that it has its results; what hangs is ended after the second.
part_seconds=450
kill_seconds=475

usage() {
    sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | grep '^#' | sed 's/^# \{0,1\}//' >&2
    exit 2
}

parts=()
passed_on=()
output=${OUT:-gpu-results}
while (($#)); do
    case $1 in
        --output) output=${2:?--output takes a folder}; shift ;;
        --sequence) passed_on+=(--sequence "${2:?--sequence takes a number}"); shift ;;
        --rehearse) passed_on+=(--rehearse) ;;
        all) parts+=("${parts_known[@]}") ;;
        *)
            if [[ " ${parts_known[*]} " != *" $1 "* ]]; then
                usage
            fi
            parts+=("$1")
            ;;
    esac
    shift
done
((${#parts[@]})) || usage

python=${PYTHON:-python3}
trainyard=${TRAINYARD:-}
if [[ -z $trainyard ]]; then
    trainyard=$root/bin/trainyard
    [[ -x $trainyard ]] || trainyard=$root/target/release/trainyard
fi
if [[ ! -x $trainyard ]]; then
    echo "$trainyard is not there: TRAINYARD=PATH says where the binary is" >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is not a Python of 3.11 or later: PYTHON=PATH says where one is" >&2
    exit 2
fi
mkdir -p "$output"

# NVRTC, cuBLASLt, cuDNN and NCCL lie inside the Python environment: Trainyard looks there if it knows which.
VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)')
export VIRTUAL_ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# GPUs are numbered as nvidia-smi numbers them.
export CUDA_DEVICE_ORDER=PCI_BUS_ID

# Runs a part with its own time limit; its log is kept beside its results.
run_part() {
    local part=$1 script
    case $part in
        check | losses) script=$part.py ;;
        *) script=benchmark.py ;;
    esac
    rm -f "$output/$part.json"
    timeout --kill-after=5 "$kill_seconds" "$python" "$here/$script" "$part" --trainyard "$trainyard" --output "$output" \
        --seconds "$part_seconds" ${passed_on[@]+"${passed_on[@]}"} 2>&1 | tee "$output/$part.log"
    local status=${PIPESTATUS[0]}
    if ((status == 124 || status == 137)); then
        echo "$part was ended after $kill_seconds s: it hung" | tee -a "$output/$part.log"
    fi
    if [[ ! -e $output/$part.json ]]; then
        printf '{"part": "%s", "passed": false, "error": "it ended with status %d; see %s.log"}\n' "$part" "$status" "$part" \
            > "$output/$part.json"
    fi
    return "$status"
}

failed=0
summary=()
for part in "${parts[@]}"; do
    printf '\n== %s\n' "$part"
    began=$SECONDS
    if run_part "$part"; then
        verdict=passed
    else
        verdict=FAILED
        failed=1
    fi
    summary+=("$(printf '%-8s %s after %d s' "$part" "$verdict" $((SECONDS - began)))")
done

printf '\n== results in %s\n' "$output"
printf '%s\n' "${summary[@]}" | tee "$output/summary.txt"
exit "$failed"
