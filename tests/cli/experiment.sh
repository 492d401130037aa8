# scripts/experiments: a whole one in little, then again with nothing left to do.
experiment() {
    line="convert.sh $*"
    (cd work && exec bash "$source_dir/scripts/experiments/convert.sh" "$@") >.result/stdout 2>.result/stderr
    code=$?
}

experiment --out x
status 1
stderr 'convert.sh: expected --palimpsa, --shards and --out; see --help'
experiment --size huge
status 2
stderr 'convert.sh: --size: expected tiny, small or base, found huge'
experiment --palimpsa "$palimpsa" --shards . --out x
status 1
stderr 'convert.sh: .: expected train*.pts'
experiment --steps 1x
status 1
stderr "convert.sh: expected a whole number above 0, found '1x'"
experiment --seeds
status 2
stderr 'convert.sh: expected a value after --seeds'

mkdir work/shards
seq 1 3000 >work/train.txt
seq 3001 3700 >work/held-out.txt
run tokenize --train-tokenizer 300 --out shards/tokenizer.json train.txt
for part in train held-out; do
    run tokenize --tokenizer shards/tokenizer.json --out shards/$part $part.txt
    status 0
done
little="--palimpsa $palimpsa --shards shards --out x --size tiny --width 16 --depth 3 --head 16 --state 4 --context 32
    --batch-tokens 128 --steps 4 --tune-steps 2 --device cpu --eval-tokens 1 --layers 1"
experiment $little --seeds '1 2' --init 'near gain=0.2'
status 0
stdout_has '| model | 32 | 64 | 128 | 256 |'
stdout_has 'Mean held-out loss over 2 seeds (standard deviation), nats a token, 256 predictions'
stdout_has '| window-gain=0.2-tuned - source-tuned | '
# 2 seeds, 6 models, 4 lengths of window
[ "$(wc -l <work/x/results.tsv)" = 49 ] && [ "$(grep -c swapped work/x/layers.tsv)" = 4 ] ||
    { wrong; echo "  results.tsv or layers.tsv has other lines"; }
grep -q "	source-tuned	0	[0-9.]*	256$" work/x/positions.tsv || { wrong; echo "  positions.tsv lacks a line"; }

grep -q '^2	' work/x/seed-2/window-near-plasticity.tsv && grep -q swapped work/x/seed-2/window-near.tsv ||
    { wrong; echo "  tables of figures lack lines"; }

cp work/x/results.md .result/before
experiment $little --seeds '1 2' --init 'near gain=0.2'
status 0
same before <work/x/results.md
grep -q pretrain .result/stderr && { wrong; echo "  trained again what was finished"; }
experiment $little --seeds 1 --width 32
status 1
stderr 'convert.sh: x: holds runs of another model; choose another --out'
