/* sha256.c - SHA-256 (FIPS 180-4), plain.
 *
 *   a..h <- state;  for t < 64: T1 = h + S1(e) + Ch(e,f,g) + K[t] + W[t], T2 = S0(a) + Maj(a,b,c),
 *   h..a <- g, f, e, d + T1, c, b, a, T1 + T2;  state += a..h.
 *   W[t] is the block for t < 16, then s1(W[t-2]) + W[t-7] + s0(W[t-15]) + W[t-16]. */
#include "sha256.h"

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void add_block(uint32_t state[8], const uint8_t *p)
{
    uint32_t w[64], v[8];

    for (int t = 0; t < 16; t++, p += 4)
        w[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int t = 16; t < 64; t++) {
        uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + w[t - 7] + (right(a, 7) ^ right(a, 18) ^ a >> 3)
             + (right(b, 17) ^ right(b, 19) ^ b >> 10);
    }

    memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; t++) {
        uint32_t a = v[0], b = v[1], c = v[2], e = v[4], f = v[5], g = v[6];
        uint32_t t1 = v[7] + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & f) ^ (~e & g))
                    + K[t] + w[t];
        uint32_t t2 = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void sha256_init(struct sha256 *s)
{
    *s = (struct sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
}

void sha256_add(struct sha256 *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t held = (size_t)(s->bytes % 64);

    if (!n)
        return;
    s->bytes += n;
    if (held) {
        size_t take = n < 64 - held ? n : 64 - held;
        memcpy(s->block + held, p, take);
        p += take;
        n -= take;
        if (held + take < 64)
            return;
        add_block(s->state, s->block);
    }
    for (; n >= 64; p += 64, n -= 64)
        add_block(s->state, p);
    memcpy(s->block, p, n);
}

/* The message ends with a one bit, zeros up to 56 modulo 64, and its length in bits. */
void sha256_end(struct sha256 *s, uint8_t digest[32])
{
    static const uint8_t pad[64] = { 0x80 };
    uint64_t bits = s->bytes * 8;
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, pad, 1 + (119 - (size_t)(s->bytes % 64)) % 64);
    sha256_add(s, length, 8);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_end_hex(struct sha256 *s, char out[65])
{
    static const char digit[] = "0123456789abcdef";
    uint8_t digest[32];

    sha256_end(s, digest);
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digit[digest[i] >> 4];
        out[2 * i + 1] = digit[digest[i] & 15];
    }
    out[64] = 0;
}

void sha256_hex(const void *data, size_t n, char out[65])
{
    struct sha256 s;

    sha256_init(&s);
    sha256_add(&s, data, n);
    sha256_end_hex(&s, out);
}
