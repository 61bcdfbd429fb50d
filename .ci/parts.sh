# The parts of `.ci/run`: a function `check_PART` each, below the functions that install what parts need. Each part runs in a shell of
# its own, which ends at the first command that fails.

# Python packages and results stay here from run to run.
work=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}/ci")
binary=${CARGO_TARGET_DIR:-target}/release/trainyard
python=$work/python/bin/python

# ---- What parts need -----------------------------------------------------------------------------------------------

# Packages of the distribution. Parts that run beside each other take turns.
install() {
    mkdir -p "$work"
    flock "$work/install.lock" bash -c 'apt-get update && apt-get install --yes "$@"' - "$@"
}

# A C++ compiler, which runs kernels for GPUs on the processor.
need_cxx() {
    c++ --version || install g++
}

# An MPI, by the names of its compiler and its packages.
need_mpi() {
    command -v "$1" || install "${@:2}"
    export MPICC=$1 MPIRUN=mpirun.${1#mpicc.}
}

# A Python environment with packages. One of another Python is made anew: it would have packages for both. Parts that run beside each
# other take turns.
environment() {
    local folder=$work/$1
    mkdir -p "$work"
    (
        flock 9
        [[ $("$folder/bin/python" --version 2>&1) == "$(python3 --version)" ]] || python3 -m venv --clear "$folder"
        "$folder/bin/python" -m pip install --quiet "${@:2}"
    ) 9> "$work/$1.lock"
}

# ONNX, ONNX Runtime and PyTorch.
need_python() {
    environment python -r testdata/requirements-check.txt -r testdata/requirements.txt
}

# A C++ compiler, and two versions of NVRTC, which compile kernels for GPUs. Tests take the pinned version; OLDEST_NVRTC has the other.
need_nvrtc() {
    need_cxx
    local version
    for version in nvrtc nvrtc-oldest; do
        environment "$version" --no-deps -r "testdata/requirements-$version.txt"
    done
    TRAINYARD_CUDA_LIBS=$(realpath "$work"/nvrtc/lib/python3*/site-packages/nvidia/cu13/lib)
    OLDEST_NVRTC=$(realpath "$work"/nvrtc-oldest/lib/python3*/site-packages/nvidia/cu13/lib)
    export TRAINYARD_CUDA_LIBS OLDEST_NVRTC
}

need_binary() {
    cargo build --release
}

# A command of the README, as it stands there: one of its first two indented lines.
readme_command() {
    grep '^    ' README.md | sed -n "${1}p" | sed 's/^    //'
}

# The folder of README's training run, which is started if it has not ended yet.
need_quickstart() {
    [[ -f $work/quickstart/model.onnx ]] || check_train
}

# An empty folder for the results of a part.
folder() {
    rm -rf "${work:?}/$1"
    mkdir -p "$work/$1"
}

# ---- Every run -----------------------------------------------------------------------------------------------------

check_format() {
    python3 .ci/nightly.py --test
    python3 .ci/tests.py --test
    cargo fmt --all --check
    local package
    for package in fuzz mpi runtime/comm/loom; do
        cargo fmt --check --manifest-path "$package/Cargo.toml"
    done
}

# The tree travels to a machine with a GPU, beside an archive of programs; both together may have 60 MiB. `gpu` adds them up, and this
# keeps 12 MiB for the archive where it is not packed.
check_fits() {
    git ls-files -z | du --files0-from=- --bytes --total --dereference-args \
        | awk 'END { mib = $1 / 2^20; printf "%.1f MiB of 48\n", mib; exit mib > 48 }'
}

check_clippy() {
    cargo clippy --workspace --all-targets -- -D warnings
}

check_documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
}

# The command of the README.
check_tests() {
    local command
    command=$(readme_command 2)
    echo "$command"
    bash -c "$command"
}

check_longer() {
    python3 .ci/tests.py longer "longer: random" "needs a C compiler"
}

# Kernels for GPUs on the processor, and by NVRTC.
check_stand-in() {
    need_nvrtc
    python3 .ci/tests.py "needs a C++ compiler" "needs NVRTC" "needs NVRTC of two versions" "needs NVRTC and nvdisasm"
}

check_oldest-nvrtc() {
    need_nvrtc
    TRAINYARD_CUDA_LIBS=$OLDEST_NVRTC python3 .ci/tests.py "needs NVRTC of two versions"
}

# The corpus is replayed by the tests (tests/fuzz_corpus.rs). `nightly` looks for more inputs.
check_fuzz-targets() {
    cargo check --locked --manifest-path fuzz/Cargo.toml
}

# ---- Beside them ----------------------------------------------------------------------------------------------------

# The other command of the README.
check_train() {
    local command
    command="$(readme_command 1) --output $work/quickstart"
    rm -rf "${work:?}/quickstart"
    echo "$command"
    bash -c "$command"
}

# Trained models and programs as ONNX files, by ONNX's checker and ONNX Runtime. A model with mixtures of experts is written from the
# program.
check_exports() {
    need_python
    need_quickstart
    "$python" tests/python/check_export.py "$work/quickstart/model.onnx" --against testdata/gpt2-bytes.onnx
    "$python" tests/python/check_written.py --trainyard "$binary"
    folder experts
    "$binary" compile testdata/gpt2-bytes.onnx --train testdata/kjv.txt --moe gshard,experts=4 --microbatch 8 --steps 10 \
        -o "$work/experts/run"
    "$python" tests/python/check_written.py --trainyard "$binary" "$work/experts/run/model.onnx"
}

# The set of trained tensors, ten steps and the trained file beside PyTorch's, for one file of each kind in docs/families.md; random
# runs of these files; sets of parameters over sizes and batches.
check_families-sample() {
    need_python
    need_binary
    folder families
    "$python" testdata/scripts/families "$work/families" --subset ci --trainyard "$binary"
    "$python" testdata/scripts/families/runs.py "$work/families" --count 20 --trainyard "$binary"
    folder axes
    "$python" testdata/scripts/families/axes.py "$work/axes" --trainyard "$binary"
}

# Forms of attention: found, or in a list with the reason.
check_attention-sample() {
    need_python
    need_binary
    "$python" testdata/scripts/attention_forms.py --trainyard "$binary"
}

# The page of a timetable, in a browser; and plans of memory of all kinds, replayed, with faults planted in each of them.
check_plans() {
    need_binary
    python3 tests/python/check_timetable.py --trainyard "$binary"
    python3 tests/python/check_plans.py --trainyard "$binary"
}

# The archives for a machine with a GPU, whose size is added to that of the tree: their losses on the processor, their first minutes
# with planted faults, and all of it up to the point where a GPU is needed. The test program is that of the tests above, which is
# there already; with --release it is packed smaller.
check_gpu() {
    need_nvrtc
    need_python
    need_binary
    folder gpu
    local own=$work/gpu archive step part
    DEVICES=$(cargo test --no-run --workspace --test devices --message-format=json \
        | sed -n 's/.*"executable":"\([^"]*devices-[^"]*\)".*/\1/p')
    command -v xz || install xz-utils
    DEVICES=$DEVICES TRAINYARD=$binary bash tests/gpu/pack.sh "$own" 2>&1 | tee "$own/pack.log"
    # The kernels of every model are among the programs: pack.sh itself goes on without them.
    grep --extended-regexp "no kernels of|no compiled kernels" "$own/pack.log" && false
    for archive in gpu.tar.xz gpu-files.tar.gz; do
        python3 -m tarfile -e "$own/$archive" "$own"
    done
    # Kernels compiled for an H100 are among the programs.
    find "$own/gpu/cache/cubins" -name '*.cubin' | awk 'END { print NR " compiled kernels"; exit NR < 300 }'
    export PYTHON=$python
    "$python" tests/gpu/rehearse_pack.py
    "$python" "$own/gpu/tests/gpu/rehearse.py"
    "$python" "$own/gpu/tests/gpu/rehearse_benchmark.py"
    "$own/gpu/tests/gpu/run.sh" losses offload --rehearse --output "$own/rehearsal"
    if [[ -n $(nvidia-smi -L 2>/dev/null) ]]; then
        return
    fi
    mkdir "$own/out"
    (cd "$own" && OUT=$own/out gpu/tests/gpu/first.sh) && false
    for step in doctor devices-memory devices-multiply mlp-graphs resnet-bf16 devices-cudnn gpt2-124m doctor-check; do
        tar --extract --to-stdout --file "$own/out/first.tar.gz" first/summary.txt \
            | grep --extended-regexp "^$step +FAILED .*(libcuda.so.1 was not found|the NVIDIA driver)"
    done
    "$own/gpu/tests/gpu/run.sh" all --output "$own/without" && false
    for part in check losses; do
        grep --extended-regexp -- "--device cuda: (libcuda.so.1 was not found|the NVIDIA driver)" "$own/without/$part.log"
    done
    for part in 124m 350m 1.5b llama; do
        grep --extended-regexp "has no PyTorch|PyTorch finds no GPU" "$own/without/$part.log"
    done
}

# ---- The night -----------------------------------------------------------------------------------------------------

# Licences, bans and sources.
check_packages() {
    cargo deny --version || cargo install --debug --locked cargo-deny --version 0.20.2
    cargo deny --offline check licenses bans sources
}

# Ranks as processes.
check_openmpi() {
    need_mpi mpicc.openmpi libopenmpi-dev openmpi-bin
    cargo test --workspace --features trainyard/mpi --test mpi_transport
    cargo test --workspace --features trainyard/mpi --test processes -- --test-threads 1
    cargo clippy --manifest-path mpi/Cargo.toml -- -D warnings
    cargo clippy --workspace --features trainyard/mpi --all-targets -- -D warnings
}

check_mpich() {
    need_cxx
    need_mpi mpicc.mpich libmpich-dev mpich
    cargo test --workspace --features trainyard/mpi --test processes --test stand_in -- --test-threads 1
}

# Ranks that meet, in the orders that loom finds; then the same with the meeting broken, which the models must notice.
check_meetings() {
    timeout 240 python3 runtime/comm/loom/broken.py
}

check_large() {
    python3 .ci/tests.py "night: large"
}

check_half() {
    need_cxx
    python3 .ci/tests.py "night: half"
}

check_orders() {
    need_nvrtc
    python3 .ci/tests.py "night: orders"
}

check_ptx() {
    need_nvrtc
    python3 .ci/tests.py "night: ptx"
}

# The tests of the stand-in, by PTX as well. `ptx` has all samples; tensors without memory are too large for the interpreter.
check_ptx-tests() {
    need_nvrtc
    TRAINYARD_PTX=1 python3 .ci/tests.py --program devices --without cuda::ptx --without cuda::sparse "needs a C++ compiler"
}

check_kernels() {
    need_nvrtc
    python3 .ci/tests.py "night: kernels" "night: budgets" "night: accesses"
    TRAINYARD_CUDA_LIBS=$OLDEST_NVRTC python3 .ci/tests.py "night: kernels"
}

check_random() {
    TRAINYARD_CASES=3000 python3 .ci/tests.py "longer: random"
}

check_killed() {
    TRAINYARD_KILLS=50 python3 .ci/tests.py "longer: killed" -- --nocapture
}

check_families() {
    need_python
    need_binary
    folder all-families
    "$python" testdata/scripts/families "$work/all-families" --trainyard "$binary" --jobs 2 --known docs/families.md
    folder axes
    "$python" testdata/scripts/families/axes.py "$work/axes" --trainyard "$binary" --triples
    "$python" testdata/scripts/families/runs.py "$work/all-families" --trainyard "$binary" --jobs 2
}

check_held-back() {
    need_python
    need_binary
    folder held-back
    "$python" testdata/scripts/families "$work/held-back" --trainyard "$binary" --jobs 2 --known docs/families.md --held-back
}

check_attention() {
    need_python
    need_binary
    "$python" testdata/scripts/attention_forms.py --trainyard "$binary" --full
}

check_accuracy() {
    need_python
    need_binary
    "$python" tests/python/check_state_dict.py --accuracy --trainyard "$binary"
}

check_fuzz() {
    cargo fuzz --version || cargo install --debug --locked cargo-fuzz --version 0.13.2
    bash fuzz/run all 1800
}
