/* golden_model.c - device, config and weights in one call. */
#include "golden_model.h"
#include "ckpt.h"
#include "test.h"

bool golden_open(struct model *m, struct dev *d, const char *name, const char *device, const struct model_use *use)
{
    struct config c;
    char dir[512];

    snprintf(dir, sizeof dir, "%s/models/%s", test_golden(), name);
    if (dev_open(d, device, F32, 2))
        return false;
    if (ckpt_config(dir, &c) || model_open(m, d, &c, use) || ckpt_load(dir, m)) {
        dev_close(d);
        return false;
    }
    return true;
}

void golden_close(struct model *m, struct dev *d)
{
    model_close(m);
    dev_close(d);
}
