# shellcheck shell=bash
# Shared by first.sh and run.sh, which source it: the programs, the environment, the folder of results and its archive.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}

# Prints the comment at the head of the script, which is its usage, and ends.
usage() {
    sed -n '2,/^set /p' "$0" | grep '^#' | sed 's/^# \{0,1\}//' >&2
    exit 2
}

# The programs of pack.sh: unpacked beside these files, or in `target` of the repository.
programs=$root
[[ -d $root/bin ]] || programs=$root/target/gpu

# Sets `trainyard` to the binary and checks Python; ends where one of them is missing.
find_programs() {
    trainyard=${TRAINYARD:-}
    if [[ -z $trainyard ]]; then
        trainyard=$programs/bin/trainyard
        # In the tree the newer binary counts: cargo's, if it was built after the archive was unpacked.
        [[ -x $trainyard && ! $root/target/release/trainyard -nt $trainyard ]] || trainyard=$root/target/release/trainyard
    fi
    if [[ ! -x $trainyard ]]; then
        echo "$trainyard is not there: TRAINYARD=PATH says where the binary is" >&2
        exit 2
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "$python is not a Python of 3.11 or later: PYTHON=PATH says where one is" >&2
        exit 2
    fi
}

# NVRTC, cuBLASLt, cuDNN and NCCL lie inside the Python environment: Trainyard looks there if it knows the environment.
# Compiled kernels are kept between processes, outside of the results.
set_environment() {
    VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)')
    export VIRTUAL_ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
    # GPUs are numbered as nvidia-smi numbers them.
    export CUDA_DEVICE_ORDER=PCI_BUS_ID
    local caches=${TMPDIR:-/tmp}/trainyard-gpu-caches
    # pack.sh has compiled kernels, which a driver takes if NVRTC is of the same version here. They are copied: others are added.
    if [[ -z ${TRAINYARD_CACHE:-} && ! -e $caches/trainyard && -d $programs/cache ]]; then
        mkdir -p "$caches" && cp -r "$programs/cache" "$caches/trainyard"
    fi
    export TRAINYARD_CACHE=${TRAINYARD_CACHE:-$caches/trainyard}
    export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$caches/inductor}
    export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$caches/triton}
}

# Sets `output`, the folder of results, and `archive`, which holds them all. $OUT is a folder whose few files are brought
# back from the machine: it gets the archive alone, and the results lie elsewhere.
choose_output() {
    local name=$1 given=$2
    output=$given
    if [[ -z $output && -n ${OUT:-} ]]; then
        output=$(mktemp -d "${TMPDIR:-/tmp}/trainyard-$name-XXXXXX")
    fi
    output=${output:-gpu-results}
    mkdir -p "$output"
    output=$(cd "$output" && pwd)
    archive=$output.tar.gz
    if [[ -n ${OUT:-} ]]; then
        archive=$OUT/$name.tar.gz
    fi
}

# Writes the archive anew. It is whole at any time: the new one takes the old one's place when it is complete.
pack_results() {
    "$python" "$here/archive.py" "$output" "$archive"
}
