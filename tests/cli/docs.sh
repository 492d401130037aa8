# Every command has a page in docs/cli, which ends with the words of its --help:
# palimpsa NAME --help | sed 's/^/    /'
flat() { sed 's/(default [0-9]*)//g' | tr -s ' \n' '  '; }       # defaults may depend on the machine

for name in $("$palimpsa" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    page=$source_dir/docs/cli/$name.md
    line="docs/cli/$name.md"
    if [ ! -e "$page" ]; then
        wrong
        echo "  is missing"
        continue
    fi
    grep -q '^    usage: palimpsa' "$page" || continue
    run $name --help
    status 0
    flat <.result/stdout >.result/help
    sed -n '/^    usage: palimpsa/,$p' "$page" | flat >.result/page
    [ "$(sed 's/^ *//; s/ *$//' .result/help)" = "$(sed 's/^ *//; s/ *$//' .result/page)" ] && continue
    line="docs/cli/$name.md"
    wrong
    echo "  is not what --help says"
done
