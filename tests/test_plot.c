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

/* 0 drawn, 1 only gnuplot was missing, -1 refused before anything was written. */
static int heat(const char *text, int64_t step)
{
    struct frame f = { .xlabel = "head", .ylabel = "layer", .width = 300, .height = 200 };
    char path[80], tsv[80];
    int status;

    put(text);
    str_format(path, sizeof path, "%s/heat.svg", dir);
    str_format(tsv, sizeof tsv, "%s/heat.tsv", dir);
    unlink(tsv);
    status = heat_draw(dir, "gain", step, &f, path);
    return access(tsv, F_OK) ? -1 : status ? 1 : 0;
}

#define HEAT(step, gain) "{\"step\":" step ",\"plasticity\":{\"layers\":[1,3],\"spread\":[[1,2],[3,4]],\"gain\":" gain \
    ",\"window\":[[1,2],[3,4]],\"b\":[[1,2],[3,4]],\"b_scale\":[[1,2],[3,4]]}}\n"

static void heats(void)
{
    char path[80], *text;
    size_t n;

    CHECK(heat("{\"step\":1,\"loss\":4}\n", -1) == -1);
    CHECK(heat(HEAT("1", "[[1,2],[3,null]]") "{\"step\":1,\"loss\":4}\n" HEAT("2", "[[9,9],[9,9]]")
               HEAT("2", "[[5,6],[7,8]]"), -1) >= 0);
    str_format(path, sizeof path, "%s/heat.tsv", dir);
    text = file_read(path, &n);
    CHECK(text && !strcmp(text, "step\tlayer\thead\tspread\tgain\twindow\tb\tb_scale\n"
        "1\t1\t0\t1\t1\t1\t1\t1\n1\t1\t1\t2\t2\t2\t2\t2\n1\t3\t0\t3\t3\t3\t3\t3\n1\t3\t1\t4\tNaN\t4\t4\t4\n"
        "2\t1\t0\t1\t5\t1\t1\t1\n2\t1\t1\t2\t6\t2\t2\t2\n2\t3\t0\t3\t7\t3\t3\t3\n2\t3\t1\t4\t8\t4\t4\t4\n"));
    free(text);
    CHECK(heat(HEAT("1", "[[1,2],[3,4]]"), 1) >= 0);
    CHECK(heat(HEAT("1", "[[1,2],[3,4]]"), 2) == -1);
    CHECK(heat(HEAT("1", "[[1,2],[3]]"), -1) == -1);
    CHECK(heat(HEAT("1", "[[1,2]]"), -1) == -1);
    CHECK(heat(HEAT("1", "5"), -1) == -1);
    CHECK(heat(HEAT("\"1\"", "[[1,2],[3,4]]"), -1) == -1);
    CHECK(heat("{\"step\":1,\"plasticity\":{\"layers\":[1e9],\"spread\":[[1]]}}\n", -1) == -1);
    CHECK(heat("{\"step\":1,\"plasticity\":3}\n", -1) == -1);
}

static int table(const char *text)
{
    struct frame f = { .xlabel = "head", .ylabel = "layer", .width = 300, .height = 200 };
    char from[80], path[80], tsv[80];
    int status;

    str_format(from, sizeof from, "%s/heads.tsv", dir);
    str_format(path, sizeof path, "%s/heat.svg", dir);
    str_format(tsv, sizeof tsv, "%s/heat.tsv", dir);
    REQUIRE(!file_write(from, text, strlen(text)));
    unlink(tsv);
    status = heat_draw(from, "b_scale", -1, &f, path);
    unlink(from);
    return access(tsv, F_OK) ? -1 : status ? 1 : 0;
}

#define HEAD "layer\thead\tspread\tgain\twindow\tb\tb_scale\n"

static void tables(void)
{
    char path[80], *text;
    size_t n;

    CHECK(table(HEAD "0\t0\t0\t0\t9\t0\t0\n1\t0\t1.5\t0.1\t7\t3\t2\n1\t1\t1.25\tnan\tinf\t3\t2") >= 0);
    str_format(path, sizeof path, "%s/heat.tsv", dir);
    text = file_read(path, &n);
    CHECK(text && !strcmp(text, "step\tlayer\thead\tspread\tgain\twindow\tb\tb_scale\n"
                          "0\t1\t0\t1.5\t0.1\t7\t3\t2\n0\t1\t1\t1.25\tNaN\tNaN\t3\t2\n"));
    free(text);
    CHECK(table(HEAD "0\t0\t0\t0\t9\t0\t0\n") == -1);
    CHECK(table("") == -1);
    CHECK(table("layer\thead\n") == -1);
    CHECK(table(HEAD "1\t0\t1.5\t0.1\t7\t3\n") == -1);
    CHECK(table(HEAD "1\t0\t1.5\t0.1\t7\t3\t2\t1\n") == -1);
    CHECK(table(HEAD "1000000\t0\t1.5\t0.1\t7\t3\t2\n") == -1);
    CHECK(table(HEAD "-1\t0\t1.5\t0.1\t7\t3\t2\n") == -1);
    CHECK(table(HEAD "1\tx\t1.5\t0.1\t7\t3\t2\n") == -1);
    CHECK(table(HEAD "\n") == -1);
}

/* Seeds of one model share its colour, and only the first has a name; the next model has a colour of its own. */
static void seeds(void)
{
    struct point p[2] = { { .x = 1, .y = 0.5, .smooth = 0.5 }, { .x = 2, .y = 0.75, .smooth = 0.75 } };
    struct curve c[3] = { { .label = "one", .train = p, .ntrain = 2 },
                          { .label = "one", .train = p, .ntrain = 2, .again = true },
                          { .label = "two", .train = p, .ntrain = 2 } };
    struct figure f = { .frame = { NULL, "x", "y", 300, 200 }, .curve = c, .n = 3 };
    char path[80], *text, *first, *second, *third;
    size_t n;

    str_format(path, sizeof path, "%s/heat.svg", dir);
    figure_write(&f, path);                      /* says so where gnuplot is missing; the script is there */
    str_format(path, sizeof path, "%s/heat.gp", dir);
    text = file_read(path, &n);
    first = text ? strstr(text, "lw 2 lc rgb '#0072B2' title 'one'") : NULL;
    second = first ? strstr(first, "lw 1 lc rgb '#0072B2' notitle") : NULL;
    third = second ? strstr(second, "lw 2 lc rgb '#D55E00' title 'two'") : NULL;
    CHECK(third);
    free(text);
}

static int layers(const char *text)
{
    struct frame f = { .xlabel = "layer", .ylabel = "window", .width = 300, .height = 200 };
    char path[80], tsv[80];
    int status;

    put(text);
    str_format(path, sizeof path, "%s/layers.svg", dir);
    str_format(tsv, sizeof tsv, "%s/layers.tsv", dir);
    unlink(tsv);
    status = layers_draw(file, &f, path);
    return access(tsv, F_OK) ? -1 : status ? 1 : 0;
}

static void windows(void)
{
    char path[80], *text;
    size_t n;

    CHECK(layers("{\"layers\":[{\"layer\":0,\"action\":\"copied\"},{\"layer\":1,\"action\":\"swapped\",\"score\":2,"
                 "\"window_low\":1.5,\"window_median\":8,\"window_high\":99}]}") >= 0);
    str_format(path, sizeof path, "%s/layers.tsv", dir);
    text = file_read(path, &n);
    CHECK(text && !strcmp(text, "layer\taction\tscore\tlow\tmedian\thigh\n0\tcopied\tNaN\tNaN\tNaN\tNaN\n"
                          "1\tswapped\t2\t1.5\t8\t99\n"));
    free(text);
    CHECK(layers("{\"layers\":[{\"layer\":0,\"action\":\"copied\"}]}") == -1);       /* nothing measured */
    CHECK(layers("{\"layers\":[]}") == -1);
    CHECK(layers("{\"layers\":{}}") == -1);
    CHECK(layers("[]") == -1);
    CHECK(layers("{\"layers\":[{\"layer\":\"0\",\"action\":\"copied\",\"window_low\":1}]}") == -1);
    CHECK(layers("{\"layers\":[{\"layer\":-1,\"action\":\"copied\",\"window_low\":1}]}") == -1);
    CHECK(layers("{\"layers\":[{\"layer\":0,\"action\":\"a\\tb\",\"window_low\":1}]}") == -1);
}

static void sweep(void)
{
    static const char *const names[] = { "metrics.jsonl", "heat.svg", "heat.tsv", "heat.gp", "layers.svg", "layers.tsv",
                                         "layers.gp" };
    char path[80];

    for (size_t i = 0; i < LEN(names); i++) {
        str_format(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

int main(void)
{
    REQUIRE(mkdtemp(dir));
    str_format(file, sizeof file, "%s/metrics.jsonl", dir);
    reads();
    resumes_and_tears();
    smooths();
    heats();
    tables();
    seeds();
    windows();
    sweep();
    return test_done("plot");
}
