# Losses: by hand, by position, of text and of shards; and models against reference values.
. "$source_dir/tests/cli/corpus"
corpus 304
train run --steps 30 --batch-tokens 512 --lr 1e-2 --tokenizer tok.json --quiet
status 0
value() { sed -n "s/^$1	//p" .result/stdout; }

run eval
status 2
stderr_has "error: eval: expected a task (nll"
tasks=$(sed 's/.*(//; s/).*//; s/,//g' .result/stderr)
run eval --help
status 0
for task in $tasks; do
    true_that "--help names $task" grep -Eq "(^|[ ,])$task([,;]|\$)" .result/stdout
done
run eval --model run --data text.txt
status 2
stderr_has ", found ''"
run eval perplexity --model run --data text.txt
status 2
stderr_has ", found 'perplexity'"
run eval nll --data text.txt
status 2
stderr 'error: eval: expected --model'
run eval nll --model run
status 2
stderr 'error: eval: expected data: text, .jsonl, .pts or .bin'
run eval nll --model run --data nowhere.txt
status 1
stdout ''
stderr 'error: nowhere.txt: No such file or directory'
: >work/nothing.txt
run eval nll --model run --data nothing.txt
status 1
stdout ''
stderr 'error: eval: the data has nothing to predict'

# One document of known ids: the sum over what generate says of each of its tokens. Greedy text is its own
# document, its log-probabilities are its loss.
run generate --model run --tokens 20 --temperature 0 --uncertainty --quiet
cut -f4 .result/stdout | sed 's/^"//; s/"$//' | tr -d '\n' >work/greedy.txt
cut -f1 .result/stdout | paste -sd ' ' >.result/ids
(cd work && "$palimpsa" tokenize --tokenizer tok.json --ids greedy.txt 2>/dev/null) >.result/again
awk -F '\t' '{ s -= $3 } END { printf "%.4f\n", s / NR }' .result/stdout >.result/hand
n=$(wc -l <.result/stdout)
run eval nll --model run --data greedy.txt --quiet
status 0
stderr ''
if cmp -s .result/ids .result/again; then
    true_that 'the loss of the document is that of its tokens' \
        awk -v a="$(cat .result/hand)" -v b="$(value nll)" 'BEGIN { d = a - b; exit d > 2e-4 || d < -2e-4 }'
    true_that 'every token is predicted' test "$(value predictions)" = "$n"
fi
true_that 'the separator is named' test "$(value separator)" = 0

# A table by position: weights sum to the whole; --out has the same numbers.
tr '\n' ' ' <work/text.txt | head -c 6000 >work/long.txt
run eval nll --model run --data long.txt --by-position --out result.json
status 0
stderr_has 'warning: documents of up to '
stderr_has 'trained on 64: --by-position shows how the loss goes on'
awk -F '\t' '$1 == "nll" { nll = $2 } $1 == "predictions" { n = $2 } $1 == "position" { table = 1 }
    table && $1 ~ /-/ { sum += $2 * $3; count += $3; rows++ }
    END { d = sum / count - nll; exit count != n || rows < 8 || d > 1e-5 || d < -1e-5 }' .result/stdout || wrong
if command -v python3 >/dev/null; then
    true_that 'JSON says the same' python3 - "$(value nll)" <<'END'
import json, sys
r = json.load(open("work/result.json"))
total = sum(p["nll"] * p["predictions"] for p in r["positions"]) / r["predictions"]
assert r["task"] == "nll" and abs(r["nll"] - float(sys.argv[1])) < 1e-4 and abs(total - r["nll"]) < 1e-6
assert r["documents"] == 1 and r["separator"] == 0
END
fi
# Words and bytes, and what follows from them.
true_that 'bytes' test "$(value bytes)" = 6000
true_that 'words' test "$(value words)" = "$(wc -w <work/long.txt)"
awk -v n="$(value nll)" -v p="$(value predictions)" -v b="$(value bits_per_byte)" -v w="$(value word_perplexity)" \
    -v words="$(value words)" 'BEGIN { x = n * p / 6000 / log(2) / b; y = n * p / words / log(w)
        exit x < 0.9999 || x > 1.0001 || y < 0.9999 || y > 1.0001 }' || wrong

# What a run that was stopped would leave: not with the result, and refused when it is something else.
true_that 'nothing is left beside a result' test ! -e work/result.json.part
cp work/result.json work/result.json.part
run eval nll --model run --data long.txt --out result.json
status 1
stdout ''
stderr_has 'error: result.json.part: '
rm work/result.json.part

# Documents in parts of 32 tokens lose what came before; text, JSON lines and compressed text are one text.
run eval nll --model run --data text.jsonl --quiet
status 0
whole=$(value nll)
documents=$(value documents)
true_that 'four hundred documents' test "$documents" = 400
run eval nll --model run --data long.txt --context 16 --quiet
parts=$(value nll)
run eval nll --model run --data long.txt --quiet
true_that 'memory helps' awk -v a="$parts" -v b="$(value nll)" 'BEGIN { exit !(a > b) }'
cp .result/stdout .result/plain
run eval nll --model run --quiet long.txt text.jsonl
true_that 'two files are one set' test "$(value documents)" = 401
gzip -k work/long.txt
run eval nll --model run --data long.txt.gz --quiet
cmp -s .result/stdout .result/plain || wrong

# The same number however many stand side by side.
for what in 'text.jsonl' 'long.txt --context 32' 'sh/text_000000.pts --context 32'; do
    for batch in 1 8 64; do
        run eval nll --model run $what --batch $batch --quiet
        status 0
        printf '%s %s\n' "$batch" "$(value nll)" >>.result/batches
    done
    true_that "a batch is only speed: $what" awk 'NR == 1 { a = $2 } { d = $2 - a; if (d > 1e-4 || d < -1e-4) bad = 1 }
        END { exit bad || NR != 3 }' .result/batches
    rm .result/batches
done

# Shards: every window's predictions, the frequencies of tokens beside them, a limit.
run eval nll --model run --data 'sh/*.pts' --unigram 'sh/*.pts' --quiet
status 0
true_that 'the model beats frequencies' awk -v a="$(value nll)" -v b="$(value unigram_nll)" 'BEGIN { exit !(a < b) }'
all=$(value tokens)
run eval nll --model run --data 'sh/*.pts' --limit 500 --quiet
true_that 'stops early' test "$(value tokens)" -lt "$all" -a "$(value tokens)" -ge 500
mkdir -p work/sh2
(cd work && "$palimpsa" tokenize --train-tokenizer 290 --out other.json text.txt &&
    "$palimpsa" tokenize --tokenizer other.json --out sh2/text text.jsonl) 2>/dev/null
run eval nll --model run --data 'sh2/*.pts' --quiet
status 1
stdout ''
stderr_has 'error: sh2/*.pts: these shards were made by tokenizer '
run info run --plasticity --data 'sh2/*.pts' --tokens 64
status 1
stderr_has 'error: sh2/*.pts: these shards were made by tokenizer '

# What a run, a preset and a shard are.
run info run
status 0
stderr ''
stdout_has 'directory	run/step-000030'
stdout_has 'vocabulary	304'
stdout_has 'context it was trained at	64'
run info palimpsa-tiny --plan --tokens 1024 --device cpu
status 0
stdout_has 'plan activations	'
run info sh/text_000000.pts
status 0
stdout_has 'documents	400'
stdout_has 'separator	0'
run info run --plasticity --data 'sh/*.pts' --tokens 64 --threads 1
status 0
true_that 'a line per head' test "$(wc -l <.result/stdout)" = 5
run info
status 2
stderr 'error: info: expected a model directory, config, preset, tensor file or shard'
run info nowhere
status 1
stderr_has 'error: nowhere: neither a file, nor a directory, nor a preset ('
run info text.txt
status 1
stderr 'error: text.txt: expected a token shard (PALTOKEN, or .bin with magic 20240520), found neither'

# A model against the values of another implementation.
golden=${PALIMPSA_GOLDEN:-$source_dir/tests/golden}/models/palimpsa_d
run verify --model "$golden" --against "$golden/expected.safetensors" --device cpu --threads 1
status 0
stderr ''
stdout_has 'logits	'
stdout_has 'greedy	0 unequal	0	ok'
true_that 'all is well' test "$(grep -c 'ok$' .result/stdout)" = "$(wc -l <.result/stdout)"
run verify --model "$golden" --against "$golden/expected.safetensors" --device cpu --threads 1 --tol 1e-12 --no-grads
status 1
stdout_has 'WRONG'
run verify --model "$golden" --against "$golden/model.safetensors"
status 1
stdout ''
stderr_has 'expected input_ids of two dimensions'
run verify --model "$golden" --against nowhere.safetensors
status 1
stderr 'error: nowhere.safetensors: No such file or directory'
