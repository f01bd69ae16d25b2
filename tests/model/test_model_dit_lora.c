/* LoRA files: merged weights are W + scale (alpha / r) B A, on one rank and on shards; switching back is exact; files
   that do not fit are refused by name. */
#include "comm_support.h"
#include "dit_support.h"

#include <math.h>
#include <unistd.h>

#include "file/safetensors.h"
#include "model/dit/dit_lora.h"

enum { R = 3 };

static char path[64];

static float factor(int which, int64_t i) {
    return (float)(int)(draw(3, (uint64_t)which, (uint64_t)i) % 201) / 400.0f - 0.25f;
}

typedef struct lora {
    const char *a_name, *b_name, *alpha_name; /* NULL: left out */
    int64_t rows, columns;
} lora;

static void write_file(carry_ctx *ctx, const lora *l) {
    float *a = malloc((size_t)(R * l->columns) * sizeof *a);
    float *b = malloc((size_t)(R * l->rows) * sizeof *b);
    float alpha = 1.5f;
    carry_safetensors_item item[3];
    int64_t count = 0;
    for (int64_t i = 0; i < R * l->columns; i++) {
        a[i] = factor(0, i);
    }
    for (int64_t i = 0; i < R * l->rows; i++) {
        b[i] = factor(1, i);
    }
    if (l->a_name != NULL) {
        item[count++] = (carry_safetensors_item){l->a_name, carry_view_2d(a, CARRY_F32, R, l->columns), CARRY_F32};
    }
    if (l->b_name != NULL) {
        item[count++] = (carry_safetensors_item){l->b_name, carry_view_2d(b, CARRY_F32, l->rows, R), CARRY_F32};
    }
    if (l->alpha_name != NULL) {
        item[count++] = (carry_safetensors_item){l->alpha_name, carry_view_1d(&alpha, CARRY_F32, 1), CARRY_F32};
    }
    assert_ok(ctx, carry_safetensors_write(ctx, path, item, count, NULL));
    free(a);
    free(b);
}

static const lora *written; /* the file that the mesh's ranks compare with */

/* Compares every element of this rank's part. They are f32 sums of R products of numbers below 0.25, times 1: 1e-6 is
   above their rounding. */
static carry_status compare(carry_comm *comm, const carry_dit *dit, const float *before, const char *name,
                            double scale) {
    const carry_parameter *p = carry_parameters_find(&dit->own, name);
    EXPECT(comm, p != NULL, "%s", name);
    const int64_t row = p->cut == CARRY_CUT_ROWS ? p->shape[0] * dit->rank : 0;
    const int64_t column = p->cut == CARRY_CUT_COLUMNS ? p->shape[1] * dit->rank : 0;
    for (int64_t i = 0; i < p->count; i++) {
        double sum = 0.0;
        for (int k = 0; k < R; k++) {
            sum += (double)factor(1, (row + i / p->shape[1]) * R + k) *
                   (double)factor(0, k * written->columns + column + i % p->shape[1]);
        }
        const double want = (double)before[p->offset + i] + scale * 1.5 / R * sum;
        EXPECT(comm, fabs((double)dit->own.weights[p->offset + i] - want) < 1e-6, "%s[%lld]", name, (long long)i);
    }
    return CARRY_OK;
}

static carry_status merge_on_rank(void *user, carry_comm *comm) {
    const carry_dit_config config = small_config();
    const char *name = user;
    const carry_lora_file files[] = {{path, 0.5}, {path, -2.0}};
    carry_dit *dit;
    carry_dit_loras *loras;
    TRY(carry_dit_new(carry_comm_ctx(comm), &dit, &config, comm, 0));
    TRY(carry_dit_init(dit, 7));
    const size_t bytes = (size_t)dit->own.count * sizeof(float);
    float *before = malloc(bytes);
    memcpy(before, dit->own.weights, bytes);
    TRY(carry_dit_loras_new(dit, &loras, files, 2));
    EXPECT(comm, memcmp(before, dit->own.weights, bytes) == 0, "opening changes nothing");
    TRY(carry_dit_loras_use(loras, 1));
    TRY(compare(comm, dit, before, name, 0.5));
    TRY(carry_dit_loras_use(loras, 2)); /* starts from the original weights, not from those with the first LoRA */
    TRY(compare(comm, dit, before, name, -2.0));
    TRY(carry_dit_loras_use(loras, 0));
    EXPECT(comm, memcmp(before, dit->own.weights, bytes) == 0, "back to the bits of before");
    EXPECT(comm, carry_dit_loras_use(loras, 3) == CARRY_ERANGE, "no third");
    carry_dit_loras_free(loras);
    carry_dit_free(dit);
    free(before);
    return CARRY_OK;
}

static void merge(const lora *l, char *name) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    write_file(ctx, l);
    written = l;
    for (int ranks = 1; ranks <= 3; ranks++) {
        char sentence[512];
        const carry_status status = run_ranks(ranks, &world, merge_on_rank, name, sentence);
        if (status != CARRY_OK) {
            fail_msg("%s, %d ranks: %s", name, ranks, sentence);
        }
    }
    carry_ctx_free(ctx);
}

static void test_merged_weights_are_those_of_the_formula(void **state) {
    (void)state;
    const carry_dit_config c = small_config();
    char by_rows[] = "blocks.0.self_attn.q.weight", by_columns[] = "blocks.1.ffn.2.weight";
    merge(&(lora){"diffusion_model.blocks.0.self_attn.q.lora_A.weight",
                  "diffusion_model.blocks.0.self_attn.q.lora_B.weight", "diffusion_model.blocks.0.self_attn.q.alpha",
                  c.dim, c.dim},
          by_rows);
    merge(&(lora){"blocks.1.ffn.net.2.lora_down.weight", "blocks.1.ffn.net.2.lora_up.weight",
                  "blocks.1.ffn.net.2.alpha", c.dim, c.ffn_dim},
          by_columns);
}

static void refuse(carry_dit *dit, const lora *l, double scale, carry_status expected, const char *words) {
    carry_dit_loras *loras;
    write_file(dit->ctx, l);
    assert_refused(dit->ctx, expected, words, carry_dit_loras_new(dit, &loras, &(carry_lora_file){path, scale}, 1));
    assert_null(loras);
}

static void test_files_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_dit_config c = small_config();
    const char *const a = "blocks.0.self_attn.q.lora_A.weight", *const b = "blocks.0.self_attn.q.lora_B.weight";
    carry_dit *dit;
    assert_ok(ctx, carry_dit_new(ctx, &dit, &c, NULL, 0));
    assert_ok(ctx, carry_dit_init(dit, 7));
    refuse(dit, &(lora){a, NULL, NULL, c.dim, c.dim}, 1.0, CARRY_ESHAPE, "blocks.0.self_attn.q.weight");
    refuse(dit, &(lora){NULL, b, NULL, c.dim, c.dim}, 1.0, CARRY_ESHAPE, "missing");
    refuse(dit, &(lora){a, b, NULL, c.dim + 1, c.dim}, 1.0, CARRY_ESHAPE, "do not fit");
    refuse(dit, &(lora){a, b, NULL, c.dim, c.dim - 1}, 1.0, CARRY_ESHAPE, "do not fit");
    refuse(dit, &(lora){"blocks.99.self_attn.q.lora_A.weight", b, NULL, c.dim, c.dim}, 1.0, CARRY_EFORMAT, "blocks.99");
    refuse(dit, &(lora){"blocks.0.self_attn.q.weight", b, NULL, c.dim, c.dim}, 1.0, CARRY_EFORMAT,
           "is no part of a LoRA");
    refuse(dit, &(lora){a, b, NULL, c.dim, c.dim}, (double)NAN, CARRY_ERANGE, "scale");
    carry_dit_loras *loras;
    assert_true(carry_dit_loras_new(dit, &loras, &(carry_lora_file){"/nowhere.safetensors", 1.0}, 1) != CARRY_OK);
    carry_dit_free(dit);
    carry_ctx_free(ctx);
}

int main(void) {
    (void)strcpy(path, "/tmp/carry-lora-XXXXXX");
    const int made = mkstemp(path);
    if (made < 0) {
        return 1;
    }
    (void)close(made);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merged_weights_are_those_of_the_formula),
        cmocka_unit_test(test_files_that_do_not_fit_are_refused_by_name),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return failed;
}
