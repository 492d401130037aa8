# The recall experiment: what is refused, files, going on, growing, the same bits after an interruption.
tiny="--lr 0.01 --lengths 16:2 --models palimpsa-d,mamba2 --vocab 20 --width 16 --heads 2 --key 4 --value 8 --rank 4
    --train 64 --test 20 --epochs 3 --batch-tokens 128 --device cpu --jobs 2 --threads 1"

run mqar
status 2
stderr 'error: palimpsa mqar: --out is required; see palimpsa mqar --help'
refused() {
    local want=$1
    shift
    run mqar --out bad $tiny "$@"
    status 2
    stdout ''
    stderr "error: $want"
    [ ! -e work/bad ] || wrong
}
refused "mqar: unexpected operand 'x'" x
refused "--preset: expected laptop|paper, found 'phone'" --preset phone
refused '--lengths: expected an even length, found 15' --lengths 15:2
refused '--lengths: a length of 16 has room for 4 pairs, found 5' --lengths 16:5
refused '--lengths: a length of 20 needs a vocabulary from 21 to 16777216, found 20' --lengths 20:2
refused "--lengths: expected LENGTH:PAIRS, found '16'" --lengths 16
refused "--lengths: 16:2 stands there twice" --lengths 16:2,16:2
refused "--models: expected some of palimpsa-d,palimpsa-d-twin,palimpsa-m,palimpsa-m-twin,mamba2, a FILE.json or a model's directory, found 'gru'" --models gru
refused "--models: 'a|b' has a character that tables cannot hold" --models 'a|b'
refused '--models: mamba2 stands there twice' --models mamba2,mamba2
refused '--lr: expected rates above 0 and up to 1, separated by commas, found '"'0'" --lr 0
refused '--lr: expected rates above 0 and up to 1, separated by commas, found '"''" --lr 0.1,
refused '--lr: 0.10 stands there twice' --lr 0.1,0.10
refused '--batch-tokens: expected at least the length 16, found 15' --batch-tokens 15
refused '--train: expected at least a batch of 8 examples, found 7' --train 7
refused "--seeds: expected a whole number in [1,1000], found '0'" --seeds 0
refused "--epochs: expected a whole number in [1,1e6], found '0'" --epochs 0
refused "--test: expected a whole number in [1,1e9], found '0'" --test 0
refused "--vocab: expected a whole number in [5,16777216], found '4'" --vocab 4
refused "--stop-at: expected a number in (0,), found '0'" --stop-at 0
refused "--jobs: expected a whole number in [0,256], found '257'" --jobs 257
refused "--max-seconds: expected a number in [0,), found '-1'" --max-seconds -1
refused "--lr-floor: expected a number in [0,1], found '2'" --lr-floor 2
refused "--dtype: expected fp32|bf16, found 'fp8'" --dtype fp8
for bad in seed=-1 rate-seeds=-1 data-seed=x train=0 layers=0 layers=257 width=0 heads=0 key=1025 value=0 rank=0 warmup=-1 beta2=1 \
    weight-decay=-1 clip=x patience=-1 threads=-1 save-every=1.5 batch-tokens=0 lr-floor=-1 stop-at=nan; do
    run mqar --out bad $tiny "--$bad"
    status 2
    stderr_has "error: --${bad%=*}: expected "
    stderr_has "found '${bad#*=}'"
done
for bad in lengths=0 lengths=x pairs=0 pairs=1,x vocab=-1 seed=-1; do
    run eval mqar --model none --lengths 16 --pairs 2 "--$bad"
    status 2
    stderr_has "error: --${bad%=*}: expected "
done
run mqar --out bad $tiny --dtype bf16
status 1
stderr 'error: device cpu stores fp32 only; bf16 needs a GPU'
: >work/file
run mqar --out bad2 $tiny --device tpu
status 1
stderr 'error: device "tpu": expected auto, cpu, naive, cuda or cuda:N'
run mqar --out file/bad $tiny
status 1
stderr 'error: file/bad: Not a directory'
run mqar --preset paper --help
status 0
stdout_has '512:128,1024:256'

draws() {
    command -v gnuplot >/dev/null
}
ends() {
    draws && status "$1" || status 1
}

run mqar --out a $tiny
ends 0
stderr_has 'epoch 3/3'
stdout_has "$(printf 'mqar mamba2 16:2 lr 0.01\taccuracy\t')"
for made in results.md results.json runs.tsv settings.json accuracy.tsv accuracy.gp epochs-16x2.tsv \
    runs/mamba2_16x2_lr0.01_seed1/model/model.safetensors runs/palimpsa-d_16x2_lr0.01_seed1/result.json; do
    [ -s "work/a/$made" ] || { wrong; echo "  no $made"; }
done
grep -q "$(printf 'smooth\tlow\thigh')" work/a/accuracy.tsv || wrong
grep -q 'with yerrorlines' work/a/accuracy.gp || wrong
draws && { [ -s work/a/accuracy.svg ] && [ -s work/a/epochs-16x2.svg ] || wrong; }
[ "$(grep -c finished work/a/runs.tsv)" = 2 ] || wrong
[ "$(wc -l <work/a/runs/mamba2_16x2_lr0.01_seed1/metrics.jsonl)" = 3 ] || wrong

# The same seed, the same table; a grown experiment runs only what is new.
cut -f 1-11 work/a/runs.tsv >.result/table
run mqar --out a $tiny --quiet
ends 0
cut -f 1-11 work/a/runs.tsv | cmp -s - .result/table || wrong
run mqar --out a $tiny --seeds 2
ends 0
stderr_has '4 runs, 2 finished before'
cut -f 1-11 work/a/runs.tsv | head -3 | cmp -s - .result/table || wrong
run mqar --out b $tiny --jobs 1 --quiet
ends 0
cut -f 1-11 work/b/runs.tsv | cmp -s - .result/table || wrong
run mqar --out a $tiny --epochs 4
status 1
stderr 'error: a/settings.json: these runs were made with "epochs": 3, not "epochs": 4: use their settings or another --out'

# Every rate gets the first seed, the best of a model the others; interrupted it chooses the same. What other commands
# did before is shown, and not counted.
wide="$tiny --lr 0.03,0.002 --lengths 16:2,32:4 --vocab 40 --epochs 2 --seeds 3"
seeds_of() {
    cut -f 1-4 "work/$1/runs.tsv" | sed 1d | sort -u
}
run mqar --out e $wide --rate-seeds 1
ends 0
stderr_has '16 runs, 0 finished before'
stderr_has 'runs 16/16, 0m00s left'
[ "$(grep -c 'is the best of 2 and gets the other seeds' .result/stderr)" = 4 ] || wrong
grep -q '/24' .result/stderr && wrong
[ "$(seeds_of e | wc -l)" = 16 ] || wrong
[ "$(seeds_of e | awk '$4 > 1 { print $1, $2, $3 }' | sort -u | wc -l)" = 4 ] || wrong
grep -q '^16 of 16 runs are finished. Every learning rate was tried with 1 seed. ' work/e/results.md || wrong
grep -q '3 of 3' work/e/results.md && ! grep -q 'of 3 .*1 of 3\|waits' work/e/results.md || wrong
cut -f 1-11 work/e/runs.tsv >.result/chosen
for seconds in 0.05 0.2 0; do
    run mqar --out h $wide --rate-seeds 1 --max-seconds $seconds --quiet
    ends 0
done
cut -f 1-11 work/h/runs.tsv | cmp -s - .result/chosen || wrong
run mqar --out e $wide --rate-seeds 1 --table
ends 0
cut -f 1-11 work/e/runs.tsv | cmp -s - .result/chosen || wrong
run mqar --out e $wide --rate-seeds 2 --quiet
ends 0
done=$(seeds_of e | wc -l)                              # two seeds may choose another rate than one
[ "$done" -ge 20 ] && grep -q '^20 of 20 runs' work/e/results.md || wrong
run mqar --out e $wide
ends 0
[ "$done" = 24 ] || stderr_has "24 runs, $done finished before"
[ "$(seeds_of e | wc -l)" = 24 ] || wrong
run mqar --out e $wide --rate-seeds 1
ends 0
[ "$(seeds_of e | wc -l)" = 24 ] && grep -q '^16 of 16 runs' work/e/results.md || wrong

# Interrupted twice it ends with the same weights and the same record; the table says what is not finished.
long="$tiny --train 256 --epochs 20 --save-every 3 --stop-at 2"
run mqar --out whole $long --quiet
ends 0
run mqar --out c $long --max-seconds 0.1
ends 0
stderr_has 'max-seconds are over'
grep -q unfinished work/c/runs.tsv || wrong
grep -q 'of 2 runs are finished' work/c/results.md || wrong
run mqar --out c $long --max-seconds 0.2 --quiet
ends 0
run mqar --out c $long --quiet
ends 0
for model in mamba2 palimpsa-d; do
    dir=runs/${model}_16x2_lr0.01_seed1
    cmp -s work/whole/$dir/model/model.safetensors work/c/$dir/model/model.safetensors &&
        [ "$(sed 's/, "tokens_per.*//' work/whole/$dir/metrics.jsonl)" = \
            "$(sed 's/, "tokens_per.*//' work/c/$dir/metrics.jsonl)" ] ||
        { wrong; echo "  $model differs after an interruption"; }
done

# A mix of lengths; a config of one's own; fresh examples and random tokens.
sed 's/"vocab_size": [0-9]*/"vocab_size": 64/; s/"hidden_size": [0-9]*/"hidden_size": 16/' \
    "$source_dir/data/models/mamba2-tiny.json" | sed 's/"expand": 2/"expand": 8/' >work/own.json
run mqar --out d $tiny --lengths 16:2+8:2 --models own.json --fresh --random-filler --no-tied --seed 3 --warmup 2
ends 0
stdout_has 'mqar own.json 16:2 lr 0.01'
stdout_has 'mqar own.json 8:2 lr 0.01'
run eval mqar --model d/runs/own_16x2+8x2_lr0.01_seed3/model --lengths 16,8 --pairs 2,2 --samples 30 --out e.json
status 0
stdout_has "$(printf 'mqar 8:2\taccuracy\t')"
grep -q '"part": "16:2"' work/e.json || wrong
run eval mqar --model d/runs/own_16x2+8x2_lr0.01_seed3/model --lengths 16,8 --pairs 2
status 1
stderr 'error: eval mqar: expected --lengths and as many --pairs, found 2 and 1'
run eval mqar --model d/runs/own_16x2+8x2_lr0.01_seed3/model --lengths 16 --pairs 5
status 1
stderr 'error: eval mqar: a length of 16 has room for 4 pairs, found 5'
run eval mqar --model d/runs/own_16x2+8x2_lr0.01_seed3/model --lengths 16 --pairs 2 --vocab 21
status 1
stderr 'error: --vocab: the model has 20 tokens, found 21'
run eval mqar --model d/runs/own_16x2+8x2_lr0.01_seed3/model --lengths 16 --pairs 2 own.json
status 2
stderr 'error: eval: mqar makes its samples, found data own.json'
run mqar --out d $tiny --lengths 16:2+8:2 --models own.json --fresh --random-filler --no-tied --seed 3 --warmup 2 --table
ends 0

# A model that was trained before goes on where it stands: at a rate that changes nothing it answers as it did.
trained=a/runs/mamba2_16x2_lr0.01_seed1/model
mkdir work/other && cp -r work/$trained work/other/mamba2
run mqar --out i $tiny --models ../work/other/mamba2/ --lr 1e-30 --epochs 1
ends 0
stdout_has "mqar ../work/other/mamba2 16:2 lr 1e-30"
value() {
    grep -o '"value": [0-9.e-]*' "$1"
}
last=work/${trained%/model}/result.json
[ "$(value work/i/runs/mamba2_16x2_lr1e-30_seed1/result.json)" = "$(value "$last")" ] || wrong
run mqar --out j $tiny --models other/mamba2 --vocab 21
status 2
stderr 'error: --models: other/mamba2 has 20 tokens, --vocab asks for 21'
run mqar --out j $tiny --models mamba2,other/mamba2
status 2
stderr 'error: --models: the runs of mamba2 and other/mamba2 would share directories'

# A run that diverges is told so and does not fail the experiment; patience ends one that learns no more.
run mqar --out f $tiny --models mamba2 --weight-decay 1e38 --lr 1
ends 0
stderr_has 'diverged'
[ "$(cut -f 5 work/f/runs.tsv | tail -1)" = diverged ] || wrong
run mqar --out g $tiny --models mamba2 --lr 1e-9 --epochs 50 --patience 2
ends 0
[ "$(cut -f 6 work/g/runs.tsv | tail -1)" -lt 50 ] || wrong
