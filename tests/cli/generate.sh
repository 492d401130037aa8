# Text from a model: the same however it is cut into runs, and nothing but text on stdout.
. "$source_dir/tests/cli/corpus"
corpus
train run --steps 40 --batch-tokens 512 --lr 1e-2 --tokenizer tok.json --save-every 20 --quiet
status 0

run generate
status 2
stderr 'error: palimpsa generate: --model is required; see palimpsa generate --help'
run generate --model run --prompt a --file text.txt
status 2
stderr 'error: generate: --prompt and --file are two prompts'
run generate --model run more
status 2
stderr "error: generate: unexpected operand 'more'"
run generate --model run --top-p 0
status 2
stderr "error: --top-p: expected a number in (0,1], found '0'"

# Talk goes to stderr, and --quiet ends it; a run means its newest checkpoint.
run generate --model run --prompt 'the king' --tokens 30 --temperature 0 --threads 1
status 0
stderr_has 'prompt: '
stderr_has 'generated: 30 tokens, '
cp .result/stdout .result/once
run generate --model run/step-000040 --prompt 'the king' --tokens 30 --temperature 0 --threads 1 --quiet
status 0
stderr ''
stdout "$(cat .result/once)"
true_that 'some text came' test "$(wc -c <.result/once)" -gt 30

# The same seed, the same text; another seed, another.
for seed in 1 1 2; do
    run generate --model run --prompt 'the king' --tokens 40 --temperature 1 --seed $seed --quiet
    cp .result/stdout .result/seed$seed
    [ "$seed" = 2 ] || [ ! -e .result/seed1b ] || cmp -s .result/seed1 .result/seed1b || wrong
    [ "$seed" = 2 ] || cp .result/stdout .result/seed1b
done
true_that 'seeds differ' test "$(cat .result/seed1)" != "$(cat .result/seed2)"

# One run is two runs with the memory handed over: greedy and drawn, cut anywhere, also before the first token.
for how in '--temperature 0' '--temperature 0.9 --seed 5'; do
    run generate --model run --prompt 'one river saw' --tokens 24 $how --quiet
    cp .result/stdout .result/whole
    for first in 0 1 7 23; do
        run generate --model run --prompt 'one river saw' --tokens $first $how --quiet --state-out memory
        status 0
        head -c -1 .result/stdout >.result/parts
        run generate --model run --tokens $((24 - first)) $how --quiet --state-in memory
        status 0
        cat .result/stdout >>.result/parts
        cmp -s .result/whole .result/parts || wrong
    done
done
# ... and a prompt in two parts, which a blank separates for the tokenizer too.
run generate --model run --prompt 'the king saw' --tokens 10 --temperature 0 --quiet
cp .result/stdout .result/whole
run generate --model run --prompt 'the king' --tokens 0 --quiet --state-out memory
stdout <<'END'

END
run generate --model run --prompt ' saw' --tokens 10 --temperature 0 --quiet --state-in memory
stdout "$(cat .result/whole)"

# Another model's memory, even an earlier step's, is refused; so is a file that is none.
run generate --model run/step-000020 --state-in memory --quiet
status 1
stdout ''
stderr_has 'error: memory: the state of another model: expected '
run generate --model run --state-in text.txt --quiet
status 1
stderr_has 'error: text.txt: '
run generate --model run --state-in run/step-000040/model.safetensors --quiet
status 1
stderr 'error: run/step-000040/model.safetensors: not a saved state'

# Prompts of no, one, two, three and four ids: each continues as the longer prompt that it makes.
run generate --model run --tokens 8 --temperature 0 --quiet
status 0
for prompt in t th the 'the ' 'the k'; do
    run generate --model run --prompt "$prompt" --tokens 8 --temperature 0 --uncertainty --quiet
    status 0
    true_that 'eight lines' test "$(wc -l <.result/stdout)" -le 8
done

# A line per token: id, doubt, log-probability, text. The texts are what is printed without.
run generate --model run --prompt 'the king' --tokens 12 --temperature 0 --uncertainty --quiet
status 0
awk -F '\t' 'NF != 4 || $1 < 0 || $1 > 299 || $2 <= 0 || $3 > 0 || $4 !~ /^".*"$/ { bad = 1 } END { exit bad || NR != 12 }' .result/stdout || wrong
cut -f4 .result/stdout | sed 's/^"//; s/"$//' | tr -d '\n' >.result/texts
run generate --model run --prompt 'the king' --tokens 12 --temperature 0 --quiet
stdout "$(cat .result/texts)"

# It ends before a stop text, and holds back what only looks like one.
run generate --model run --prompt 'the king' --tokens 30 --temperature 0 --quiet
whole=$(cat .result/stdout)
stop=${whole:5:3}
run generate --model run --prompt 'the king' --tokens 30 --temperature 0 --quiet --stop "$stop" --stop 'never to be seen'
stdout "${whole%%"$stop"*}"
run generate --model run --prompt 'the king' --tokens 30 --temperature 0 --quiet --stop "${stop}~"
stdout "$whole"

# A prompt from a file; one that is not there.
printf 'the king' >work/prompt.txt
run generate --model run --file prompt.txt --tokens 30 --temperature 0 --quiet
stdout "$whole"
run generate --model run --file nowhere.txt --quiet
status 1
stderr 'error: nowhere.txt: No such file or directory'

# A reader that leaves ends it silently; a full disk is a failure, at once.
line='palimpsa generate | head'
(cd work && "$palimpsa" generate --model run --prompt 'the king' --tokens 1000000 --temperature 1 --quiet 2>../.result/stderr | head -c 10 >/dev/null
    echo "${PIPESTATUS[0]}" >../.result/pipe)
true_that 'SIGPIPE' test "$(cat .result/pipe)" = 141
stderr ''
if [ -e /dev/full ]; then
    line='palimpsa generate >/dev/full'
    (cd work && exec timeout 20 "$palimpsa" generate --model run --prompt 'the king' --tokens 100000000 --quiet >/dev/full 2>../.result/stderr)
    code=$?
    status 1
    stderr 'error: stdout: No space left on device'
fi

# Directories without a model, with half of one, with more than one.
mkdir -p work/empty work/header
run generate --model nowhere
status 1
stderr 'error: nowhere/config.json: No such file or directory'
run generate --model empty
status 1
stderr 'error: empty/config.json: No such file or directory'
train never --data 'none*.pts'
run generate --model never
status 1
stderr 'error: never: this run has no whole checkpoint yet'
printf '\102\0\0\0\0\0\0\0{"__metadata__": {"format": "pt", "made_by": "tests of palimpsa"}}' >work/header/model.safetensors
run info header
status 0
stdout 'tensors	0
metadata format	pt
metadata made_by	tests of palimpsa'
cp work/run/step-000040/config.json work/header
run generate --model header
status 1
stdout ''
stderr_has 'header'
rm -rf work/bare
cp -r work/run/step-000040 work/bare
rm work/bare/tokenizer.json
run generate --model bare --prompt a
status 1
stderr 'error: bare: no tokenizer.json, so there is no text to read or write; put that of its training there'

# A file that is cut, too long, or something else: a line each, the same for every command.
for what in half four long html; do
    cp -r work/run/step-000040 work/$what
done
head -c 200000 work/run/step-000040/model.safetensors >work/half/model.safetensors
head -c 4 work/run/step-000040/model.safetensors >work/four/model.safetensors
printf '\0\0\0\0\0\0\0\0' >>work/long/model.safetensors
echo '<!DOCTYPE html><html><body>Not found</body></html>' >work/html/model.safetensors
for what in half four long html; do
    for command in 'generate --prompt a --quiet' 'eval nll --data text.txt --quiet'; do
        run $command --model $what
        status 1
        stdout ''
        stderr_has "error: $what/model.safetensors: "
        true_that 'one line' test "$(wc -l <.result/stderr)" = 1
        sed "s/^error: $what//" .result/stderr >.result/"$what-${command%% *}"
    done
    cmp -s .result/$what-generate .result/$what-eval || wrong
done
true_that 'four different lines' test "$(cat .result/*-generate | sort -u | wc -l)" = 4
