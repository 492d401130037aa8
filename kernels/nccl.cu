/* nccl.cu - the row of collectives for ranks that have a GPU each. The library is looked for when it is needed,
 * so a binary that knows of it starts where it is not.
 *
 * Collectives run in the device's own stream, in order with all its work, so that a kernel that waits for another
 * GPU never holds multiprocessors that this GPU's own kernels need to get there. Beside backward in a stream of
 * their own they were not faster. */
#include "comm_nccl.h"
#include "common.cuh"
#include <dlfcn.h>
#include <nccl.h>

static_assert(COMM_NCCL_ID == NCCL_UNIQUE_ID_BYTES, "an id is what NCCL says it is");

#define CALLS(X) X(GetVersion) X(GetUniqueId) X(CommInitRank) X(CommDestroy) X(CommAbort) X(AllReduce) \
    X(ReduceScatter) X(AllGather) X(GetErrorString) X(GetLastError)
static struct {
    void *library;
#define X(name) decltype(&nccl##name) name;
    CALLS(X)
#undef X
} nccl;

struct comm_nccl {
    ncclComm_t comm;
    char       name[32];
};

#define NCCL(call) do { ncclResult_t r_ = nccl.call; \
    if (r_ != ncclSuccess) BUG("nccl%s: %s", #call, nccl.GetErrorString(r_)); } while (0)

static int load(void)
{
    void *library;

    if (nccl.library)
        return 0;
    library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail("several GPUs need NCCL: %s; LD_LIBRARY_PATH may name its directory", dlerror());
#define X(name) if (!(nccl.name = (decltype(&nccl##name))dlsym(library, "nccl" #name))) \
        return fail("libnccl.so.2 has no nccl%s: it is too old", #name);
    CALLS(X)
#undef X
    nccl.library = library;
    return 0;
}

static int refused(const struct comm *c, const char *what, ncclResult_t r)
{
    return fail("rank %d of %d: %s: %s: %s", c->rank, c->world, what, nccl.GetErrorString(r), nccl.GetLastError(NULL));
}

int comm_nccl_id(char id[COMM_NCCL_ID])
{
    ncclUniqueId unique;
    ncclResult_t r;

    if (load())
        return -1;
    r = nccl.GetUniqueId(&unique);
    if (r != ncclSuccess)
        return fail("NCCL does not start: %s: %s", nccl.GetErrorString(r), nccl.GetLastError(NULL));
    memcpy(id, unique.internal, COMM_NCCL_ID);
    return 0;
}

static void nccl_sum(struct comm *c, struct tensor x)
{
    REQUIRE(x.type == F32 && tensor_dense(x));
    *c->beat = *c->beat + 1;
    NCCL(AllReduce(x.data, x.data, (size_t)tensor_count(x), ncclFloat, ncclSum, c->link->comm, stream_of(c->dev)));
}

static void nccl_scatter(struct comm *c, struct tensor slice, struct tensor whole)
{
    size_t n = (size_t)tensor_count(slice);

    REQUIRE(whole.type == F32 && slice.data == (float *)whole.data + (size_t)c->rank * n);
    *c->beat = *c->beat + 1;
    NCCL(ReduceScatter(whole.data, slice.data, n, ncclFloat, ncclSum, c->link->comm, stream_of(c->dev)));
}

static void nccl_gather(struct comm *c, struct tensor whole, struct tensor slice)
{
    size_t n = (size_t)tensor_count(slice) * dtype_size(whole.type);

    REQUIRE(slice.data == (char *)whole.data + (size_t)c->rank * n);
    *c->beat = *c->beat + 1;
    NCCL(AllGather(slice.data, whole.data, n, ncclChar, c->link->comm, stream_of(c->dev)));
}

int comm_nccl_open(struct comm *c, const char id[COMM_NCCL_ID])
{
    struct comm_nccl *l;
    ncclUniqueId unique;
    ncclResult_t r;
    int version = 0;

    if (load())
        return -1;
    c->link = l = (struct comm_nccl *)mem_new(1, sizeof *l);
    memcpy(unique.internal, id, COMM_NCCL_ID);
    r = nccl.CommInitRank(&l->comm, c->world, unique, c->rank);
    if (r != ncclSuccess) {
        l->comm = NULL;
        return refused(c, "NCCL does not join the GPUs", r);
    }
    nccl.GetVersion(&version);
    snprintf(l->name, sizeof l->name, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    c->sum = nccl_sum;
    c->scatter = nccl_scatter;
    c->gather = nccl_gather;
    return 0;
}

void comm_nccl_close(struct comm *c, bool broken)
{
    struct comm_nccl *l = c->link;

    if (l->comm && broken)
        nccl.CommAbort(l->comm);
    else if (l->comm)
        nccl.CommDestroy(l->comm);
    free(l);
    c->link = NULL;
}

const char *comm_nccl_name(const struct comm *c)
{
    return c->link->name;
}
