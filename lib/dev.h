/* dev.h - where arithmetic happens. A device is a row of verbs (ops.h) plus two arenas.
 *
 *   dev_open(&d, "auto", F32, 0);                        0, or -1 with the reason on stderr
 *   dev_reserve(&d, keep_bytes, temp_bytes);             after a dry run said how many
 *   ... op_*(&d, ...), scan_*(&d, ...) ...
 *   dev_close(&d);                                       frees everything the device owns */
#ifndef DEV_H
#define DEV_H
#include "arena.h"
EXTERN_C_BEGIN

enum dev_kind {
    DEV_NAIVE,     /* plain loops, double inside: the definition of every op; F32 storage */
    DEV_CPU,       /* OpenBLAS + OpenMP, F32 storage */
    DEV_CUDA,      /* cuBLAS + kernels/, F32 and BF16 */
    DEV_KINDS
};

struct ops;
struct dev {
    enum dev_kind     kind;
    bool              dry;       /* computes nothing: both arenas only plan; kind says for whom */
    bool              tracing;   /* between op_record and op_recorded */
    uint64_t          trace;     /* of what the verbs were given meanwhile */
    int               index;     /* which GPU */
    int               threads;   /* host threads this device computes with */
    enum dtype        type;      /* storage type of weights and activations */
    const struct ops *ops;
    struct arena      keep;      /* forward pushes, backward pops */
    struct arena      temp;      /* empty at the start and end of every layer */
    void             *priv;      /* streams and cuBLAS handles; NULL on the host */
    bool              alone;     /* each sequence as if it were the row: no sum's order depends on its neighbours */
};

/* name: "auto" (a GPU when there is one), "cpu", "naive", "cuda", "cuda:N". threads 0: all cores.
 * A device that this build or machine lacks is an error, never a silent other one. */
int  dev_open(struct dev *d, const char *name, enum dtype type, int threads);
/* The device of one of several ranks: "cuda" and an "auto" that finds GPUs are the rank's own GPU, "cuda:1,3" is
 * one for each rank, host devices are shared. -1 with the reason from rank 0, in silence from others. */
int  dev_of_rank(char *out, size_t size, const char *name, int rank, int world);
/* A device like d that plans only. It owns nothing and needs no close. */
struct dev dev_dry(const struct dev *d);
int  dev_reserve(struct dev *d, size_t keep, size_t temp);     /* bytes; replaces what was reserved */
void dev_close(struct dev *d);
int  dev_gpus(void);                                           /* GPUs that "cuda:N" may name; starts the driver */
/* "cpu (2 threads)" or "cuda:0 (NVIDIA H200)"; points into d or to a literal */
const char *dev_describe(const struct dev *d, char *out, size_t size);
EXTERN_C_END
#endif
