/* XXH64 against published values, and its text form. */
#include "core/hash.h"
#include "support.h"

#define BUFFER 2367

/* The buffer of xxHash's own sanity check. */
static void fill(unsigned char buffer[BUFFER]) {
    uint64_t value = 2654435761U;
    for (int i = 0; i < BUFFER; i++) {
        buffer[i] = (unsigned char)(value >> 56);
        value *= 11400714785074694797U;
    }
}

static void test_hashes_equal_the_published_ones(void **state) {
    (void)state;
    static const struct {
        size_t bytes;
        uint64_t seed, hash;
    } known[] = {
        {0, 0, 0xEF46DB3751D8E999U},
        {0, 0x9E3779B1U, 0xAC75FDA2929B17EFU},
        {1, 0, 0xE934A84ADB052768U},
        {3, 0, 0xFF7E1959CB50794AU},
        {4, 0, 0x9136A0DCA57457EEU},
        {4, 0x9E3779B1U, 0xCAAB286BD8E9FDB5U},
        {8, 0, 0xCDBCF538E71D1348U},
        {14, 0, 0x8282DCC4994E35C8U},
        {14, 0x9E3779B1U, 0xC3BD6BF63DEB6DF0U},
        {17, 0, 0x0D39A2D051A30C2CU},
        {24, 0x9E3779B1U, 0x8B7C67EB59778E22U},
        {32, 0, 0x18B216492BB44B70U},
        {222, 0, 0xB641AE8CB691C174U},
        {222, 0x9E3779B1U, 0x20CB8AB7AE10C14AU},
    };
    unsigned char buffer[BUFFER];
    fill(buffer);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_true(carry_hash(known[i].seed, buffer, known[i].bytes) == known[i].hash);
    }
    assert_true(carry_hash(0, "abc", 3) == 0x44BC2CF5AD770999U);
    assert_true(carry_hash(0, "The quick brown fox jumps over the lazy dog", 43) == 0x0B242D361FDA71BCU);
}

static void test_every_bit_and_every_length_changes_the_hash(void **state) {
    (void)state;
    unsigned char buffer[BUFFER];
    fill(buffer);
    for (size_t bytes = 0; bytes < 100; bytes++) {
        const uint64_t whole = carry_hash(0, buffer, bytes);
        assert_true(carry_hash(0, buffer, bytes + 1) != whole);
        assert_true(carry_hash(1, buffer, bytes) != whole);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            buffer[bit / 8] ^= (unsigned char)(1 << bit % 8);
            assert_true(carry_hash(0, buffer, bytes) != whole);
            buffer[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
}

static void test_ids_can_be_hashed_in_pieces(void **state) {
    (void)state;
    const int64_t ids[] = {5, 0, -1, (int64_t)1 << 40, 5};
    const uint64_t whole = carry_hash_ids(0, ids, 5);
    assert_true(carry_hash_ids(0, ids, 0) == 0);
    assert_true(carry_hash_ids(carry_hash_ids(0, ids, 2), ids + 2, 3) == whole);
    assert_true(carry_hash_ids(0, ids, 4) != whole);
    const unsigned char five[8] = {5};
    assert_true(carry_hash_ids(0, ids, 1) == carry_hash(0, five, 8));
}

static void test_texts_of_hashes_are_read_strictly(void **state) {
    (void)state;
    char text[CARRY_HASH_TEXT];
    uint64_t hash;
    assert_string_equal(carry_hash_text(text, 0x0123456789ABCDEFU), "0123456789abcdef");
    assert_true(carry_hash_parse(&hash, text) && hash == 0x0123456789ABCDEFU);
    static const char *const wrong[] = {"",
                                        "0",
                                        "0123456789abcde",
                                        "0123456789abcdef0",
                                        "0123456789ABCDEF",
                                        " 123456789abcdef",
                                        "0x23456789abcdef",
                                        "-123456789abcdef"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(carry_hash_parse(&hash, wrong[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hashes_equal_the_published_ones),
        cmocka_unit_test(test_every_bit_and_every_length_changes_the_hash),
        cmocka_unit_test(test_ids_can_be_hashed_in_pieces),
        cmocka_unit_test(test_texts_of_hashes_are_read_strictly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
