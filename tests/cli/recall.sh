# Needles and scattered facts: generated, answered, continued, scored; and what is refused.
. "$source_dir/tests/cli/corpus"
corpus 304
train run --steps 10 --batch-tokens 512 --lr 1e-2 --tokenizer tok.json --quiet
status 0
table() { sed 1d .result/stdout; }

niah="eval niah --model run --lengths 400,1Ki --depths 0,50,100 --samples 2 --answer-tokens 16 --quiet"
run $niah --out niah.json --predictions kept
status 0
stderr ''
true_that 'six cells, two lengths, one form' test "$(table | wc -l)" = 9
stdout_has "$(printf 'niah single_1 1024 50%%\tstring_match_all\t0\t0\t2\t0\t0')"
stdout_has "$(printf 'niah single_1 400\tstring_match_all\t0\t0\t6\t0\t0')"
cp .result/stdout .result/first
true_that 'twelve answers' test "$(wc -l <work/kept/niah.jsonl)" = 12

# Any number side by side; killed and run again; more samples than before.
run $niah --batch 3
status 0
cmp -s .result/first .result/stdout || wrong
head -c 900 work/kept/niah.jsonl >work/torn && cp work/kept/niah.jsonl work/whole && cp work/torn work/kept/niah.jsonl
run $niah --predictions kept --batch 1
status 0
cmp -s .result/first .result/stdout || wrong
sort work/whole >work/whole.sorted && sort work/kept/niah.jsonl >work/again.sorted
same_files whole.sorted again.sorted
run $niah --predictions kept --samples 3
status 0
true_that 'six more' test "$(wc -l <work/kept/niah.jsonl)" = 18
run $niah --predictions kept --seed 1
status 1
stderr 'error: kept: the predictions here are of another model or other settings'

# Rows of the user's: what the model says is right, once as all and once as half of the answer.
if command -v python3 >/dev/null; then
    python3 - work <<'END' || wrong
import json, sys
d = sys.argv[1]
r = json.load(open(d + "/niah.json"))
assert r["settings"]["seed"] == 0 and r["settings"]["answer_tokens"] == 16 and len(r["model_hash"]) == 64
cell = r["results"][1]
assert cell["part"] == "single_1" and cell["length"] == 400 and cell["depth"] == 50 and cell["n"] == 2
assert "length" not in r["results"][-1] and r["results"][-1]["n"] == 12
with open(d + "/rows.jsonl", "w") as f:
    for tail, outputs in (("", ["Q7"]), (" Q7. The river", ["Q7"]), (" Q7. The river", ["", "Q7"])):
        f.write(json.dumps({"index": 0, "input": "the people spoke. " * 20 + tail, "outputs": outputs}) + "\n")
END
    run eval niah --model run --data rows.jsonl --answer-tokens 4 --quiet
    status 0
    true_that 'depth and length come from the row' grep -q '^niah rows [0-9]* 100%' .result/stdout
fi
echo '{"input": "x"}' >work/bad.jsonl
run eval niah --model run --data bad.jsonl
status 1
stderr 'error: bad.jsonl:1: expected input, a text, and outputs, a list of texts'
run eval niah --model run
status 1
stderr 'error: niah: expected --lengths, or rows with --data'
run eval niah --model run --lengths 1Ki --forms single_2
status 1
stderr 'error: niah: single_2 needs --background, a file of prose'
run eval niah --model run --lengths 1Ki --forms single_1,double
status 1
stderr_has "found 'double'"
run eval niah --model run --lengths 150
status 1
stderr_has 'error: niah: a prompt without other text has '
run eval niah --model run --lengths 1Ki --depths 0,101
status 2
stderr "error: --depths: expected numbers in [0,100], found '101'"
run eval niah --model run --lengths 1Ki,,2Ki
status 2
stderr "error: --lengths: expected numbers in [1,2e9], found ''"
run eval niah --model run --lengths 1Ki --context 100
status 1
stderr 'error: niah: prompts are never cut; leave --context out'
run eval niah --model run --lengths 1Ki --wording text.txt
status 1
stderr_has 'error: text.txt'
run eval niah --model run --lengths 600 \
    --forms single_2,single_3,multikey_1,multikey_2,multikey_3,multivalue,multiquery --depths 50 \
    --samples 1 --answer-tokens 2 --background text.txt --predictions seven --quiet
status 0
true_that 'seven forms' test "$(table | wc -l)" = 14
true_that 'four answers to two of them' \
    test "$(grep -cE '"answers": \["[0-9]+", "[0-9]+", "[0-9]+", "[0-9]+"\]' work/seven/niah.jsonl)" = 2

# BABILong: from bAbI and prose, from rows, and tables of predictions.
printf '1 John went out.\n2 Mary came in.\n3 Where is John? \tgarden\t1\n4 Mary slept.\n5 Where is Mary? \thall\t2\n' \
    >work/qa1_test.txt
run eval babilong --model run --data qa1_test.txt --lengths 256,512 --background text.jsonl --predictions kept \
    --answer-tokens 3 --quiet
status 0
true_that 'two questions at two lengths' test "$(wc -l <work/kept/babilong.jsonl)" = 4
stdout_has "$(printf 'babilong qa1 512\tacc\t0\t0\t2\t0\t0')"
cp .result/stdout .result/first
run eval babilong --model run --data qa1_test.txt --lengths 256,512 --background text.jsonl --predictions kept \
    --answer-tokens 3 --quiet
cmp -s .result/first .result/stdout || wrong
run eval babilong --model run --data qa1_test.txt --answer-tokens 3 --quiet
status 0
echo '{"qa1": [1, 7], "qa2": []}' >work/subset.json
run eval babilong --model run --data qa1_test.txt --subset subset.json --answer-tokens 3 --quiet
status 0
stdout_has "$(printf '\tacc\t0\tnan\t1\t0\t0')"
run eval babilong --model run --data qa1_test.txt --subset text.txt
status 1
stderr_has 'error: text.txt'
echo '{"input": "John is out.", "question": "Where?", "target": "hall"}' >work/qa2_0k.jsonl
echo '{"prompt": {"template": "{context}{{}} {question} {examples}", "examples": "e"}}' >work/form.json
run eval babilong --model run --data qa2_0k.jsonl --wording form.json --answer-tokens 3 --quiet
status 0
stdout_has "$(printf 'babilong qa2 32\tacc\t0')"
run eval babilong --model run --data text.txt
status 1
stderr "error: text.txt: expected the task, qa1 to qa20, in the file's name"
run eval babilong --model run --data qa1_test.txt --lengths 512
status 1
stderr 'error: babilong: --lengths needs --background, a file of prose'
mkdir work/tables
printf ',target,output,question\n0,hall,"In the hall, says John.",Where?\n1,hallway,"""hallway"" or\nnot",Where?\n' \
    >work/tables/M_qa1_8k.csv
run eval babilong --score-only tables
status 0
stdout "$(printf 'task\tmetric\tvalue\tstderr\tn\ttruncated\tskipped\nbabilong qa1 8192\tacc\t0.5\t0.5\t2\t0\t0')"
printf ',target,output\n' >work/tables/M_qa1_8k.csv
run eval babilong --score-only tables
status 1
stderr 'error: tables/M_qa1_8k.csv: expected the columns target, output and question'
run eval babilong --score-only sh
status 1
stderr "error: sh: no tables of BABILong's evaluation, qaN_....csv"
run eval niah --score-only tables
status 2
stderr 'error: eval niah: --score-only is for longbench babilong'
for wrong_one in '--chat {prompt}' '--by-position' '--labels text.txt' '--log x' '--pairs 3'; do
    run eval niah --model run --lengths 1Ki $wrong_one
    status 2
    stderr_has "error: eval niah: ${wrong_one%% *} is for "
done
