# Tokenizing: a vocabulary, shards, lines of ids and back, and what is said when something is wrong.
printf 'low lower lowest low low newer newest wide wider widest' >work/words.txt
cd_work() { (cd work && "$@"); }

run tokenize --train-tokenizer 300 --out small.json words.txt
status 0
stdout ''
stderr_has 'tokenize: a vocabulary of 270 from 1 documents, 55 bytes'
stderr_has 'warning: 270 tokens, not 300: no pair occurs twice any more'
cp work/small.json work/again.json
run tokenize --train-tokenizer 300 --out small.json words.txt
line='the same vocabulary twice'
cmp -s work/small.json work/again.json || wrong

run tokenize --train-tokenizer 257 --out least.json words.txt
status 0
stderr_has 'a vocabulary of 257 from'
run tokenize --train-tokenizer 256 --out no.json words.txt
status 2
stderr "error: --train-tokenizer: expected a whole number in [257,16777216], found '256'"
run tokenize --train-tokenizer 300 --out no.json absent.txt
status 1
stderr 'error: absent.txt: No such file or directory'

# Document text spells <|endoftext|> without becoming it, and comes back byte for byte.
printf 'low <|endoftext|> \xff\0 wider\n' >work/odd.txt
run tokenize --tokenizer small.json --ids odd.txt
status 0
cp .result/stdout work/odd.ids
stderr_has 'tokenize: 1 documents, '
stderr_has 'tokenize: 1 bytes were not UTF-8, 1 were NUL'
line='no control token in odd.txt'
grep -qwE '0' work/odd.ids && wrong
exec 3<&0
exec <work/odd.ids
run tokenize --tokenizer small.json --decode
exec <&3
status 0
stderr ''
line='odd.txt there and back'
cmp -s .result/stdout work/odd.txt || wrong
run tokenize --tokenizer small.json --ids --control odd.txt
status 0
line='a control token when asked'
[ "$(tr ' ' '\n' <.result/stdout | grep -cx 0)" = 1 ] || wrong

# Three documents in lines of JSON, one of them empty; any number of threads; either compression.
printf '%s\n' '{"text": "low lower", "id": 1}' '' '{"id": 2, "body": "x", "text": ""}' '{"text": "wide\u0020\ud83e\udd99"}' \
    >work/three.jsonl
run tokenize --tokenizer small.json --ids three.jsonl
status 0
stderr_has 'tokenize: 3 documents, '
line='an empty document is an empty line'
[ "$(wc -l <.result/stdout)" = 3 ] && [ -z "$(sed -n 2p .result/stdout)" ] || wrong
cp .result/stdout three.ids
cd_work gzip -k three.jsonl
run tokenize --tokenizer small.json --ids three.jsonl.gz
status 0
line='gzip makes no difference'
cmp -s .result/stdout three.ids || wrong
exec <work/three.jsonl.gz
run tokenize --tokenizer small.json --ids --field text -
exec <&3
status 0
line='nor does a pipe'
cmp -s .result/stdout three.ids || wrong
run tokenize --tokenizer small.json --ids --field body three.jsonl
status 1
stderr 'error: three.jsonl:1: no such field, looking for "body"'

run tokenize --tokenizer small.json --out one --threads 1 three.jsonl words.txt
status 0
stdout ''
run tokenize --tokenizer small.json --out five --threads 5 three.jsonl words.txt
status 0
line='one and five threads'
cmp -s work/one_000000.pts work/five_000000.pts || wrong
run tokenize --tokenizer small.json --out one words.txt
status 1
stderr 'error: ./one_000000.pts: exists; remove the set or choose another name'

# A failure leaves nothing.
run tokenize --tokenizer small.json --out two words.txt absent.txt
status 1
stderr 'error: absent.txt: No such file or directory'
head -c 40 work/three.jsonl.gz >work/torn.jsonl.gz
run tokenize --tokenizer small.json --out two words.txt torn.jsonl.gz
status 1
stderr 'error: torn.jsonl.gz: the compressed data ends too early'
line='nothing is left of a failed set'
ls work/two* 2>/dev/null && wrong

run tokenize --tokenizer small.json --out x --separator '<s>' words.txt
status 1
stderr 'error: small.json: no token "<s>"'
run tokenize --tokenizer small.json --out x --separator low words.txt
status 1
stderr 'error: small.json: "low" is no control token, so text could contain it'
echo '{"model": {"type": "WordPiece"}}' >work/other.json
run tokenize --tokenizer other.json --out x words.txt
status 1
stderr 'error: other.json: model: type "WordPiece" is not supported, only BPE is'
exec <work/words.txt
run tokenize --tokenizer small.json --decode
exec <&3
status 1
stderr "error: standard input: expected an id, found 'low'"

run tokenize --tokenizer small.json words.txt
status 2
stderr 'error: palimpsa tokenize: expected one of --out, --ids, --decode and --train-tokenizer with --out; see palimpsa tokenize --help'
run tokenize --out x words.txt
status 2
stderr 'error: palimpsa tokenize: --tokenizer is required; see palimpsa tokenize --help'
run tokenize --tokenizer small.json --out x
status 2
stderr "error: palimpsa tokenize: expected FILE..., '-' for standard input; see palimpsa tokenize --help"
run tokenize --tokenizer small.json --out x --control words.txt
status 2
stderr 'error: palimpsa tokenize: --control needs --ids; see palimpsa tokenize --help'
