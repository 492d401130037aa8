/* heard.h - a directory for a test's files, and an ear at stderr for messages that matter. */
#ifndef HEARD_H
#define HEARD_H
#include "base.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static char scratch[64], scratch_said[4096];
static int scratch_stderr = -1;

static inline void scratch_open(void)
{
    snprintf(scratch, sizeof scratch, "/tmp/palimpsa_test.XXXXXX");
    if (!mkdtemp(scratch)) {
        fail("%s: cannot be made", scratch);
        exit(1);
    }
}

static inline void scratch_close(void)
{
    pid_t child = fork();

    if (!child) {
        execlp("rm", "rm", "-rf", scratch, (char *)NULL);
        _exit(1);
    }
    waitpid(child, NULL, 0);
}

/* The path of a file there; eight of them are good at a time. */
static inline const char *in_dir(const char *name)
{
    static char path[8][256];
    static int turn;
    char *out = path[turn++ % 8];

    snprintf(out, sizeof path[0], "%s/%s", scratch, name);
    return out;
}

static inline bool exists(const char *name)
{
    return !access(in_dir(name), F_OK);
}

/* What goes to stderr between the two calls ends in scratch_said. */
static inline void listen_begin(void)
{
    int fd = open(in_dir("stderr"), O_RDWR | O_CREAT | O_TRUNC, 0600);

    fflush(stderr);
    scratch_stderr = dup(2);
    dup2(fd, 2);
    close(fd);
}

static inline void listen_stop(void)
{
    ssize_t n;

    fflush(stderr);
    n = pread(2, scratch_said, sizeof scratch_said - 1, 0);
    scratch_said[n > 0 ? n : 0] = 0;
    dup2(scratch_stderr, 2);
    close(scratch_stderr);
}

/* Whether it was exactly one line, and has these words. */
static inline bool listen_end(const char *want)
{
    listen_stop();
    if (strstr(scratch_said, want) && strchr(scratch_said,
                                             '\n') == scratch_said + strlen(scratch_said) - 1)
        return true;
    printf("expected one line with '%s', found: %s\n", want, scratch_said);
    return false;
}
#endif
