/* task_babi.c - stories to questions, CSV to fields, answers to right and wrong. */
#define _POSIX_C_SOURCE 200809L
#include "task_babi.h"
#include "score_file.h"
#include "score_text.h"

static const char *const names[] = { "qa1", "qa2", "qa3", "qa4", "qa5", "qa6", "qa7", "qa8", "qa9", "qa10", "qa11",
                                     "qa12", "qa13", "qa14", "qa15", "qa16", "qa17", "qa18", "qa19", "qa20" };
static const char *const places[] = { "bathroom", "bedroom", "garden", "hallway", "kitchen", "office", NULL };
static const char *const givers[] = { "bill", "fred", "jeff", "mary", "apple", "football", "milk", NULL };
static const char *const yes_no[] = { "no", "yes", NULL };
static const char *const counts[] = { "none", "one", "two", NULL };
static const char *const perhaps[] = { "maybe", "no", "yes", NULL };
static const char *const *const labels[] = { places, places, places, places, givers, yes_no, counts, NULL, yes_no,
                                             perhaps };

const char *babi_task(const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;

    for (const char *p = base; (p = strstr(p, "qa")); p += 2) {
        size_t n = strspn(p + 2, "0123456789");
        for (size_t i = 0; i < LEN(names); i++)
            if (strlen(names[i]) == n + 2 && !strncmp(names[i], p, n + 2))
                return names[i];
    }
    return NULL;
}

static char *copy(const char *s, size_t n)
{
    return memcpy(mem_new(n + 1, 1), s, n);
}

void babi_add(struct babi *b, const struct babi_question *q)
{
    if (b->n == b->cap)
        b->at = mem_grow(b->at, (size_t)(b->cap = 2 * b->cap + 256), sizeof *b->at);
    b->at[b->n++] = (struct babi_question){ .task = q->task, .fact = copy(q->fact, strlen(q->fact)),
                                            .question = copy(q->question, strlen(q->question)),
                                            .target = copy(q->target, strlen(q->target)) };
}

void babi_free(struct babi *b)
{
    for (int64_t i = 0; i < b->n; i++) {
        free((char *)b->at[i].fact);
        free((char *)b->at[i].question);
        free((char *)b->at[i].target);
    }
    free(b->at);
}

/* A line's number, and the text behind it. */
static const char *numbered(const char *line, long *number)
{
    char *end;

    *number = strtol(line, &end, 10);
    return end > line && *end == ' ' && *number > 0 ? end + 1 : NULL;
}

static int read_line(struct babi *b, struct text *story, const char *task, const char *line, const char *path,
                     int64_t at)
{
    long number;
    const char *text = numbered(line, &number), *mark = text ? strpbrk(text, "\t|") : NULL;
    struct babi_question q = { .task = task };
    char *question, *target;
    size_t n;

    if (!text)
        return fail("%s:%lld: expected a line of bAbI, a number and a sentence", path, (long long)at);
    if (number == 1)
        story->n = 0;
    if (!mark) {
        text_add(story, "%s\n", text);
        return 0;
    }
    n = strcspn(mark + 1, "\t|");
    while (mark > text && mark[-1] == ' ')
        mark--;
    question = copy(text, (size_t)(mark - text));
    target = copy(mark + strspn(mark, " \t|"), n);
    q.question = question;
    q.target = target;
    if (!story->n)
        text_add(story, "%s", "");
    story->at[story->n] = 0;
    q.fact = story->at;
    babi_add(b, &q);
    free(question);
    free(target);
    return 0;
}

int babi_read(struct babi *b, const char *path, int64_t most)
{
    const char *task = babi_task(path), *line;
    struct lines *l = task ? lines_open(path) : NULL;
    struct text story = { 0 };
    int64_t before = b->n;
    int found = l ? 1 : -1;
    size_t n;

    if (!task)
        return fail("%s: expected the task, qa1 to qa20, in the file's name", path);
    while (found > 0 && !(most && b->n - before >= most) && (found = lines_next(l, &line, &n)) > 0) {
        char *whole;
        n -= n && line[n - 1] == '\r';
        whole = copy(line, n);
        if (read_line(b, &story, task, whole, path, lines_number(l)))
            found = -1;
        free(whole);
    }
    if (l)
        lines_close(l);
    text_free(&story);
    return found < 0 ? -1 : 0;
}

/* str.lower() as UTF-8. */
static char *lower(const char *s)
{
    struct runes r = runes_lower(s);
    struct text t = { 0 };

    text_add(&t, "%s", "");
    for (int64_t i = 0; i < r.n; i++)
        text_add(&t, "%c", r.at[i] < 128 ? (int)r.at[i] : '?');         /* labels are ASCII */
    free(r.at);
    return t.at;
}

static void cut_at(char *s, const char *mark)
{
    char *at = strstr(s, mark);

    if (at)
        *at = 0;
}

/* The script also cuts at "Question", in what is lower case by then: that never cuts. */
bool babi_right(const char *task, const char *target, const char *output, const char *question)
{
    char *out = lower(output), *want = lower(target), *asked = lower(question);
    const char *const *label = NULL;
    bool right = false;
    int found = 0;

    for (size_t i = 0; i < LEN(labels); i++)
        if (!strcmp(task, names[i]))
            label = labels[i];
    cut_at(out, ".");
    cut_at(out, "<context>");
    cut_at(out, "<example>");
    if (!label)
        right = strstr(out, want) != NULL;
    for (; label && *label; label++)
        if (strstr(out, *label) && !strstr(asked, *label)) {
            found++;
            right |= !strcmp(*label, want);
        }
    free(out);
    free(want);
    free(asked);
    return right && found < 2;
}

int csv_next(char **at, char **field, int most)
{
    char *p = *at;
    int n = 0;

    if (!*p)
        return 0;
    for (;;) {
        char *start = p, *out = p;
        bool quoted = *p == '"', ends;

        if (n < most)
            field[n] = start;
        n++;
        p += quoted;
        while (*p && (quoted || (*p != ',' && *p != '\n'))) {
            if (quoted && *p == '"' && *++p != '"') {
                quoted = false;
                continue;
            }
            *out++ = *p++;
        }
        if (quoted)
            return -1;
        ends = *p != ',';
        p += *p != 0;
        out -= ends && out > start && out[-1] == '\r';
        *out = 0;
        if (ends)
            break;
    }
    *at = p;
    return n;
}
