# A sweep of rates: the best of four recalls nearly everything, the same seed gives the same table; mixes of lengths
# are the default, and one length alone is warned of.
. "$source_dir/tests/cli/corpus"

run mqar --out none --help
status 0
stdout_has '(default 32:4+64:8+128:16)'

sweep="--models palimpsa-d --lengths 32:4 --vocab 64 --layers 2 --width 32 --heads 1 --key 32 --value 32 --rank 8
    --train 1000 --test 100 --fresh --epochs 20 --patience 8 --batch-tokens 512 --stop-at 0.99 --device cpu --jobs 2
    --threads 1 --quiet"
alone='warning: runs on one length alone, 32 with 4 pairs: its models need not do another'
run mqar --out four $sweep --lr 0.008,0.01,0.012,0.015
stderr_has "$alone"
true_that 'four rates, a line each' test "$(grep -c '	finished	' work/four/runs.tsv)" = 4
true_that 'one is the best' test "$(grep -c '^mqar palimpsa-d 32:4 lr 0\.0' .result/stdout)" = 1
true_that 'the best recalls 99 %' awk -F '\t' '/^mqar/ { exit !($3 >= 0.99) }' .result/stdout
best=$(sed -n 's/^mqar palimpsa-d 32:4 lr \([0-9.]*\).*/\1/p' .result/stdout)

run mqar --out again $sweep --lr "$best"
cut -f 1-11 work/again/runs.tsv | tail -1 >.result/again
true_that 'the same seed, the same line' grep -qxF -f .result/again <(cut -f 1-11 work/four/runs.tsv)
run mqar --out again $sweep --lr "$best" --table
grep -q 'one length' .result/stderr && { wrong; echo '  a table is warned of'; }
run mqar --out mixed $sweep --lengths 8:2+16:2 --epochs 1 --lr 0.01
grep -q 'one length' .result/stderr && { wrong; echo '  a mix is warned of'; }
true_that 'a line for each length' test "$(grep -c '8:2+16:2' work/mixed/runs.tsv)" = 2
