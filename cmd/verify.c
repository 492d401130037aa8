/* verify.c - `palimpsa verify`: a model against a reference file. */
#include "cmd.h"
#include "opened.h"
#include "verify.h"

extern const struct cmd cmd_verify;

static void print_line(void *arg, const struct verify_line *l)
{
    (void)arg;
    if (l->exact)
        printf("%s\t%.0f unequal\t0\t%s\n", l->name, l->error, l->error <= l->bound ? "ok" : "WRONG");
    else
        printf("%s\t%.3g\t%g\t%s\n", l->name, l->error, l->bound, l->error <= l->bound ? "ok" : "WRONG");
}

static int verify(int argc, const char **argv)
{
    const char *dir = NULL, *against = NULL, *device = "cpu", *dtype = "fp32";
    struct verify_bounds b = { .logits = 2e-5f, .loss = 1e-5f, .grad = 1e-4f };
    bool grads = true;
    int threads = 0, status;
    struct opened o;
    const struct opt opts[] = {
        OPT("model", &dir, "DIR", "model directory", .need = true),
        OPT("against", &against, "FILE", "reference: input_ids and logits, loss, grad.*, packed_logits, greedy",
            .need = true),
        OPT_MACHINE(&device, &dtype, &threads),
        OPT("tol", &b.logits, "X", "bound on logits, RMS of the error / RMS", .range = "[0,)"),
        OPT("tol-loss", &b.loss, "X", "bound on the loss, absolute", .range = "[0,)"),
        OPT("tol-grad", &b.grad, "X", "bound on every gradient, RMS of the error / RMS", .range = "[0,)"),
        OPT("grads", &grads, NULL, "leave out the gradients that the file has"),
        OPT_END
    };
    int n = opt_parse(&cmd_verify, argc, argv, opts);

    if (n < 0)
        return 2;
    if (n > 0)
        return fail("verify: unexpected operand '%s'", argv[0]), 2;
    if (opened_open(&o, dir, device, dtype, threads, &(struct model_use){ .learn = grads }))
        return 1;
    status = verify_model(&o.model, against, &b, print_line, NULL);
    opened_close(&o);
    return status ? 1 : 0;
}

const struct cmd cmd_verify = { "verify", "compare a model with reference values", "--model DIR --against FILE",
    verify };
