# run.sh PALIMPSA FILE - runs one file of command lines in an empty directory.
#
#   run ARGS...             runs palimpsa and remembers its status, stdout and stderr
#   status N                the status was N
#   stdout TEXT             stdout was exactly TEXT and a newline; with no TEXT, what is on stdin
#   stderr TEXT             likewise
#   stdout_has TEXT         a line of stdout contains TEXT; stderr_has likewise
#   skip WHY                nothing to test here
# An empty TEXT ('') means that nothing was printed.
palimpsa=$1
file=$(realpath "$2")
source_dir=$(realpath "$(dirname "$0")/../..")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
mkdir work .result
failed=0

run() {
    line="palimpsa $*"
    (cd work && exec "$palimpsa" "$@") >.result/stdout 2>.result/stderr
    code=$?
}

wrong() {
    failed=1
    echo "FAIL $(basename "$file"): $line"
}

status() {
    [ "$code" = "$1" ] && return
    wrong
    echo "  status $code, expected $1; stderr was:"
    head -5 .result/stderr
}

same() {
    if [ $# -lt 2 ]; then
        cat >.result/expected
    elif [ -z "$2" ]; then
        : >.result/expected
    else
        printf '%s\n' "$2" >.result/expected
    fi
    cmp -s .result/expected ".result/$1" && return
    wrong
    diff -u .result/expected ".result/$1"
}

has() {
    grep -qF -- "$2" ".result/$1" && return
    wrong
    echo "  $1 lacks: $2"
    head -20 ".result/$1"
}

stdout() { same stdout "$@"; }
stderr() { same stderr "$@"; }
stdout_has() { has stdout "$1"; }
stderr_has() { has stderr "$1"; }

skip() {
    echo "skipped: $1"
    exit 77
}

exec </dev/null
. "$file"
exit $failed
