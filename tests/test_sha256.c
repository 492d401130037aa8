/* test_sha256.c - the examples of FIPS 180-4, and any split of a message gives the same digest. */
#include "sha256.h"
#include "test.h"

static bool digest_is(const void *data, size_t n, const char *want)
{
    char got[65];

    sha256_hex(data, n, got);
    return !strcmp(got, want);
}

static void known(void)
{
    char *million = mem_new(1000000, 1);

    memset(million, 'a', 1000000);
    CHECK(digest_is("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    CHECK(digest_is("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    CHECK(digest_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
                    "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
    CHECK(digest_is(million, 1000000,
                    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    free(million);
}

static void splits(void)
{
    uint8_t text[200];

    for (int i = 0; i < 200; i++)
        text[i] = (uint8_t)(i * 7 + 3);
    for (size_t n = 0; n <= 200; n++) {
        char whole[65], parts[65];
        sha256_hex(text, n, whole);
        for (size_t step = 1; step <= 130; step += 43) {
            struct sha256 s;
            sha256_init(&s);
            for (size_t at = 0; at < n; at += step)
                sha256_add(&s, text + at, n - at < step ? n - at : step);
            sha256_end_hex(&s, parts);
            CHECK(!strcmp(whole, parts));
        }
    }
}

int main(void)
{
    known();
    splits();
    return test_done("sha256");
}
