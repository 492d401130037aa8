/* jsonl.c - any bytes as a line of JSON; the member that jsonl_field finds is the one that json.h finds. */
#include "json.h"
#include "jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct jsonl room = { 0 };
    const char *text = NULL, *same = NULL;
    size_t size = 0;
    int64_t lone = 0;

    if (!jsonl_field((const char *)data, n, "text", &room, &text, &size, &lone)) {
        struct json *j = json_parse((const char *)data, n, "fuzz");

        /* json.h refuses NUL bytes and surrogates without a partner, which jsonl.h admits. */
        if (j && !lone && !memchr(text, 0, size)) {
            REQUIRE(json_string(j, "text", &same) == 1);
            REQUIRE(strlen(same) == size && !memcmp(same, text, size));
        }
        json_free(j);
    }
    free(room.at);
    return 0;
}
