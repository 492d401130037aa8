/* config.c - any bytes, read as config.json; what is accepted must be consistent and survive writing. */
#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct config c, again;
    char *text;

    if (config_parse(&c, (const char *)data, n, "fuzz") || config_check(&c, "fuzz"))
        return 0;
    REQUIRE(config_parameters(&c) > 0);
    text = config_text(&c);
    REQUIRE(!config_parse(&again, text, strlen(text), "written"));
    REQUIRE(config_parameters(&again) == config_parameters(&c));
    free(text);
    return 0;
}
