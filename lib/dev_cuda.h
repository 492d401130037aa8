/* dev_cuda.h - the four functions by which dev.c reaches the GPU; kernels/cuda.cu defines them. */
#ifndef DEV_CUDA_H
#define DEV_CUDA_H
#include "dev.h"
EXTERN_C_BEGIN

int         dev_cuda_count(void);                          /* GPUs this process can use; 0 without a driver */
int         dev_cuda_open(struct dev *d, int index);       /* fills priv; 0, or -1 with the reason on stderr */
void        dev_cuda_close(struct dev *d);                 /* frees priv */
const char *dev_cuda_name(const struct dev *d);            /* "NVIDIA H200"; lives as long as the device */
size_t      dev_cuda_free(const struct dev *d);            /* bytes that could still be allocated */

EXTERN_C_END
#endif
