/* lanes.cu - pieces of work that need not wait for each other, each on a stream of its own.
 *
 * The first lane marks where the device's stream, the trunk, is; each lane waits for that once; in the end the trunk
 * waits for every lane that was used. Between them the device's stream is the lane's, so that verbs know nothing of it.
 * All events are the device's: nothing here waits on the host. */
#include "common.cuh"
#include "launch.cuh"
#include "op.h"

struct lanes {
    cudaStream_t stream[LANES_MOST], trunk;      /* trunk: the device's own, while lanes are open; else NULL */
    cudaEvent_t  forked, ended[LANES_MOST];
    bool         used[LANES_MOST];
};

void lanes_close(struct lanes *l)
{
    if (!l)
        return;
    for (int i = 0; i < LANES_MOST; i++) {
        cudaStreamDestroy(l->stream[i]);
        cudaEventDestroy(l->ended[i]);
    }
    cudaEventDestroy(l->forked);
    free(l);
}

static struct lanes *lanes_open(void)
{
    struct lanes *l = (struct lanes *)mem_new(1, sizeof *l);

    for (int i = 0; i < LANES_MOST; i++) {
        CUDA(cudaStreamCreateWithFlags(&l->stream[i], cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&l->ended[i], cudaEventDisableTiming));
    }
    CUDA(cudaEventCreateWithFlags(&l->forked, cudaEventDisableTiming));
    return l;
}

bool lanes_run(const struct lanes *l)
{
    return l && l->trunk;
}

static void join(struct cuda *c, struct lanes *l)
{
    c->stream = l->trunk;
    l->trunk = NULL;
    for (int i = 0; i < LANES_MOST; i++)
        if (l->used[i]) {
            CUDA(cudaEventRecord(l->ended[i], l->stream[i]));
            CUDA(cudaStreamWaitEvent(c->stream, l->ended[i], 0));
            l->used[i] = false;
        }
}

void cuda_lane(struct dev *d, int lane)
{
    struct cuda *c = cuda_of(d);

    if (lane < 0) {
        if (lanes_run(c->lanes))
            join(c, c->lanes);
        return;
    }
    if (!c->lanes)
        c->lanes = lanes_open();
    struct lanes *l = c->lanes;
    if (!l->trunk) {
        l->trunk = c->stream;
        CUDA(cudaEventRecord(l->forked, l->trunk));
    }
    if (!l->used[lane])
        CUDA(cudaStreamWaitEvent(l->stream[lane], l->forked, 0));
    l->used[lane] = true;
    c->stream = l->stream[lane];
}
