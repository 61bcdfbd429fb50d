#!/usr/bin/env bash
# Packs what first.sh and run.sh need into one archive: the scripts, the models and data of their steps and parts, the stripped
# binary, and the stripped test binary of runtime/tests/devices.
#
#   tests/gpu/pack.sh [ARCHIVE]     [default: target/gpu.tar.gz]
#
# TRAINYARD names the binary [default: target/release/trainyard], DEVICES the test binary [default: what cargo builds of it with
# --release, which takes minutes the first time]. Unpacked, all of it must stay under 60 MiB. There:
#
#   tar xf gpu.tar.gz && gpu/tests/gpu/first.sh && gpu/tests/gpu/run.sh all
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
archive=${1:-target/gpu.tar.gz}
trainyard=${TRAINYARD:-target/release/trainyard}
limit=$((60 << 20))

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

files() {
    printf '%s\n' tests/gpu/*.py tests/gpu/*.sh docs/GPU.md testdata/gpt2-bytes.onnx testdata/kjv.txt
    printf '%s\n' testdata/bench/gpt2-*.onnx testdata/bench/llama-*.onnx
    # Of the models of first.sh the only one that losses.py has in another form.
    printf '%s\n' testdata/models/t5.dynamo.onnx
    fixtures | while read -r file model; do
        printf '%s\n' "testdata/models/$file.onnx" "testdata/models/$model.train.json"
    done
}

# Copies the batches that losses.py trains on, without the weights and gradients beside them, which are 16 MiB.
batches() {
    fixtures | while read -r _ model; do
        printf '%s\n' "testdata/models/$model.train.npz"
    done | xargs python3 -c '
import sys, zipfile
for path in sys.argv[2:]:
    with zipfile.ZipFile(path) as all, zipfile.ZipFile(f"{sys.argv[1]}/{path}", "w", zipfile.ZIP_DEFLATED) as kept:
        for name in all.namelist():
            if name.startswith(("input.", "labels.")):
                kept.writestr(name, all.read(name))
' "$work/gpu"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/gpu/bin" "$(dirname "$archive")"
files | tar --create --files-from - | tar --extract --directory "$work/gpu"
batches
strip -o "$work/gpu/bin/trainyard" "$trainyard"
strip -o "$work/gpu/bin/devices" "$devices"
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
