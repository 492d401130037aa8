# What goes wrong while training: disks, shards, numbers, memory. Said in a line; the last good state stays.
. "$source_dir/tests/cli/corpus"
corpus

# A disk that is full: files may not grow past 600 KB, so weights fit and the optimizer's state does not.
train good --steps 4 --save-every 4 --quiet
status 0
cp -r work/good work/full
line='palimpsa pretrain under ulimit -f'
(cd work && ulimit -f 600 && exec "$palimpsa" pretrain $tiny --out full --steps 8 --save-every 2) >.result/stdout 2>.result/stderr
code=$?
status 1
stdout ''
stderr_has 'error: full/step-000006.tmp/'
stderr_has 'File too large'
same_files good/step-000004/model.safetensors full/step-000004/model.safetensors
true_that 'no half checkpoint' test ! -e work/full/step-000006 -a ! -e work/full/step-000006.tmp
train full --steps 8 --save-every 2
status 0
stderr_has 'resuming at step 4 from full/step-000004'
if [ "$(id -u)" = 0 ] && mkdir -p work/small && mount -t tmpfs -o size=3m palimpsa work/small 2>/dev/null; then
    trap 'umount "$dir/work/small"; rm -rf "$dir"' EXIT
    train small/run --steps 6 --save-every 1 --keep 5
    status 1
    stderr_has 'No space left on device'
    last=$(cd work/small/run && ls -d step-?????? | tail -1)
    rm -rf work/small/run/step-000001 work/small/run/*.tmp
    train small/run --steps 3 --save-every 0 --keep 1 --quiet
    true_that "goes on from $last once there is room" test $code = 0 -o "$last" = step-000001
fi

# Shards that cannot be read, or are not whole.
mkdir work/bad
head -c 3000 work/sh/text_000000.pts >work/bad/half.pts
train bad1 --data bad/half.pts
status 1
stdout ''
stderr_has 'error: bad/half.pts: '
: >work/bad/empty.pts
train bad1 --data bad/empty.pts
status 1
stderr_has 'error: bad/empty.pts: '
cp work/sh/text_000000.pts work/bad/flip.pts
printf '\377\377\377\377' | dd of=work/bad/flip.pts bs=1 seek=2000 conv=notrunc 2>/dev/null
train bad2 --data bad/flip.pts --steps 4
status 1
stderr_has 'error: bad/flip.pts: '
train bad2 --data bad/flip.pts --steps 4 --ranks 2
status 1
stderr_has 'error: bad/flip.pts: '
if [ "$(id -u)" != 0 ]; then
    cp work/sh/text_000000.pts work/bad/closed.pts
    chmod 0 work/bad/closed.pts
    train bad3 --data bad/closed.pts
    status 1
    stderr 'error: bad/closed.pts: Permission denied'
fi
train bad4 --data sh --steps 1
status 1
stderr_has 'error: sh: '

# Numbers that are not finite: weights that are gone are not saved, and the step is named.
train burst --lr 1e30 --steps 6 --save-every 1
status 1
stderr_has 'error: step 1: model.embeddings.weight is not finite any more: it is not saved, the last checkpoint stands'
true_that 'nothing was saved' test ! -e work/burst/step-000001
for n in 1 2; do
    train wild$n --lr 100 --steps 100 --save-every 0 --ranks $n
    status 1
    stderr_has ' is nan: first seen in the recurrence of layer 0, first bad gradient model.embeddings.weight; nothing was updated and the last checkpoint stands'
    true_that 'said once' test "$(grep -c error: .result/stderr)" = 1
done

# A poisoned weight of layer 1 in the newest checkpoint: named, and the older checkpoint stands.
poison() {
    python3 - "$1" "$2" <<'END'
import json, struct, sys
path, name = sys.argv[1:]
with open(path, "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    at = json.loads(f.read(n))[name]["data_offsets"][0]
    f.seek(8 + n + at)
    f.write(struct.pack("<f", float("nan")))
END
}
if command -v python3 >/dev/null; then
    cp -r work/good work/poisoned
    poison work/poisoned/step-000004/model.safetensors model.layers.1.attn.q_proj.weight
    poison work/poisoned/step-000004/optim.safetensors master.model.layers.1.attn.q_proj.weight
    train poisoned --steps 8
    status 1
    stderr_has 'error: step 5: the loss is nan: first seen in the recurrence of layer 1, bad weight model.layers.1.attn.q_proj.weight; nothing was updated and the last checkpoint stands'
fi

# More than there is memory for: a table, and a row that fits and then works. Only the plan is run.
head -c 134217728 /dev/zero >work/zeros.u16
huge="--model palimpsa-tiny --vocab 512 --data zeros.u16 --raw-width 2 --context 1024 --batch-tokens 64Mi --steps 0"
run pretrain $huge --out huge --micro-tokens 64Mi
status 1
stdout ''
for word in weights gradients optimizer activations scratch sum; do
    stderr_has "$word "
done
stderr_has 'error: rows of 67108864 tokens need '
stderr_has ' fits'
row=$(sed -n 's/.*--micro-tokens \([0-9]*\).* fits/\1/p' .result/stderr)
recompute=$(grep -o -- '--recompute fits' .result/stderr | cut -d' ' -f1)
true_that 'a row is named' test -n "$row"
true_that 'nothing was written' test "$(ls work/huge)" = lock
run pretrain $huge --out fits --micro-tokens "$((row / 2))" $recompute
status 0
