/* Models with experts: folders with single experts, and routers that give NaN. */
#include "hybrid_support.h"

#include <unistd.h>

#include "file/safetensors.h"

static char folder[] = "/tmp/carry-experts-XXXXXX";

static char *in_folder(const char *name) {
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int make_folder(void **unused) {
    (void)unused;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **unused) {
    (void)unused;
    (void)unlink(in_folder("config.json"));
    (void)unlink(in_folder("model.safetensors"));
    return rmdir(folder);
}

#define ITEMS 256

typedef struct list {
    carry_safetensors_item item[ITEMS];
    char name[ITEMS][128];
    int64_t count;
} list;

static void put(list *l, const char *name, float *data, int rank, const int64_t *shape) {
    (void)snprintf(l->name[l->count], sizeof l->name[0], "%s", name);
    l->item[l->count] = (carry_safetensors_item){
        .name = l->name[l->count], .tensor = carry_view(data, CARRY_F32, rank, shape), .dtype = CARRY_F32};
    l->count++;
}

/* Adds the experts of a parameter [E, rows, columns], each as `parts` tensors. */
static void put_experts(list *l, const carry_parameter *p, float *data, int parts, const char *const *ends) {
    const char *end = strstr(p->name, "mlp.experts.");
    const int64_t shape[] = {p->shape[1] / parts, p->shape[2]};
    for (int64_t i = 0; i < p->shape[0] * parts; i++) {
        char name[128];
        (void)snprintf(name, sizeof name, "%.*smlp.experts.%d.%s.weight", (int)(end - p->name), p->name,
                       (int)(i / parts), ends[i % parts]);
        put(l, name, data + i * shape[0] * shape[1], 2, shape);
    }
}

static list *single_experts(carry_lm *lm) {
    list *l = calloc(1, sizeof *l);
    assert_non_null(l);
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        float *data = lm->own.weights + p->offset;
        if (strstr(p->name, "gate_up_proj") != NULL) {
            put_experts(l, p, data, 2, (const char *const[]){"gate_proj", "up_proj"});
        } else if (strstr(p->name, "experts.down_proj") != NULL) {
            put_experts(l, p, data, 1, (const char *const[]){"down_proj"});
        } else {
            put(l, p->name, data, p->rank, p->shape);
        }
    }
    return l;
}

static void write_list(carry_ctx *ctx, const list *l) {
    assert_ok(ctx, carry_safetensors_write(ctx, in_folder("model.safetensors"), l->item, l->count, NULL));
}

static void single_experts_of_a_folder_are_loaded(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model(ctx, hybrid(8));
    carry_lm *back;
    list *l = single_experts(lm);
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    write_list(ctx, l);
    assert_ok(ctx, carry_lm_load(ctx, &back, folder, 0));
    assert_memory_equal(lm->own.weights, back->own.weights, (size_t)lm->own.count * sizeof(float));
    carry_lm_free(back);
    assert_ok(ctx, carry_lm_open(ctx, &back, folder, 0));
    carry_lm_free(back);
    free(l);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void expect_refused(carry_ctx *ctx, const list *l, const char *words) {
    carry_lm *back;
    write_list(ctx, l);
    const carry_status status = carry_lm_load(ctx, &back, folder, 0);
    if (status == CARRY_OK || back != NULL || strstr(carry_ctx_error(ctx), words) == NULL) {
        fail_msg("%s, %s where \"%s\" is expected", carry_status_name(status), carry_ctx_error(ctx), words);
    }
}

/* The index of a tensor in the list. */
static int64_t find(const list *l, const char *name) {
    for (int64_t i = 0; i < l->count; i++) {
        if (strcmp(l->name[i], name) == 0) {
            return i;
        }
    }
    fail_msg("no tensor %s", name);
    return -1;
}

/* Sets the pointers to names after a list was copied. */
static void name_again(list *l) {
    for (int64_t i = 0; i < l->count; i++) {
        l->item[i].name = l->name[i];
    }
}

static void missing_and_surplus_experts_are_named(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model(ctx, hybrid(8));
    list *l = single_experts(lm);
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    const int64_t at = find(l, "model.layers.1.mlp.experts.3.up_proj.weight");
    const list whole = *l;
    (void)snprintf(l->name[at], sizeof l->name[0], "model.layers.1.mlp.experts.6.up_proj.weight");
    l->item[at].name = l->name[at];
    expect_refused(ctx, l, "no tensor model.layers.1.mlp.experts.3.up_proj.weight");
    (void)snprintf(l->name[at], sizeof l->name[0], "%s", whole.name[at]);
    put(l, "model.layers.1.mlp.experts.6.up_proj.weight", l->item[at].tensor.data, 2, l->item[at].tensor.shape);
    expect_refused(ctx, l, "model.layers.1.mlp.experts.6.up_proj.weight");
    l->count--;
    const int64_t shape[] = {l->item[at].tensor.shape[1], l->item[at].tensor.shape[0]};
    l->item[at].tensor = carry_view(l->item[at].tensor.data, CARRY_F32, 2, shape);
    expect_refused(ctx, l,
                   "layers.1.mlp.experts.3.up_proj.weight has shape [16, 10] where the configuration needs "
                   "[10, 16]");
    *l = whole;
    const int64_t first = find(l, "model.layers.1.mlp.experts.0.gate_proj.weight");
    const int64_t few[] = {l->item[first].tensor.shape[0] / 2, l->item[first].tensor.shape[1]};
    l->item[first].tensor = carry_view(l->item[first].tensor.data, CARRY_F32, 2, few);
    name_again(l);
    expect_refused(ctx, l,
                   "layers.1.mlp.experts.0.gate_proj.weight has shape [5, 16] where the configuration needs "
                   "[10, 16]");
    *l = whole;
    l->item[first] = l->item[--l->count];
    (void)snprintf(l->name[first], sizeof l->name[0], "%s", whole.name[l->count]);
    name_again(l);
    expect_refused(ctx, l, "no tensor model.layers.1.mlp.experts.0.gate_proj.weight");
    free(l);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* Stacked experts: a wrong number of experts, and gate and up in the other order of dimensions. */
static void stacked_experts_of_another_shape_are_named(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model(ctx, hybrid(8));
    list *l = calloc(1, sizeof *l);
    assert_non_null(l);
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        const carry_parameter *p = &lm->own.parameter[i];
        put(l, p->name, lm->own.weights + p->offset, p->rank, p->shape);
    }
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_F32));
    const int64_t at = find(l, "model.layers.1.mlp.experts.gate_up_proj");
    const int64_t *s = l->item[at].tensor.shape;
    const int64_t fewer[] = {s[0] - 1, s[1], s[2]};
    const int64_t turned[] = {s[0], s[2], s[1]};
    l->item[at].tensor = carry_view(l->item[at].tensor.data, CARRY_F32, 3, fewer);
    expect_refused(ctx, l,
                   "model.layers.1.mlp.experts.gate_up_proj has shape [5, 20, 16] where the configuration "
                   "needs [6, 20, 16]");
    l->item[at].tensor = carry_view(l->item[at].tensor.data, CARRY_F32, 3, turned);
    expect_refused(ctx, l, "gate_up_proj has shape [6, 16, 20] where the configuration needs [6, 20, 16]");
    free(l);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void more_chosen_experts_than_experts_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config config = hybrid(8);
    config.experts.chosen = config.experts.count + 1;
    assert_refused(ctx, CARRY_ESIZE, "the number of experts of a token is 7", carry_lm_config_finish(ctx, &config));
    config.experts.chosen = 0;
    assert_refused(ctx, CARRY_ESIZE, "the number of experts of a token is 0", carry_lm_config_finish(ctx, &config));
    carry_ctx_free(ctx);
}

/* Makes the scores of one expert NaN: the last, which a router with sigmoid scores would not choose. */
static void spoil(carry_lm *lm, const char *name) {
    const carry_parameter *router = carry_parameters_find(&lm->own, name);
    assert_non_null(router);
    const int64_t width = router->shape[1];
    for (int64_t i = router->count - width; i < router->count; i++) {
        lm->own.weights[router->offset + i] = NAN;
    }
}

/* Without gradients the pass fails; with gradients the loss is NaN, and the pass knows the place. */
static void nan_of_a_router_is_refused_with_layer_and_token(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static const int models[] = {8, 13}; /* softmax; sigmoid with groups and a bias */
    for (int m = 0; m < 2; m++) {
        carry_lm *lm = model(ctx, hybrid(models[m]));
        int64_t ids[] = {3, 1, 4, 1, 5};
        float logits[5 * SUPPORT_VOCABULARY];
        double loss = 0.0;
        int64_t layer;
        int64_t token;
        spoil(lm, "model.layers.1.mlp.gate.weight");
        carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, 5),
                              .logits = carry_view_3d(logits, CARRY_F32, 1, 5, SUPPORT_VOCABULARY)};
        carry_lm_pass_options options = {.batch = 1, .tokens = 5, .forward_only = true};
        assert_int_equal(run_once(lm, &options, &args), CARRY_ERANGE);
        assert_non_null(strstr(carry_ctx_error(ctx), "layer 1, token 0"));

        options.forward_only = false; /* training skips the step instead */
        args = (carry_lm_args){.ids = args.ids, .labels = args.ids, .loss = &loss};
        carry_lm_pass *pass;
        assert_ok(ctx, carry_lm_pass_new(lm, &pass, &options));
        unsigned char *memory = malloc(carry_lm_pass_memory(pass));
        assert_non_null(memory);
        assert_ok(ctx, carry_lm_router_nan(pass, &layer, &token));
        assert_int_equal(layer, -1);
        assert_ok(ctx, carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass)));
        assert_true(isnan(loss));
        assert_ok(ctx, carry_lm_router_nan(pass, &layer, &token));
        assert_true(layer == 1 && token == 0);
        assert_ok(ctx, carry_lm_router_nan(pass, &layer, &token)); /* it was forgotten */
        assert_true(layer == -1 && token == -1);
        free(memory);
        carry_lm_pass_free(pass);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_experts_of_a_folder_are_loaded),
        cmocka_unit_test(missing_and_surplus_experts_are_named),
        cmocka_unit_test(stacked_experts_of_another_shape_are_named),
        cmocka_unit_test(more_chosen_experts_than_experts_are_refused),
        cmocka_unit_test(nan_of_a_router_is_refused_with_layer_and_token),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
