/* dev.c - choosing a device by name, and the memory it computes in. */
#include "dev.h"
#include "dev_blas.h"
#include "op.h"
#ifdef PALIMPSA_CUDA
#include "dev_cuda.h"
#endif
#include <omp.h>

enum { CUDA_NOT_NAMED = -2, CUDA_ANY = -1 };

/* Index in "cuda" (any) or "cuda:N"; CUDA_NOT_NAMED for every other name. */
static int cuda_index(const char *name)
{
    char *end;
    long  n;

    if (strncmp(name, "cuda", 4))
        return CUDA_NOT_NAMED;
    if (!name[4])
        return CUDA_ANY;
    if (name[4] != ':' || name[5] < '0' || name[5] > '9')
        return CUDA_NOT_NAMED;
    n = strtol(name + 5, &end, 10);
    return *end || n > 1023 ? CUDA_NOT_NAMED : (int)n;
}

static int open_host(struct dev *d, enum dev_kind kind, int threads)
{
    bool naive = kind == DEV_NAIVE;

    if (d->type != F32)
        return fail("device %s stores fp32 only; %s needs a GPU", naive ? "naive" : "cpu", dtype_name(d->type));
    d->kind    = kind;
    d->ops     = naive ? &ops_naive : &ops_cpu;
    d->threads = naive ? 1 : threads;
    if (!naive) {
        omp_set_num_threads(threads);
        dev_blas_open(threads);
    }
    return 0;
}

#ifdef PALIMPSA_CUDA
static int open_cuda(struct dev *d, int index, int threads)
{
    int count = dev_cuda_count();

    if (count == 0)
        return fail("device cuda: this machine has no usable GPU");
    if (index >= count)
        return fail("device cuda:%d: this machine has %d GPU%s, counted from 0", index, count,
                    count > 1 ? "s" : "");
    d->kind    = DEV_CUDA;
    d->ops     = &ops_cuda;
    d->index   = index < 0 ? 0 : index;
    d->threads = threads;
    return dev_cuda_open(d, d->index);
}
int dev_gpus(void) { return dev_cuda_count(); }
#else
static int open_cuda(struct dev *d, int index, int threads)
{
    (void)d, (void)index, (void)threads;
    return fail("device cuda: this palimpsa was built without CUDA");
}
int dev_gpus(void) { return 0; }
#endif

int dev_open(struct dev *d, const char *name, enum dtype type, int threads)
{
    struct dev fresh = { .type = type };
    int status, cuda = cuda_index(name);

    REQUIRE(type == F32 || type == BF16);
    if (threads < 0)
        return fail("%d threads: expected a positive number, or 0 for all cores", threads);
    if (threads == 0)
        threads = omp_get_num_procs();

    if (cuda != CUDA_NOT_NAMED || (!strcmp(name, "auto") && dev_gpus() > 0))
        status = open_cuda(&fresh, cuda, threads);
    else if (!strcmp(name, "auto") || !strcmp(name, "cpu"))
        status = open_host(&fresh, DEV_CPU, threads);
    else if (!strcmp(name, "naive"))
        status = open_host(&fresh, DEV_NAIVE, threads);
    else
        status = fail("device \"%s\": expected auto, cpu, naive, cuda or cuda:N", name);
    *d = status ? (struct dev){ 0 } : fresh;
    return status;
}

/* The item of "cuda:1,3" with this number; *n becomes how many there are. NULL: not such a list. */
static const char *gpu_in_list(const char *name, int item, int *n)
{
    const char *found = NULL;

    *n = 0;
    if (strncmp(name, "cuda:", 5))
        return NULL;
    for (const char *at = name + 5; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if ((*n)++ == item)
            found = at;
    return found;
}

int dev_of_rank(char *out, size_t size, const char *name, int rank, int world)
{
    bool cuda = !strcmp(name, "cuda"), automatic = !strcmp(name, "auto"), any, fits;
    int found = world > 1 && (cuda || automatic) ? dev_gpus() : 0, n;      /* host devices leave CUDA alone */
    const char *item = gpu_in_list(name, rank, &n);

    any = cuda || (automatic && found > 0);
    if (n && n != world)
        return rank ? -1 : fail("device %s: %d GPU%s for %d rank%s", name, n, n > 1 ? "s" : "", world,
                                world > 1 ? "s" : "");
    if (found && world > found)
        return rank ? -1 : fail("%d ranks: this machine has %d GPU%s", world, found, found > 1 ? "s" : "");
    if (any && world > 1 && rank && !found)
        return -1;                                     /* rank 0 says so when it opens it */
    if (item)
        fits = str_format(out, size, "cuda:%.*s", (int)strcspn(item, ","), item);
    else if (any && world > 1)
        fits = str_format(out, size, "cuda:%d", rank);
    else
        fits = str_format(out, size, "%s", name);
    return fits ? 0 : rank ? -1 : fail("device %s: its name is too long", name);
}

struct dev dev_dry(const struct dev *d)
{
    struct dev dry = *d;

    dry.dry  = true;
    dry.keep = dry.temp = (struct arena){ 0 };         /* priv is shared: plans ask the GPU for its size */
    return dry;
}

static void arena_free(struct dev *d, struct arena *a)
{
    if (a->base)
        op_release(d, a->base);
    *a = (struct arena){ 0 };
}

/* Never zero bytes: an arena without a base would only plan. */
static int arena_fill(struct dev *d, struct arena *a, size_t bytes, const char *what)
{
    char name[160];

    if (bytes < ARENA_ALIGN)
        bytes = ARENA_ALIGN;
    a->base = op_alloc(d, bytes);
    if (!a->base)
        return fail("no memory for %s: %.1f MB asked of %s", what, (double)bytes / 1e6,
                    dev_describe(d, name, sizeof name));
    a->size = bytes;
    return 0;
}

int dev_reserve(struct dev *d, size_t keep, size_t temp)
{
    REQUIRE(!d->dry && d->keep.used == 0 && d->temp.used == 0);
    arena_free(d, &d->keep);
    arena_free(d, &d->temp);
    if (arena_fill(d, &d->keep, keep, "activations"))
        return -1;
    return arena_fill(d, &d->temp, temp, "scratch");
}

void dev_close(struct dev *d)
{
    if (!d->ops || d->dry)
        return;
    arena_free(d, &d->keep);
    arena_free(d, &d->temp);
#ifdef PALIMPSA_CUDA
    if (d->kind == DEV_CUDA)
        dev_cuda_close(d);
#endif
    *d = (struct dev){ 0 };
}

const char *dev_describe(const struct dev *d, char *out, size_t size)
{
    if (d->kind == DEV_NAIVE)
        return "naive";
#ifdef PALIMPSA_CUDA
    if (d->kind == DEV_CUDA && d->priv)
        return str_format(out, size, "cuda:%d (%s)", d->index, dev_cuda_name(d)) ? out : "cuda";
#endif
    if (d->kind == DEV_CUDA)
        return str_format(out, size, "cuda:%d", d->index) ? out : "cuda";
    return str_format(out, size, "cpu (%d thread%s)", d->threads, d->threads > 1 ? "s" : "") ? out : "cpu";
}
