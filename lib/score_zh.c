/* score_zh.c - Chinese: words cut by Python's jieba in a process of its own, then the same metrics.
 *
 * We write one line, a JSON string, and read one, the JSON list of its words; the first line it sends says
 * what it is. A socket pair rather than pipes, so that writing to a dead process is an error and no signal. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include "score_parts.h"
#include "utf8.h"
#include <errno.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { PYTHON_DEPTH_ZH = 990 };    /* one frame deeper than the English metric */

static const char script[] =
    "import sys, json, hashlib, jieba\n"
    "jieba.setLogLevel(60)\n"
    "jieba.initialize()\n"
    "words = hashlib.sha256(jieba.dt.get_dict_file().read()).hexdigest()[:12]\n"
    "print(json.dumps('jieba %s, dictionary %s' % (jieba.__version__, words)), flush=True)\n"
    "for line in sys.stdin.buffer:\n"
    "    text = json.loads(line.decode('utf-8', 'replace'))\n"
    "    print(json.dumps(list(jieba.cut(text, cut_all=False))), flush=True)\n";

struct segmenter {
    pid_t pid;
    int   fd;
    char *line;                    /* what was read and not used yet */
    size_t n, cap;
    char  version[128];
};

static int start(struct segmenter *s)
{
    const char *python = getenv("PALIMPSA_PYTHON");
    char *const argv[] = { (char *)(python ? python : "python3"), (char *)"-c", (char *)script, NULL };
    posix_spawn_file_actions_t act;
    int pair[2], status;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return -1;
    posix_spawn_file_actions_init(&act);
    posix_spawn_file_actions_adddup2(&act, pair[1], 0);
    posix_spawn_file_actions_adddup2(&act, pair[1], 1);
    posix_spawn_file_actions_addopen(&act, 2, "/dev/null", 1, 0);
    posix_spawn_file_actions_addclose(&act, pair[0]);
    posix_spawn_file_actions_addclose(&act, pair[1]);
    status = posix_spawnp(&s->pid, argv[0], &act, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&act);
    close(pair[1]);
    s->fd = pair[0];
    if (status) {
        close(pair[0]);
        return -1;
    }
    return 0;
}

/* The next line as JSON; NULL when there is none. */
static struct json *receive(struct segmenter *s)
{
    char *end;
    struct json *j;

    while (!s->n || !(end = memchr(s->line, '\n', s->n))) {
        ssize_t got;

        if (s->cap - s->n < 4096)
            s->line = mem_grow(s->line, s->cap = 2 * s->cap + 8192, 1);
        got = recv(s->fd, s->line + s->n, s->cap - s->n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return NULL;
        s->n += (size_t)got;
    }
    j = json_parse(s->line, (size_t)(end - s->line), "jieba");
    s->n -= (size_t)(end + 1 - s->line);
    memmove(s->line, end + 1, s->n);
    return j;
}

struct segmenter *segmenter_open(void)
{
    struct segmenter *s = mem_new(1, sizeof *s);
    struct json *j;

    if (start(s)) {
        free(s);
        return NULL;
    }
    j = receive(s);
    if (!j || !json_text(j)) {
        json_free(j);
        segmenter_close(s);
        return NULL;
    }
    snprintf(s->version, sizeof s->version, "%s", json_text(j));
    json_free(j);
    return s;
}

void segmenter_close(struct segmenter *s)
{
    if (!s)
        return;
    close(s->fd);                                     /* the end of its input ends it */
    while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(s->line);
    free(s);
}

const char *segmenter_version(const struct segmenter *s)
{
    return s->version;
}

/* The words as a JSON list, or NULL with the reason. */
static struct json *segment(struct segmenter *s, const char *text)
{
    struct text line = { 0 };
    struct json *words = NULL;
    size_t sent = 0;

    text_string(&line, text, strlen(text));
    text_add(&line, "\n");
    while (sent < line.n) {
        ssize_t n = send(s->fd, line.at + sent, line.n - sent, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR)
            break;
        sent += n > 0 ? (size_t)n : 0;
    }
    if (sent == line.n)
        words = receive(s);
    text_free(&line);
    if (!words || !json_is_array(words)) {
        json_free(words);
        fail("jieba: the process that cuts Chinese into words has ended");
        return NULL;
    }
    return words;
}

static bool is_chinese_mark(uint32_t c)
{
    static const uint32_t range[][2] = {
        { 0x2013, 0x2014 }, { 0x2018, 0x2019 }, { 0x201B, 0x201F }, { 0x2026, 0x2027 }, { 0x3001, 0x3003 },
        { 0x300B, 0x3011 }, { 0x3014, 0x301F }, { 0x3030, 0x3030 }, { 0x303E, 0x303F }, { 0xFE4F, 0xFE4F },
        { 0xFF01, 0xFF0D }, { 0xFF0F, 0xFF0F }, { 0xFF1A, 0xFF20 }, { 0xFF3B, 0xFF40 }, { 0xFF5B, 0xFF64 }
    };

    for (size_t i = 0; i < LEN(range); i++)
        if (c >= range[i][0] && c <= range[i][1])
            return true;
    return rune_is_ascii_mark(c);
}

/* The words in lower case, each without punctuation and space; their text is in all->at. */
static int normal_words(struct segmenter *s, const char *text, struct slices *out, struct runes *all)
{
    struct json *words = segment(s, text);
    size_t room = 0;

    if (!words)
        return -1;
    for (struct json *w = json_first(words); w; w = json_next(w))
        room += 2 * strlen(json_text(w) ? json_text(w) : "");
    *all = (struct runes){ mem_new(room + 1, sizeof *all->at), 0 };
    for (struct json *w = json_first(words); w; w = json_next(w)) {
        struct runes r = runes_lower(json_text(w) ? json_text(w) : "");
        int64_t from = all->n;

        for (int64_t i = 0; i < r.n; i++)
            if (!rune_is_space(r.at[i]) && !is_chinese_mark(r.at[i]))
                all->at[all->n++] = r.at[i];
        if (all->n > from)
            slices_add(out, (struct slice){ all->at + from, all->n - from });
        free(r.at);
    }
    json_free(words);
    return 0;
}

double score_f1_zh(struct segmenter *s, const char *prediction, const char *answer)
{
    struct slices a = { 0 }, b = { 0 };
    struct runes p = { 0 }, q = { 0 };
    double f = -1;

    if (!normal_words(s, prediction, &a, &p) && !normal_words(s, answer, &b, &q))
        f = score_common(&a, &b);
    free(p.at);
    free(q.at);
    free(a.at);
    free(b.at);
    return f;
}

/* The words with spaces between them. */
static int spaced(struct segmenter *s, const char *text, struct text *out)
{
    struct json *words = segment(s, text);

    if (!words)
        return -1;
    for (struct json *w = json_first(words); w; w = json_next(w))
        text_add(out, "%s%s", out->n ? " " : "", json_text(w) ? json_text(w) : "");
    text_add(out, "%s", "");
    json_free(words);
    return 0;
}

double score_rouge_l_zh(struct segmenter *s, const char *prediction, const char *answer)
{
    struct text a = { 0 }, b = { 0 };
    double f = -1;

    if (!spaced(s, prediction, &a) && !spaced(s, answer, &b)) {
        struct runes p = runes_of(a.at), q = runes_of(b.at);
        f = score_rouge_l_runes(slice_of(p), slice_of(q), PYTHON_DEPTH_ZH);
        free(p.at);
        free(q.at);
    }
    text_free(&a);
    text_free(&b);
    return f;
}
