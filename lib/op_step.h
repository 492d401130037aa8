/* op_step.h - single tokens in few launches: two verbs that fuse others, for decoding.
 *
 * Both are optional: a device that lacks one, or that declines a case, gets the verbs they stand for (op_step.c),
 * with the same roundings between them. */
#ifndef OP_STEP_H
#define OP_STEP_H
#include "op.h"
EXTERN_C_BEGIN
enum { PRODUCTS = 8, STEP_ROWS = 8, STEP_TAILS = 3 };        /* matrices; rows that pay; streams q, k, v */
enum before { BEFORE_NONE, BEFORE_NORM, BEFORE_SWIGLU };

/* y[i] = u w[i]', or y[i] += when add; u [T,K] is x, or its norm, or silu(x) * up, in the type of the weights. */
struct products {
    int           n;
    struct tensor y[PRODUCTS], w[PRODUCTS];      /* [T,n_i], [n_i,K] */
    struct tensor x, norm, up;                   /* [T,K]; weight [K] F32; [T,K] */
    enum before   before;
    bool          add;
    float         eps;
};
void op_products(struct dev *d, const struct products *p);
/* So few rows of so many columns that they fit the shared memory of a block. */
static inline bool products_few(int64_t rows, int64_t K)
{
    return rows <= STEP_ROWS && (rows > 4 ? 8 : rows > 2 ? 4 : rows) * K <= 12032;
}

/* The middle of a Palimpsa layer, from its projections to what its output matrix gets (lib/mixers/palimpsa.c has
 * the equations), for one token of each sequence. */
struct recall {
    struct tensor y;                             /* [T,H*V] */
    struct tensor qkv, dt, s, rank, gate;        /* [T,2HK+HV], [T,H] F32 x2, [T,R], [T,H*V]; gate may be absent */
    struct tensor conv[STEP_TAILS];              /* [HK,W] x2, [HV,W] F32 */
    struct tensor dt_bias, A_log, D, norm;       /* [H] x3, [V] F32 */
    struct tensor B, b_scale, prior;             /* [H*V,R], [H] x2 F32; absent: the plain memory */
    struct tensor tail[STEP_TAILS], state[2];    /* F32, carried in and out; [N,W-1,HK] x2, [N,W-1,HV], [N,H,V,K] x2 */
    bool          fresh;                         /* nothing is carried in */
    int64_t       K, V, W;
    float         scale, eps;
    struct dt_range range;
};
bool op_recall_fits(const struct dev *d, const struct recall *r, const struct seqs *s);   /* else: one verb each */
void op_recall(struct dev *d, const struct recall *r, const struct seqs *s);
EXTERN_C_END
#endif
