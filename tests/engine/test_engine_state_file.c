/* State files: a written state reads back with the same bits; truncated files, flipped bits, parts of another type or
   shape, wrong numbers, other models and older versions are refused. */
#include <stdlib.h>
#include <unistd.h>

#include "core/hash.h"
#include "core/tensor.h"
#include "engine/generator.h"
#include "hybrid_support.h"
#include "model/lm/lm_state_file.h"

#define PROMPT 11
#define PARTS 16

static const int64_t ids[PROMPT + 1] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
static char path[] = "/tmp/carry-state-file-XXXXXX";

/* A model, a state after a prompt, its file in memory. */
typedef struct saved {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_lm_generator *generator;
    carry_lm_state *state;
    unsigned char *bytes;
    size_t size, header; /* bytes; those before the data */
} saved;

static carry_lm *made(carry_ctx *ctx, carry_lm_config config, uint64_t seed) {
    carry_lm *lm;
    assert_ok(ctx, carry_lm_config_finish(ctx, &config));
    assert_ok(ctx, carry_lm_new(ctx, &lm, &config, 0));
    assert_ok(ctx, carry_lm_init(lm, seed));
    return lm;
}

static unsigned char *read_all(size_t *size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *size = (size_t)ftell(f);
    rewind(f);
    unsigned char *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, f), *size);
    (void)fclose(f);
    return bytes;
}

static void write_all(const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static saved save(carry_dtype dtype) {
    saved s = {.ctx = support_ctx(1, NULL, NULL)};
    float logits[SUPPORT_VOCABULARY];
    s.lm = made(s.ctx, hybrid(0), 7);
    assert_ok(s.ctx, carry_lm_generator_new(s.lm, &s.generator, 1, dtype));
    s.state = carry_lm_generator_state(s.generator);
    assert_ok(s.ctx, carry_lm_generator_prompt(s.generator, 0, ids, PROMPT, logits));
    assert_ok(s.ctx, carry_lm_state_save(s.state, 0, path));
    s.bytes = read_all(&s.size);
    s.header = 8 + s.bytes[0] + 256U * s.bytes[1] + 65536U * s.bytes[2];
    assert_true(s.header < s.size);
    return s;
}

static void close_saved(saved *s) {
    carry_lm_generator_free(s->generator);
    carry_lm_free(s->lm);
    carry_ctx_free(s->ctx);
    free(s->bytes);
}

/* Loading the file is refused with a reason, and the state stays as it was. */
static void refused(const saved *s) {
    const carry_lm_state_ids before = s->state->ids[0];
    const carry_status status = carry_lm_state_load(s->state, 0, path);
    if (status != CARRY_EFORMAT && status != CARRY_EUNSUPPORTED && status != CARRY_EDTYPE) {
        fail_msg("expected a refusal, got %s: %s", carry_status_name(status), carry_ctx_error(s->ctx));
    }
    assert_non_null(strstr(carry_ctx_error(s->ctx), path));
    assert_int_equal(carry_lm_state_length(s->state, 0), PROMPT);
    assert_memory_equal(&before, &s->state->ids[0], sizeof before);
}

static void every_type_is_read_back_with_the_same_bits(void **unused) {
    (void)unused;
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};
    for (size_t i = 0; i < 3; i++) {
        saved s = save(types[i]);
        carry_state_file f;
        float first[SUPPORT_VOCABULARY];
        float again[SUPPORT_VOCABULARY];
        uint64_t hash;
        assert_ok(s.ctx, carry_state_open(s.ctx, &f, path));
        assert_ok(s.ctx, carry_lm_hash(s.lm, &hash));
        assert_true(f.about.model == hash && f.about.tokens == PROMPT);
        assert_true(f.about.ids == carry_hash_ids(0, ids, PROMPT));
        carry_state_close(&f);
        assert_ok(s.ctx, carry_lm_generator_step(s.generator, ids + PROMPT, first));
        assert_true(s.state->ids[0].hash == carry_hash_ids(0, ids, PROMPT + 1));
        assert_ok(s.ctx, carry_lm_state_load(s.state, 0, path));
        assert_true(s.state->ids[0].hash == carry_hash_ids(0, ids, PROMPT));
        assert_ok(s.ctx, carry_lm_generator_step(s.generator, ids + PROMPT, again));
        assert_memory_equal(first, again, sizeof first);
        assert_ok(s.ctx, carry_lm_state_clear(s.state, 0));
        assert_int_equal(s.state->ids[0].count, 0);
        close_saved(&s);
    }
}

static void a_file_cut_at_any_byte_is_refused(void **unused) {
    (void)unused;
    saved s = save(CARRY_BF16);
    for (size_t size = 0; size < s.size; size++) {
        assert_int_equal(truncate(path, 0), 0);
        write_all(s.bytes, size);
        refused(&s);
    }
    unsigned char *longer = calloc(s.size + 1, 1);
    assert_non_null(longer);
    memcpy(longer, s.bytes, s.size);
    write_all(longer, s.size + 1);
    refused(&s);
    free(longer);
    close_saved(&s);
}

static void every_flipped_bit_is_refused(void **unused) {
    (void)unused;
    saved s = save(CARRY_BF16);
    for (size_t bit = 0; bit < 8 * s.size; bit += bit < 8 * s.header ? 1 : 7) {
        s.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        write_all(s.bytes, s.size);
        refused(&s);
        s.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    memset(s.bytes + s.header, 0, s.size - s.header);
    write_all(s.bytes, s.size);
    refused(&s);
    close_saved(&s);
}

static carry_status open_without(carry_ctx *ctx, carry_state_file *f, const char *unread) {
    int64_t wrong;
    carry_status status = carry_state_map(ctx, f, path);
    if (status == CARRY_OK) {
        status =
            carry_state_verify_files(ctx, &(carry_state_check){.file = f, .path = path, .unread = unread}, 1, &wrong);
        carry_state_close(f);
    }
    return status;
}

/* A file that is opened without one of its tensors: other bytes of that tensor are not seen, those of another tensor
   and of the header are refused. */
static void a_tensor_can_be_left_out(void **unused) {
    (void)unused;
    saved s = save(CARRY_F32);
    carry_state_file f;
    size_t at[2];
    char name[2][CARRY_SAFETENSORS_NAME];
    assert_ok(s.ctx, carry_state_open(s.ctx, &f, path));
    for (int i = 0; i < 2; i++) {
        at[i] = (size_t)((const unsigned char *)f.file.entries[i].view.data - (const unsigned char *)f.file.mapping);
        (void)snprintf(name[i], sizeof name[i], "%s", f.file.entries[i].name);
    }
    carry_state_close(&f);
    for (int i = 0; i < 2; i++) {
        s.bytes[at[i]] ^= 1;
        write_all(s.bytes, s.size);
        assert_ok(s.ctx, open_without(s.ctx, &f, name[i]));
        assert_refused(s.ctx, CARRY_EFORMAT, name[i], open_without(s.ctx, &f, name[1 - i]));
        s.bytes[at[i]] ^= 1;
    }
    for (size_t byte = 8; byte < s.header; byte++) {
        s.bytes[byte] ^= 1;
        write_all(s.bytes, s.size);
        assert_true(open_without(s.ctx, &f, name[0]) != CARRY_OK);
        s.bytes[byte] ^= 1;
    }
    close_saved(&s);
}

/* The tensors of a file, to be written again with changes and with correct hashes. */
typedef struct forged {
    carry_state_file f;
    carry_safetensors_item items[PARTS];
    int64_t count;
} forged;

static forged forge(const saved *s) {
    forged g = {0};
    assert_ok(s->ctx, carry_state_parse(s->ctx, &g.f, s->bytes, s->size, path));
    for (int64_t i = 0; i < g.f.file.count; i++) {
        const carry_safetensors_entry *e = &g.f.file.entries[i];
        g.items[g.count++] = (carry_safetensors_item){.name = e->name, .tensor = e->view, .dtype = e->view.dtype};
    }
    return g;
}

static void write_forged(const saved *s, forged *g) {
    assert_ok(s->ctx, carry_state_write(s->ctx, path, &g->f.about, g->items, g->count));
    carry_state_close(&g->f);
}

/* The caches are the keys and values of the attention layer: two tensors in sequence. */
static int64_t cache_of(const forged *g, int which) {
    for (int64_t i = 0; i < g->count; i++) {
        if (g->items[i].tensor.shape[0] == PROMPT && which-- == 0) {
            return i;
        }
    }
    return -1;
}

static void parts_of_another_type_or_shape_are_refused(void **unused) {
    (void)unused;
    static const carry_dtype others[] = {CARRY_BF16, CARRY_F16, CARRY_I64};
    static double zeros[4096];
    saved s = save(CARRY_F32);
    for (int way = 0; way < 6; way++) {
        forged g = forge(&s);
        const int64_t first = cache_of(&g, 0);
        const int64_t second = cache_of(&g, 1);
        assert_true(first >= 0 && second > first && second < g.count);
        carry_safetensors_item *item = &g.items[way % 2 == 0 ? first : second];
        if (way < 3) { /* one cache of another type, narrower or wider */
            assert_true(carry_tensor_count(&item->tensor) <= 4096);
            item->tensor.data = zeros;
            item->tensor.dtype = item->dtype = others[way];
        } else if (way == 3) { /* a part of fixed size */
            item = &g.items[first == 0 ? second + 1 : 0];
            item->tensor.data = zeros;
            item->tensor.dtype = item->dtype = CARRY_BF16;
        } else if (way == 4) { /* another shape with the same number of elements */
            item->tensor = carry_reshape_2d(item->tensor, PROMPT, carry_tensor_count(&item->tensor) / PROMPT);
        } else { /* one part less */
            g.items[0] = g.items[--g.count];
        }
        write_forged(&s, &g);
        refused(&s);
    }
    forged g = forge(&s);
    g.items[g.count++] = (carry_safetensors_item){
        .name = "layers.0.extra", .tensor = carry_view_1d(zeros, CARRY_F32, 3), .dtype = CARRY_F32};
    write_forged(&s, &g);
    refused(&s);
    close_saved(&s);
}

/* Writes the file with another value of a metadata entry, and the header padded as before. */
static void write_note(const saved *s, const char *key, const char *value) {
    char start[32];
    const int length = snprintf(start, sizeof start, "\"%s\":\"", key);
    const unsigned char *at = memmem(s->bytes, s->header, start, (size_t)length);
    assert_non_null(at);
    const unsigned char *end = memchr(at + length, '"', 64);
    assert_non_null(end);
    unsigned char *copy = calloc(s->size + 64, 1);
    assert_non_null(copy);
    size_t size = (size_t)(at - s->bytes) + (size_t)length;
    memcpy(copy, s->bytes, size);
    memcpy(copy + size, value, strlen(value));
    size += strlen(value);
    memcpy(copy + size, end, (size_t)(s->bytes + s->header - end));
    size += (size_t)(s->bytes + s->header - end);
    while (size % 8 != 0) {
        copy[size++] = ' ';
    }
    for (int i = 0; i < 8; i++) {
        copy[i] = (unsigned char)((uint64_t)(size - 8) >> (8 * i));
    }
    memcpy(copy + size, s->bytes + s->header, s->size - s->header);
    write_all(copy, size + s->size - s->header);
    free(copy);
}

static void numbers_are_accepted_only_as_they_are_written(void **unused) {
    (void)unused;
    static const char *const tokens[] = {"",
                                         "abc",
                                         "9223372036854775807",
                                         "18446744073709551617",
                                         "281474976710657",
                                         "-1",
                                         "+11",
                                         "011",
                                         "11 ",
                                         " 11",
                                         "1e1",
                                         "11.0",
                                         "0x0b",
                                         "12",
                                         "10",
                                         "0"};
    saved s = save(CARRY_BF16);
    write_note(&s, "tokens", "11");
    assert_ok(s.ctx, carry_lm_state_load(s.state, 0, path));
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        write_note(&s, "tokens", tokens[i]);
        refused(&s);
    }
    write_note(&s, "carry_state", "1");
    assert_refused(s.ctx, CARRY_EUNSUPPORTED, "version 1", carry_lm_state_load(s.state, 0, path));
    assert_non_null(strstr(carry_ctx_error(s.ctx), "--state-save")); /* the remedy */
    write_note(&s, "model", "0000000000000000");
    refused(&s);
    for (int64_t wrong = 0; wrong < 2; wrong++) { /* with right hashes */
        forged g = forge(&s);
        g.f.about.tokens = wrong == 0 ? 0 : CARRY_STATE_TOKENS;
        write_forged(&s, &g);
        refused(&s);
    }
    forged g = forge(&s);
    g.f.about.tokens = CARRY_STATE_TOKENS + 1;
    assert_refused(s.ctx, CARRY_ERANGE, "tokens", carry_state_write(s.ctx, path, &g.f.about, g.items, g.count));
    carry_state_close(&g.f);
    close_saved(&s);
}

/* A cache has a row for each token, which bounds the number of tokens. Without attention there is no cache. */
static void a_state_without_caches_has_a_bounded_number_of_tokens(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = made(ctx, small(&carry_lm_family_gated_deltanet), 7);
    carry_lm_state *state;
    assert_ok(ctx, carry_lm_state_new(lm, &state, 1));
    assert_ok(ctx, carry_lm_state_save(state, 0, path));
    assert_ok(ctx, carry_lm_state_load(state, 0, path));
    saved s = {.ctx = ctx, .lm = lm, .state = state};
    s.bytes = read_all(&s.size);
    s.header = 8 + s.bytes[0] + 256U * s.bytes[1] + 65536U * s.bytes[2];
    write_note(&s, "tokens", "9223372036854775807");
    assert_refused(ctx, CARRY_EFORMAT, "tokens is '9223372036854775807'", carry_lm_state_load(state, 0, path));
    write_note(&s, "tokens", "1"); /* the header's hash */
    assert_refused(ctx, CARRY_EFORMAT, "header", carry_lm_state_load(state, 0, path));
    assert_int_equal(carry_lm_state_length(state, 0), 0);
    free(s.bytes);
    carry_lm_state_free(state);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void the_last_weight_and_the_configuration_tell_models_apart(void **unused) {
    (void)unused;
    saved s = save(CARRY_F32);
    const carry_parameter *p = &s.lm->own.parameter[s.lm->own.parameters - 1];
    float *weight = &s.lm->own.weights[p->offset + p->count - 1];
    const float was = *weight;
    uint32_t bits;
    memcpy(&bits, weight, sizeof bits);
    bits ^= 1; /* the smallest change of the last weight */
    memcpy(weight, &bits, sizeof bits);
    assert_refused(s.ctx, CARRY_EFORMAT, "another model", carry_lm_state_load(s.state, 0, path));
    *weight = was;
    assert_ok(s.ctx, carry_lm_state_load(s.state, 0, path));
    carry_lm_config other = hybrid(0);
    other.norm_eps *= 2.0;
    carry_lm *lm = made(s.ctx, other, 7);
    carry_lm_state *state;
    assert_ok(s.ctx, carry_lm_state_new(lm, &state, 1));
    assert_refused(s.ctx, CARRY_EFORMAT, "another model", carry_lm_state_load(state, 0, path));
    carry_lm_state_free(state);
    carry_lm_free(lm);
    lm = made(s.ctx, hybrid(0), 8); /* the same shapes, other weights */
    assert_ok(s.ctx, carry_lm_state_new(lm, &state, 1));
    assert_refused(s.ctx, CARRY_EFORMAT, "another model", carry_lm_state_load(state, 0, path));
    carry_lm_state_free(state);
    carry_lm_free(lm);
    close_saved(&s);
}

/* Weights in a mapped file, in bf16 or f16, have the same hash as the same weights in f32. */
static void the_hash_does_not_depend_on_where_the_weights_are(void **unused) {
    (void)unused;
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};
    char folder[] = "/tmp/carry-state-model-XXXXXX";
    char file[64];
    carry_ctx *ctx = support_ctx(3, NULL, NULL);
    carry_lm *lm = made(ctx, hybrid(1), 9);
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < 3; i++) {
        carry_lm *mapped;
        carry_lm *loaded;
        uint64_t a;
        uint64_t b;
        uint64_t again;
        assert_ok(ctx, carry_lm_save(lm, folder, types[i]));
        assert_ok(ctx, carry_lm_open(ctx, &mapped, folder, 0));
        assert_ok(ctx, carry_lm_load(ctx, &loaded, folder, 0));
        assert_ok(ctx, carry_lm_hash(mapped, &a));
        assert_ok(ctx, carry_lm_hash(loaded, &b));
        assert_ok(ctx, carry_lm_hash(mapped, &again));
        assert_true(a == b && a == again);
        assert_true(mapped->is_hashed && !loaded->is_hashed);
        carry_lm_free(mapped);
        carry_lm_free(loaded);
    }
    (void)snprintf(file, sizeof file, "%s/config.json", folder);
    assert_int_equal(unlink(file), 0);
    (void)snprintf(file, sizeof file, "%s/model.safetensors", folder);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_read_back_with_the_same_bits),
        cmocka_unit_test(a_file_cut_at_any_byte_is_refused),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(a_tensor_can_be_left_out),
        cmocka_unit_test(parts_of_another_type_or_shape_are_refused),
        cmocka_unit_test(numbers_are_accepted_only_as_they_are_written),
        cmocka_unit_test(a_state_without_caches_has_a_bounded_number_of_tokens),
        cmocka_unit_test(the_last_weight_and_the_configuration_tell_models_apart),
        cmocka_unit_test(the_hash_does_not_depend_on_where_the_weights_are),
    };
    const int file = mkstemp(path);
    if (file < 0) {
        return 1;
    }
    (void)close(file);
    const int code = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return code;
}
