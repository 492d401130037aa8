/* golden_model.h - for tests: a model of the golden directory, on a device of its own. */
#ifndef GOLDEN_MODEL_H
#define GOLDEN_MODEL_H
#include "model.h"

/* In fp32, with its weights. When it fails nothing is left open. */
bool golden_open(struct model *m, struct dev *d, const char *name, const char *device, const struct model_use *use);
void golden_close(struct model *m, struct dev *d);
#endif
