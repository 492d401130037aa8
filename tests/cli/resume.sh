# Resuming is never having stopped: by step, by signal, by kill -9 in the middle of a save.
. "$source_dir/tests/cli/corpus"
corpus

# start OUT ARGS...: as train, in the background; its process is $!
start() {
    out=$1
    shift
    line="palimpsa pretrain ... --out $out $* &"
    (cd work && exec "$palimpsa" pretrain $tiny --out "$out" "$@") >.result/stdout 2>.result/stderr &
}

# await FILE: until it exists, ten seconds at most
await() {
    for try in $(seq 200); do
        [ -e "work/$1" ] && return
        sleep 0.05
    done
    wrong
    echo "  $1 never came"
}

# 20 steps, and 10 and 10: weights, optimizer and record to the byte; also with rows added up and ranks.
for way in "one" "rows --micro-tokens 64" "ranks --ranks 2 --micro-tokens 64"; do
    name=${way%% *}
    args=${way#"$name"}
    train $name $args --steps 20 --save-every 5 --quiet
    status 0
    train $name-half $args --steps 20 --save-every 5 --until 10
    status 0
    stderr_has "finished step 10 of 20; saved in $name-half"
    train $name-half $args --steps 20 --save-every 5
    status 0
    true_that 'nothing has changed' test -z "$(grep -e '->' .result/stderr)"
    stderr_has "resuming at step 10 from $name-half/step-000010"
    same_run $name $name-half 000020
done

# A finished run has nothing left to do.
train one --steps 20 --save-every 5
status 0
stdout ''
stderr_has 'finished step 20 of 20; saved in one'

# On other numbers of ranks the data go on where they were, and the losses agree.
train moved --ranks 2 --steps 20 --until 10 --quiet
for n in 1 4; do
    cp -r work/moved work/moved$n
    train moved$n --ranks $n --steps 20
    status 0
    stderr_has "ranks: 2 -> $n"
    losses moved$n >.result/moved$n
    losses one >.result/one
    near .result/one .result/moved$n 2e-5
done

# Killed at any moment, the same command again and again ends in the same bytes.
kills=0
warned=0
for delay in 0.05 0.11 0.08 0.17 0.06 0.13 0.2 0.1 0.15 0.07; do
    start killed --steps 20 --save-every 1 --keep 2 --quiet
    sleep $delay
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null || kills=$((kills + 1))
    grep -q 'warning: killed: an interrupted save left a directory behind; it is ignored' .result/stderr && warned=1
done
# One more save is surely interrupted: by hand.
mkdir -p work/killed/step-000021.tmp
echo half >work/killed/step-000021.tmp/model.safetensors
train killed --steps 20 --save-every 1 --keep 2
status 0
stderr_has 'warning: killed: an interrupted save left a directory behind; it is ignored'
same_run one killed 000020
true_that 'some runs were killed' test $kills -ge 1
true_that 'steps stand in the record once' test "$(losses killed | wc -l)" = 20
cp -r work/one work/leftover
mkdir work/leftover/step-000021.tmp
train leftover --steps 22 --save-every 1
status 0
stderr_has 'steps: 20 -> 22'
true_that 'the left directory is gone' test ! -e work/leftover/step-000021.tmp -a -e work/leftover/step-000022

# The newest whole checkpoint counts, and torn ones are never the reason to delete it.
cp -r work/one work/torn
head -c 1000 work/one/step-000020/model.safetensors >work/torn/step-000020/model.safetensors
train torn --steps 20 --save-every 5 --keep 1
status 0
stderr_has 'warning: torn/step-000020: not a complete checkpoint; an older one is looked for'
stderr_has 'resuming at step 15 from torn/step-000015'
same_run one torn 000020
true_that 'only the newest is kept' test "$(ls -d work/torn/step-* | wc -l)" = 1

# The newest few are kept, and some for ever.
train kept --steps 12 --save-every 2 --keep 2 --quiet
true_that 'the two newest' test "$(cd work/kept && echo step-*)" = 'step-000010 step-000012'
train forever --steps 12 --save-every 2 --keep 1 --keep-every 4 --quiet
true_that 'the newest and multiples of 4' test "$(cd work/forever && echo step-*)" = 'step-000004 step-000008 step-000012'

# Signals save and end well, whichever rank they reach.
for name in TERM USR1 INT; do
    start signal-$name --steps 100000 --save-every 0
    await signal-$name/metrics.jsonl
    sleep 0.1
    kill -$name $!
    wait $!
    code=$?
    status 0
    stderr_has "stopped by a signal: step "
    stderr_has "is saved in signal-$name; the same command continues"
done
start signal-rank --steps 100000 --save-every 0 --ranks 2
await signal-rank/metrics.jsonl
sleep 0.1
kill -TERM "$(cat /proc/$!/task/$!/children | cut -d' ' -f1)"
wait $!
code=$?
status 0
stderr_has 'stopped by a signal: step '
true_that 'one checkpoint' test "$(ls -d work/signal-rank/step-* | wc -l)" = 1

# A rank that dies takes the others along; a run has one writer.
start death --steps 100000 --ranks 2
await death/metrics.jsonl
train death --steps 5
status 1
stderr_has 'is writing this run'
line='a rank is killed'
start dying --steps 100000 --ranks 2
await dying/metrics.jsonl
kill -9 "$(cat /proc/$!/task/$!/children | cut -d' ' -f1)"
wait $!
code=$?
status 1
stderr_has 'error: rank 1 of 2 was killed by signal 9 (Killed); the others are stopped'
first=$(jobs -p | head -1)
kill -9 $first
wait $first 2>/dev/null
sleep 0.2
train death --steps 5 --ranks 2
status 0

# What may not change is refused, what may is shown.
train one --steps 20 --seed 2
status 1
stderr 'error: one: the run was started with seed 1, this command says 2'
train one --steps 20 --context 128
status 1
stderr 'error: one: the run was started with context = 64, this command says 128'
train one --steps 20 --no-shuffle
status 1
stderr 'error: one: the run was started with shuffle = 1, this command says 0'
train one --steps 10
status 1
stderr 'error: one: the run is at step 20 already, --steps says 10'
mkdir work/more
cp work/sh/text_000000.pts work/more/text_000001.pts
train one --steps 20 --data 'more/*.pts'
status 1
stderr_has 'error: one: the run was trained on other shards than more/*.pts (identity '
train one --steps 22 --lr 1e-3 --schedule linear --weight-decay 0
status 0
stderr_has 'lr: 0.003 -> 0.001'
stderr_has 'schedule: cosine -> linear'
stderr_has 'weight_decay: 0.1 -> 0'
stderr_has 'steps: 20 -> 22'
grep '"step": 21,' work/one/metrics.jsonl | sed 's/.*"lr": \([0-9.e-]*\),.*/\1/' >.result/rate
true_that 'the new rate from the first resumed step' awk '{ exit $1 < 1.449e-4 || $1 > 1.451e-4 }' .result/rate
