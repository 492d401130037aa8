/* scan.h - the recurrence inside a token mixer, as one verb with one argument struct.
 *
 * Every mixer here reads a memory with a query, writes it with a key and a value, and lets it
 * fade. The fields below name those roles once; a scan uses the ones it needs and leaves the
 * others absent (data == NULL). The same struct, passed twice, carries values and gradients.
 * One file in lib/scans defines one `scan_<file>`, its equations and its naive row. */
#ifndef SCAN_H
#define SCAN_H
#include "dev.h"
#include "seqs.h"
EXTERN_C_BEGIN
enum { SCAN_PRIORS = 3, SCAN_STATES = 4, SCAN_SAVED = 4 };

struct scan_io {
    struct tensor q, k, v;               /* [T,Hq,K] [T,Hk,K] [T,H,V]; head h reads q and k of head h*Hq/H */
    struct tensor decay;                 /* [T,H] F32: log of the memory that survives the token, <= 0 */
    struct tensor beta;                  /* [T,H] or [T,H,V] strength of the write */
    struct tensor eta;                   /* [T,H] momentum of the write */
    struct tensor prior[SCAN_PRIORS];    /* [H,...] F32 weights, per head; gradients accumulate */
    struct tensor state[SCAN_STATES];    /* [N,H,V,K] memory carried in, F32; absent: the empty memory */
    struct tensor o;                     /* [T,H,V] what was read */
    struct tensor var;                   /* [T,H,V] F32: variance of what was read; absent: not wanted */
    struct tensor next[SCAN_STATES];     /* [N,H,V,K] memory carried out, F32; absent: dropped; may be state itself */
    struct tensor saved[SCAN_SAVED];     /* forward's notes to backward; absent: no backward will follow */
    float         scale;                 /* on the query */
    int           span;                  /* attention: window, 0 for all; Titans: tokens per write */
};

/* In backward g->o, g->var and g->next come in (absent: zero); every other field present in g goes out,
 * and an absent one is not wanted. Heads that share q or k add up. */
struct scan_impl {
    /* bytes of scratch that one call needs; NULL: none */
    int64_t (*scratch)(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward);
    void (*forward) (struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch);
    void (*backward)(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g,
                     void *scratch);
};

/* A field that a scan uses. Shape in letters: T tokens, N sequences, Q and G heads of q and k, H, V,
 * K; "" for a state, whose shape plan() tells. low..high: values that suit it, for tests and bench.
 * A NULL shape ends. */
struct scan_field { size_t at; const char *shape; float low, high; };
#define SCAN_AT(field) offsetof(struct scan_io, field)

/* Every field of scan_io, inputs first: its name; whether it is stored in the device's type, else F32. */
enum { SCAN_SLOTS = 6 + SCAN_PRIORS + SCAN_STATES + 2 + SCAN_STATES };
struct scan_slot { size_t at; const char *name; bool storage; };
extern const struct scan_slot scan_slot[SCAN_SLOTS];

struct scan {
    const char *name, *brief;
    /* shapes of state[] and saved[] for these inputs; allocates nothing */
    void (*plan)(const struct seqs *s, const struct scan_io *x,
                 struct tensor state[SCAN_STATES], struct tensor saved[SCAN_SAVED]);
    const struct scan_impl *impl[DEV_KINDS];    /* [DEV_NAIVE] is the definition; DEV_CPU may be absent */
    const struct scan_field *field;             /* all inputs, and var if there is one; states and var are optional */
};

/* keep: where saved[] is pushed when a backward will follow, else NULL. Scratch comes from d->temp. */
void scan_forward (struct dev *d, const struct scan *f, const struct seqs *s, struct scan_io *x, struct arena *keep);
void scan_backward(struct dev *d, const struct scan *f, const struct seqs *s, const struct scan_io *x,
                   const struct scan_io *g);
const struct scan_field *scan_field_at(const struct scan *f, size_t at);        /* NULL: f has no such field */
const struct scan *scan_find(const char *name);
const struct scan *scan_next(const struct scan *f);     /* NULL starts; NULL ends */

#define SCAN_CUDA_DECLARE(n) extern const struct scan_impl n##_cuda
#ifdef PALIMPSA_CUDA
#define SCAN_CUDA(n) &n##_cuda
#else
#define SCAN_CUDA(n) NULL
#endif
EXTERN_C_END
#endif
