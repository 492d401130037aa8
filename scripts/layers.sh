#!/bin/bash
# layers.sh - a file includes its own level or a lower one. Levels are those of docs/architecture.md;
# a file that this table does not know is an error, so that a new module is placed on purpose.
cd "$(dirname "$0")/.." || exit 1
status=0

# level_of FILE: by directory, else by the name up to its first underscore: ops_cpu.c belongs to ops.
level_of() {
    case $1 in
    cmd/*) echo 6; return ;;
    tests/*) echo 7; return ;;
    kernels/* | lib/scans/*) echo 2; return ;;
    lib/mixers/*) echo 3; return ;;
    esac
    module=$(basename "${1%.*}")
    case ${module%%_*} in
    base | json | rng | sha256 | half | utf8 | simd | vmath) echo 0 ;;
    tensor | arena | seqs | config | safetensors | zip | pickle | torch) echo 1 ;;
    dev | op | ops | scan | comm | check | memory | tile) echo 2 ;;
    param | layer | mixer) echo 3 ;;
    model | optim | schedule | loader | shard | bpe | pretoken | source | jsonl | documents | tokenize | ckpt | convert) echo 4 ;;
    train | session | sample | verify | metrics | task | score | plot | mqar | opened | nll | plasticity) echo 5 ;;
    *) echo unknown ;;
    esac
}

for file in lib/*.[ch] lib/mixers/*.[ch] lib/scans/*.[ch] kernels/*.cu kernels/*.cuh cmd/*.[ch]; do
    [ -e "$file" ] || continue
    mine=$(level_of "$file")
    if [ "$mine" = unknown ]; then
        echo "$file: scripts/layers.sh does not know its level"
        status=1
        continue
    fi
    for name in $(sed -n 's/^#include "\(.*\)".*/\1/p' "$file"); do
        for dir in "$(dirname "$file")" lib cmd kernels tests; do
            [ -e "$dir/$name" ] && break
        done
        [ -e "$dir/$name" ] || continue              # generated lists
        theirs=$(level_of "$dir/$name")
        if [ "$theirs" != unknown ] && [ "$theirs" -gt "$mine" ]; then
            echo "$file (level $mine) includes $name (level $theirs)"
            status=1
        fi
        case $file in
        lib/* | cmd/*) [ "$dir" = kernels ] && { echo "$file includes $name of kernels/"; status=1; } ;;
        esac
    done
done
exit $status
