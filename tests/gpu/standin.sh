#!/usr/bin/env bash
# Stands in for trainyard, the devices test binary, nvidia-smi, compute-sanitizer and ncu where rehearse.py rehearses first.sh on
# a machine without a GPU. It is called by one of these names.
#
# FAULTS plants a fault in each step of a list `STEP=FAULT ...`; first.sh says in STEP which step it runs. A repeat has the
# fault of its step, but for those faults that end with what first.sh does about them.
set -u

# What this process can see of its environment, for the rehearsal to check.
printf 'sync=%s graphs=%s driver=%s libraries=%s logs=%s\n' "${TRAINYARD_SYNC:-}" "${TRAINYARD_GRAPHS:-}" \
    "${LD_LIBRARY_PATH:-}" "${TRAINYARD_CUDA_LIBS:-}" "${CUBLASLT_LOG_LEVEL:-}${CUDNN_LOGLEVEL_DBG:-}" >&2

planted() {
    local step=${STEP:-} fault
    step=${step%.again}
    for fault in ${FAULTS:-}; do
        [[ ${fault%%=*} == "$step" ]] && echo "${fault#*=}"
    done
}

# The losses of a run: they fall; a third argument is added to each.
run() {
    local folder=$1 steps=$2 more=${3:-0} i
    mkdir -p "$folder"
    echo '{"memory": {"peak": 1048576}}' > "$folder/plan.json"
    for ((i = 0; i < steps; i++)); do
        printf '{"step": %d, "loss": %d.5, "step_ms": 1.0}\n' "$i" $((9 - i % 5 + more))
    done > "$folder/metrics.jsonl"
}

doctor() {
    local driver='"cuda": "13.0"' libraries='"version": "13.0"'
    [[ $fault == no-driver && ${LD_LIBRARY_PATH:-} != *driver* ]] && driver='"error": "libcuda.so.1 was not found: install it"'
    [[ $fault == no-library && -z ${TRAINYARD_CUDA_LIBS:-} ]] && libraries='"error": "libnvrtc.so.13 was not found: pip"'
    printf '{"driver": {"file": "libcuda.so.1", %s},\n"gpus": [{"name": "NVIDIA Stand-in"}],\n' "$driver"
    printf '"libraries": [{"file": "libnvrtc.so.13", %s}]}\n' "$libraries"
}

# Rates of two products, a line of JSON each; the second is missing if it could not be measured, which the exit status says.
products() {
    local second='"value": 612.5' status=0
    [[ $fault == wrong ]] && second='"error": "out of memory"' status=3
    printf '{"rates": [0, [{"name": "toy_forward", "sizes": "[2] and [3]", "unit": "TFLOP/s", "value": 400.25}]]}\n'
    printf '{"rates": [1, [{"name": "toy_backward", "sizes": "[3] and [2]", "unit": "TFLOP/s", %s}]]}\n"done"\n' "$second"
    return "$status"
}

# ncu's table of launches: eleven kernels, of which the first is the shortest; before them a trial, and lines of the program. The
# names of four kernels have the forms of libraries.
launches() {
    local i names
    names=([8]="kernel_8(int)" [9]="void (anonymous namespace)::kernel_9<float>(int)" [10]="(kernel_10)"
        [11]="std::enable_if<(bool)1, void>::type space::kernel_11<wide<(int)2>, float (*)(int)>(float *, T2::Params<int>)")
    printf '==PROF== Connected to process 1\n"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n'
    [[ $fault == wrong ]] && return
    for i in {1..11}; do
        printf '"%d","trial(int)","9,000,000"\n' $((i - 1))
    done
    for i in {1..11}; do
        printf '"%d","%s","%d,000"\n' $((i + 10)) "${names[i]:-void space::kernel_$i<float>(float *, int)}" "$i"
    done
}

name=$(basename "$0")
if [[ $name == nvidia-smi && $* == *--loop-ms* ]]; then
    echo 1234
    exec sleep 1000
fi
if [[ $name == compute-sanitizer ]]; then
    echo "========= COMPUTE-SANITIZER"
    echo "========= Invalid write, planted"
    exit 1
fi
fault=$(planted)
[[ $* == *"--device cpu"* ]] && fault=
case $fault in
    fail) echo "error: planted in $STEP" >&2; exit 1 ;;
    hang) exec sleep 1000 ;;
    crash) ulimit -c 0; kill -SEGV $$ ;;
    abort) ulimit -c 0; kill -ABRT $$ ;;
    illegal) echo "error: CUDA_ERROR_ILLEGAL_ADDRESS" >&2; exit 1 ;;
    # It goes on when it is asked to end, and keeps a child that does so.
    stubborn) trap '' TERM; sleep 1000; sleep 1000 ;;
    loud) head -c 60000000 /dev/urandom | base64; echo "error: planted, after much else" >&2; exit 1 ;;
    refused)
        if [[ ${TRAINYARD_GRAPHS:-} != 0 && -z ${TRAINYARD_SYNC:-} ]]; then
            echo "error: capture failed; with TRAINYARD_GRAPHS=0 a run captures no CUDA graphs" >&2
            exit 1
        fi
        ;;
esac
case "$name ${1:-}" in
    "trainyard doctor") if [[ $2 == --part ]]; then products; else doctor; fi ;;
    ncu*) if [[ $1 == --csv ]]; then launches; fi ;;
    "trainyard compile")
        while (($#)); do
            case $1 in
                -o) folder=$2 ;;
                --steps) steps=$2 ;;
            esac
            shift
        done
        wrong=0
        [[ $fault == wrong ]] && wrong=1
        # It hangs after so many steps.
        [[ $fault == after-* ]] && steps=${fault#after-}
        run "$folder" "$steps" "$wrong"
        if [[ $fault == after-* ]]; then exec sleep 1000; fi
        ;;
    devices*)
        passed=1
        [[ $fault == wrong ]] && passed=0
        echo "test result: ok. $passed passed; 0 failed"
        ;;
    nvidia-smi*) echo "NVIDIA Stand-in" ;;
esac
