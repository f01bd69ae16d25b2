/* Sizes at their limits, and arenas: counting gives the size that carving takes, for a block of any alignment. */
#include "core/memory.h"
#include "core/rng.h"
#include "support.h"

#define PIECES 12
#define UNTOUCHED ((size_t)0xabcdef)

typedef struct piece {
    size_t count, item;
    unsigned char *at;
} piece;

static void expect_mul(size_t a, size_t b, bool fits) {
    size_t result = UNTOUCHED;
    assert_int_equal(carry_size_mul(&result, a, b), fits);
    assert_true(result == (fits ? a * b : UNTOUCHED));
}

static void expect_add(size_t a, size_t b, bool fits) {
    size_t result = UNTOUCHED;
    assert_int_equal(carry_size_add(&result, a, b), fits);
    assert_true(result == (fits ? a + b : UNTOUCHED));
}

static void test_products_of_two_are_refused_exactly_when_they_overflow(void **state) {
    (void)state;
    size_t half = (size_t)1 << (sizeof(size_t) * 4); /* half * half is 1 more than the largest */
    expect_mul(0, 0, true);
    expect_mul(0, SIZE_MAX, true);
    expect_mul(1, SIZE_MAX, true);
    expect_mul(SIZE_MAX, 1, true);
    expect_mul(SIZE_MAX, 2, false);
    expect_mul(2, SIZE_MAX / 2, true);
    expect_mul(2, SIZE_MAX / 2 + 1, false);
    expect_mul(half, half, false);
    expect_mul(half, half - 1, true);
    expect_mul(half - 1, half + 1, true); /* the largest itself */
    expect_mul(SIZE_MAX, SIZE_MAX, false);
    for (uint64_t i = 0; i < 100000; i++) {
        carry_words words = carry_philox(1, 0, i);
        size_t a = (size_t)(((uint64_t)words.word[0] << 32 | words.word[1]) >> words.word[3] % 64);
        size_t b = (size_t)words.word[2];
        expect_mul(a, b, b == 0 || a <= SIZE_MAX / b);
    }
}

static void test_sums_of_two_are_refused_exactly_when_they_overflow(void **state) {
    (void)state;
    expect_add(0, 0, true);
    expect_add(SIZE_MAX, 0, true);
    expect_add(SIZE_MAX, 1, false);
    expect_add(SIZE_MAX - 1, 1, true);
    expect_add(SIZE_MAX / 2, SIZE_MAX / 2 + 1, true);
    expect_add(SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1, false);
    expect_add(SIZE_MAX, SIZE_MAX, false);
}

static void test_result_may_be_an_argument(void **state) {
    (void)state;
    size_t size = 7;
    assert_true(carry_size_mul(&size, size, size));
    assert_true(carry_size_add(&size, size, size));
    assert_int_equal(size, 98);
    assert_false(carry_size_mul(&size, size, SIZE_MAX));
    assert_int_equal(size, 98);
}

static void expect_product(const int64_t *factors, int count, size_t unit, bool fits, size_t expected) {
    size_t result = UNTOUCHED;
    assert_int_equal(carry_size_product(&result, factors, count, unit), fits);
    assert_true(result == (fits ? expected : UNTOUCHED));
}

static void test_products_of_shapes_stay_indexable(void **state) {
    (void)state;
    const int64_t most = PTRDIFF_MAX;
    expect_product(NULL, 0, 8, true, 8); /* a tensor of rank 0 has one element */
    expect_product((const int64_t[]){2, 3, 5}, 3, 4, true, 120);
    expect_product((const int64_t[]){2, 0, 5}, 3, 4, true, 0);
    expect_product((const int64_t[]){most}, 1, 1, true, (size_t)PTRDIFF_MAX);
    expect_product((const int64_t[]){most}, 1, 2, false, 0); /* fits size_t, but not a difference of pointers */
    expect_product((const int64_t[]){(int64_t)1 << 31, (int64_t)1 << 31}, 2, 1, true, (size_t)1 << 62);
    expect_product((const int64_t[]){(int64_t)1 << 31, (int64_t)1 << 31}, 2, 2, false, 0);
    expect_product((const int64_t[]){(int64_t)1 << 32, (int64_t)1 << 32}, 2, 4, false, 0); /* wraps to 0 unchecked */
    expect_product((const int64_t[]){most, most, most, most}, 4, 8, false, 0);
    expect_product((const int64_t[]){-1}, 1, 4, false, 0);
    expect_product((const int64_t[]){-2, -3}, 2, 4, false, 0); /* 24 unchecked */
    expect_product((const int64_t[]){INT64_MIN, 2}, 2, 1, false, 0);
    expect_product((const int64_t[]){0, -1}, 2, 4, false, 0);
}

/* Random requests, among them empty ones, single bytes and multiples of the alignment. */
static void make_pieces(piece pieces[PIECES], uint64_t seed) {
    static const size_t items[] = {1, 2, 4, 8, 12, 64, 100};
    for (uint64_t i = 0; i < PIECES; i++) {
        carry_words words = carry_philox(seed, 1, i);
        pieces[i] = (piece){.count = words.word[2] % 4 == 0 ? 0 : words.word[0] % 70, .item = items[words.word[1] % 7]};
    }
}

static void take_all(carry_arena *arena, piece pieces[PIECES]) {
    for (int i = 0; i < PIECES; i++) {
        pieces[i].at = carry_arena_take(arena, pieces[i].count, pieces[i].item);
    }
}

/* Each piece is aligned, inside the block, and keeps its contents while the others are written. */
static void expect_pieces_apart(const piece pieces[PIECES], const unsigned char *block, size_t total) {
    for (int i = 0; i < PIECES; i++) {
        size_t bytes = pieces[i].count * pieces[i].item;
        assert_non_null(pieces[i].at);
        assert_int_equal((uintptr_t)pieces[i].at % CARRY_ALIGN, 0);
        assert_true(bytes == 0 || (pieces[i].at >= block && pieces[i].at + bytes <= block + total));
        memset(pieces[i].at, i + 1, bytes);
    }
    for (int i = 0; i < PIECES; i++) {
        for (size_t j = 0; j < pieces[i].count * pieces[i].item; j++) {
            assert_int_equal(pieces[i].at[j], i + 1);
        }
    }
}

static void test_counting_equals_carving_for_every_alignment(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        piece pieces[PIECES];
        make_pieces(pieces, seed);
        carry_arena counted = carry_arena_over(NULL, 0);
        take_all(&counted, pieces);
        size_t total = UNTOUCHED;
        assert_true(carry_arena_total(&counted, &total));
        unsigned char *room = aligned_alloc(CARRY_ALIGN, (total / CARRY_ALIGN + 3) * CARRY_ALIGN);
        assert_non_null(room);
        for (size_t offset = 0; offset < CARRY_ALIGN; offset++) {
            memset(room, 0xee, total + 2 * CARRY_ALIGN);
            carry_arena carved = carry_arena_over(room + offset, total);
            take_all(&carved, pieces);
            assert_false(carved.overflowed);
            assert_true(carved.used == counted.used);
            expect_pieces_apart(pieces, room + offset, total);
            for (size_t i = 0; i < CARRY_ALIGN; i++) { /* nothing before or after the block is written */
                assert_true(i >= offset || room[i] == 0xee);
                assert_int_equal(room[offset + total + i], 0xee);
            }
        }
        free(room);
    }
}

static void test_counting_hands_out_nothing(void **state) {
    (void)state;
    carry_arena arena = carry_arena_over(NULL, 1000);
    assert_null(carry_arena_take(&arena, 5000, 1)); /* without a block its size is no limit */
    assert_null(carry_arena_take(&arena, 1, 1));
    assert_false(arena.overflowed);
    size_t total = 0;
    assert_true(carry_arena_total(&arena, &total));
    assert_true(total >= 5001);
}

static void test_a_block_too_small_is_flagged(void **state) {
    (void)state;
    _Alignas(CARRY_ALIGN) unsigned char block[256];
    carry_arena arena = carry_arena_over(block, sizeof block);
    assert_ptr_equal(carry_arena_take(&arena, 1, 100), block);
    assert_ptr_equal(carry_arena_take(&arena, 1, 128), block + 128);
    assert_false(arena.overflowed);
    assert_null(carry_arena_take(&arena, 1, 1));
    assert_true(arena.overflowed);
    assert_null(carry_arena_take(&arena, 1, 1));
    size_t total = UNTOUCHED;
    assert_false(carry_arena_total(&arena, &total));
    /* A block this small has no byte left after the skip to the first aligned address. */
    for (size_t size = 0; size < CARRY_ALIGN; size++) {
        arena = carry_arena_over(block + 1, size);
        assert_null(carry_arena_take(&arena, 1, 1));
        assert_true(arena.overflowed);
    }
    arena = carry_arena_over(block + 1, CARRY_ALIGN);
    assert_ptr_equal(carry_arena_take(&arena, 1, 1), block + CARRY_ALIGN);
}

static void expect_overflow(carry_arena arena, size_t count, size_t item) {
    size_t total = UNTOUCHED;
    assert_null(carry_arena_take(&arena, count, item));
    assert_true(arena.overflowed);
    assert_false(carry_arena_total(&arena, &total));
}

static void test_requests_beyond_size_t_are_flagged(void **state) {
    (void)state;
    _Alignas(CARRY_ALIGN) unsigned char block[256];
    carry_arena arenas[2] = {carry_arena_over(NULL, 0), carry_arena_over(block, sizeof block)};
    for (int i = 0; i < 2; i++) {
        (void)carry_arena_take(&arenas[i], 1, 64);
        assert_false(arenas[i].overflowed);
        expect_overflow(arenas[i], SIZE_MAX, 2);
        expect_overflow(arenas[i], SIZE_MAX, 1);
        expect_overflow(arenas[i], SIZE_MAX - 64, 1);
        expect_overflow(arenas[i], SIZE_MAX - 128, 1);
        expect_overflow(arenas[i], PTRDIFF_MAX, 1);
        expect_overflow(arenas[i], (size_t)1 << 32, (size_t)1 << 32); /* 0 unchecked */
    }
}

/* A caller may look at the flag once, after its last request. */
static void test_the_flag_stays_and_nothing_is_handed_out_after_it(void **state) {
    (void)state;
    _Alignas(CARRY_ALIGN) unsigned char block[256];
    carry_arena arena = carry_arena_over(block, sizeof block);
    assert_null(carry_arena_take(&arena, SIZE_MAX, 2));
    assert_null(carry_arena_take(&arena, 1, 1));
    assert_true(arena.overflowed);
}

static void test_no_bytes_need_no_block(void **state) {
    (void)state;
    carry_arena arena = carry_arena_over(NULL, 0);
    size_t total = UNTOUCHED;
    assert_true(carry_arena_total(&arena, &total));
    assert_int_equal(total, 0);
    (void)carry_arena_take(&arena, 0, 8);
    (void)carry_arena_take(&arena, 8, 0);
    (void)carry_arena_take(&arena, 0, SIZE_MAX);
    assert_true(carry_arena_total(&arena, &total));
    assert_int_equal(total, 0);
    _Alignas(CARRY_ALIGN) unsigned char block[64];
    arena = carry_arena_over(block, 0);
    (void)carry_arena_take(&arena, 0, 8);
    assert_false(arena.overflowed);
}

static void test_aligned_memory_of_any_size(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 127, 128, 4097, (size_t)1 << 20, 8960000, ((size_t)1 << 23) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *data = carry_aligned_new(sizes[i]);
        assert_non_null(data);
        assert_int_equal((uintptr_t)data % CARRY_ALIGN, 0);
        memset(data, 1, sizes[i]);
        free(data);
    }
    assert_null(carry_aligned_new(SIZE_MAX));
    assert_null(carry_aligned_new(SIZE_MAX - 62));
    assert_null(carry_aligned_new((size_t)PTRDIFF_MAX + 1));
}

static void test_available_memory_is_within_the_machine(void **state) {
    (void)state;
    const double total = carry_number_in("/proc/meminfo", "MemTotal:", 1024.0);
    const double available = carry_available_bytes();
    assert_true(total < 0.0 || (available >= 0.0 && available <= total));
    assert_true(carry_number_in("/proc/meminfo", "no such key:", 1.0) == -1.0);
    assert_true(carry_number_in("/no/such/file", "", 1.0) == -1.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_two_are_refused_exactly_when_they_overflow),
        cmocka_unit_test(test_sums_of_two_are_refused_exactly_when_they_overflow),
        cmocka_unit_test(test_result_may_be_an_argument),
        cmocka_unit_test(test_products_of_shapes_stay_indexable),
        cmocka_unit_test(test_counting_equals_carving_for_every_alignment),
        cmocka_unit_test(test_counting_hands_out_nothing),
        cmocka_unit_test(test_a_block_too_small_is_flagged),
        cmocka_unit_test(test_requests_beyond_size_t_are_flagged),
        cmocka_unit_test(test_the_flag_stays_and_nothing_is_handed_out_after_it),
        cmocka_unit_test(test_no_bytes_need_no_block),
        cmocka_unit_test(test_aligned_memory_of_any_size),
        cmocka_unit_test(test_available_memory_is_within_the_machine),
    };
    return cmocka_run_group_tests_name("core memory", tests, NULL, NULL);
}
