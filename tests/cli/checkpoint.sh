# Model directories that others made, and what is said when one contradicts itself.
models=${PALIMPSA_GOLDEN:-$source_dir/tests/golden}/models

# Every family opens and answers as its own library did, with bare Infinity in its config.
for name in palimpsa_d palimpsa_m_hybrid hf_mamba2; do
    run verify --model "$models/$name" --against "$models/$name/expected.safetensors" --threads 1
    status 0
    stdout_has '	ok'
    [ "$(grep -c '	ok$' .result/stdout)" = "$(wc -l <.result/stdout)" ] || wrong
done
run verify --model "$models/state_spaces_mamba2" --against "$models/hf_mamba2/expected.safetensors" --threads 1
status 0
stdout_has 'greedy	0 unequal	0	ok'
run info "$models/state_spaces_mamba2"
status 0
stdout_has 'family	mamba2 (state-spaces names)'

# A size that the tensors deny: both numbers, before anything is computed, by every command.
copy() {
    rm -rf work/copy
    cp -r "$models/$1" work/copy
    sed -i "$2" work/copy/config.json
}
copy hf_mamba2 's/"hidden_size": 32/"hidden_size": 4096/'
for command in "info copy" "generate --model copy --prompt a" "eval nll --model copy copy/config.json" \
    "verify --model copy --against $models/hf_mamba2/expected.safetensors"; do
    run $command
    status 1
    stdout ''
    stderr_has '4096'
    stderr_has '32'
    [ "$(wc -l <.result/stderr)" = 1 ] || wrong
done
copy hf_mamba2 's/"num_hidden_layers": 3/"num_hidden_layers": 30/'
run info copy
status 1
stderr_has '30'

# heads x head_dim and expand x hidden disagree: the tensors decide.
copy hf_mamba2 's/"expand": 2/"expand": 4/'
run verify --model copy --against "$models/hf_mamba2/expected.safetensors" --threads 1
status 0
run info copy/config.json
status 1
stderr_has '128'
stderr_has '64'

# A family that is not known, a config that is no JSON, one that is missing.
copy hf_mamba2 's/"model_type": "mamba2"/"model_type": "gpt2"/'
run info copy
status 1
stderr_has 'gpt2'
copy hf_mamba2 's/"vocab_size": 64,/"vocab_size": 64/'
run info copy
status 1
stderr_has 'copy/config.json'
rm work/copy/config.json
run generate --model copy
status 1
stderr 'error: copy/config.json: No such file or directory'

# An unknown or a missing tensor is named.
if command -v python3 >/dev/null; then
    rename() {
        python3 - work/copy/model.safetensors "$1" "$2" <<'END'
import json, struct, sys
path, old, new = sys.argv[1:]
data = open(path, "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8:8 + n])
head = json.dumps({new if k == old else k: v for k, v in head.items()}).encode()
head += b" " * (-len(head) % 8)
open(path, "wb").write(struct.pack("<Q", len(head)) + head + data[8 + n:])
END
    }
    copy palimpsa_d ''
    rename model.norm.weight foo.bar
    run generate --model copy --prompt a
    status 1
    stdout ''
    stderr_has 'foo.bar'
    stderr_has 'model.norm.weight'
fi

# A checkpoint has what Transformers wants of a tokenizer; one's own description of it travels along.
. "$source_dir/tests/cli/corpus"
corpus 304
train run --steps 1 --tokenizer tok.json --quiet
status 0
cp work/run/step-000001/tokenizer_config.json .result/config
same config <<'END'
{
  "tokenizer_class": "PreTrainedTokenizerFast",
  "clean_up_tokenization_spaces": false,
  "model_max_length": 1000000000000000019884624838656,
  "eos_token": "<|endoftext|>"
}
END
mkdir work/told && cp work/tok.json work/told/tokenizer.json && echo '{"mine": 1}' >work/told/tokenizer_config.json
train run2 --steps 1 --tokenizer told/tokenizer.json --quiet
status 0
same_files told/tokenizer_config.json run2/step-000001/tokenizer_config.json
