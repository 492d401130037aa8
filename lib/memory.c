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

size_t memory_free(const struct dev *d)
{
#ifdef PALIMPSA_CUDA
    if (d->kind == DEV_CUDA)
        return dev_cuda_free(d);
#endif
    (void)d;
    return proc_bytes("/proc/meminfo", "MemAvailable");
}

size_t memory_resident(void)
{
    return proc_bytes("/proc/self/status", "VmRSS");
}

size_t memory_peak(void)
{
    return proc_bytes("/proc/self/status", "VmHWM");
}
