/* The parameters of a model are flash-linear-attention's, with the same keys and shapes. The list here is written from
   its formulas, independent of the one that the library makes. */
#include "lm_support.h"

#include "file/weights.h"

typedef struct expected {
    char name[64];
    int rank;
    int64_t shape[3];
} expected;

typedef struct list {
    expected item[64];
    int count;
} list;

static void want(list *l, const char *name, int rank, int64_t a, int64_t b, int64_t c) {
    assert_true(l->count < 64);
    expected *e = &l->item[l->count++];
    *e = (expected){.rank = rank, .shape = {a, b, c}};
    (void)snprintf(e->name, sizeof e->name, "%s", name);
}

static void want_in(list *l, int64_t layer, const char *key, int rank, int64_t a, int64_t b, int64_t c) {
    char name[64];
    (void)snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)layer, key);
    want(l, name, rank, a, b, c);
}

/* The sizes of a configuration, under the names that its model files use. */
typedef struct sizes {
    int64_t d;      /* hidden_size */
    int64_t I;      /* between up_proj and down_proj */
    int64_t Kd, Vd; /* widths of all key heads and of all value heads */
    int64_t HV, dv; /* value heads, and the size of one */
} sizes;

static void want_layer(list *l, const carry_lm_config *c, int64_t i, sizes s) {
    bool gated = c->family == &carry_lm_family_gated_deltanet;
    want_in(l, i, "attn_norm.weight", 1, s.d, 0, 0);
    want_in(l, i, "mlp_norm.weight", 1, s.d, 0, 0);
    want_in(l, i, "mlp.gate_proj.weight", 2, s.I, s.d, 0);
    want_in(l, i, "mlp.up_proj.weight", 2, s.I, s.d, 0);
    want_in(l, i, "mlp.down_proj.weight", 2, s.d, s.I, 0);
    want_in(l, i, "attn.q_proj.weight", 2, s.Kd, s.d, 0);
    want_in(l, i, "attn.k_proj.weight", 2, s.Kd, s.d, 0);
    want_in(l, i, "attn.v_proj.weight", 2, s.Vd, s.d, 0);
    want_in(l, i, "attn.o_proj.weight", 2, s.d, s.Vd, 0);
    want_in(l, i, "attn.o_norm.weight", 1, s.dv, 0, 0);
    if (gated || c->delta.use_beta) {
        want_in(l, i, "attn.b_proj.weight", 2, s.HV, s.d, 0);
    }
    if (gated) {
        want_in(l, i, "attn.a_proj.weight", 2, s.HV, s.d, 0);
        want_in(l, i, "attn.A_log", 1, s.HV, 0, 0);
        want_in(l, i, "attn.dt_bias", 1, s.HV, 0, 0);
    }
    if (c->delta.use_gate) {
        want_in(l, i, "attn.g_proj.weight", 2, s.Vd, s.d, 0);
    }
    if (c->delta.use_short_conv) {
        want_in(l, i, "attn.q_conv1d.weight", 3, s.Kd, 1, c->delta.conv_size);
        want_in(l, i, "attn.k_conv1d.weight", 3, s.Kd, 1, c->delta.conv_size);
        want_in(l, i, "attn.v_conv1d.weight", 3, s.Vd, 1, c->delta.conv_size);
    }
}

static void want_model(list *l, const carry_lm_config *c, sizes s) {
    *l = (list){0};
    want(l, "model.embeddings.weight", 2, c->vocab_size, s.d, 0);
    want(l, "model.norm.weight", 1, s.d, 0, 0);
    if (!c->tie_word_embeddings) {
        want(l, "lm_head.weight", 2, c->vocab_size, s.d, 0);
    }
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        want_layer(l, c, i, s);
    }
}

/* Compares with the model's own list, with the tensors that it saves, and with those that it loads again. */
static void compare(carry_ctx *ctx, const carry_lm_config *config, sizes s) {
    char folder[] = "/tmp/carry-names-XXXXXX";
    carry_lm *lm;
    carry_lm *again;
    carry_weights weights;
    list l;
    want_model(&l, config, s);
    assert_non_null(mkdtemp(folder));
    assert_ok(ctx, carry_lm_new(ctx, &lm, config, 0));
    assert_int_equal(lm->own.parameters, l.count);
    assert_ok(ctx, carry_lm_save(lm, folder, CARRY_BF16));
    assert_ok(ctx, carry_weights_open(ctx, &weights, folder));
    assert_int_equal(weights.count, l.count);
    for (int i = 0; i < l.count; i++) {
        const expected *e = &l.item[i];
        const carry_lm_parameter *p = carry_parameters_find(&lm->own, e->name);
        const carry_tensor *t = carry_weights_find(&weights, e->name);
        if (p == NULL || t == NULL) {
            fail_msg("%s is missing", e->name);
        }
        assert_int_equal(p->rank, e->rank);
        assert_int_equal(t->rank, e->rank);
        for (int j = 0; j < e->rank; j++) {
            if (p->shape[j] != e->shape[j] || t->shape[j] != e->shape[j]) {
                fail_msg("%s: side %d is %lld and not %lld", e->name, j, (long long)p->shape[j],
                         (long long)e->shape[j]);
            }
        }
    }
    carry_weights_close(&weights);
    assert_ok(ctx, carry_lm_load(ctx, &again, folder, 0));
    carry_lm_free(again);
    carry_lm_free(lm);
    char path[64];
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        assert_int_equal(remove(path), 0);
    }
    assert_int_equal(remove(folder), 0);
}

static void gated_deltanet_has_these_parameters(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_gated_deltanet);
    c.vocab_size = 257;
    c.hidden_size = 64;
    c.num_hidden_layers = 2;
    c.delta.heads = 2;
    carry_lm_fla_of(&c)->head_dim = 24;
    /* hidden_ratio 4: floor(64 * 4 * 2/3) = 170, rounded up to 256. */
    carry_lm_fla_of(&c)->expand_v = 1.0;
    compare(ctx, &c, (sizes){.d = 64, .I = 256, .Kd = 48, .Vd = 48, .HV = 2, .dv = 24});
    carry_lm_fla_of(&c)->expand_v = 2.0;
    compare(ctx, &c, (sizes){.d = 64, .I = 256, .Kd = 48, .Vd = 96, .HV = 2, .dv = 48});
    carry_lm_fla_of(&c)->num_v_heads = 6;
    compare(ctx, &c, (sizes){.d = 64, .I = 256, .Kd = 48, .Vd = 288, .HV = 6, .dv = 48});
    c.delta.use_gate = false;
    compare(ctx, &c, (sizes){.d = 64, .I = 256, .Kd = 48, .Vd = 288, .HV = 6, .dv = 48});
    c.tie_word_embeddings = true;
    carry_lm_fla_of(&c)->intermediate_size = 96;
    compare(ctx, &c, (sizes){.d = 64, .I = 96, .Kd = 48, .Vd = 288, .HV = 6, .dv = 48});
    c.delta.use_short_conv = false;
    c.delta.use_gate = true;
    carry_lm_fla_of(&c)->num_v_heads = 0;
    compare(ctx, &c, (sizes){.d = 64, .I = 96, .Kd = 48, .Vd = 96, .HV = 2, .dv = 48});
    c.delta.use_short_conv = true;
    c.delta.conv_size = 3;
    c.hidden_size = 100;
    carry_lm_fla_of(&c)->intermediate_size = 0;
    carry_lm_fla_of(&c)->hidden_ratio = 8.0; /* floor(100 * 8 * 2/3) = 533, rounded up to 768 */
    compare(ctx, &c, (sizes){.d = 100, .I = 768, .Kd = 48, .Vd = 96, .HV = 2, .dv = 48});
    carry_ctx_free(ctx);
}

static void delta_net_has_these_parameters(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_delta_net);
    c.vocab_size = 101;
    c.hidden_size = 96;
    c.num_hidden_layers = 3;
    c.delta.heads = 4;
    compare(ctx, &c, (sizes){.d = 96, .I = 256, .Kd = 96, .Vd = 96, .HV = 4, .dv = 24});
    carry_lm_fla_of(&c)->expand_k = 0.5;
    carry_lm_fla_of(&c)->expand_v = 2.0;
    compare(ctx, &c, (sizes){.d = 96, .I = 256, .Kd = 48, .Vd = 192, .HV = 4, .dv = 48});
    c.delta.use_beta = false;
    c.delta.use_short_conv = false;
    compare(ctx, &c, (sizes){.d = 96, .I = 256, .Kd = 48, .Vd = 192, .HV = 4, .dv = 48});
    c.delta.use_gate = true;
    c.tie_word_embeddings = true;
    compare(ctx, &c, (sizes){.d = 96, .I = 256, .Kd = 48, .Vd = 192, .HV = 4, .dv = 48});
    carry_ctx_free(ctx);
}

/* Models made by flash-linear-attention: their configurations give these lists, and their files have exactly these
   tensors. */
static void models_from_there_have_these_parameters(void **unused) {
    (void)unused;
    static const char *const names[] = {"lm-gated_deltanet", "lm-delta_net"};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char folder[512];
        carry_lm *lm;
        list l;
        if (!support_vectors(folder, sizeof folder, names[i])) {
            continue;
        }
        assert_ok(ctx, carry_lm_load(ctx, &lm, folder, 0));
        found++;
        carry_lm_config *c = &lm->config;
        const carry_lm_fla *own = carry_lm_fla_of(c);
        bool gated = c->family == &carry_lm_family_gated_deltanet;
        int64_t HV = gated && own->num_v_heads > 0 ? own->num_v_heads : c->delta.heads;
        int64_t dv = (int64_t)((double)(gated ? own->head_dim : c->hidden_size / c->delta.heads) * own->expand_v);
        int64_t Kd = gated ? c->delta.heads * own->head_dim : (int64_t)((double)c->hidden_size * own->expand_k);
        int64_t ratio = own->hidden_ratio > 0.0 ? (int64_t)own->hidden_ratio : 4;
        int64_t I =
            own->intermediate_size > 0 ? own->intermediate_size : (c->hidden_size * ratio * 2 / 3 + 255) / 256 * 256;
        want_model(&l, c, (sizes){.d = c->hidden_size, .I = I, .Kd = Kd, .Vd = HV * dv, .HV = HV, .dv = dv});
        assert_int_equal(lm->own.parameters, l.count);
        for (int j = 0; j < l.count; j++) {
            const carry_lm_parameter *p = carry_parameters_find(&lm->own, l.item[j].name);
            assert_non_null(p);
            assert_int_equal(p->rank, l.item[j].rank);
            assert_memory_equal(p->shape, l.item[j].shape, sizeof p->shape[0] * (size_t)p->rank);
        }
        carry_lm_free(lm);
    }
    assert_true(found > 0);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gated_deltanet_has_these_parameters),
        cmocka_unit_test(delta_net_has_these_parameters),
        cmocka_unit_test(models_from_there_have_these_parameters),
    };
    return cmocka_run_group_tests_name("model/names", tests, NULL, NULL);
}
