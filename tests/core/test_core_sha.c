/* SHA-256 and SHA-1 of texts whose hashes are published (FIPS 180), in one piece and byte by byte. */
#include "core/sha.h"
#include "support.h"

static void expect(const char *text, size_t repeats, bool is_256, const char *expected) {
    for (int by_bytes = 0; by_bytes < 2; by_bytes++) {
        carry_sha sha;
        char found[CARRY_SHA_TEXT];
        carry_sha_start(&sha, is_256);
        for (size_t i = 0; i < repeats; i++) {
            for (size_t at = 0; by_bytes != 0 && text[at] != 0; at++) {
                carry_sha_add(&sha, text + at, 1);
            }
            carry_sha_add(&sha, text, by_bytes != 0 ? 0 : strlen(text));
        }
        assert_string_equal(carry_sha_text(&sha, found), expected);
    }
}

static void test_hashes_are_those_of_the_standard(void **state) {
    (void)state;
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    expect("", 1, true, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect("abc", 1, true, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect(two, 1, true, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect("a", 1000000, true, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    expect("", 1, false, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    expect("abc", 1, false, "a9993e364706816aba3e25717850c26c9cd0d89d");
    expect(two, 1, false, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    expect("a", 1000000, false, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hashes_are_those_of_the_standard)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
