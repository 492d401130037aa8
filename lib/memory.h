/* memory.h - how much memory there is to have, and how much this process holds. Bytes. */
#ifndef MEMORY_H
#define MEMORY_H
#include "dev.h"
EXTERN_C_BEGIN
size_t memory_free(const struct dev *d);     /* on the device: what could still be allocated; 0 unknown */
size_t memory_resident(void);                /* of this process on the host now */
size_t memory_peak(void);                    /* the most it ever held */
EXTERN_C_END
#endif
