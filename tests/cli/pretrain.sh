# Training: what it says, what it starts from, and that ranks and rows change nothing but speed.
. "$source_dir/tests/cli/corpus"
corpus

run pretrain
status 2
stdout ''
stderr 'error: palimpsa pretrain: --model is required; see palimpsa pretrain --help'

run pretrain --help
status 0
stderr ''
stdout_has 'usage: palimpsa pretrain --model NAME --data GLOB --out DIR [options]'
stdout_has '--schedule S              shape after warm-up: cosine|linear|wsd|constant'

train bad --schedule cosin
status 2
stderr "error: --schedule: expected cosine|linear|wsd|constant, found 'cosin'"

train bad extra
status 2
stderr "error: pretrain: unexpected operand 'extra'; a pattern after --data needs quotes"

train bad --lr -1
status 2
stderr "error: --lr: expected a number in [0,), found '-1'"

train bad --batch-tokens 100
status 1
stderr 'error: --batch-tokens: expected a multiple of context x ranks = 64, found 100'

train bad --ranks 3
status 1
stderr 'error: --batch-tokens: expected a multiple of context x ranks = 192, found 256'

train bad --micro-tokens 96
status 1
stderr 'error: --micro-tokens: expected a multiple of the context 64 that divides 256, found 96'

train bad --model palimpsa-tinny
status 1
stdout ''
stderr_has 'error: palimpsa-tinny: neither a file, nor a directory, nor a preset (mamba2-170m, '

train bad --data 'nothing/*.pts'
status 1
stderr 'error: nothing/*.pts: no such file'

train bad --data text.txt
status 1
stderr 'error: text.txt: expected a token shard (PALTOKEN, or .bin with magic 20240520), found neither'

train bad --vocab 100
status 1
stderr 'error: sh/*.pts: its vocabulary of 300 does not fit --vocab 100'

train text.txt/place
status 1
stderr 'error: text.txt/place: Not a directory'

train bad --device tpu
status 1
stdout ''

# Several ranks: what is wrong is said once.
train bad --ranks 2 --data 'nothing/*.pts'
status 1
stderr 'error: nothing/*.pts: no such file'

train bad --ranks 4 --device cuda:0,1
status 1
stderr 'error: device cuda:0,1: 2 GPUs for 4 ranks'
train bad --device cuda:0,1
status 1
stderr 'error: device cuda:0,1: 2 GPUs for 1 rank'
export WORLD_SIZE=16
train bad
unset WORLD_SIZE
status 1
stderr 'error: WORLD_SIZE=16: palimpsa starts the processes of one machine itself, with --ranks, and does not know of others: start it once'
if "$palimpsa" --version | grep -q 'GPU: none'; then
    train bad --ranks 2 --device cuda
    status 1
    stderr 'error: device cuda: this palimpsa was built without CUDA'
elif ! nvidia-smi >/dev/null 2>&1; then
    for n in 1 2; do
        train bad --ranks $n --device cuda
        status 1
        stderr 'error: device cuda: this machine has no usable GPU'
    done
fi

# The data are visited how often, and with --once not twice.
train bad --steps 1000 --once
status 1
stderr_has 'one pass has '
train epochs --steps 150 --batch-tokens 512 --until 1
status 0
stderr_has 'started    first step after '
stderr_has 'steps      150 of 512 tokens: 7.68e+04 tokens, '
grep -o '[0-9.]* epochs' .result/stderr >.result/epochs
true_that 'the banner says more than five epochs' awk '$1 < 5 { exit 1 }' .result/epochs

# A fresh model: values stated, nothing trained, the same bytes from any number of ranks.
train zero --steps 0 --tokenizer tok.json
status 0
stdout ''
stderr_has 'start      seed 1: exp(A_log) in ['
stderr_has 'D in [1, 1]'
stderr_has 'finished step 0 of 0; saved in zero'
sed -n 's/.*softplus(dt_bias) in \[\(.*\), \(.*\)\], D.*/\1 \2/p' .result/stderr >.result/dt
true_that 'dt in [1e-3, 0.1]' awk '{ n++; if ($1 < 0.001 || $2 > 0.1 || $2 <= $1) exit 1 } END { exit !n }' .result/dt
same_files tok.json zero/step-000000/tokenizer.json
for n in 2 4; do
    train zero$n --steps 0 --ranks $n --quiet
    status 0
    stderr ''
    same_files zero/step-000000/model.safetensors zero$n/step-000000/model.safetensors
done
train other --steps 0 --seed 2 --quiet
true_that 'another seed is another model' test -n "$(cmp work/zero/step-000000/model.safetensors work/other/step-000000/model.safetensors)"

# A step is its tokens: 4 rows of 64, 2 of 128, 1 of 256, and 2 and 4 ranks are one training.
for way in "w1 --micro-tokens 64" "w2 --micro-tokens 128" "w4 --micro-tokens 256" "r2 --ranks 2 --micro-tokens 64" "r4 --ranks 4"; do
    train ${way%% *} ${way#* } --steps 10 --quiet
    status 0
    stdout ''
    stderr ''
    losses ${way%% *} >.result/${way%% *}
    true_that 'ten steps of 256 tokens' grep -q '"step": 10, .*"tokens": 2560,' work/${way%% *}/metrics.jsonl
done
for way in w2 w4 r2 r4; do
    near .result/w1 .result/$way 1e-5
done
# ... and reads the same data in the same order.
for way in w1 w4 r2 r4; do
    grep -o '"step".*"at": "[^"]*"' work/$way/metrics.jsonl | sed 's/, "loss.*"at"/ "at"/' >.result/$way.at
done
cmp -s .result/w1.at .result/w4.at && cmp -s .result/w1.at .result/r2.at && cmp -s .result/w1.at .result/r4.at || wrong
true_that 'every step begins elsewhere' test "$(sed 's/.*"at"//' .result/w1.at | sort -u | wc -l)" = 10

# Rates are in the record, as the formula says.
train rates --steps 8 --lr 1e-3 --lr-floor 0.1 --warmup 4 --quiet
sed -n 's/.*"lr": \([0-9.e-]*\),.*/\1/p' work/rates/metrics.jsonl >.result/rates
printf '%s\n' 0.00025 0.0005 0.00075 0.001 0.00086819805 0.00055 0.00023180195 0.0001 | paste - .result/rates >.result/both
true_that 'rates of warm-up and cosine' awk '{ n++; d = $1 - $2; if (d < 0) d = -d; if (d > 1e-6 * $1) exit 1 } END { exit n != 8 }' .result/both
train short --steps 2 --warmup 5
stderr_has 'warning: the warm-up of 5 steps is as long as the run: choose a smaller --warmup'

# Validation, also at the end, and a tokenizer that did not make the shards.
train val --steps 4 --val 'sh/*.pts' --val-every 3 --val-tokens 512
status 0
stderr_has 'step 3  validation loss '
stderr_has 'step 4  validation loss '
true_that 'two validations' test "$(grep -c val_loss work/val/metrics.jsonl)" = 2
(cd work && "$palimpsa" tokenize --train-tokenizer 290 --out other.json text.txt) 2>/dev/null
train bad --tokenizer other.json
status 1
stderr_has 'error: other.json: the shards sh/*.pts were made by tokenizer '
mkdir -p work/sh2
(cd work && "$palimpsa" tokenize --tokenizer other.json --out sh2/text text.jsonl) 2>/dev/null
train bad --val 'sh2/*.pts'
status 1
stderr_has 'error: sh2/*.pts: expected shards of tokenizer '
train bad --data 'sh/*.pts,sh2/*.pts'
status 1
stderr_has 'tokenizer: expected '

# Windows that begin at documents: what that leaves out is said.
train aligned --steps 2 --align
status 0
stderr_has ' tokens never visited'
sed -n 's/^data .* an epoch, \([0-9]*\) tokens never visited/\1/p' .result/stderr >.result/skipped
true_that 'some are' test "$(cat .result/skipped)" -gt 64
train joined --steps 2 --join --no-shuffle
status 0
true_that 'the order of the data' test "$(grep -o '"at": "[^"]*"' work/joined/metrics.jsonl | paste -sd ' ')" = \
    '"at": "text_000000.pts:0" "at": "text_000000.pts:256"'
