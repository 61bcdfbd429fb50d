#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs into one archive: the scripts, the models and data of its parts, and the stripped binary.
#
#   tests/gpu/pack.sh [ARCHIVE]     [default: target/gpu.tar.gz]
#
# TRAINYARD names the binary [default: target/release/trainyard]. Unpacked, all of it must stay under 60 MiB. There:
#
#   tar xf gpu.tar.gz && gpu/tests/gpu/run.sh all
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
archive=${1:-target/gpu.tar.gz}
trainyard=${TRAINYARD:-target/release/trainyard}
limit=$((60 << 20))

if [[ ! -x $trainyard ]]; then
    echo "$trainyard is not there: cargo build --release" >&2
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

files() {
    printf '%s\n' tests/gpu/*.py tests/gpu/*.sh docs/GPU.md testdata/gpt2-bytes.onnx testdata/kjv.txt
    printf '%s\n' testdata/bench/gpt2-*.onnx testdata/bench/llama-*.onnx
    fixtures | while read -r file model; do
        printf '%s\n' "testdata/models/$file.onnx" "testdata/models/$model.train.npz" "testdata/models/$model.train.json"
    done
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/gpu/bin" "$(dirname "$archive")"
files | tar --create --files-from - | tar --extract --directory "$work/gpu"
strip -o "$work/gpu/bin/trainyard" "$trainyard"
git describe --always --dirty --abbrev=12 > "$work/gpu/COMMIT"

bytes=$(find "$work/gpu" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
tar --create --gzip --file "$archive" --directory "$work" gpu
awk -v unpacked="$bytes" -v packed="$(stat -c %s "$archive")" -v file="$archive" \
    'BEGIN { printf "%s: %.1f MiB; unpacked %.1f MiB of 60\n", file, packed / 2^20, unpacked / 2^20 }'
if ((bytes > limit)); then
    echo "that is over 60 MiB; the largest files:" >&2
    find "$work/gpu" -type f -printf '%s %P\n' | sort -rn | head >&2
    exit 1
fi
