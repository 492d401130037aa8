# Prompts and responses: marked by tokenize, left out of the loss by finetune and eval, refused where there are none.
for i in $(seq 150); do
    printf '{"id": %d, "prompt": "q%d: %d %d?\\n", "response": "yes, yes, yes."}\n' "$i" "$i" $((i * i * 7919 % 99991)) $((i * 31 % 997))
done >work/pairs.jsonl
cut -d'"' -f6,10 work/pairs.jsonl >work/text.txt
run tokenize --train-tokenizer 257 --out t.json text.txt
status 0
run tokenize --tokenizer t.json --prompt-field prompt --out pairs pairs.jsonl
status 0
stderr_has 'tokenize: 150 documents, '
run tokenize --tokenizer t.json --out plain text.txt
status 0
run info pairs_000000.pts
stdout_has 'documents	150'
stdout_has 'prompts	marked'
run info plain_000000.pts
stdout_has 'prompts	not marked'

# The ids are those of both strings, one after the other.
printf '%s\n' '{"prompt": "ab", "response": "c"}' '{"prompt": "", "response": "d"}' >work/two.jsonl
run tokenize --tokenizer t.json --prompt-field prompt --ids two.jsonl
status 0
cp .result/stdout .result/ids
run tokenize --tokenizer t.json --field whole --ids two.jsonl
status 1
printf '%s\n' '{"text": "abc"}' '{"text": "d"}' >work/whole.jsonl
run tokenize --tokenizer t.json --ids whole.jsonl
same ids <.result/stdout

refuse() {
    printf '%s\n' "$1" >work/bad.jsonl
    shift
    run tokenize --tokenizer t.json --prompt-field prompt --out bad bad.jsonl
    status 1
    stderr_has "error: bad.jsonl:1: $1"
    ls work/bad_* >/dev/null 2>&1 && { wrong; echo "  left files"; }
}
refuse '{"prompt": "a"}' 'no such field, looking for "response"'
refuse '{"response": "a"}' 'no such field, looking for "prompt"'
refuse '{"prompt": ["a"], "response": "b"}' ''
refuse '{"prompt": "a", "response": 7}' ''
refuse '{"prompt": "a", "response": ""}' '"response" is empty, so there is nothing to learn'
refuse '{"prompt": "a", "response": "b"' ''
run tokenize --tokenizer t.json --prompt-field prompt --out bad text.txt
status 1
stderr 'error: text.txt: expected lines of JSON with "prompt" and "response", found text'
run tokenize --tokenizer t.json --prompt-field a --field a --out bad pairs.jsonl
status 2
stderr 'error: palimpsa tokenize: --prompt-field and --field are the same; see palimpsa tokenize --help'

cp "$source_dir/data/models/mamba2-tiny.json" work/tiny.json
sed -i 's/"vocab_size": 512/"vocab_size": 257/' work/tiny.json
run pretrain --model tiny.json --tokenizer t.json --data 'plain_*.pts' --out base --steps 2 --batch-tokens 256 --context 64 --threads 1
status 0

common="--from base --batch-tokens 512 --context 64 --lr 5e-3 --warmup 3 --steps 24 --threads 1 --log-every 1 --val-every 0"
run finetune $common --data 'pairs_*.pts' --mask-prompt --out masked --until 9
status 0
run finetune $common --data 'pairs_*.pts' --mask-prompt --out masked
status 0
run finetune $common --data 'pairs_*.pts' --mask-prompt --out straight
status 0
run finetune $common --data 'pairs_*.pts' --out all
status 0
line='stopped and resumed'
cmp -s work/masked/step-000024/model.safetensors work/straight/step-000024/model.safetensors ||
    { wrong; echo "  other weights than without the stop"; }

# Responses are all the same: their loss falls far below that of prompts, which are noise.
loss() { sed -n 's/^nll\t//p' .result/stdout; }
run eval nll --model straight --data pairs_000000.pts --mask-prompt
status 0
masked=$(loss)
run eval nll --model straight --data pairs_000000.pts
status 0
whole=$(loss)
run eval nll --model all --data pairs_000000.pts
status 0
all=$(loss)
line='losses of responses and of everything'
awk -v m="$masked" -v w="$whole" -v a="$all" 'BEGIN { exit !(m < 0.5 && w > 1.5 && a < w) }' ||
    { wrong; echo "  responses $masked, everything $whole, everything when trained on everything $all"; }

run finetune $common --data 'pairs_*.pts' --out masked
status 1
stderr 'error: masked: the run was started with mask_prompt = 1, this command says 0'
run finetune $common --data 'plain_*.pts' --mask-prompt --out other
status 1
stderr 'error: plain_*.pts: --mask-prompt needs shards that mark prompts, as tokenize --prompt-field makes them'
run eval nll --model base --data plain_000000.pts --mask-prompt
status 1
stderr_has 'error: plain_000000.pts: --mask-prompt needs shards that mark prompts'
run eval nll --model base --data text.txt --mask-prompt
status 1
stderr_has 'error: text.txt: --mask-prompt needs shards that mark prompts'

# Nothing but prompts in a step.
{ printf '{"prompt": "'; head -c 3000 /dev/zero | tr '\0' x; printf '", "response": "b"}\n'; } >work/long.jsonl
run tokenize --tokenizer t.json --prompt-field prompt --out long long.jsonl
status 0
run finetune --from base --data long_000000.pts --mask-prompt --out none --batch-tokens 64 --context 64 --steps 1 --threads 1
status 1
stderr_has 'step 1: its rows predict nothing: every document is a prompt or one token long'
