/* on_gpu.h - the main of a test that is for a GPU: every storage type in turn. With a device as argument it is a trial
 * of the test itself in little, on the host in fp32 only. */
#ifndef ON_GPU_H
#define ON_GPU_H
#include "dev.h"
#include "test.h"

static int test_ran;                     /* cases that had room; the test counts them */

/* threads: of a host device; 0: all. */
static inline int test_on_gpu(const char *name, int argc, char **argv, int threads, void (*check)(struct dev *d))
{
    const char *device = argc > 1 ? argv[1] : "cuda";
    struct dev d;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (dev_open(&d, argc > 1 ? device : "auto", F32, threads) || (argc < 2 && d.kind != DEV_CUDA)) {
        dev_close(&d);
        return test_skip(name, "this machine has no usable GPU");
    }
    dev_close(&d);
    for (int type = F32; type <= BF16; type++) {
        if (type == BF16 && strncmp(device, "cuda", 4))
            break;
        if (dev_open(&d, device, (enum dtype)type, threads)) {
            test_failed++;
            break;
        }
        check(&d);
        dev_close(&d);
    }
    return test_ran || test_failed ? test_done(name) : test_skip(name, "this GPU has no room for it");
}
#endif
