/* test_plot.c - what counts in metrics.jsonl, and the numbers behind a figure. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include "plot.h"
#include "test.h"
#include <unistd.h>

static char dir[] = "/tmp/palimpsa_plot_XXXXXX", file[64];

static void put(const char *text)
{
    REQUIRE(!file_write(file, text, strlen(text)));
}

static int64_t read_count(const char *text)
{
    struct curve c;
    int64_t n = -1;

    put(text);
    if (!curve_read(&c, file, "tokens", "loss"))
        n = c.ntrain + 100 * c.nval;
    curve_close(&c);
    return n;
}

static void reads(void)
{
    struct curve c;

    put("{\"step\":1,\"loss\":4,\"tokens\":100}\n{\"step\":2,\"loss\":3,\"tokens\":200}\n"
        "{\"step\":3,\"val_loss\":2.5}\n{\"step\":4,\"loss\":2,\"tokens\":400}\n{\"step\":9,\"val_loss\":1}\n");
    CHECK(!curve_read(&c, dir, "tokens", "loss"));
    CHECK(c.ntrain == 3 && c.nval == 2 && !strcmp(c.label, dir + 5));
    CHECK_NEAR(c.train[2].x, 400, 0);
    CHECK_NEAR(c.val[0].x, 300, 0);              /* half way between steps 2 and 4 */
    CHECK_NEAR(c.val[0].y, 2.5, 0);
    CHECK_NEAR(c.val[1].x, 400, 0);              /* after the last training line */
    curve_close(&c);
    CHECK(!curve_read(&c, file, "step", "loss") && c.val[0].x == 3);
    curve_close(&c);
}

static void resumes_and_tears(void)
{
    struct curve c;

    put("{\"step\":1,\"loss\":4,\"tokens\":1}\n{\"step\":2,\"loss\":3,\"tokens\":2}\n"
        "{\"step\":3,\"loss\":9,\"tokens\":3}\n{\"step\":2,\"loss\":5,\"tokens\":2}\n{\"step\":3,\"lo");
    CHECK(!curve_read(&c, file, "tokens", "loss"));
    CHECK(c.ntrain == 2 && c.train[1].y == 5 && c.train[1].step == 2);
    curve_close(&c);
    CHECK(read_count("{\"step\":1,\"loss\":NaN,\"tokens\":1}\n\n{\"step\":2,\"loss\":1,\"tokens\":2}\n") == 2);
    CHECK(read_count("") == -1);
    CHECK(read_count("{\"step\":1,\"val_loss\":1}\n") == -1);
    CHECK(read_count("{\"step\":1,\"loss\":1}\n") == -1);              /* no tokens */
    CHECK(read_count("{\"loss\":1,\"tokens\":1}\n") == -1);            /* no step */
    CHECK(read_count("{\"step\":1,\"loss\":\"x\",\"tokens\":1}\n") == -1);
    CHECK(read_count("{\"step\":1,\n\"loss\":1}\n") == -1);
    CHECK(curve_read(&c, "/nonexistent", "tokens", "loss") == -1);
}

static void smooths(void)
{
    struct point p[5] = { { .y = 1 }, { .y = 2 }, { .y = NAN }, { .y = 9 }, { .y = 4 } };
    struct curve c = { .train = p, .ntrain = 5 };

    curve_smooth(&c, 3);
    CHECK_NEAR(p[0].smooth, 1, 0);
    CHECK_NEAR(p[1].smooth, 1.5, 1e-12);         /* NaN has no say */
    CHECK(isnan(p[2].smooth));
    CHECK_NEAR(p[3].smooth, 6.5, 1e-12);
    CHECK_NEAR(p[4].smooth, 4, 0);
    curve_smooth(&c, 0);
    CHECK_NEAR(p[3].smooth, 9, 0);
    for (int i = 0; i < 5; i++)
        p[i].y = 3 * i;
    curve_smooth(&c, 1000);
    for (int i = 0; i < 5; i++)
        CHECK_NEAR(p[i].smooth, 3 * i, 1e-12);   /* a straight line stays where it is */
}

int main(void)
{
    REQUIRE(mkdtemp(dir));
    str_format(file, sizeof file, "%s/metrics.jsonl", dir);
    reads();
    resumes_and_tears();
    smooths();
    unlink(file);
    rmdir(dir);
    return test_done("plot");
}
