/* Shared by the families with layers of Mamba-2. */
#include "model/lm/families/mamba.h"

#include <inttypes.h>
#include <math.h>

#include "core/error.h"

/* Transformers 5 writes infinity as an object; older versions wrote it as Python's json does. */
static bool read_limit(const carry_json *node, double *to) {
    const carry_json *inner = node->kind == CARRY_JSON_OBJECT ? carry_json_find(node, "__float__") : NULL;
    if (inner != NULL && carry_json_is_text(inner, "Infinity")) {
        *to = INFINITY;
        return true;
    }
    *to = node->kind == CARRY_JSON_NUMBER ? node->as.number.value : -1.0;
    return *to >= 0.0;
}

carry_status carry_lm_mamba_read_limits(const carry_lm_source *s, const carry_json *node) {
    const carry_json *first = node->kind == CARRY_JSON_ARRAY ? node->as.inside.first : NULL;
    const carry_json *second = first != NULL ? first->next : NULL;
    carry_lm_mamba_options *m = &s->config->mamba;
    if (node->kind == CARRY_JSON_NULL) {
        return CARRY_OK;
    }
    return second != NULL && second->next == NULL && read_limit(first, &m->step_min) && read_limit(second, &m->step_max)
               ? CARRY_OK
               : carry_lm_config_refuse(s, node, "two numbers from 0 on are expected");
}

void carry_lm_mamba_write_limits(carry_json_text *text, const carry_lm_config *c) {
    carry_json_put_raw(text, "[");
    carry_json_put_double(text, c->mamba.step_min);
    if (isinf(c->mamba.step_max)) {
        carry_json_put_raw(text, ", {\"__float__\": \"Infinity\"}]");
        return;
    }
    carry_json_put_raw(text, ", ");
    carry_json_put_double(text, c->mamba.step_max);
    carry_json_put_raw(text, "]");
}

carry_status carry_lm_mamba_check_expand(carry_ctx *ctx, const carry_lm_config *c, int64_t expand) {
    const carry_lm_mamba_options *m = &c->mamba;
    if (expand > CARRY_LM_MAX_WIDTH || m->heads > CARRY_LM_MAX_WIDTH || m->head_dim > CARRY_LM_MAX_WIDTH ||
        expand * c->hidden_size != m->heads * m->head_dim) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "%" PRId64 " Mamba heads of %" PRId64 " are not %" PRId64 " times hidden_size (%" PRId64 ")",
                          m->heads, m->head_dim, expand, c->hidden_size);
    }
    return CARRY_OK;
}
