#!/usr/bin/env bash
# The first commands on a machine with an NVIDIA GPU that Trainyard has not run on: every step under a limit of its own, and
# none stops the others.
#
#   tests/gpu/first.sh [1]    what works at all, in 9 minutes: the steps at the end of this file
#   tests/gpu/first.sh 2      losses, then compute-sanitizer, in 9.5 minutes: parts of run.sh
#   tests/gpu/first.sh 3      the benchmark of GPT-2 124M and 350M, in 9.5 minutes: parts of run.sh
#   tests/gpu/first.sh --list prints the name and the command of each step, for pack.sh
#
# A step that fails is repeated with TRAINYARD_SYNC=1 and the libraries' logs, if the repeat has as much time as the step took, and
# if the step is not of the kind that measures products or needs ncu; after a fault of the GPU or of the program,
# compute-sanitizer runs it as well, where it is installed. What is learnt from a failure holds for all later steps: where
# the driver lies, where the libraries lie, and that CUDA graphs are refused. After each step all results are packed into one
# archive under 16 MiB: $OUT/first.tar.gz, or gpu-results.tar.gz without $OUT. Its summary.txt has a line a step. A step whose
# tool is not installed is absent, which is no failure.
#
# FIRST_SECONDS is the time for everything [default: 540]; late steps are cut short or not run. Of it, DIAGNOSIS_SECONDS
# [default: 150] may go to repeats and compute-sanitizer. The exit status is 1 if a step failed or was not run. TRAINYARD,
# DEVICES and PYTHON name the programs, as for run.sh; DRIVER_FOLDER a folder to look for the driver in.
set -uo pipefail

# shellcheck source=tests/gpu/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-1} in
    1 | --list) ;;
    2) PART_SECONDS=${PART_SECONDS:-265} exec "$here/run.sh" losses sanitizer ;;
    3) PART_SECONDS=${PART_SECONDS:-265} exec "$here/run.sh" --sequence 1024 124m 350m ;;
    *) usage ;;
esac

find_programs
prints=
if [[ ${1:-1} == --list ]]; then
    prints=1 output=OUTPUT
else
    set_environment
    choose_output first ""
fi
devices=${DEVICES:-$programs/bin/devices}
driver_folder=${DRIVER_FOLDER:-/usr/local/nvidia/lib64}

commit=$("$python" -c 'import sys; sys.path.insert(0, sys.argv[1]); import part; print(part.commit() or "unknown")' "$here")
seconds=${FIRST_SECONDS:-540}
diagnosis_left=${DIAGNOSIS_SECONDS:-150}
# Limits of steps are divided by this number where the script is rehearsed.
divisor=${LIMIT_DIVISOR:-1}
# No command is begun with less time than this.
least=3
# A repeat, and a run of compute-sanitizer, take at most so long.
repeat_seconds=$((60 / divisor))
((repeat_seconds < least)) && repeat_seconds=$least

fault='CUDA_ERROR_(ILLEGAL|MISALIGNED|LAUNCH_FAILED|LAUNCH_TIMEOUT|HARDWARE|INVALID_PC|INVALID_ADDRESS_SPACE|ASSERT)'
fault+='|illegal memory access|misaligned address|unspecified launch failure|device-side assert'

running=
sampler=
names=()
declare -A verdicts took notes

# Prints a line for each step.
summary() {
    local name
    printf 'first.sh, commit %s, %d of %d s\n' "$commit" "$SECONDS" "$seconds"
    for name in "${names[@]}"; do
        printf '%-24s %-7s %4s s  %s\n' "$name" "${verdicts[$name]}" "${took[$name]}" "${notes[$name]}"
    done
}

# Writes the summary and the archive anew.
refresh() {
    summary > "$output/summary.txt"
    pack_results
}

finish() {
    [[ -n $running ]] && kill "$running" 2>/dev/null
    [[ -n $sampler ]] && kill "$sampler" 2>/dev/null
    refresh
    rm -rf "$scratch"
}

# The seconds that a command may take whose own limit is given: less than that if the time is nearly up.
allowed() {
    local limit=$(($1 / divisor)) left=$((seconds - SECONDS - 2))
    ((limit < least)) && limit=$least
    ((limit > left)) && limit=$left
    echo "$limit"
}

# Runs a command for at most so many seconds. The trap can end it: bash runs traps while it waits, but not in the foreground.
limited() {
    local limit=$1
    shift
    timeout --kill-after=2 "$limit" "$@" < /dev/null &
    running=$!
    wait "$running"
    local status=$?
    running=
    return "$status"
}

# Whether the output of an attempt has a line like this.
says() {
    grep --quiet --extended-regexp "$2" "$output/$1.out" "$output/$1.log" 2>/dev/null
}

# Runs a command under a name, then its check, a function that is given the name. FOLDER in the command is the folder of a run.
# Sets `note` to what was found or went wrong, and `faulty` if the GPU or the program faulted.
attempt() {
    local name=$1 limit=$2 check=$3 folder=$scratch/$1 kept
    shift 3
    STEP=$name limited "$limit" "${@//FOLDER/$folder}" > "$output/$name.out" 2> "$output/$name.log"
    local status=$?
    for kept in metrics.jsonl plan.json timeline.json; do
        [[ -e $folder/$kept ]] && mv "$folder/$kept" "$output/$name.$kept"
    done
    rm -rf "$folder"
    # 124 and 137 say that the time was up, 129 and more that a signal ended the program.
    if ((status > 128 && status != 137)) || says "$name" "$fault"; then
        faulty=1
    fi
    if ((status)); then
        note=$("$python" "$here/first.py" error "$status" "$limit" "$output/$name.log" "$output/$name.out")
        # Rates and times that were measured before the failure count.
        if [[ $check == check_products || ($check == check_beside && -e $output/$name.metrics.jsonl) ]]; then
            note+="; $("$check" "$name" 2>&1)"
            note=${note%%$'\n'*}
        fi
        return 1
    fi
    note=$("$check" "$name" 2>&1)
    status=$?
    note=${note%%$'\n'*}
    return "$status"
}

# Changes the environment of all later attempts by what a failed one said.
learn() {
    local name=$1 wheels
    if says "$name" 'libcuda\.so\.1 was not found' && [[ -e $driver_folder/libcuda.so.1 ]]; then
        export LD_LIBRARY_PATH=$driver_folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        learnt+="; from here on LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
    fi
    if [[ -z ${TRAINYARD_CUDA_LIBS:-} ]] && says "$name" 'lib(nvrtc|cublasLt|cudnn)\.so\.[0-9]+ was not found'; then
        wheels=$("$python" "$here/first.py" libraries)
        if [[ -n $wheels ]]; then
            export TRAINYARD_CUDA_LIBS=$wheels
            learnt+="; from here on TRAINYARD_CUDA_LIBS=$wheels"
        fi
    fi
    if [[ ${TRAINYARD_GRAPHS:-} != 0 && -z $faulty ]] && says "$name" 'TRAINYARD_GRAPHS=0'; then
        export TRAINYARD_GRAPHS=0
        learnt+="; from here on TRAINYARD_GRAPHS=0"
    fi
}

# Repeats a failed command, which took so many seconds, with everything that may say why it failed. Sets `again` to the result.
diagnose() {
    local spent=$1 name=$2 limit check=$4 error=$note began=$SECONDS
    if [[ $name == products || $name == ncu-* ]]; then
        again="; not repeated"
        return
    fi
    limit=$(allowed "$3")
    shift 4
    ((limit > repeat_seconds)) && limit=$repeat_seconds
    ((limit > diagnosis_left)) && limit=$diagnosis_left
    again="; not repeated: no time left"
    ((limit < least)) && return
    again="; not repeated: it took $spent s, and the repeat would have $limit s"
    ((limit < spent)) && return
    if attempt "$name.again" "$limit" "$check" env TRAINYARD_SYNC=1 \
        CUBLASLT_LOG_LEVEL=5 CUBLASLT_LOG_FILE="$output/$name.cublaslt.log" \
        CUDNN_LOGLEVEL_DBG=3 CUDNN_LOGDEST_DBG="$output/$name.cudnn.log" "$@"; then
        again="; again with TRAINYARD_SYNC=1: passed"
    else
        [[ $note == "$error" ]] && note="the same"
        again="; again with TRAINYARD_SYNC=1: $note"
    fi
    diagnosis_left=$((diagnosis_left - (SECONDS - began)))
    if [[ -n $faulty ]]; then
        sanitize "$name" "$@"
    fi
}

# Runs a command that faulted under compute-sanitizer.
sanitize() {
    local name=$1 sanitizer limit began=$SECONDS
    shift
    sanitizer=$("$python" "$here/tools.py" compute-sanitizer)
    if [[ -z $sanitizer ]]; then
        again+="; compute-sanitizer is not installed"
        return
    fi
    limit=$(allowed 60)
    ((limit > diagnosis_left)) && limit=$diagnosis_left
    if ((limit < least)); then
        again+="; no time left for compute-sanitizer"
        return
    fi
    if attempt "$name.sanitizer" "$limit" true "$sanitizer" --target-processes all --error-exitcode 1 "$@"; then
        again+="; compute-sanitizer finds nothing"
    else
        again+="; compute-sanitizer: $note"
    fi
    diagnosis_left=$((diagnosis_left - (SECONDS - began)))
}

# A step: its name, its limit in seconds, the check of its result, and the command. The first pass over the steps only lists
# them, so that the summary names each from the beginning.
step() {
    local name=$1 limit began=$SECONDS note="" faulty="" learnt="" again=""
    if [[ -n $listing ]]; then
        [[ -n $prints ]] && echo "$name" "${@:4}"
        names+=("$name")
        verdicts[$name]="not run" took[$name]=- notes[$name]=
        return
    fi
    limit=$(allowed "$2")
    if ((limit < least)); then
        notes[$name]="no time left"
        return
    fi
    # What the last summary says of it if the script is ended from outside.
    verdicts[$name]=running
    if attempt "$name" "$limit" "${@:3}"; then
        verdicts[$name]=passed notes[$name]=$note
    else
        local error=$note spent=$((SECONDS - began))
        # Ending a step that hangs takes seconds too.
        ((spent > limit)) && spent=$limit
        learn "$name"
        diagnose "$spent" "$@"
        verdicts[$name]=FAILED notes[$name]=$error$again$learnt
    fi
    took[$name]=$((SECONDS - began))
    printf '%-24s %-7s %4s s  %s\n' "$name" "${verdicts[$name]}" "${took[$name]}" "${notes[$name]}"
    refresh
}

# A step that needs a tool, by the tool's name and the arguments of `step`, with TOOL in place of the tool's path.
tool_step() {
    local tool=$1 path name=$2
    shift
    path=$("$python" "$here/tools.py" "$tool")
    if [[ -z $path && -z $listing ]]; then
        verdicts[$name]=absent notes[$name]="$tool is not installed"
        printf '%-24s %-7s %4s s  %s\n' "$name" absent - "${notes[$name]}"
        return
    fi
    step "${@//TOOL/$path}"
}

# The command line that trains a model of testdata, in `command`.
train() {
    local model=$1
    shift
    command=("$trainyard" compile "$root/testdata/$model.onnx" -o FOLDER --train synthetic "$@")
}

check_nothing() { :; }

check_doctor() {
    "$python" "$here/first.py" doctor "$output/$1.out"
}

# An MLP's losses are the same to the last bit, however its commands reach the GPU.
check_equal() {
    "$python" "$here/first.py" equal "$output/$1.metrics.jsonl" "$output"/mlp-{sync,commands,graphs}.metrics.jsonl
}

# Losses of the model named by `model` are within `bound` of the processor's, which are computed when they are first needed.
check_losses() {
    local reference=$output/processor-$model.metrics.jsonl
    if [[ ! -e $reference ]]; then
        train "models/$model" --device cpu --steps 6
        limited 20 "${command[@]//FOLDER/$scratch/processor}" > "$output/processor-$model.log" 2>&1
        mv "$scratch/processor/metrics.jsonl" "$reference" 2>/dev/null
        rm -rf "$scratch/processor"
    fi
    "$python" "$here/first.py" losses "$bound" "$output/$1.metrics.jsonl" "$reference"
}

check_steps() {
    "$python" "$here/first.py" steps 30 "$output/$1".{metrics.jsonl,plan.json} "$output/memory.csv"
}

# The time of a step beside that of gpt2-124m, whose losses it has too.
check_beside() {
    "$python" "$here/first.py" beside "$output/$1.metrics.jsonl" "$output/gpt2-124m.metrics.jsonl"
}

# The rates as a page, products.txt, and as JSON, products.json.
check_products() {
    "$python" "$here/first.py" products "$output/$1.out" "$output/$1"
}

# The ten kernels that took longest, in longest.txt: a regular expression of their names for ncu.
check_longest() {
    "$python" "$here/first.py" longest "$output/$1.out" "$output/longest.txt"
}

# The test binary also exits with 0 where none of its tests was chosen: at least one must have passed.
check_tests() {
    grep --extended-regexp '^test result: ok\. [1-9]' "$output/$1.out" || { echo "no test ran"; return 1; }
}

# Six steps of a model in a precision, by the name of the step, with more variables of the environment. `bound` is the largest
# relative difference of a loss from the processor's.
six_steps() {
    local name=$1 model=$2 precision=$3 bound=$4
    shift 4
    train "models/$model" --device cuda --steps 6 --precision "$precision"
    step "$name" 20 check_losses env "$@" "${command[@]}"
}

# On the processor itself bf16 makes losses differ by 7e-4, those of ResNet by 1e-2, whose batch norms amplify rounding.
models() {
    local model
    six_steps gpt2-fp32 gpt2.dynamo fp32 1e-3
    six_steps gpt2-bf16-own gpt2.dynamo bf16 5e-3 TRAINYARD_ATTENTION=own
    six_steps gpt2-bf16 gpt2.dynamo bf16 5e-3
    for model in llama bert t5 mixtral; do
        six_steps "$model-fp32" "$model.dynamo" fp32 1e-3
        six_steps "$model-bf16" "$model.dynamo" bf16 5e-3
    done
    six_steps resnet-fp32 resnet.legacy-trainmode fp32 5e-3
    six_steps resnet-bf16 resnet.legacy-trainmode bf16 4e-2
}

# Tests of the devices binary, by its arguments.
tests() {
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" check_tests env RUST_BACKTRACE=0 "$devices" --ignored --test-threads=1 "$@"
}

steps() {
    local command
    step nvidia-smi 10 check_nothing nvidia-smi
    step doctor 15 check_doctor "$trainyard" doctor --json
    step doctor-check 150 check_nothing "$trainyard" doctor --check --json
    tests devices-memory 30 cuda::gpu::memory cuda::gpu::more_memory
    tests devices-multiply 60 cuda::gpu --skip memory --skip by_cudnn --skip kernels_agree
    train models/mlp.dynamo --device cuda --steps 8
    step mlp-sync 15 check_equal env TRAINYARD_SYNC=1 "${command[@]}"
    step mlp-commands 15 check_equal env TRAINYARD_GRAPHS=0 "${command[@]}"
    step mlp-graphs 15 check_equal "${command[@]}"
    models
    tests devices-cudnn 60 by_cudnn
    train bench/gpt2-124m --device cuda --steps 30 --bf16 --microbatch 16 --seq 1024 --init gpt2
    step gpt2-124m 40 check_steps "${command[@]}"
    # Three times that decide designs, of fewer steps, so that each fits into its limit.
    train bench/gpt2-124m --device cuda --steps 12 --bf16 --microbatch 16 --seq 1024 --init gpt2
    step without-epilogues 20 check_beside env TRAINYARD_EPILOGUES=0 "${command[@]}"
    step own-attention 20 check_beside env TRAINYARD_ATTENTION=own "${command[@]}"
    step without-side-stream 20 check_beside env TRAINYARD_SIDE_STREAM=0 "${command[@]}"
    train bench/gpt2-124m --device cuda --steps 30 --bf16 --microbatch 16 --seq 1024 --init gpt2
    step gpt2-124m-profile 40 check_steps "${command[@]}" --profile
    step products 75 check_products "$trainyard" doctor --part gpu:0/products/0-59
    # ncu times every kernel of two steps, and then looks closely at the first launch of the ten longest. It is given no graphs.
    # Clocks are those of a run, and the times have caches as a run has them.
    train bench/gpt2-124m --device cuda --steps 2 --bf16 --microbatch 16 --seq 1024 --init gpt2
    tool_step ncu ncu-times 40 check_longest env TRAINYARD_GRAPHS=0 TOOL --csv --page raw --print-units base --target-processes all \
        --clock-control none --cache-control none --metrics gpu__time_duration.sum "${command[@]}"
    tool_step ncu ncu-longest 60 check_nothing env TRAINYARD_GRAPHS=0 TOOL --set full --target-processes all \
        --clock-control none --kernel-id "::regex:$(cat "$output/longest.txt" 2>/dev/null || echo '.*'):1" --launch-count 10 --export "$output/longest" \
        "${command[@]}"
}

listing=1
steps
listing=
[[ -n $prints ]] && exit 0
# Folders of runs: weights and checkpoints, which are no results.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/trainyard-first-XXXXXX")
trap 'exit 1' TERM INT
trap finish EXIT
refresh

# The memory in use, in MiB, four times a second.
if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=250 < /dev/null > "$output/memory.csv" 2>&1 &
    sampler=$!
fi

steps

printf '\n'
summary
printf 'results in %s and %s\n' "$output" "$archive"
for name in "${names[@]}"; do
    [[ ${verdicts[$name]} == passed || ${verdicts[$name]} == absent ]] || exit 1
done
