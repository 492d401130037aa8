/* main.c - the table of commands, and the only place where a process begins. */
#define _POSIX_C_SOURCE 200809L
#include "cmd.h"
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#define X(file) extern const struct cmd cmd_##file;
#include "cmds.inc"
#undef X
static const struct cmd *const all[] = {
#define X(file) &cmd_##file,
#include "cmds.inc"
#undef X
    NULL
};

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void usage(FILE *f)
{
    fprintf(f, "usage: palimpsa COMMAND [options]\n\n"
               "Sequence models whose memory of fixed size is a Bayesian posterior.\n\ncommands:\n");
    for (int i = 0; all[i]; i++)
        fprintf(f, "  %-12s %s\n", all[i]->name, all[i]->brief);
    fprintf(f, "\npalimpsa COMMAND --help lists the options of a command; palimpsa --version describes the build.\n");
}

static void version(void)
{
    printf("palimpsa %s\ncompiler: %s\nbuild: %s, -march=%s\nGPU: %s\n",
           PALIMPSA_VERSION, COMPILER, PALIMPSA_BUILD, PALIMPSA_MARCH, PALIMPSA_GPU);
}

static const struct cmd *find(const char *name)
{
    for (int i = 0; all[i]; i++)
        if (!strcmp(name, all[i]->name))
            return all[i];
    return NULL;
}

static int unknown(const char *name)
{
    const struct cmd *near = NULL;
    int best = WORDS_FAR;

    for (int i = 0; all[i]; i++)
        if (words_miss(name, all[i]->name) < best) {
            near = all[i];
            best = words_miss(name, near->name);
        }
    if (near)
        fail("no command '%s', did you mean %s? See palimpsa --help", name, near->name);
    else
        fail("no command '%s'; see palimpsa --help", name);
    return 2;
}

/* `palimpsa train >&-` must not open a data file as descriptor 1 and print into it: closed standard
 * descriptors get something that refuses to be used. */
static void hold_standard_files(void)
{
    for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY))
        if (fd > 2) {
            close(fd);
            return;
        }
}

/* Threads that wait for each other by spinning, as libgomp's do for milliseconds unless told otherwise,
 * lose a hundredfold on a machine that is shared. It listens before main only, so we begin again. */
static void share_cores(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") || setenv("GOMP_SPINCOUNT", "1000", 1))
        return;
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const struct cmd *c = find(name);

    share_cores(argv);
    hold_standard_files();
    signal(SIGPIPE, SIG_DFL);        /* `| head` ends us silently, even under a parent that ignores it */
    signal(SIGXFSZ, SIG_IGN);        /* a file that may not grow is an error with a name, not a death */
    if (c)
        cmd_exit(c->run(argc - 1, (const char **)argv + 1));
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || (!strcmp(name, "help") && argc == 2)) {
        usage(stdout);
        cmd_exit(0);
    }
    if (!strcmp(name, "help")) {
        const char *help[] = { argv[2], "--help", NULL };
        c = find(argv[2]);
        cmd_exit(c ? c->run(2, help) : unknown(argv[2]));
    }
    if (!strcmp(name, "--version")) {
        version();
        cmd_exit(0);
    }
    if (argc > 1)
        cmd_exit(unknown(name));
    usage(stderr);
    cmd_exit(2);
}
