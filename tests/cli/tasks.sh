# Benchmarks from files to results: labels, logs, batches, limits, LongBench continued and scored alone.
. "$source_dir/tests/cli/corpus"
corpus 304
train run --steps 10 --batch-tokens 512 --lr 1e-2 --tokenizer tok.json --quiet
status 0

cat >work/piqa.jsonl <<'END'
{"goal": "the stone", "sol1": "river came.", "sol2": "and the king went so she slept beside."}
{"goal": "no voice", "sol1": "people saw water.", "sol2": "light."}
{"goal": "he walked when the night", "sol1": "was.", "sol2": "gave some word under the king but they spoke."}
END
run eval piqa --model run --data piqa.jsonl
status 1
stderr_has "error: piqa.jsonl:1: no 'label', and no file of labels"
printf '0\n1\n' >work/short.lst
run eval piqa --model run --data piqa.jsonl --labels short.lst
status 1
stderr_has 'error: piqa.jsonl:3: the file of labels has fewer lines than the data'
printf '0\n1\n0\n' >work/piqa-labels.lst
for batch in 1 7; do
    run eval piqa --model run --data piqa.jsonl --batch $batch --log $batch.jsonl --out $batch.json --quiet
    status 0
    stderr ''
    stdout_has "$(printf 'task\tmetric\tvalue\tstderr\tn\ttruncated\tskipped')"
done
run eval piqa --model run piqa.jsonl --context 12 --skip-long --quiet
status 0
stdout_has "$(printf 'acc\tnan\tnan\t0\t0\t3')"
run eval piqa --model run piqa.jsonl --limit 2 --context 32 --skip-long --quiet
status 0
stdout_has "$(printf '1\t0\t1')"
run eval piqa --model run piqa.jsonl --context 12 --quiet
status 1
stderr_has "has no token to score after 'Question: the stone"
run eval piqa --model run piqa.jsonl --limit 2 --context 32 --quiet
status 0
stdout_has "$(printf '2\t1\t0')"
if command -v python3 >/dev/null; then
    python3 - work <<'END' || wrong
import json, sys
a, b = ([json.loads(l) for l in open("%s/%d.jsonl" % (sys.argv[1], n))] for n in (1, 7))
assert len(a) == 6 and all(abs(x["log_prob"] - y["log_prob"]) < 1e-5 for x, y in zip(a, b))
assert a[1]["context"] == "Question: the stone\nAnswer:" and a[1]["continuation"].startswith(" and the king")
r = json.load(open(sys.argv[1] + "/1.json"))
assert len(r["model_hash"]) == 64 and r["settings"]["shots"] == 0 and r["settings"]["first_id"] == -1
acc = r["results"][0]
best = [max((0, 1), key=lambda k: a[2 * i + k]["log_prob"]) == a[2 * i]["gold"] for i in range(3)]
assert acc["metric"] == "acc" and abs(acc["value"] - sum(best) / 3) < 1e-9 and acc["percent"] == 100 * acc["value"]
assert acc["n"] == 3 and acc["truncated"] == acc["skipped"] == 0 and acc["scale"] == "0-1"
END
fi

# Stopped and run again: finished requests are taken, of the same data only.
run eval piqa --model run --data piqa.jsonl --predictions answers --quiet
status 0
cp .result/stdout .result/first
cp work/answers/piqa.jsonl work/all.jsonl
head -c 250 work/all.jsonl >work/answers/piqa.jsonl
run eval piqa --model run --data piqa.jsonl --predictions answers --quiet
status 0
cmp -s .result/first .result/stdout || wrong
true_that 'six answers' test "$(wc -l <work/answers/piqa.jsonl)" = 6
true_that 'the first is as it was' test "$(head -1 work/all.jsonl)" = "$(head -1 work/answers/piqa.jsonl)"
sed 's/stone/river/' work/piqa.jsonl >work/other.jsonl
run eval piqa --model run --data other.jsonl --labels piqa-labels.lst --predictions answers --quiet
status 1
stderr 'error: answers: request 0 is of other data'
run eval piqa --model run --data piqa.jsonl --predictions answers --separator --quiet
status 1
stderr 'error: answers: the predictions here are of another model or other settings'
if command -v python3 >/dev/null; then
    run eval lambada --model run --data text.txt --limit 20 --log words.jsonl --out words.json --quiet
    status 0
    python3 - work <<'END' || wrong
import json, math, sys
rows = [json.loads(l) for l in open(sys.argv[1] + "/words.jsonl")]
acc, ppl = json.load(open(sys.argv[1] + "/words.json"))["results"]
assert len(rows) == 20 and ppl["metric"] == "perplexity" and ppl["scale"] is None
want = math.exp(-sum(r["log_prob"] for r in rows) / 20)
assert abs(ppl["value"] / want - 1) < 1e-6 and abs(acc["value"] - sum(r["greedy"] for r in rows) / 20) < 1e-9
END
fi
for task in lambada wikitext; do
    run eval $task --model run --data text.txt --predictions answers --limit 20 --quiet
    status 0
    cp .result/stdout .result/first
    run eval $task --model run --data text.txt --predictions answers --limit 20 --quiet
    status 0
    cmp -s .result/first .result/stdout || wrong
done

mkdir work/config
echo '{"hotpotqa": "Read. {context}\nAsk: {input}"}' >work/config/dataset2prompt.json
echo '{"hotpotqa": 6}' >work/config/dataset2maxlen.json
for i in 1 2 3; do
    echo "{\"input\": \"who $i\", \"context\": \"the king $i saw the river\", \"answers\": [\"the king\"], \"all_classes\": null, \"length\": 5}"
done >work/hotpotqa.jsonl
run eval longbench --model run --data hotpotqa.jsonl --config config
status 1
stderr 'error: longbench: needs --config, --predictions and --data, or --score-only'
run eval longbench --model run --data hotpotqa.jsonl --config config --predictions pred --limit 2 --quiet
status 0
run eval longbench --model run --data hotpotqa.jsonl --config config --predictions pred --quiet
status 0
cp .result/stdout .result/first
true_that 'three rows are answered' test "$(wc -l <work/pred/hotpotqa.jsonl)" = 3
run eval longbench --score-only pred
status 0
true_that 'scoring alone gives the same table' cmp -s .result/first .result/stdout
run eval longbench --model run --data hotpotqa.jsonl --config config --predictions pred --context 8
status 1
stderr_has 'error: pred: the predictions here are of another model or other settings'
run eval longbench --score-only config
status 1
stderr_has "error: config: no predictions of LongBench's tasks"
run eval piqa --score-only pred
status 2
stderr 'error: eval piqa: --score-only is for longbench babilong'

# A Mamba2 in the form that other harnesses open: config, tokenizer and the flag of tied weights are there, and what
# it answers is what the run answers, request by request.
run pretrain ${tiny/palimpsa-tiny/mamba2-tiny} --out mamba --steps 3 --lr 1e-2 --tokenizer tok.json --quiet
status 0
run convert mamba hf --to hf
status 0
line='an exported directory'
for what in '"model_type": "mamba2"' '"architectures": ["Mamba2ForCausalLM"]' '"tie_word_embeddings": true' \
    '"bos_token_id": 0' '"eos_token_id": 0'; do
    grep -qF "$what" work/hf/config.json || { wrong; echo "  its config lacks $what"; }
done
same_files tok.json hf/tokenizer.json
grep -q '"tokenizer_class": "PreTrainedTokenizerFast"' work/hf/tokenizer_config.json || wrong
for model in mamba hf; do
    run eval piqa --model $model --data piqa.jsonl --log $model.jsonl --quiet
    status 0
done
same_files mamba.jsonl hf.jsonl
for what in context continuation tokens log_prob; do
    true_that "the log has $what of every request" test "$(grep -c "\"$what\": " work/hf.jsonl)" = 6
done
