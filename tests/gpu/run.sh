#!/usr/bin/env bash
# Checks, losses, and the benchmark beside the machine's own PyTorch, on a machine with an NVIDIA GPU. first.sh comes before it.
#
#   tests/gpu/run.sh PART...    check, losses, processes, offload, 124m, 350m, 1.5b, llama, or all; sanitizer: compute-sanitizer alone,
#                            first over our kernels, then over models
#
#   --output DIR     where results go: PART.json, PART.log, traces [default: gpu-results, or a new folder in /tmp with $OUT]
#   --sequence N     of the benchmark, may be repeated [default: 1024 and 2048]
#   --rehearse       on the processor with toys, to see that the scripts themselves work
#
# It needs the repository (or what pack.sh made of it), the stripped binary, and Python 3.11 or later with PyTorch and NumPy; no
# Rust and no network. TRAINYARD names the binary [default: bin/trainyard; in the tree the newer of target/gpu/bin/trainyard and
# target/release/trainyard], PYTHON the Python [default: python3]. Each part ends by itself after PART_SECONDS [default: 450] and is ended 25 seconds later; one that fails
# does not stop the others. After each part all results are packed into one archive under 16 MiB: $OUT/run.tar.gz, or
# DIR.tar.gz without $OUT. The exit status is 1 if a part failed.
set -uo pipefail

# shellcheck source=tests/gpu/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parts_known=(check losses processes offload 124m 350m 1.5b llama)
parts_alone=(sanitizer)
# A part ends by itself after the first, so that it has its results; a part that hangs is ended after the second.
part_seconds=${PART_SECONDS:-450}
kill_seconds=$((part_seconds + 25))

parts=()
passed_on=()
output=
while (($#)); do
    case $1 in
        --output) output=${2:?--output takes a folder}; shift ;;
        --sequence) passed_on+=(--sequence "${2:?--sequence takes a number}"); shift ;;
        --rehearse) passed_on+=(--rehearse) ;;
        all) parts+=("${parts_known[@]}") ;;
        *)
            if [[ " ${parts_known[*]} ${parts_alone[*]} " != *" $1 "* ]]; then
                usage
            fi
            parts+=("$1")
            ;;
    esac
    shift
done
((${#parts[@]})) || usage

find_programs
set_environment
choose_output run "$output"
rm -f "$output/summary.txt"

# Runs a part with its own time limit; its log is kept beside its results.
run_part() {
    local part=$1 script
    case $part in
        check | sanitizer) script=check.py ;;
        losses) script=losses.py ;;
        processes) script=processes.py ;;
        offload) script=offload.py ;;
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
for part in "${parts[@]}"; do
    printf '\n== %s\n' "$part"
    began=$SECONDS
    if run_part "$part"; then
        verdict=passed
    else
        verdict=FAILED
        failed=1
    fi
    printf '%-9s %s after %d s\n' "$part" "$verdict" $((SECONDS - began)) >> "$output/summary.txt"
    pack_results
done

printf '\n== results in %s and %s\n' "$output" "$archive"
cat "$output/summary.txt"
exit "$failed"
