/* graph.cu - work that repeats, recorded as a CUDA graph: op.h says how it is used.
 *
 * The first time a key is seen its work just runs, so that plans of the matrix library and attributes of
 * kernels are made outside of a recording; the second time it is recorded; from then on it is played. */
#include "common.cuh"
#include "launch.cuh"

enum { GRAPHS = 64, KEY = 256 };         /* recordings kept at a time; bytes of a key at most */

struct graph {
    char            key[KEY];
    size_t          bytes;               /* 0: a free place */
    cudaGraphExec_t exec;
    uint64_t        trace, used;
};
struct graphs {
    struct graph at[GRAPHS];
    int          now;                    /* between record and recorded */
    bool         recording;
    uint64_t     clock;
};

struct graphs *graphs_open(void)
{
    return (struct graphs *)mem_new(1, sizeof(struct graphs));
}

void graphs_forget(struct graphs *g)
{
    for (int i = 0; i < GRAPHS; i++) {
        if (g->at[i].exec)
            CUDA(cudaGraphExecDestroy(g->at[i].exec));
        g->at[i] = {};
    }
}

bool graphs_recording(const struct graphs *g)
{
    return g->recording;
}

/* The place of a key, else the one that was not used for longest. */
static int find(const struct graphs *g, const void *key, size_t bytes)
{
    int oldest = 0;

    for (int i = 0; i < GRAPHS; i++) {
        if (g->at[i].bytes == bytes && !memcmp(g->at[i].key, key, bytes))
            return i;
        if (g->at[i].used < g->at[oldest].used)
            oldest = i;
    }
    return oldest;
}

bool cuda_record(struct dev *d, const void *key, size_t bytes)
{
    struct graphs *g = cuda_of(d)->graphs;
    const int i = find(g, key, bytes);
    struct graph *at = &g->at[i];

    REQUIRE(bytes > 0 && bytes <= KEY);
    g->now = i;
    if (at->bytes != bytes || memcmp(at->key, key, bytes)) {
        if (at->exec)
            CUDA(cudaGraphExecDestroy(at->exec));
        *at = {};
        memcpy(at->key, key, at->bytes = bytes);
    } else if (at->exec)
        CUDA(cudaGraphLaunch(at->exec, stream_of(d)));
    else {
        g->recording = true;
        CUDA(cudaStreamBeginCapture(stream_of(d), cudaStreamCaptureModeThreadLocal));
    }
    at->used = ++g->clock;
    return at->exec != NULL;
}

void cuda_recorded(struct dev *d, uint64_t trace)
{
    struct graphs *g = cuda_of(d)->graphs;
    struct graph *at = &g->at[g->now];
    cudaGraph_t graph;

    if (at->exec && at->trace != trace)
        BUG("a recording was played for work that differs from it");
    if (!g->recording)
        return;
    g->recording = false;
    CUDA(cudaStreamEndCapture(stream_of(d), &graph));
    CUDA(cudaGraphInstantiate(&at->exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphLaunch(at->exec, stream_of(d)));
    at->trace = trace;
}
