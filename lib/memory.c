/* memory.c - what the kernel says in /proc, and what the GPU says. */
#include "memory.h"
#ifdef PALIMPSA_CUDA
#include "dev_cuda.h"
#endif

/* A line "KEY:   123 kB" of a file in /proc; 0 when it is not there. */
static size_t proc_bytes(const char *path, const char *key)
{
    char line[256];
    size_t n = strlen(key), found = 0;
    FILE *f = fopen(path, "r");

    while (f && !found && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && line[n] == ':')
            found = (size_t)strtoull(line + n + 1, NULL, 10) * 1024;
    if (f)
        fclose(f);
    return found;
}

/* A number that is alone in a file, or after "KEY " in it; false when there is none ("max"). */
static bool group_bytes(const char *path, const char *key, unsigned long long *x)
{
    char line[256];
    size_t n = strlen(key);
    bool found = false;
    FILE *f = fopen(path, "r");

    while (f && !found && fgets(line, sizeof line, f))
        found = !strncmp(line, key, n) && sscanf(line + n, "%llu", x) == 1;
    if (f)
        fclose(f);
    return found;
}

/* What a container's limit leaves; file pages that nobody uses do not count as held. */
static size_t group_left(void)
{
    unsigned long long limit, held, idle = 0;

    if (!group_bytes("/sys/fs/cgroup/memory.max", "", &limit) ||
        !group_bytes("/sys/fs/cgroup/memory.current", "", &held))
        return SIZE_MAX;
    group_bytes("/sys/fs/cgroup/memory.stat", "inactive_file ", &idle);
    held -= idle < held ? idle : held;
    return held < limit ? (size_t)(limit - held) : 0;
}

size_t memory_free(const struct dev *d)
{
    size_t room, left = group_left();

#ifdef PALIMPSA_CUDA
    if (d->kind == DEV_CUDA)
        return dev_cuda_free(d);
#endif
    (void)d;
    room = proc_bytes("/proc/meminfo", "MemAvailable");
    return room < left ? room : left;
}

size_t memory_resident(void)
{
    return proc_bytes("/proc/self/status", "VmRSS");
}

size_t memory_peak(void)
{
    return proc_bytes("/proc/self/status", "VmHWM");
}
