/* zip.h - the table of a zip archive in memory; members are read where they lie.
 *
 * Only what torch.save writes: members stored without compression, zip64 sizes. Every offset and size
 * is held against the archive's bytes, members may not overlap or share a name, and a name is printable
 * and stays inside the archive, though nothing is ever unpacked. */
#ifndef ZIP_H
#define ZIP_H
#include "base.h"
EXTERN_C_BEGIN
struct zip_member {
    const char *name;            /* not ended by NUL */
    size_t      length;
    bool        stored;          /* without compression: data can be used */
    const char *data;
    uint64_t    size;
    uint64_t    packed;          /* bytes in the archive; size when stored */
};
struct zip {
    struct zip_member *at;       /* [n] in the order of their names */
    int64_t            n;
};
/* path is for messages. 0, or -1 with the reason and nothing to close. */
int  zip_open(struct zip *z, const char *data, size_t n, const char *path);
void zip_close(struct zip *z);
const struct zip_member *zip_find(const struct zip *z, const char *name, size_t length);
EXTERN_C_END
#endif
