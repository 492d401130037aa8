# Figures: the numbers, the script, and what is said when something is missing.
mkdir -p work/runs/a work/runs/b
printf '%s\n' '{"step":1,"loss":4.5,"lr":0.001,"tokens":8192,"seconds":1}' \
    '{"step":2,"loss":4.25,"lr":0.002,"tokens":16384,"seconds":2}' '{"step":2,"val_loss":4.75}' \
    >work/runs/a/metrics.jsonl
printf '%s\n' '{"step":1,"loss":NaN,"lr":0.001,"tokens":8192}' >work/runs/b/metrics.jsonl

run plot runs/a
status 2
stdout ''
stderr 'error: palimpsa plot: --out is required; see palimpsa plot --help'

run plot --out x.svg
status 2
stderr 'error: plot: expected at least one RUN'

run plot runs/a runs/b --out x.svg --label one
status 2
stderr 'error: --label: expected one for each of the 2 runs, found 1'

run plot runs/a --out x.jpg
status 1
stderr 'error: x.jpg: expected a name ending in .svg, .png or .pdf'

run plot runs/none --out x.svg
status 1
stderr 'error: runs/none: No such file or directory'

run plot runs/b --out x.svg --x seconds
status 1
stderr 'error: runs/b/metrics.jsonl:1: expected seconds beside loss'

line='palimpsa plot without gnuplot'
path=$PATH
PATH=/nonexistent
run plot runs/a runs/b/metrics.jsonl -o loss.svg --label "it's" --label b
PATH=$path
status 1
stdout ''
stderr 'error: gnuplot is not installed (Debian: gnuplot-nox); with it, run: cd . && gnuplot loss.gp'
cp work/loss.tsv .result/tsv
same tsv "$(printf '%s\n' 'curve	label	kind	step	x	y	smooth' \
    "0	it's	train	1	8192	4.5	4.5" "0	it's	train	2	16384	4.25	4.25" \
    "0	it's	val	2	16384	4.75	4.75" '1	b	train	1	8192	NaN	NaN')"
cp work/loss.gp .result/gp
same gp <<'END'
set terminal svg noenhanced size 800,500 font 'sans,12'
set output 'loss.svg'
set datafile separator '\t'
set datafile commentschars ''
set xlabel 'tokens'
set ylabel 'loss (nats per token)'
set grid
set key top right
set format x '%.1s%c'
plot \
    'loss.tsv' skip 1 using ($1 == 0 && strcol(3) eq 'train' ? $5 : NaN):7 with lines lw 2 lc rgb '#0072B2' title 'it''s', \
    'loss.tsv' skip 1 using ($1 == 0 && strcol(3) eq 'val' ? $5 : NaN):6 with linespoints lw 1 dt 2 pt 7 ps 1 lc rgb '#0072B2' title 'it''s, validation', \
    'loss.tsv' skip 1 using ($1 == 1 && strcol(3) eq 'train' ? $5 : NaN):7 with lines lw 2 lc rgb '#D55E00' title 'b'
END

run plot runs/a --heat gain -o x.svg
status 1
stderr_has 'runs/a/metrics.jsonl: expected lines with plasticity, which pretrain and finetune write with --plasticity-every'
run plot runs/a runs/b --heat gain -o x.svg
status 2
stderr 'error: --heat: expected one RUN, found 2'
run plot runs/a --heat loss -o x.svg
status 2
run plot runs/a --heat gain --step x -o x.svg
status 2
mkdir work/converted
echo '{"layers": [{"layer": 0, "action": "copied"}]}' >work/converted/convert.json
run plot converted -o x.svg
status 1
stderr_has 'converted/convert.json: holds no windows'
run plot converted runs/a -o x.svg
status 2
stderr "error: converted: a conversion's layers are a figure of their own"
echo '{"layers": [' >work/converted/convert.json
run plot converted/convert.json -o x.svg
status 1
stderr_has 'converted/convert.json'

if command -v gnuplot >/dev/null; then
    mkdir -p "work/it's here"
    run plot runs/a -o "it's here/lr.svg" --y lr --x steps --log-y --smooth 5 --title "a 'title'"
    status 0
    stdout ''
    stderr ''
    cp "work/it's here/lr.svg" .result/svg
    has svg '<svg'
    has svg "a 'title'"
fi

# Results of evaluations: a map, curves, and what is nothing to draw.
cell() { printf '{"task":"niah","part":"%s","length":%s,"depth":%s,"value":%s}' "$@"; }
mean() { printf '{"task":"niah","part":"%s","length":%s,"value":%s}' "$@"; }
echo "{\"results\": [$(cell a 2048 50 0.5), $(cell a 1024 0 1), $(cell 'b b' 2048 100 0.25), $(mean a 1024 0.75), \
$(mean a 2048 null), {\"task\":\"niah\",\"value\":1}]}" >work/niah.json
echo '{"results": [{"task":"nll","value":3}], "positions": [{"from":0,"to":255,"nll":3.5,"predictions":2},
    {"from":256,"to":511,"nll":3.25,"predictions":1}]}' >work/nll.json
table() { cp "work/$1" .result/tsv; }
plot_without() {
    PATH=/nonexistent
    run plot "$@"
    PATH=$path
}
plot_without niah.json -o map.svg
status 1
stderr 'error: gnuplot is not installed (Debian: gnuplot-nox); with it, run: cd . && gnuplot map.gp'
plot_without niah.json --by length -o lengths.svg
plot_without nll.json niah.json -o both.svg
status 1
stderr 'error: niah.json: holds no positions'
table map.tsv
same tsv "$(printf '%s\n' 'panel	label	column	row	length	depth	value' '0	niah a	1	1	2048	50	0.5' \
    '0	niah a	0	0	1024	0	1' '1	niah b b	1	2	2048	100	0.25')"
true_there() { grep -qF -- "$2" "work/$1" || { wrong; echo "  $1 lacks: $2"; }; }
true_there map.gp "set ytics ('0' 0, '50' 1, '100' 2)"
true_there map.gp "set multiplot layout 1,2"
table lengths.tsv
same tsv "$(printf '%s\n' 'curve	label	kind	step	x	y	smooth' '0	niah a	train	0	1024	0.75	0.75' \
    '0	niah a	train	0	2048	NaN	NaN')"
plot_without nll.json nll.json --label one --label two -o nll.svg
table nll.tsv
same tsv "$(printf '%s\n' 'curve	label	kind	step	x	y	smooth' '0	one	train	0	128	3.5	3.5' \
    '0	one	train	0	384	3.25	3.25' '1	two	train	0	128	3.5	3.5' '1	two	train	0	384	3.25	3.25')"
echo '{"results": [{"task":"piqa","value":1}]}' >work/piqa.json
run plot piqa.json -o x.svg
status 1
stderr 'error: piqa.json: nothing to draw: no result has a length, and there are no positions'
echo '{"results": [{"length":1}]}' >work/bad.json
run plot bad.json -o x.svg
status 1
stderr 'error: bad.json: expected a task and numbers in every entry of results'
echo '[1]' >work/list.json
run plot list.json -o x.svg
status 1
stderr 'error: list.json: expected results, as palimpsa eval --out writes them'
run plot niah.json runs/a -o x.svg
status 2
stderr 'error: plot: runs and results are figures of their own'
run plot runs/a --by depth -o x.svg
status 2
stderr 'error: --by: is for files of results, .json'
if command -v gnuplot >/dev/null; then
    for by in depth length; do
        run plot niah.json --by $by -o $by.svg
        status 0
        stderr ''
        true_there $by.svg '<svg'
    done
fi
