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
