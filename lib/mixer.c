/* mixer.c - the list of mixers, generated from the files of lib/mixers. */
#include "mixer.h"

#define X(file) extern const struct mixer mixer_##file;
#include "mixers.inc"
#undef X
static const struct mixer *const all[] = {
#define X(file) &mixer_##file,
#include "mixers.inc"
#undef X
};

const struct mixer *mixer_find(const char *name)
{
    for (size_t i = 0; i < LEN(all); i++)
        if (!strcmp(all[i]->name, name))
            return all[i];
    return NULL;
}

const struct mixer *mixer_next(const struct mixer *m)
{
    if (!m)
        return all[0];
    for (size_t i = 0; i + 1 < LEN(all); i++)
        if (all[i] == m)
            return all[i + 1];
    return NULL;
}
