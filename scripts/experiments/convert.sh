#!/bin/bash
# convert.sh - what does a trained Mamba2 gain when its longest-remembering layers become metaplastic?
#
#   scripts/experiments/convert.sh --palimpsa BIN --shards DIR --out DIR [options]
#
# For every seed: pretrains a Mamba2, converts the layers that forget least, finetunes the converted and the
# unconverted model on the same tokens in the same order, and measures all on held-out text in windows of 1,
# 2, 4 and 8 times the context of training: the same tokens each time, with a longer memory before them.
# The same command again continues; what is finished is not done twice. DIR of shards holds train*.pts,
# held-out*.pts and tokenizer.json:
#
#   palimpsa tokenize --train-tokenizer 8192 --out DIR/tokenizer.json TRAIN-TEXT
#   palimpsa tokenize --tokenizer DIR/tokenizer.json --out DIR/train TRAIN-TEXT      (--out DIR/held-out likewise)
#
# --size tiny|small|base    below; what is set by other options counts more          [small]
# --device D, --dtype T     as in palimpsa pretrain                                  [auto, fp32]
# --seeds "1 2 3"           of weights and order                                     [1]
# --score "S ...", --init "I ..."   of palimpsa convert; every pair is tried         [window, gain=0.3]
#                           near=0.1 and gain=0.1 are these rules with --eps 0.1 and --gain 0.1
# --layers L                to convert: a count or a list like 3,7                   [a quarter]
# --train WHAT, --factor X  of the converted model: as in palimpsa finetune          [all, 10]
# --width, --depth, --head, --state     of the model
# --steps, --tune-steps, --batch-tokens, --context, --lr, --tune-lr, --eval-tokens     [all held-out tokens]
#
# Leaves in --out: results.tsv, positions.tsv (loss by position in the longest window), its means over seeds,
# layers.tsv (windows of the layers), results.md, positions.svg when gnuplot is there, and a directory of runs
# a seed. There the .tsv (and
# .svg) of a rule are the windows of its layers, and with -plasticity how sure every head's memory was while tuning.
set -eu

device=auto dtype=fp32 seeds=1 scores=window inits=gain=0.3 train=all factor=10 size=small
palimpsa= shards= out= layers= width= depth= head= state= steps= tune= batch= context= lr= tunelr= evaltokens=
if [ "${1-}" = --help ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'
    exit 0
fi
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { echo "convert.sh: expected a value after $1" >&2; exit 2; }
    case $1 in
    --palimpsa) palimpsa=$2 ;; --shards) shards=$2 ;; --out) out=$2 ;; --size) size=$2 ;; --device) device=$2 ;;
    --dtype) dtype=$2 ;; --seeds) seeds=$2 ;; --score) scores=$2 ;; --init) inits=$2 ;; --layers) layers=$2 ;;
    --train) train=$2 ;; --factor) factor=$2 ;; --width) width=$2 ;; --depth) depth=$2 ;; --head) head=$2 ;;
    --state) state=$2 ;; --steps) steps=$2 ;; --tune-steps) tune=$2 ;; --batch-tokens) batch=$2 ;;
    --context) context=$2 ;; --lr) lr=$2 ;; --tune-lr) tunelr=$2 ;; --eval-tokens) evaltokens=$2 ;;
    *) echo "convert.sh: no option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift 2
done
case $size in       # width depth head state context batch steps tune lr tune-lr
tiny)  set -- 64 4 32 16 64 2048 60 30 5e-3 2e-3 ;;
small) set -- 512 12 64 64 1024 65536 300 150 2e-3 5e-4 ;;            # 24 million parameters
base)  set -- 768 16 64 128 1024 65536 300 150 1.5e-3 4e-4 ;;         # 65 million
*) echo "convert.sh: --size: expected tiny, small or base, found $size" >&2; exit 2 ;;
esac
: "${width:=$1}" "${depth:=$2}" "${head:=$3}" "${state:=$4}" "${context:=$5}" "${batch:=$6}" "${steps:=$7}"
: "${tune:=$8}" "${lr:=$9}" "${tunelr:=${10}}" "${layers:=$(((depth + 3) / 4))}"

die() { echo "convert.sh: $*" >&2; exit 1; }
for number in "$width" "$depth" "$head" "$state" "$context" "$batch" "$steps" "$tune" "${evaltokens:-1}"; do
    case $number in '' | *[!0-9]* | 0) die "expected a whole number above 0, found '$number'" ;; esac
done
[ -n "$palimpsa" ] && [ -n "$shards" ] && [ -n "$out" ] || die "expected --palimpsa, --shards and --out; see --help"
[ -x "$palimpsa" ] || die "$palimpsa: is not a program"
palimpsa=$(realpath "$palimpsa")
for kind in train held-out; do
    ls "$shards/$kind"*.pts >/dev/null 2>&1 || die "$shards: expected $kind*.pts"
done
[ $((2 * width % head)) = 0 ] || die "--head $head does not divide twice the width $width"

# Whole windows of eight contexts, so that every length of window predicts the same tokens.
held=0
for shard in "$shards"/held-out*.pts; do
    held=$((held + $("$palimpsa" info "$shard" | sed -n 's/^tokens\t//p')))
done
whole=$(((held - 1) / (8 * context) * 8 * context))
[ $whole -gt 0 ] || die "$shards: windows of eight contexts need $((8 * context + 1)) held-out tokens, found $held"
: "${evaltokens:=$whole}"
evaltokens=$(((evaltokens + 8 * context - 1) / (8 * context) * 8 * context))
[ $evaltokens -le $whole ] || evaltokens=$whole

mkdir -p "$out"
vocabulary=$("$palimpsa" info "$(ls "$shards"/train*.pts | head -1)" | sed -n 's/^vocabulary\t//p')
cat >"$out/config.json.new" <<END
{
  "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"],
  "vocab_size": $vocabulary, "hidden_size": $width, "num_hidden_layers": $depth, "num_heads": $((2 * width / head)),
  "head_dim": $head, "state_size": $state, "n_groups": 1, "expand": 2, "conv_kernel": 4, "use_conv_bias": true,
  "use_bias": false, "layer_norm_epsilon": 1e-05, "rms_norm": true, "residual_in_fp32": true, "hidden_act": "silu",
  "tie_word_embeddings": true, "initializer_range": 0.02, "max_position_embeddings": $context,
  "time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 0.0001, "time_step_limit": [0.0, Infinity]
}
END
if [ -e "$out/config.json" ] && ! cmp -s "$out/config.json" "$out/config.json.new"; then
    rm "$out/config.json.new"
    die "$out: holds runs of another model; choose another --out"
fi
mv "$out/config.json.new" "$out/config.json"

say() { echo "[$SECONDS s] $*" >&2; }
tokenizer=
[ ! -e "$shards/tokenizer.json" ] || tokenizer="--tokenizer $shards/tokenizer.json"

# run WHERE STEPS RATE COMMAND...: one training run, continued where it stands.
run() {
    local to=$1 n=$2 rate=$3
    shift 3
    [ ! -e "$to/finished" ] || return 0
    say "$to: $* for $n steps"
    "$palimpsa" "$@" --out "$to" --steps "$n" --lr "$rate" --warmup $((n / 20 + 1)) --data "$shards/train*.pts" \
        --val "$shards/held-out*.pts" --batch-tokens "$batch" --context "$context" --device "$device" \
        --dtype "$dtype" --val-every $(((n + 3) / 4)) --val-tokens "$evaltokens" --save-every $(((n + 1) / 2)) \
        --keep 1 --log-every $(((n + 29) / 30)) $tokenizer
    touch "$to/finished"
}

# measure SEED NAME MODEL: losses by position in windows of 1, 2, 4 and 8 contexts.
measure() {
    local to=$out/seed-$1/eval x
    mkdir -p "$to"
    for x in 1 2 4 8; do
        [ ! -e "$to/$2.$x" ] || continue
        say "seed $1: $2 in windows of $((x * context))"
        "$palimpsa" eval nll --model "$3" --data "$shards"/held-out*.pts --context $((x * context)) \
            --limit "$evaltokens" --by-position --device "$device" --dtype "$dtype" --quiet >"$to/$2.$x.new"
        mv "$to/$2.$x.new" "$to/$2.$x"
    done
}

for seed in $seeds; do
    dir=$out/seed-$seed
    mkdir -p "$dir"
    run "$dir/source" "$steps" "$lr" pretrain --model "$out/config.json" --seed "$seed"
    # Another order than the one the source was trained in, the same for all that are finetuned.
    order=$((seed + 1000))
    run "$dir/source-tuned" "$tune" "$tunelr" finetune --from "$dir/source" --seed $order
    measure "$seed" source "$dir/source"
    measure "$seed" source-tuned "$dir/source-tuned"
    for score in $scores; do
        for init in $inits; do
            name=$score-$init
            case $init in near=*) rule="near --eps ${init#*=}" ;; gain=*) rule="gain --gain ${init#*=}" ;; *) rule=$init ;; esac
            if [ ! -e "$dir/$name" ]; then
                say "seed $seed: convert layers ($layers) by $score, $init"
                "$palimpsa" convert "$dir/source" "$dir/$name" --layers "$layers" --score "$score" \
                    --init $rule --calibrate "$shards/train*.pts" \
                    --tokens $((16 * context)) --context "$context" --seed "$seed" --device "$device" >"$dir/$name.txt"
            fi
            run "$dir/$name-tuned" "$tune" "$tunelr" finetune --from "$dir/$name" --seed $order --train "$train" \
                --plasticity-lr-factor "$factor" --plasticity-every $(((tune + 4) / 5))
            for figure in "$name --out $name.svg" "$name-tuned --heat spread --out $name-plasticity.svg"; do
                (cd "$dir" && "$palimpsa" plot $figure) || say "only the table of that figure"
            done
            measure "$seed" "$name" "$dir/$name"
            measure "$seed" "$name-tuned" "$dir/$name-tuned"
        done
    done
done

names="source source-tuned"
for score in $scores; do
    for init in $inits; do names="$names $score-$init $score-$init-tuned"; done
done

# Tables: every number as measured, then means over seeds.
{
    printf 'seed\tmodel\tcontexts\tnll\tpredictions\n'
    for seed in $seeds; do for name in $names; do for x in 1 2 4 8; do
        awk -v OFS='\t' -v s="$seed" -v m="$name" -v x=$x '$1 == "nll" { nll = $2 }
            $1 == "predictions" { n = $2 } END { print s, m, x, nll, n }' "$out/seed-$seed/eval/$name.$x"
    done; done; done
} >"$out/results.tsv"
{
    printf 'seed\tmodel\tposition\tnll\tpredictions\n'
    for seed in $seeds; do for name in $names; do
        sed -n "s/^\([0-9]*\)-[0-9]*\t/$seed\t$name\t\1\t/p" "$out/seed-$seed/eval/$name.8"
    done; done
} >"$out/positions.tsv"
awk -F '\t' -v OFS='\t' -v names="$names" '
    NR > 1 { if (!($3 in n)) at[++k] = $3; n[$3]++; sum[$2, $3] += $4; count[$2, $3]++ }
    END {
        print "model", "position", "nll"
        m = split(names, name, " ")
        for (i = 1; i <= m; i++) for (j = 1; j <= k; j++)
            printf "%s\t%s\t%.6f\n", name[i], at[j], sum[name[i], at[j]] / count[name[i], at[j]]
    }' "$out/positions.tsv" >"$out/positions-mean.tsv"
{
    printf 'seed\trule\tlayer\taction\tscore\tlow\tmedian\thigh\n'
    for seed in $seeds; do for score in $scores; do for init in $inits; do
        sed -n "s/^\([0-9][0-9]*\t[a-z]*\t\)/$seed\t$score-$init\t\1/p" "$out/seed-$seed/$score-$init.txt"
    done; done; done
} >"$out/layers.tsv"
awk -F '\t' -v names="$names" -v context="$context" -v steps="$steps" -v tune="$tune" -v batch="$batch" '
    NR > 1 { v[$2, $3, $1] = $4; seen[$1] = 1; n = $5 }
    function mean(a, b, x,    s, t, k, d, q) {
        for (s in seen) { d = v[a, x, s] - (b ? v[b, x, s] : 0); t += d; q += d * d; k++ }
        t /= k; q = k > 1 ? sqrt((q > k * t * t ? q - k * t * t : 0) / (k - 1)) : 0
        return sprintf(b ? "%+.5f" : "%.4f", t) ((k > 1) ? sprintf(b ? " (%.5f)" : " (%.4f)", q) : "")
    }
    function line(title, a, b) {
        printf "| %s | %s | %s | %s | %s |\n", title, mean(a, b, 1), mean(a, b, 2), mean(a, b, 4), mean(a, b, 8)
    }
    END {
        for (s in seen) seeds++
        printf("Mean held-out loss over %d seed%s, nats a token, %d predictions, in windows of so many tokens.\n",
            seeds, (seeds > 1) ? "s (standard deviation)" : "", n)
        printf "Pretrained for %d, finetuned for %d steps of %d tokens in windows of %d.\n\n", steps, tune, batch, context
        printf "| model | %d | %d | %d | %d |\n|---|---|---|---|---|\n", context, 2 * context, 4 * context, 8 * context
        k = split(names, m, " ")
        for (i = 1; i <= k; i++) line(m[i], m[i])
        for (i = 4; i <= k; i += 2) line(m[i] " - source-tuned", m[i], "source-tuned")
    }' "$out/results.tsv" >"$out/results.md"

{
    printf "set terminal svg noenhanced size 800,500 font 'sans,12'\nset output 'positions.svg'\n"
    printf "set datafile separator '\\\\t'\nset grid\nset key top right\nset logscale x 2\n"
    printf "set xlabel 'position in the window'\nset ylabel 'loss (nats per token)'\n"
    printf "set arrow from %d,graph 0 to %d,graph 1 nohead dt 2 lc rgb '#808080'\n" "$context" "$context"
    printf 'plot '
    i=0
    for name in $names; do
        [ $i = 0 ] || printf ', \\\n    '
        i=$((i + 1))
        printf "'positions-mean.tsv' skip 1 using (strcol(1) eq '%s' ? \$2 + 128 : NaN):3 " "$name"
        printf "with linespoints pt 7 ps 0.5 title '%s'" "$name"
    done
    printf '\n'
} >"$out/positions.gp"
(cd "$out" && command -v gnuplot >/dev/null && gnuplot positions.gp) || say "no positions.svg: gnuplot is missing or failed"
say "done"
cat "$out/results.md"
