/* torch.h - weights out of pytorch_model.bin: a zip of a pickle and raw storages, mapped, nothing executed.
 *
 *   struct st *f = torch_open("DIR/pytorch_model.bin");      NULL with the reason; st_close(f)
 * Tensors come in the order of their names. One that is not contiguous in its storage is copied into
 * order; all others point into the map, so a file larger than memory can be read. */
#ifndef TORCH_H
#define TORCH_H
#include "safetensors.h"
EXTERN_C_BEGIN
struct st *torch_open(const char *path);
struct st *torch_open_index(const char *path);           /* pytorch_model.bin.index.json, with the files it names */
struct st *torch_open_memory(const void *data, size_t n, const char *name);     /* data stays the caller's */
EXTERN_C_END
#endif
