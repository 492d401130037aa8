/* dev_blas.h - private to dev.c: OpenBLAS made ready for this machine. */
#ifndef DEV_BLAS_H
#define DEV_BLAS_H

/* Kernels that suit the processor, and so many threads. Call before any product runs. */
void dev_blas_open(int threads);

#endif
