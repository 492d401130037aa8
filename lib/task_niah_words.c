/* task_niah_words.c - what prompts are made of: our own sentences and words, or the user's. */
#define _POSIX_C_SOURCE 200809L
#include "documents.h"
#include "task_niah.h"

const char *const niah_adjective[64] = {
    "amber", "ancient", "bitter", "blue", "bold", "brave", "bright", "brisk", "broad", "calm", "clean",
    "clear", "clever", "cold", "cool", "curious", "damp", "dark", "deep", "dry", "eager", "early", "empty",
    "faint", "fair", "fast", "fine", "flat", "fresh", "gentle", "golden", "grand", "green", "grey", "happy",
    "heavy", "hollow", "humble", "idle", "keen", "kind", "late", "light", "lively", "lone", "loud", "mellow",
    "mild", "narrow", "noble", "pale", "plain", "proud", "quiet", "rapid", "rough", "rusty", "shy", "silent",
    "slow", "soft", "steady", "warm", "young"
};
const char *const niah_noun[64] = {
    "anchor", "apple", "arrow", "basket", "bell", "bridge", "brush", "bucket", "cabin", "candle", "carpet",
    "castle", "chair", "cliff", "clock", "cloud", "coat", "compass", "corner", "cup", "desert", "drum",
    "engine", "feather", "field", "flame", "forest", "fountain", "garden", "gate", "glove", "hammer",
    "harbor", "hat", "hill", "island", "kettle", "ladder", "lamp", "lantern", "leaf", "market", "meadow",
    "mirror", "mountain", "needle", "ocean", "orchard", "paper", "pillow", "pocket", "river", "road", "rope",
    "saddle", "ship", "spoon", "stone", "table", "tower", "valley", "wagon", "window", "wheel"
};

static const char default_prompt[] =
    "The text below holds a secret {kind}. Find it and keep it in mind, for it will be asked for.\n{context}\n"
    "Which secret {kind} does the text give for {key}? The secret {kind} that the text gives for {key} is";
static const char default_prompts[] =
    "The text below holds secret {kind}. Find them and keep them in mind, for they will be asked for.\n{context}\n"
    "Which secret {kind} does the text give for {key}? The secret {kind} that the text gives for {key} are";
static const char default_needle[] = "The secret {kind} for {key} is {value}.";
static const char default_noise[] =
    "The kettle is on the stove. The window stands open. A dog barks far away. Nothing has changed. The day goes by.";

/* A list of strings under a name, or ours. */
static int read_list(const struct json *j, const char *name, const char *const ours[64], const char ***list, int *count)
{
    const struct json *a = j ? json_at(j, name) : NULL;
    int64_t n = a ? json_is_array(a) ? json_count(a) : 0 : 64, i = 0;

    if (n < 1)
        return fail("wording: %s: expected a list of words", name);
    *list = mem_new((size_t)n, sizeof **list);
    *count = (int)n;
    for (; !a && i < n; i++)
        (*list)[i] = ours[i];
    for (struct json *x = a ? json_first(a) : NULL; x; x = json_next(x)) {
        const char *s = json_text(x);
        if (!s || strlen(s) > 80)
            return fail("wording: %s: expected words of at most 80 bytes", name);
        (*list)[i++] = s;
    }
    return 0;
}

static void add_sentence(struct wording *w, struct text *one)
{
    if (one->n) {
        if (!(w->sentences & (w->sentences - 1)))
            w->sentence = mem_grow(w->sentence, (size_t)(2 * w->sentences + 1), sizeof *w->sentence);
        w->sentence[w->sentences++] = one->at;
        *one = (struct text){ 0 };
    }
}

void wording_sentences(struct wording *w, const char *text, size_t n)
{
    struct text one = { 0 };
    bool ends = false, space = false;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];

        if (c == ' ' || (c >= '\t' && c <= '\r') || !c) {
            space = true;
            continue;
        }
        if (space && ends)
            add_sentence(w, &one);
        text_add(&one, space && one.n ? " %c" : "%c", c);
        space = false;
        if (c != '"' && c != '\'' && c != ')' && c != ']')
            ends = c == '.' || c == '!' || c == '?';
    }
    add_sentence(w, &one);
}

static int take(void *arg, const char *text, size_t n, bool begins)
{
    (void)begins;
    wording_sentences(arg, text, n);
    return 0;
}

static int read_background(struct wording *w, const char *file)
{
    struct documents_options o = { .file = &file, .files = 1, .field = "text" };
    struct documents *d = documents_open(&o);
    struct block b = { 0 };
    int more = -1;

    while (d && (more = documents_block(d, &b)) > 0 && documents_taken(d) < (int64_t)1 << 28)
        if (block_each(&b, take, w)) {
            more = fail("%s", b.wrong);
            break;
        }
    if (d)
        documents_close(d);
    block_free(&b);
    return more < 0 ? -1 : w->sentences ? 0 : fail("%s: expected sentences, found none", file);
}

int wording_open(struct wording *w, const char *file, const char *background)
{
    size_t n;
    char *text = file ? file_read(file, &n) : NULL;

    *w = (struct wording){ .prompt = default_prompt, .prompts = default_prompts, .needle = default_needle,
                           .noise = default_noise };
    if (file && !text)
        return -1;
    if (text && (!(w->root = json_parse(text, n, file)) || !json_is_object(w->root))) {
        free(text);
        return w->root ? fail("%s: expected a JSON object", file) : -1;
    }
    free(text);
    if (w->root && json_at(w->root, "prompt"))
        w->prompts = NULL;               /* ours would not go with theirs */
    if (w->root && (json_string(w->root, "prompt", &w->prompt) < 0 ||
                    json_string(w->root, "prompts", &w->prompts) < 0 ||
                    json_string(w->root, "needle", &w->needle) < 0 ||
                    json_string(w->root, "noise", &w->noise) < 0))
        return -1;
    if (!strstr(w->prompt, "{context}") || (w->prompts && !strstr(w->prompts, "{context}")))
        return fail("%s: prompt: expected {context} in it", file);
    if (!strstr(w->needle, "{key}") || !strstr(w->needle, "{value}"))
        return fail("%s: needle: expected {key} and {value} in it", file);
    return read_list(w->root, "adjectives", niah_adjective, &w->adjective, &w->adjectives) ||
           read_list(w->root, "nouns", niah_noun, &w->noun, &w->nouns) ||
           (background && read_background(w, background)) ? -1 : 0;
}

void wording_close(struct wording *w)
{
    json_free(w->root);
    free(w->adjective);
    free(w->noun);
    for (int64_t i = 0; i < w->sentences; i++)
        free(w->sentence[i]);
    free(w->sentence);
}
