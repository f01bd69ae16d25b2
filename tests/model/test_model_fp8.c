/* Training passes with products in 8-bit floats: loss and gradients against f32, on the CPU and on every GPU; scales
   measured in the first step and then taken from the step before; the same bits in every run; parsing of the list. On
   the CPU maps of one input are separate products, which stay in bf16. */
/* labels: gpu */
#include "support.h"

#include <math.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/tensor.h"
#include "lm_support.h"
#include "model/host.h"
#include "model/lm/lm_fp8.h"
#include "model/lm/mixers/attention.h"

#define TOKENS 32
#define WORDS 48

static carry_lm_config config_of(void) {
    carry_lm_config c = small(&carry_lm_family_gated_deltanet);
    c.vocab_size = WORDS;
    c.hidden_size = 32;
    carry_lm_fla_of(&c)->head_dim = 16;
    carry_lm_fla_of(&c)->expand_v = 1.0;
    carry_lm_fla_of(&c)->intermediate_size = 48;
    return c;
}

typedef struct outcome {
    double loss[3]; /* of three calls with the same input */
    float *gradients;
    float *scales;
} outcome;

static void run_on(carry_ctx *ctx, carry_lm *lm, const char *list, carry_dtype dtype, outcome *o) {
    static int64_t ids[TOKENS], labels[TOKENS];
    for (int64_t i = 0; i < TOKENS; i++) {
        ids[i] = (7 * i * i + i / 5) % WORDS;
        labels[i] = i % 9 == 4 ? -100 : (3 * i + 2) % WORDS;
    }
    carry_lm_fp8 fp8 = {0};
    carry_lm_pass *pass;
    void *memory;
    if (list != NULL) {
        assert_ok(ctx, carry_lm_fp8_parse(ctx, &fp8, list));
        assert_ok(ctx, carry_lm_fp8_open(&fp8, lm));
    }
    const carry_lm_pass_options options = {
        .batch = 1, .tokens = TOKENS, .dtype = dtype, .fp8 = list != NULL ? &fp8 : NULL};
    assert_ok(ctx, carry_lm_pass_new(lm, &pass, &options));
    assert_ok(ctx, carry_lm_pass_take(pass, &memory));
    for (int i = 0; i < 3; i++) {
        assert_ok(ctx, carry_parameters_zero_gradients(&lm->own));
        const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, TOKENS),
                                    .labels = carry_view_2d(labels, CARRY_I64, 1, TOKENS),
                                    .backward = true,
                                    .loss = &o->loss[i]};
        assert_ok(ctx, carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)));
        fp8.is_known = true;
    }
    o->gradients = calloc((size_t)lm->own.count, sizeof(float));
    assert_non_null(o->gradients);
    assert_ok(ctx, carry_parameters_download(&lm->own, o->gradients, lm->own.gradients, 0, lm->own.count));
    o->scales = NULL;
    if (list != NULL) {
        o->scales = calloc((size_t)carry_tensor_count(&fp8.scales), sizeof(float));
        assert_non_null(o->scales);
        const carry_tensor here = carry_view(o->scales, CARRY_F32, 2, fp8.scales.shape);
        assert_ok(ctx, carry_read(ctx, here, fp8.scales));
    }
    carry_lm_pass_give(pass, memory);
    carry_lm_pass_free(pass);
    carry_lm_fp8_close(&fp8, lm);
}

/* The norm of the difference of all gradients, relative to that of `want`. */
static double share_off(const carry_lm *lm, const float *have, const float *want) {
    double off = 0.0, all = 0.0;
    for (int64_t i = 0; i < lm->own.count; i++) {
        off += pow((double)have[i] - (double)want[i], 2.0);
        all += pow((double)want[i], 2.0);
    }
    return sqrt(off / all);
}

static void free_outcome(outcome *o) {
    free(o->gradients);
    free(o->scales);
}

/* Rounding to e4m3 has a relative root mean square error of 2.6 %, to e5m2 of 5.2 %. A gradient passes through the
   products of two layers and the head, some ten of them, two roundings each: sqrt(20) times 4 % is 18 %. */
static void check_list(carry_ctx *ctx, carry_lm *lm, const outcome *want, const char *list) {
    outcome o, again;
    run_on(ctx, lm, list, CARRY_BF16, &o);
    run_on(ctx, lm, list, CARRY_BF16, &again);
    assert_memory_equal(o.gradients, again.gradients, (size_t)lm->own.count * sizeof(float));
    for (int i = 0; i < 3; i++) {
        assert_true(o.loss[i] == again.loss[i]);
        if (!(fabs(o.loss[i] - want->loss[0]) <= 3e-2 * want->loss[0])) {
            fail_msg("%s: loss %g instead of %g", list, o.loss[i], want->loss[0]);
        }
    }
    /* The same input has the same largest elements: a scale is that of the measured first step. */
    assert_true(o.loss[1] == o.loss[0] && o.loss[2] == o.loss[0]);
    const double off = share_off(lm, o.gradients, want->gradients);
    if (!(off <= 0.25)) {
        fail_msg("%s: gradients are off by %g", list, off);
    }
    free_outcome(&o);
    free_outcome(&again);
}

static void gradients_are_near_those_in_f32(void **unused) {
    (void)unused;
    static const char *const lists[] = {"all",  "up",           "down:dx",     "qkv:forward,o",
                                        "head", "head:forward", "up:dx,qkv:dx"};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 0; device < carry_device_count(); device++) {
        const carry_lm_config config = config_of();
        carry_lm *lm;
        outcome want;
        assert_ok(ctx, carry_lm_new(ctx, &lm, &config, device));
        assert_ok(ctx, carry_lm_want_gradients(lm));
        assert_ok(ctx, carry_lm_init(lm, 7));
        run_on(ctx, lm, NULL, CARRY_F32, &want);
        carry_lm_free(lm);
        assert_ok(ctx, carry_lm_new(ctx, &lm, &config, device));
        assert_ok(ctx, carry_lm_want_gradients(lm));
        assert_ok(ctx, carry_lm_init(lm, 7));
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
            check_list(ctx, lm, &want, lists[i]);
        }
        free_outcome(&want);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Maps of attention that read x are separate products in bf16: they do not use the site of the map back, nor its
   scales. A scale is the largest element of the weight, divided by CARRY_FP8_TOP_E4M3. */
static void a_scale_belongs_to_one_weight(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = config_of();
    carry_lm *lm;
    outcome o;
    float largest = 0.0f;
    config.mixer[0] = CARRY_LM_MIXER_ATTENTION;
    config.attention.heads = config.attention.kv_heads = 2;
    config.attention.head_dim = 16;
    assert_ok(ctx, carry_lm_new(ctx, &lm, &config, 0));
    assert_ok(ctx, carry_lm_want_gradients(lm));
    assert_ok(ctx, carry_lm_init(lm, 7));
    const carry_lm_slot *slot = lm->layer[0].mixer.slot;
    const carry_lm_parameter *v = &lm->own.parameter[slot[CARRY_LM_ATTENTION_V].parameter];
    const carry_lm_parameter *out = &lm->own.parameter[slot[CARRY_LM_ATTENTION_O].parameter];
    for (int64_t i = 0; i < v->count; i++) {
        lm->own.weights[v->offset + i] *= 50.0f;
    }
    for (int64_t i = 0; i < out->count; i++) {
        largest = fmaxf(largest, fabsf(lm->own.weights[out->offset + i]));
    }
    run_on(ctx, lm, "o:dx", CARRY_BF16, &o);
    const float scale =
        o.scales[(CARRY_LM_FP8_O * CARRY_LM_FP8_ROLES + CARRY_LM_FP8_W) * CARRY_FP8_NUMBERS + CARRY_FP8_SCALE];
    assert_true(fabsf(scale - largest / CARRY_FP8_TOP_E4M3) <= 0x1p-8f * scale); /* weights are rounded to bf16 */
    free_outcome(&o);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void lists_name_sites_and_directions(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_fp8 fp8 = {0};
    assert_ok(ctx, carry_lm_fp8_parse(ctx, &fp8, "all"));
    assert_int_equal(fp8.forward, 31);
    assert_int_equal(fp8.dx, 31);
    assert_ok(ctx, carry_lm_fp8_parse(ctx, &fp8, "up,head:forward,qkv:dx"));
    assert_int_equal(fp8.forward, 1u << CARRY_LM_FP8_UP | 1u << CARRY_LM_FP8_HEAD);
    assert_int_equal(fp8.dx, 1u << CARRY_LM_FP8_UP | 1u << CARRY_LM_FP8_QKV);
    static const char *const wrong[] = {
        "", "up,", "gate", "up:back", "up:forward:dx", "UP", ",up", "up head", "qkv,o,up,down,head,gate", "all,up"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(carry_lm_fp8_parse(ctx, &fp8, wrong[i]), CARRY_EARGUMENT);
        assert_non_null(strstr(carry_ctx_error(ctx), "qkv, o, up, down, head"));
    }
    assert_int_equal(carry_lm_fp8_parse(ctx, &fp8, "up,head:dx"), CARRY_EARGUMENT);
    assert_non_null(strstr(carry_ctx_error(ctx), "head:dx needs head:forward"));
    assert_ok(ctx, carry_lm_fp8_parse(ctx, &fp8, "head:dx,head:forward"));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_near_those_in_f32),
        cmocka_unit_test(a_scale_belongs_to_one_weight),
        cmocka_unit_test(lists_name_sites_and_directions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
