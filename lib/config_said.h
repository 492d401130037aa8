/* config_said.h - for ckpt.c: a config.json before its numbers are held against each other, because
 * where there are tensors these decide (an inner width that is not expand * width is legal then). */
#ifndef CONFIG_SAID_H
#define CONFIG_SAID_H
#include "config.h"
EXTERN_C_BEGIN
enum { CONFIG_MOST = 1 << 24 };  /* of any single size, so that products of two and sums fit 64 bits */
struct config_said {
    bool    tied;                /* the key that ties head and embedding is there */
    bool    norm_groups;         /* so is the one for the groups of the gated norm */
    int64_t inner;               /* expand * width; 0 when the file does not speak of it */
    double  expand;
};
int config_parse_said(struct config *c, struct config_said *said, const char *text, size_t n,
                      const char *name);
/* What the family's files call a number, for messages: "hidden_size" or "d_model". */
const char *config_key(const struct config *c, const char *hf);
/* The text of dir/config.json; a directory without one is explained. The caller frees. */
char *config_load(const char *dir, size_t *n, char *path, size_t size);
EXTERN_C_END
#endif
