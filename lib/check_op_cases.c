/* check_op_cases.c - where each verb is tried: small and odd, then at the sizes that training meets. */
#include "check_op_plan.h"
#include "op_step.h"

#define L CASE_LARGE
static const struct op_case cases[] = {
    { "fill", "", .n = { 5, 7 } },
    { "fill", "many rows", .n = { 517, 129 } },
    { "cast", "down", .n = { 5, 33 } },
    { "cast", "up", .n = { 5, 33 }, .flags = CASE_BACK },
    { "cast", "in place", .n = { 3, 9 }, .out = "y", .in = "x" },
    { "cast", "many rows", .n = { 517, 129 } },
    { "matmul", "a b", .n = { 5, 7, 3 } },
    { "matmul", "a b", .n = { 1, 65, 33 } },
    { "matmul", "a b' one row", .n = { 1, 129, 70 }, .flags = MM_TB },
    { "matmul", "a b' one row +=", .n = { 1, 17, 70 }, .flags = MM_TB | MM_ADD },
    { "matmul", "a b' few rows", .n = { 3, 37, 300 }, .flags = MM_TB },
    { "matmul", "a b' few rows +=", .n = { 7, 65, 130 }, .flags = MM_TB | MM_ADD },
    { "matmul", "a b' few rows to fp32 +=", .n = { 2, 33, 1300 }, .flags = MM_TB | MM_ADD | CASE_MIXED },
    { "products", "", .n = { 1, 37, 300 } },
    { "products", "of a norm", .n = { 1, 37, 300 }, .flags = BEFORE_NORM },
    { "products", "of a norm, few rows", .n = { 5, 130, 70 }, .flags = BEFORE_NORM },
    { "products", "of a norm, many rows", .n = { 19, 33, 70 }, .flags = BEFORE_NORM },
    { "products", "gated", .n = { 1, 37, 1300 }, .flags = BEFORE_SWIGLU },
    { "products", "gated, few rows +=", .n = { 3, 37, 130 }, .flags = BEFORE_SWIGLU | CASE_ADD },
    { "matmul", "a b' one column", .n = { 37, 1, 19 }, .flags = MM_TB },
    { "matmul", "a b'", .n = { 66, 37, 19 }, .flags = MM_TB },
    { "matmul", "a' b +=", .n = { 17, 31, 70 }, .flags = MM_TA | MM_ADD | CASE_MIXED },
    { "matmul", "a' b one row +=", .n = { 1, 31, 70 }, .flags = MM_TA | MM_ADD | CASE_MIXED },
    { "matmul", "a' b' to fp32", .n = { 9, 5, 130 }, .flags = MM_TA | MM_TB | CASE_MIXED },
    { "matmul", "nothing to sum", .n = { 3, 4, 0 } },
    { "matmul", "a b'", .n = { 257, 131, 65 }, .flags = MM_TB },
    { "embed", "", .n = { 9, 11, 7 } },
    { "embed", "to fp32", .n = { 9, 11, 48 }, .flags = CASE_MIXED },
    { "embed", "no token", .n = { 0, 11, 7 } },
    { "embed", "many tokens", .n = { 517, 300, 129 } },
    { "embed_bwd", "repeated tokens", .n = { 130, 5, 33 } },
    { "embed_bwd", "from fp32", .n = { 9, 500, 48 }, .flags = CASE_MIXED },
    { "embed_bwd", "a few tokens very often", .n = { 2100, 3, 40 } },
    { "embed_bwd", "many tokens", .n = { 517, 300, 129 } },
    { "add", "", .n = { 5, 33 } },
    { "add", "in place", .n = { 5, 33 }, .out = "y", .in = "a" },
    { "add", "fp32 residual", .n = { 7, 48 }, .flags = CASE_MIXED },
    { "add", "one row", .n = { 1, 1031 } },
    { "add", "many rows", .n = { 517, 129 } },
    { "map", "sigmoid", .n = { 5, 33 }, .flags = MAP_SIGMOID },
    { "map", "silu", .n = { 5, 33 }, .flags = MAP_SILU },
    { "map", "silu in place", .n = { 3, 129 }, .flags = MAP_SILU, .out = "y", .in = "x" },
    { "map", "many rows", .n = { 517, 129 }, .flags = MAP_SIGMOID },
    { "map_bwd", "sigmoid", .n = { 5, 33 }, .flags = MAP_SIGMOID },
    { "map_bwd", "silu", .n = { 5, 33 }, .flags = MAP_SILU },
    { "map_bwd", "silu in place", .n = { 3, 129 }, .flags = MAP_SILU, .out = "dx", .in = "dy" },
    { "map_bwd", "many rows", .n = { 517, 129 }, .flags = MAP_SILU },
    { "mul", "per token", .n = { 5, 3, 7 } },
    { "mul", "per token, fp32 factor", .n = { 5, 2, 48 }, .flags = CASE_MIXED },
    { "mul", "weight +=", .n = { 5, 3, 17 }, .flags = CASE_WEIGHT | CASE_ADD },
    { "mul", "in place", .n = { 5, 3, 17 }, .out = "y", .in = "x" },
    { "mul", "many heads", .n = { 259, 67, 17 } },
    { "mul", "a weight a channel +=", .n = { 67, 259, 1 }, .flags = CASE_WEIGHT | CASE_ADD },
    { "mul_bwd", "per token", .n = { 5, 3, 7 } },
    { "mul_bwd", "per token, fp32 factor +=", .n = { 5, 2, 48 }, .flags = CASE_MIXED | CASE_ADD },
    { "mul_bwd", "weight", .n = { 70, 5, 17 }, .flags = CASE_WEIGHT },
    { "mul_bwd", "weight +=", .n = { 129, 3, 65 }, .flags = CASE_WEIGHT | CASE_ADD },
    { "mul_bwd", "a weight a channel +=", .n = { 67, 259, 1 }, .flags = CASE_WEIGHT | CASE_ADD },
    { "mul_bwd", "a weight a channel, no dx", .n = { 67, 259, 1 }, .flags = CASE_WEIGHT | CASE_ABSENT },
    { "mul_bwd", "no dx", .n = { 7, 3, 65 }, .flags = CASE_ABSENT },
    { "mul_bwd", "no ds, in place", .n = { 7, 3, 65 }, .flags = CASE_BACK, .out = "dx", .in = "dy" },
    { "mul_bwd", "many heads", .n = { 259, 67, 17 }, .flags = CASE_WEIGHT | CASE_ADD },
    { "mul_bwd", "many heads", .n = { 259, 67, 17 } },
    { "swiglu", "", .n = { 5, 33 } },
    { "swiglu", "in place", .n = { 3, 129 }, .out = "y", .in = "gate" },
    { "swiglu", "many rows", .n = { 517, 129 } },
    { "swiglu_bwd", "", .n = { 5, 33 } },
    { "swiglu_bwd", "in place", .n = { 3, 129 }, .out = "dgate", .in = "gate" },
    { "swiglu_bwd", "many rows", .n = { 517, 129 } },
    { "decay", "", .n = { 9, 3 } },
    { "decay", "clamped", .n = { 9, 16 }, .flags = CASE_CLAMP },
    { "decay", "many heads", .n = { 517, 80 } },
    { "decay_bwd", "", .n = { 70, 3 } },
    { "decay_bwd", "decay only", .n = { 9, 80 }, .flags = CASE_ABSENT },
    { "decay_bwd", "clamped", .n = { 130, 16 }, .flags = CASE_CLAMP },
    { "decay_bwd", "many heads", .n = { 517, 80 } },
    { "gain", "", .n = { 9, 3, 7 } },
    { "gain", "fp32 factor", .n = { 5, 2, 48 }, .flags = CASE_MIXED },
    { "gain", "many heads", .n = { 259, 67, 17 } },
    { "gain_bwd", "", .n = { 70, 3, 7 } },
    { "gain_bwd", "fp32 factor", .n = { 131, 5, 48 }, .flags = CASE_MIXED },
    { "gain_bwd", "many heads", .n = { 259, 67, 17 } },
    { "rmsnorm", "plain", .n = { 5, 1, 33 } },
    { "rmsnorm", "fp32 residual", .n = { 3, 1, 768 }, .flags = CASE_MIXED },
    { "rmsnorm", "wide row", .n = { 2, 1, 5121 } },
    { "rmsnorm", "gate after, shared weight", .n = { 7, 3, 48 }, .flags = GATE_AFTER_NORM | CASE_WEIGHT },
    { "rmsnorm", "gate before, groups", .n = { 7, 2, 65 }, .flags = GATE_BEFORE_NORM },
    { "rmsnorm", "many rows", .n = { 259, 3, 129 }, .flags = GATE_AFTER_NORM },
    { "rmsnorm_bwd", "plain", .n = { 70, 1, 33 } },
    { "rmsnorm_bwd", "fp32 residual", .n = { 129, 1, 768 }, .flags = CASE_MIXED },
    { "rmsnorm_bwd", "fp32 residual +=", .n = { 131, 1, 130 }, .flags = CASE_MIXED | CASE_ADD },
    { "rmsnorm_bwd", "groups +=", .n = { 70, 2, 65 }, .flags = CASE_ADD },
    { "rmsnorm_bwd", "wide row", .n = { 2, 1, 5121 } },
    { "rmsnorm_bwd", "gate after, shared weight", .n = { 131, 3, 48 }, .flags = GATE_AFTER_NORM | CASE_WEIGHT },
    { "rmsnorm_bwd", "gate after, groups", .n = { 7, 2, 17 }, .flags = GATE_AFTER_NORM },
    { "rmsnorm_bwd", "gate before, groups", .n = { 70, 2, 65 }, .flags = GATE_BEFORE_NORM },
    { "rmsnorm_bwd", "many rows", .n = { 517, 1, 129 } },
    { "rmsnorm_bwd", "many rows, gate after", .n = { 259, 3, 129 }, .flags = GATE_AFTER_NORM | CASE_WEIGHT },
    { "rmsnorm_bwd", "many rows, gate before", .n = { 259, 3, 129 }, .flags = GATE_BEFORE_NORM },
    { "l2norm", "", .n = { 5, 3, 7 } },
    { "l2norm", "", .n = { 5, 2, 48 } },
    { "l2norm", "many rows", .n = { 259, 5, 65 } },
    { "l2norm_bwd", "", .n = { 5, 3, 7 } },
    { "l2norm_bwd", "", .n = { 5, 2, 128 } },
    { "l2norm_bwd", "many rows", .n = { 259, 5, 65 } },
    { "xent", "loss only", .n = { 9, 33 } },
    { "xent", "gradient", .n = { 9, 1025 }, .flags = CASE_SCALE },
    { "xent", "gradient in place", .n = { 7, 1025 }, .flags = CASE_SCALE, .out = "grad", .in = "logits" },
    { "xent", "gradient of fp32 logits", .n = { 7, 1030 }, .flags = CASE_SCALE | CASE_MIXED },
    { "xent", "gradient, a row that fits a block", .n = { 9, 8192 }, .flags = CASE_SCALE },
    { "xent", "gradient, whole packs", .n = { 11, 272 }, .flags = CASE_SCALE },
    { "xent", "loss only, whole packs", .n = { 6, 1536 } },
    { "xent", "gradient, some logits -inf", .n = { 7, 50288 }, .flags = CASE_SCALE | CASE_INF },
    { "xent", "loss only, some logits -inf", .n = { 7, 129 }, .flags = CASE_INF },
    { "conv", "", .n = { 200, 33, 4 } },
    { "conv", "bias and state", .n = { 300, 70, 4 }, .flags = CASE_BIAS | CASE_STATE | CASE_NEXT },
    { "conv", "state is its own next", .n = { 150, 17, 4 }, .flags = CASE_STATE | CASE_NEXT,
      .out = "next", .in = "state" },
    { "conv", "first next", .n = { 5, 48, 3 }, .flags = CASE_BIAS | CASE_NEXT },
    { "conv", "one token", .n = { 1, 768, 4 }, .flags = CASE_STATE | CASE_NEXT, .out = "next", .in = "state" },
    { "conv", "width 1", .n = { 70, 19, 1 }, .flags = CASE_BIAS },
    { "conv", "wide window", .n = { 80, 19, 11 }, .flags = CASE_STATE | CASE_NEXT },
    { "conv", "no token", .n = { 0, 19, 4 }, .flags = CASE_STATE | CASE_NEXT },
    { "conv", "many columns", .n = { 345, 517, 4 }, .flags = CASE_BIAS | CASE_STATE | CASE_NEXT },
    { "conv_bwd", "", .n = { 200, 33, 4 } },
    { "conv_bwd", "bias", .n = { 300, 70, 4 }, .flags = CASE_BIAS },
    { "conv_bwd", "width 1", .n = { 70, 19, 1 }, .flags = CASE_BIAS },
    { "conv_bwd", "wide window", .n = { 80, 19, 11 } },
    { "conv_bwd", "many columns", .n = { 345, 517, 4 }, .flags = CASE_BIAS },
    { "conv_bwd", "many columns, width 3", .n = { 700, 65, 3 } },
    { "rope", "", .n = { 9, 3, 10 } },
    { "rope", "in place", .n = { 9, 2, 48 }, .out = "y", .in = "x" },
    { "rope", "inverse", .n = { 9, 3, 64 }, .flags = CASE_BACK },
    { "rope", "many rows", .n = { 259, 5, 66 } },
    { "sumsq", "", .n = { 70000, 1 } },
    { "sumsq", "fp32", .n = { 37, 129 }, .flags = CASE_MIXED },
    { "sumsq", "many rows", .n = { 517, 129 } },
    { "adamw", "", .n = { 1031 } },
    { "adamw", "one memory", .n = { 1031 }, .flags = CASE_MIXED, .out = "w", .in = "master" },
    { "adamw", "late", .n = { 77 }, .flags = CASE_BACK },
    { "adamw", "many", .n = { 70001 } },

    { "matmul", "a b'", .n = { 2048, 2048, 768 }, .flags = MM_TB | L },
    { "matmul", "a' b +=", .n = { 2048, 768, 2048 }, .flags = MM_TA | MM_ADD | CASE_MIXED | L },
    { "matmul", "a b' one row", .n = { 1, 2048, 768 }, .flags = MM_TB | L },
    { "embed", "", .n = { 8192, 32000, 768 }, .flags = L },
    { "embed_bwd", "", .n = { 8192, 32000, 768 }, .flags = L },
    { "add", "", .n = { 8192, 768 }, .flags = L },
    { "map", "silu", .n = { 8192, 2048 }, .flags = MAP_SILU | L },
    { "map_bwd", "silu", .n = { 8192, 2048 }, .flags = MAP_SILU | L },
    { "mul", "per token", .n = { 8192, 16, 48 }, .flags = L },
    { "mul_bwd", "per token +=", .n = { 8192, 16, 48 }, .flags = CASE_ADD | L },
    { "mul_bwd", "weight", .n = { 8192, 16, 48 }, .flags = CASE_WEIGHT | L },
    { "swiglu", "", .n = { 8192, 2048 }, .flags = L },
    { "swiglu_bwd", "", .n = { 8192, 2048 }, .flags = L },
    { "decay", "", .n = { 8192, 16 }, .flags = L },
    { "decay_bwd", "", .n = { 8192, 16 }, .flags = L },
    { "gain", "", .n = { 8192, 16, 48 }, .flags = L },
    { "gain_bwd", "", .n = { 8192, 16, 48 }, .flags = L },
    { "rmsnorm", "plain", .n = { 8192, 1, 768 }, .flags = L },
    { "rmsnorm", "gate after", .n = { 8192, 16, 48 }, .flags = GATE_AFTER_NORM | CASE_WEIGHT | L },
    { "rmsnorm_bwd", "plain", .n = { 8192, 1, 768 }, .flags = L },
    { "rmsnorm_bwd", "gate after", .n = { 8192, 16, 48 }, .flags = GATE_AFTER_NORM | CASE_WEIGHT | L },
    { "rmsnorm_bwd", "gate before", .n = { 8192, 1, 1536 }, .flags = GATE_BEFORE_NORM | L },
    { "l2norm", "", .n = { 8192, 16, 48 }, .flags = L },
    { "l2norm_bwd", "", .n = { 8192, 16, 48 }, .flags = L },
    { "xent", "gradient", .n = { 1024, 32000 }, .flags = CASE_SCALE | CASE_MIXED | L },
    { "conv", "", .n = { 8192, 768, 4 }, .flags = L },
    { "conv_bwd", "", .n = { 8192, 768, 4 }, .flags = L },
    { "conv_bwd", "bias", .n = { 8192, 1536, 4 }, .flags = CASE_BIAS | L },
    { "rope", "", .n = { 8192, 12, 64 }, .flags = L },
    { "sumsq", "", .n = { 8192, 2048 }, .flags = CASE_MIXED | L },
    { "adamw", "", .n = { 1 << 24 }, .flags = L },
};

/* The same case in whole packs of eight: sizes of 0 and 1 mean something, and so do the taps of conv. */
static struct op_case even_of(struct op_case c)
{
    for (int i = 0; i < (int)LEN(c.n); i++)
        if (c.n[i] > 1 && !(i == 2 && !strncmp(c.op, "conv", 4)))
            c.n[i] = (c.n[i] + 7) / 8 * 8;
    c.flags |= CASE_EVEN;
    return c;
}

const struct op_case *op_case_next(const struct op_case *c)
{
    static struct op_case even[LEN(cases)];
    static size_t evens;

    for (size_t i = 0; !evens && i < LEN(cases) && !(cases[i].flags & L); i++)
        even[i] = even_of(cases[i]);
    for (; evens < LEN(cases) && !(cases[evens].flags & L);)
        evens++;
    if (c >= even && c < even + evens)
        return c + 1 < even + evens ? c + 1 : NULL;
    c = c ? c + 1 : cases;
    return c < cases + LEN(cases) ? c : evens ? even : NULL;
}

const struct op_row *op_row_find(const char *name)
{
    const struct op_row *const tables[] = { op_rows_plain, op_rows_more };

    for (size_t i = 0; i < LEN(tables); i++)
        for (const struct op_row *r = tables[i]; r->name; r++)
            if (!strcmp(r->name, name))
                return r;
    return NULL;
}
