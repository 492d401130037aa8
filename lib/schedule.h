/* schedule.h - the learning rate is a pure function of the step and the settings; nothing is remembered.
 *
 * Step n counts from 1 to steps. n <= warmup: peak * n / warmup. After that, with t the passed share
 * of what remains: cosine and linear fall from peak to floor; wsd (warm-up, stable, decay) stays at
 * peak and falls linearly over the last `decay` share of all steps; constant stays. */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#include "base.h"
EXTERN_C_BEGIN
enum schedule_kind { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_WSD, SCHEDULE_CONSTANT };
#define SCHEDULE_NAMES "cosine|linear|wsd|constant"
struct schedule {
    enum schedule_kind kind;
    int64_t steps, warmup;
    double  peak, floor;       /* rates */
    double  decay;             /* wsd: share of steps that fall */
};
double schedule_rate(const struct schedule *s, int64_t n);
int    schedule_parse(enum schedule_kind *kind, const char *name);      /* 0, or -1 with the reason */
EXTERN_C_END
#endif
