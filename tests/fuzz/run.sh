# run.sh FUZZER SEEDS - a fixed number of inputs from a fixed seed, so that a failure repeats.
# An input that fails is kept in the working directory as crash-*, leak-*, oom-* or timeout-*.
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
mkdir -p "$2" 2>/dev/null
"$1" -seed=1 -runs="${FUZZ_RUNS:-20000}" -max_len=4096 -timeout=20 -rss_limit_mb=2048 -close_fd_mask=2 \
    -print_final_stats=1 -verbosity=0 "$corpus" "$2"
