/* schedule.c - four shapes of a learning rate. */
#include "schedule.h"
#include <math.h>

int schedule_parse(enum schedule_kind *kind, const char *name)
{
    static const char *const names[] = { "cosine", "linear", "wsd", "constant" };

    for (size_t i = 0; i < LEN(names); i++)
        if (!strcmp(name, names[i])) {
            *kind = (enum schedule_kind)i;
            return 0;
        }
    return fail("schedule: expected %s, found %s", SCHEDULE_NAMES, name);
}

/* 0 at `from`, 1 at the last step. */
static double passed(const struct schedule *s, int64_t n, double from)
{
    double t = ((double)n - from) / ((double)s->steps - from);

    return t < 0 || isnan(t) ? 0 : t > 1 ? 1 : t;
}

double schedule_rate(const struct schedule *s, int64_t n)
{
    double fall = s->peak - s->floor;

    if (n <= s->warmup)
        return s->peak * (double)n / (double)s->warmup;
    switch (s->kind) {
    case SCHEDULE_COSINE:
        return s->floor + fall * 0.5 * (1 + cos(3.141592653589793 * passed(s, n, (double)s->warmup)));
    case SCHEDULE_LINEAR:
        return s->floor + fall * (1 - passed(s, n, (double)s->warmup));
    case SCHEDULE_WSD:
        return s->floor + fall * (1 - passed(s, n, (double)s->steps * (1 - s->decay)));
    case SCHEDULE_CONSTANT:
        return s->peak;
    }
    BUG("unreachable");
}
