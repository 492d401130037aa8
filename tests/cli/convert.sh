# palimpsa convert and finetune from the command line: a table on stdout, one line for what is wrong.
golden=$source_dir/tests/golden/models

run convert
status 2
stdout ''
stderr 'error: convert: expected a model directory and a new one'

run convert absent new
status 1
stderr_has 'error: absent'

run convert "$golden/state_spaces_mamba2" hf --to hf --check
status 0
stderr ''
stdout_has 'layer	action	score	window low	median	high'
stdout_has '2	copied	-	-	-	-'
stdout_has 'tokens compared	63'
stdout_has 'KL source to result	0'
stdout_has 'logits	equal'

run convert "$golden/state_spaces_mamba2" hf --to hf
status 1
stderr 'error: hf: exists; a conversion replaces nothing'

run convert hf/ back --to state-spaces
status 0
stdout_has 'swapped	0'
stderr 'nothing was measured: --calibrate DATA shows windows and losses, --check compares logits'

run convert hf meta --layers 1
status 1
stderr_has 'choosing 1 of 3 layers needs their windows: --calibrate SHARDS'

run convert hf meta --layers 1 --score bias-only
status 0
stdout_has 'swapped	1'

run info meta
status 0
stdout_has 'family	meta_mamba2'
stdout_has 'metaplastic layers	1'

run convert meta plain --to hf
status 1
stderr_has '--drop'

run convert hf x --layers 7
status 1
stderr 'error: --layers 7: expected a count from 0 to 3, layers separated by commas, or all'

run convert hf x --init gain --layers 1,
status 1
stderr 'error: --init gain matches the gain to the keys of a text: expected --calibrate'

run convert hf x --init gain --gain 0
status 2
stderr_has '--gain'

run convert hf x --to gguf
status 2
stderr_has 'palimpsa|hf|state-spaces'

run info "$golden/state_spaces_mamba2/pytorch_model.bin"
status 0
stdout_has 'backbone.layers.0.mixer.in_proj.weight	F32	[148,32]'

# What is frozen needs no gradients: a plan says so.
grads() { sed -n 's/^plan gradients	\([0-9]*\)	.*/\1/p' .result/stdout; }
run info meta --plan --tokens 64
status 0
all=$(grads)
run info meta --plan --tokens 64 --train converted
status 0
stdout_has 'plan trained	converted'
converted=$(grads)
run info meta --plan --tokens 64 --train plasticity
status 0
line='gradients of all, converted, plasticity'
[ "$all" -gt "$converted" ] && [ "$converted" -gt "$(grads)" ] || { wrong; echo "  $all, $converted, $(grads)"; }
run info meta --plan --train some
status 2
stderr_has 'all|plasticity|converted'

run finetune --data x --out y
status 2
stderr 'error: palimpsa finetune: --from is required; see palimpsa finetune --help'

# 200 ids below 64 as an llm.c shard
{
    printf '\x88\xd8\x34\x01\x01\x00\x00\x00\xc8\x00\x00\x00'
    head -c 1012 /dev/zero
    for i in $(seq 200); do printf "\\x$(printf %02x $((i * i % 61)))\\x00"; done
} >work/ids.bin
run finetune --from meta --data ids.bin --out run --train plasticity --steps 2 --batch-tokens 64 --context 32 --threads 1
status 0
stdout ''
stderr_has 'trained    plasticity: '

# Looking does not change what is trained, and stands once after resuming.
tune="--from meta --data ids.bin --steps 4 --batch-tokens 64 --context 32 --threads 1 --log-every 9"
run finetune $tune --out unseen
status 0
run finetune $tune --out seen --plasticity-every 2 --until 2
status 0
run finetune $tune --out seen --plasticity-every 2
status 0
stderr_has 'step 4  plasticity: spread '
line='metrics with --plasticity-every'
cmp -s work/unseen/step-000004/model.safetensors work/seen/step-000004/model.safetensors ||
    { wrong; echo "  the weights differ"; }
sed -n 's/^{"step": \([0-9]*\), .*"plasticity": {"layers": \[[0-9]\], "spread": \[\[.*/\1/p' work/seen/metrics.jsonl |
    tr '\n' ' ' >.result/steps
printf '\n' >>.result/steps
same steps '0 2 4 '
PATH=/nonexistent run plot seen --heat spread -o heat.svg
stderr_has 'gnuplot is not installed'
line='heat.tsv'
[ "$(sed -n '1p' work/heat.tsv)" = 'step	layer	head	spread	gain	window	b	b_scale' ] || { wrong; echo "  has another head"; }
run plot seen --y spread -o spread.svg
[ "$(grep -c train work/spread.tsv)" = 3 ] || { wrong; echo "  expected three points of spread"; }
run finetune --from meta --data ids.bin --out pair --steps 2 --batch-tokens 128 --context 32 --ranks 2 --plasticity-every 1
status 0
line='metrics of two ranks'
[ "$(grep -c plasticity work/pair/metrics.jsonl)" = 3 ] || { wrong; echo "  expected three lines of plasticity"; }
run info seen --plasticity --data ids.bin --tokens 32
status 0
cp .result/stdout work/heads.tsv
PATH=/nonexistent run plot heads.tsv --heat gain -o gain.svg
stderr_has 'gnuplot is not installed'
run finetune --from hf --data ids.bin --out other --plasticity-every 1 --steps 2 --batch-tokens 64 --context 32
status 1
stderr 'error: hf: no layer is metaplastic, so --plasticity-every has nothing to measure'

run finetune --from hf --data ids.bin --out other --train plasticity --steps 2 --batch-tokens 64 --context 32
status 1
stderr 'error: hf: no layer is metaplastic, so there is nothing for --train to train; palimpsa convert makes some so'

run convert run tuned --to state-spaces --drop
status 0
stdout_has '	dropped	'
