#!/usr/bin/env bash
# Packs what a machine with a GPU needs, and says which commands to run there.
#
#   tests/gpu/pack.sh [FOLDER]     [default: target]
#
# FOLDER/gpu.tar.xz has the stripped binary, the stripped test binary of runtime/cuda/tests/devices, and compiled kernels for an H100
# or H200. It is for a machine that gets this tree as well: the files that git tracks, and those that it does not ignore. Both
# together may have LIMIT_MIB [default: 60], and this script fails above that.
# FOLDER/gpu-files.tar.gz has the scripts, models and data of first.sh and run.sh, for a machine without the tree.
#
# TRAINYARD names the binary [default: target/release/trainyard], DEVICES the test binary [default: the one that cargo builds with
# --release, which takes minutes the first time]. Kernels are compiled if NVRTC is here: testdata/requirements-nvrtc.txt.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-target}
trainyard=${TRAINYARD:-target/release/trainyard}
limit_mib=${LIMIT_MIB:-60}

if ! command -v xz > /dev/null; then
    echo "xz is not there, which packs the archive: install xz-utils" >&2
    exit 1
fi
if ! git rev-parse --is-inside-work-tree > /dev/null 2>&1; then
    echo "$PWD is not in a git repository, which says which files travel" >&2
    exit 1
fi
if [[ ! -x $trainyard ]]; then
    echo "$trainyard is not there: cargo build --release" >&2
    exit 1
fi

devices=${DEVICES:-}
if [[ -z $devices ]]; then
    devices=$(cargo test --release --no-run --workspace --test devices --message-format=json \
        | sed -n 's/.*"executable":"\([^"]*devices-[^"]*\)".*/\1/p') || true
fi
if [[ ! -x $devices ]]; then
    echo "the test binary '$devices' is not there: DEVICES=PATH names it, or cargo builds it" >&2
    exit 1
fi

# The fixtures whose losses are compared: `FILE MODEL` a line, as losses.py has them. It must have all that PyTorch computed.
fixtures() {
    sed -n 's/^    Fixture("\([^"]*\)", "\([^"]*\)".*/\1 \2/p' tests/gpu/losses.py
}
there=(testdata/models/*.train.json)
if (($(fixtures | wc -l) != ${#there[@]})); then
    echo "tests/gpu/losses.py does not have all ${#there[@]} models of testdata/models/*.train.json" >&2
    exit 1
fi

# The files of first.sh and run.sh.
files() {
    printf '%s\n' tests/gpu/*.py tests/gpu/*.sh docs/GPU.md testdata/gpt2-bytes.onnx testdata/kjv.txt
    printf '%s\n' testdata/bench/gpt2-*.onnx testdata/bench/llama-*.onnx
    # Of the models of first.sh the only one that losses.py has in another form.
    printf '%s\n' testdata/models/t5.dynamo.onnx
    fixtures | while read -r file model; do
        printf '%s\n' "testdata/models/$file.onnx" "testdata/models/$model".train.{json,npz}
    done
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# `BYTES FILE` a line: the files that travel with the tree. A file that was deleted and not committed does not.
travelling() {
    sort --zero-terminated --unique "$work/files" | xargs --null stat --format '%s %n' 2>/dev/null || true
}
git ls-files --cached --others --exclude-standard -z > "$work/files"
if [[ -z $(travelling) ]]; then
    echo "git names no file of the tree in $PWD, so its size is unknown" >&2
    exit 1
fi

mkdir -p "$work/gpu/bin" "$folder"
strip -o "$work/gpu/bin/trainyard" "$trainyard"
strip -o "$work/gpu/bin/devices" "$devices"
git describe --always --dirty --abbrev=12 > "$work/gpu/COMMIT"

# The kernels of the models that first.sh trains, compiled for an H100 or H200: their commands, with another device. Without
# epilogues there are other kernels; those of attention are compiled even if cuDNN takes their place. If those of a model do not
# compile, the others still travel.
kernels() {
    local line folder=$work/gpu/cache
    TRAINYARD=$trainyard DEVICES=$devices tests/gpu/first.sh --list | grep ' compile .* --device cuda ' \
        | sed --regexp-extended 's/.*(TRAINYARD_EPILOGUES=0 ).* compile /\1/; s/.* compile //
            s/ --device cuda / /; s/ --profile//; s/--steps [0-9]* ?//' | sort --unique | while read -r line; do
        # Before the path of the model, which begins with a slash, there may be a variable.
        # shellcheck disable=SC2046,SC2086
        env TRAINYARD_CACHE="$folder" ${line%%/*} "$trainyard" compile $(sed "s,^[^/]*,,; s,FOLDER,$work/run," <<< "$line") \
            --steps 8 --kernels-for h100 || echo "no kernels of $line are in the archive" >&2
    done
    if [[ ! -d $folder ]]; then
        echo "the archive has no compiled kernels: testdata/requirements-nvrtc.txt has NVRTC" >&2
    fi
}
kernels

# The dictionary holds both binaries; two threads would divide it, and 6 % more is packed. Presets beyond this one save 2 %.
tar --create --directory "$work" gpu | xz --x86 --lzma2=preset=6,dict=64MiB > "$folder/gpu.tar.xz"
files | sort --unique | tar --create --gzip --transform 's,^,gpu/,' --files-from - --file "$folder/gpu-files.tar.gz"

archive=$(stat --format %s "$folder/gpu.tar.xz")
tree=$(travelling | awk '{ sum += $1 } END { print sum }')
awk -v tree="$tree" -v archive="$archive" -v limit="$limit_mib" \
    'BEGIN { printf "tree %.1f MiB, archive %.1f MiB: %.1f of %d MiB\n", tree / 2^20, archive / 2^20, (tree + archive) / 2^20, limit }'
if ((tree + archive > limit_mib << 20)); then
    echo "that is too much for the machine; the largest files:" >&2
    { travelling; echo "$archive $folder/gpu.tar.xz"; } | sort --numeric-sort --reverse | sed --quiet 1,10p >&2
    exit 1
fi

cat <<END

On the machine, in this tree with $folder/gpu.tar.xz:
    python3 -m tarfile -e $folder/gpu.tar.xz target && tests/gpu/first.sh && tests/gpu/run.sh all
Without the tree, beside gpu.tar.xz and gpu-files.tar.gz:
    python3 -m tarfile -e gpu.tar.xz && tar xf gpu-files.tar.gz && gpu/tests/gpu/first.sh && gpu/tests/gpu/run.sh all
END
