/* A model whose weights are packed once gives the bits of one that packs them for every product. A prompt, whose last
   layer is computed only for its last rows, gives the logits of a pass over all rows. */
#include "hybrid_support.h"

#include <unistd.h>

#include "engine/llm.h"
#include "ops/kernels/bf16.h"

enum { TOKENS = 1100 }; /* more than two of the pieces in which a prompt is read, the last one with 76 rows */

static char folder[64];

static int make_folder(void **unused) {
    (void)unused;
    (void)snprintf(folder, sizeof folder, "/tmp/carry-packed-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **unused) {
    (void)unused;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    (void)unlink(path);
    return rmdir(folder);
}

static void fill_ids(int64_t *ids) {
    for (int64_t i = 0; i < TOKENS; i++) {
        ids[i] = (i * 7 + i / 5) % SUPPORT_VOCABULARY;
    }
}

static void save_model(carry_ctx *ctx, int which) {
    carry_lm *lm = model(ctx, hybrid(which));
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_BF16));
    carry_lm_free(lm);
}

/* Gives the logits after all tokens; returns whether weights were packed. */
static bool read_all(carry_ctx *ctx, bool may_pack, const int64_t *ids, float *logits) {
    carry_llm *llm;
    carry_llm_state *state;
    assert_ok(ctx, carry_llm_open(ctx, &llm, folder,
                                  &(carry_llm_options){CARRY_INIT(carry_llm_options), .dtype = CARRY_BF16}));
    llm->lm->is_settled = !may_pack;
    llm->lm->prompted = 1 << 20; /* as after many prompts */
    assert_ok(ctx, carry_llm_state_new(llm, &state));
    assert_ok(ctx, carry_llm_read(state, ids, TOKENS, logits));
    const bool packed = llm->lm->panels != NULL;
    carry_llm_state_free(state);
    carry_llm_close(llm);
    return packed;
}

static void packed_weights_change_no_bit(void **unused) {
    (void)unused;
    static const char *const kernels[] = {NULL, "avx512-bf16-emulated", "amx-emulated"};
    int64_t ids[TOKENS];
    fill_ids(ids);
    for (int i = 0; i < 3; i++) {
        carry_ctx *ctx = support_ctx(2, kernels[i], NULL);
        for (int which = 0; which < HYBRIDS; which += 3) {
            float plain[SUPPORT_VOCABULARY];
            float packed[SUPPORT_VOCABULARY];
            save_model(ctx, which);
            assert_false(read_all(ctx, false, ids, plain));
            if (!read_all(ctx, true, ids, packed) && (i > 0 || carry_bf16_best() != NULL)) {
                print_message("skipped: too little memory to pack weights\n");
            }
            assert_memory_equal(packed, plain, sizeof plain);
            assert_true(plain[0] == plain[0]); /* not NaN */
        }
        carry_ctx_free(ctx);
    }
}

/* Packing does not pay for short prompts except with AMX, and f32 has no panels. */
static void weights_are_packed_for_long_prompts_in_bf16_alone(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, "avx512-bf16-emulated", NULL);
    int64_t ids[TOKENS];
    fill_ids(ids);
    save_model(ctx, 0);
    for (int i = 0; i < 2; i++) {
        carry_llm *llm;
        carry_llm_state *state;
        const carry_dtype dtype = i == 0 ? CARRY_BF16 : CARRY_F32;
        assert_ok(ctx, carry_llm_open(ctx, &llm, folder,
                                      &(carry_llm_options){CARRY_INIT(carry_llm_options), .dtype = dtype}));
        assert_ok(ctx, carry_llm_state_new(llm, &state));
        assert_ok(ctx, carry_llm_read(state, ids, i == 0 ? 600 : TOKENS, NULL));
        assert_null(llm->lm->panels);
        assert_false(llm->lm->is_settled);
        carry_llm_state_free(state);
        carry_llm_close(llm);
    }
    carry_ctx_free(ctx);
}

static void amx_packs_weights_once_before_any_prompt(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, "amx-emulated", NULL);
    save_model(ctx, 0);
    for (int i = 0; i < 2; i++) {
        carry_llm *llm;
        carry_llm_state *state[2];
        const carry_dtype dtype = i == 0 ? CARRY_BF16 : CARRY_F32;
        assert_ok(ctx, carry_llm_open(ctx, &llm, folder,
                                      &(carry_llm_options){CARRY_INIT(carry_llm_options), .dtype = dtype}));
        assert_ok(ctx, carry_llm_state_new(llm, &state[0]));
        const void *panels = llm->lm->panels;
        assert_int_equal(llm->lm->is_settled, dtype == CARRY_BF16);
        assert_true(dtype == CARRY_BF16 || panels == NULL);
        assert_ok(ctx, carry_llm_state_new(llm, &state[1]));
        assert_ptr_equal(llm->lm->panels, panels);
        carry_llm_state_free(state[0]);
        carry_llm_state_free(state[1]);
        carry_llm_close(llm);
    }
    carry_ctx_free(ctx);
}

static void a_prompt_has_the_logits_of_a_pass_over_all_rows(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    int64_t ids[TOKENS];
    float *all = calloc((size_t)TOKENS * SUPPORT_VOCABULARY, sizeof *all);
    assert_non_null(all);
    fill_ids(ids);
    for (int which = 0; which < HYBRIDS; which++) {
        carry_llm *llm;
        save_model(ctx, which);
        assert_ok(ctx, carry_llm_open(ctx, &llm, folder, NULL));
        assert_ok(ctx, carry_llm_logits(llm, ids, TOKENS, all));
        static const int64_t lengths[] = {1, 2, 63, 64, 65, 513, TOKENS};
        for (size_t i = (size_t)support_cases(0, which % 3); i < sizeof lengths / sizeof *lengths;
             i += (size_t)support_cases(1, 3)) {
            carry_llm_state *state;
            float logits[SUPPORT_VOCABULARY];
            assert_ok(ctx, carry_llm_state_new(llm, &state));
            assert_ok(ctx, carry_llm_read(state, ids, lengths[i], logits));
            assert_true(apart_f32(logits, all + (lengths[i] - 1) * SUPPORT_VOCABULARY, SUPPORT_VOCABULARY) <= 1e-5);
            carry_llm_state_free(state);
        }
        carry_llm_close(llm);
    }
    free(all);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(packed_weights_change_no_bit, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(amx_packs_weights_once_before_any_prompt, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(weights_are_packed_for_long_prompts_in_bf16_alone, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_prompt_has_the_logits_of_a_pass_over_all_rows, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
