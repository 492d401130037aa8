#!/bin/bash
# lint.sh - what docs/style.md can leave to a machine: banned functions, sizes, pages that are spoken of.
cd "$(dirname "$0")/.." || exit 1
sources=$(find lib cmd kernels tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)

banned='sprintf|vsprintf|strcpy|strcat|atoi|atol|atof|strtok|rand|srand|assert|system|gets|alloca'
wrong=$(
    for file in $sources; do
        # Comments and strings may name them; code may not.
        sed -E 's@"([^"\\]|\\.)*"@""@g; s@/\*.*\*/@@g; s@//.*@@; /^ \*/d; s@/\*.*@@' "$file" |
            grep -nE "(^|[^A-Za-z0-9_.>])($banned)[ ]*\(" | sed "s@^@banned function: $file:@"
        case $file in
        *.h) most=80 ;;
        *) most=500 ;;
        esac
        lines=$(wc -l <"$file")
        [ "$lines" -le $most ] || echo "$file: $lines lines, at most $most wanted"
        expand "$file" | awk -v f="$file" 'length > 120 { print f ":" NR ": " length " columns, at most 120 wanted" }'
        # A function starts at a line beginning with a brace and ends at the next line beginning with one.
        awk -v f="$file" '/^\{/ { start = NR } /^\}/ && start { if (NR - start - 1 > 60)
            print f ":" start ": function of " NR - start - 1 " lines, at most 60 wanted"; start = 0 }' "$file"
    done
    grep -rohE 'docs/[a-z/-]+\.md' lib cmd kernels tests scripts README.md docs | sort -u | while read -r page; do
        [ -e "$page" ] || echo "$page is spoken of and does not exist"
    done
)
[ -z "$wrong" ] && exit
echo "$wrong"
exit 1
