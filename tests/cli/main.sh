# The frame of every command: help, version, unknown words, unwritable output.
run
status 2
stdout ''
stderr_has 'usage: palimpsa COMMAND [options]'

run --help
status 0
stderr ''
stdout_has 'usage: palimpsa COMMAND [options]'
stdout_has '  plot '

run help
status 0
stdout_has 'usage: palimpsa COMMAND [options]'

run --version
status 0
stderr ''
stdout_has 'palimpsa 0.1.0'
stdout_has 'GPU: '

run no-such-command
status 2
stdout ''
stderr "error: no command 'no-such-command'; see palimpsa --help"

run plto
status 2
stdout ''
stderr "error: no command 'plto', did you mean plot? See palimpsa --help"

run help plto
status 2
stderr "error: no command 'plto', did you mean plot? See palimpsa --help"

run help plot
status 0
stdout_has 'usage: palimpsa plot '

run plot --help
status 0
stdout_has 'usage: palimpsa plot '

line='palimpsa --help >/dev/full'
"$palimpsa" --help >/dev/full 2>.result/stderr
code=$?
status 1
stderr 'error: stdout: No space left on device'

line='palimpsa --help >&-'
"$palimpsa" --help >&- 2>.result/stderr
code=$?
status 1
stderr 'error: stdout: Bad file descriptor'
