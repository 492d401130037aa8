/* check_op_plan.h - private to check_op_*.c: the words in which a verb's arguments are written down. */
#ifndef CHECK_OP_PLAN_H
#define CHECK_OP_PLAN_H
#include "check_op.h"

#define SIZES int64_t T = c->n[0], H = c->n[1], V = c->n[2]; enum dtype A = p->type; \
    (void)T, (void)H, (void)V, (void)A

static inline struct op_arg *arg(struct op_plan *p, const char *name, enum op_role role, struct tensor shape)
{
    REQUIRE(p->n < OP_ARGS);
    p->arg[p->n] = (struct op_arg){ .name = name, .role = role, .shape = shape, .low = -2, .high = 2 };
    return &p->arg[p->n++];
}

static inline void in(struct op_plan *p, const char *name, struct tensor shape)
{
    arg(p, name, ARG_IN, shape);
}

static inline void out(struct op_plan *p, const char *name, struct tensor shape)
{
    arg(p, name, ARG_OUT, shape);
}

static inline void acc(struct op_plan *p, const char *name, struct tensor shape)
{
    arg(p, name, ARG_ACC, shape);
}

static inline void weight(struct op_plan *p, const char *name, struct tensor shape)
{
    arg(p, name, ARG_IN, shape)->dense = true;
}

static inline void grad(struct op_plan *p, const char *name, struct tensor shape)
{
    arg(p, name, ARG_ACC, shape)->dense = true;
}

static inline void none(struct op_plan *p, const char *name)
{
    arg(p, name, ARG_ABSENT, (struct tensor){ 0 });
}

static inline void ids(struct op_plan *p, const char *name, int64_t n, int64_t low, int64_t high)
{
    struct op_arg *a = arg(p, name, ARG_IN, SHAPE(I32, n));

    a->low = (float)low, a->high = (float)high, a->dense = true;
}

/* s of mul and gain: a weight per head, or a value per token and head. */
static inline void factor(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    if (c->flags & CASE_WEIGHT)
        weight(p, "s", SHAPE(F32, H));
    else
        in(p, "s", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, H));
}

/* Each ends with a row without a name. */
extern const struct op_row op_rows_plain[], op_rows_more[];
#endif
