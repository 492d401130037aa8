/* task_text.c - replacing and trimming, left to right. */
#include "task_text.h"
#include "utf8.h"

void text_slice(struct text *t, struct slice s)
{
    char bytes[4];

    text_add(t, "%s", "");
    for (int64_t i = 0; i < s.n; i++)
        text_add(t, "%.*s", utf8_write(bytes, s.at[i]), bytes);
}

struct slice slice_strip(struct slice s)
{
    while (s.n && rune_is_space(s.at[0]))
        s.at++, s.n--;
    while (s.n && rune_is_space(s.at[s.n - 1]))
        s.n--;
    return s;
}

char *text_replaced(char *text, const char *from, const char *to)
{
    struct text out = { 0 };
    const char *p = text, *hit;

    while ((hit = strstr(p, from))) {
        text_add(&out, "%.*s%s", (int)(hit - p), p, to);
        p = hit + strlen(from);
    }
    text_add(&out, "%s", p);
    free(text);
    return out.at;
}
