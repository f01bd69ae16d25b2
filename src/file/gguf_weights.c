/* Gives the tensors of a GGUF file the names that Hugging Face uses. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"
#include "file/gguf_model.h"

/* How the values in the file differ from those of Hugging Face. */
typedef enum tensor_form {
    SAME,
    NORM,        /* stored with 1 added */
    DECAY,       /* -exp */
    HEADS,       /* one row or value for each value head */
    VALUE_ROWS,  /* rows of value heads */
    QKV_ROWS,    /* like VALUE_ROWS, after the rows of queries and keys */
    CONVOLUTION, /* like QKV_ROWS; the shape becomes [rows, 1, taps] */
    VALUE_COLUMNS,
} tensor_form;

typedef struct known {
    const char *there, *here;
    tensor_form form;
} known;

static const known whole[] = {{"token_embd.weight", "model.embed_tokens.weight", SAME},
                              {"output_norm.weight", "model.norm.weight", NORM},
                              {"output.weight", "lm_head.weight", SAME}};

static const known of_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight", NORM},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", NORM},
    {"attn_q.weight", "self_attn.q_proj.weight", SAME},
    {"attn_k.weight", "self_attn.k_proj.weight", SAME},
    {"attn_v.weight", "self_attn.v_proj.weight", SAME},
    {"attn_output.weight", "self_attn.o_proj.weight", SAME},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", NORM},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", NORM},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", QKV_ROWS},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", VALUE_ROWS},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", HEADS},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", HEADS},
    {"ssm_a", "linear_attn.A_log", DECAY},
    {"ssm_dt.bias", "linear_attn.dt_bias", HEADS},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", CONVOLUTION},
    {"ssm_norm.weight", "linear_attn.norm.weight", SAME},
    {"ssm_out.weight", "linear_attn.out_proj.weight", VALUE_COLUMNS},
    {"ffn_gate.weight", "mlp.gate_proj.weight", SAME},
    {"ffn_up.weight", "mlp.up_proj.weight", SAME},
    {"ffn_down.weight", "mlp.down_proj.weight", SAME},
};

/* Finds the table entry of a tensor's name in the file, and writes its Hugging Face name to `to`. Returns NULL for an
   unknown name; the tensor then keeps it. *drops: the tensor belongs to a multi-token head. */
static const known *find_name(const char *name, const carry_gguf_sizes *sizes, char to[CARRY_SAFETENSORS_NAME],
                              bool *drops) {
    int layer = -1;
    int length = 0;
    *drops = false;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        if (strcmp(name, whole[i].there) == 0) {
            (void)snprintf(to, CARRY_SAFETENSORS_NAME, "%s", whole[i].here);
            return &whole[i];
        }
    }
    if (sscanf(name, "blk.%9d.%n", &layer, &length) != 1 || length == 0 || layer < 0) {
        return NULL;
    }
    *drops = layer >= sizes->layers; /* layers of multi-token heads */
    for (size_t i = 0; i < sizeof of_layer / sizeof of_layer[0]; i++) {
        if (strcmp(name + length, of_layer[i].there) == 0) {
            (void)snprintf(to, CARRY_SAFETENSORS_NAME, "model.layers.%d.%s", layer, of_layer[i].here);
            return &of_layer[i];
        }
    }
    return NULL;
}

static carry_head_order order_of(tensor_form form, const carry_gguf_sizes *s) {
    const bool single = form == HEADS || form == DECAY;
    return (carry_head_order){.first = form == QKV_ROWS || form == CONVOLUTION ? 2 * s->key_heads * s->key : 0,
                              .groups = s->key_heads,
                              .each = s->value_heads / s->key_heads,
                              .size = single ? 1 : s->value,
                              .of_columns = form == VALUE_COLUMNS};
}

static float value_at(const carry_tensor *from, int64_t index) {
    const unsigned char *at = (const unsigned char *)from->data + (size_t)index * carry_dtype_size(from->dtype);
    float value;
    uint16_t half;
    if (from->dtype == CARRY_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return from->dtype == CARRY_BF16 ? carry_f32_from_bf16(half) : carry_f32_from_f16(half);
}

/* Computes the original values of a tensor that is not quantised. */
static void make_values(float *to, const carry_tensor *from, tensor_form form, const carry_head_order *order) {
    const int64_t columns = from->rank > 1 ? from->shape[from->rank - 1] : 1;
    const int64_t rows = carry_tensor_count(from) / columns;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            const bool moves = form != NORM && form != SAME;
            const int64_t row = moves && !order->of_columns ? carry_head_place(order, i) : i;
            const int64_t column = moves && order->of_columns ? carry_head_place(order, j) : j;
            const float value = value_at(from, row * columns + column);
            to[i * columns + j] = form == NORM ? value - 1.0f : form == DECAY ? logf(-value) : value;
        }
    }
}

/* True if the tensor has rank 1 or 2 and as many rows or columns as the order covers. If not, loading the model fails
   later, when shapes are compared. */
static bool fits(const carry_tensor *view, const carry_head_order *order) {
    const int64_t last = view->rank - 1;
    const int64_t has = order->of_columns ? view->shape[last] : view->shape[0];
    return has == order->first + order->groups * order->each * order->size && view->rank <= 2;
}

typedef struct maker {
    carry_ctx *ctx;
    carry_weights *w;
    const carry_gguf_sizes *sizes;
    int64_t sources, floats; /* needed (when counting), or made so far */
    bool counts;
} maker;

static void change_entry(maker *m, carry_safetensors_entry *entry, tensor_form form) {
    const carry_head_order order = order_of(form, m->sizes);
    const bool moves = form >= DECAY && order.each > 1 && fits(&entry->view, &order);
    carry_tensor *view = &entry->view;
    if (view->dtype == CARRY_QUANTISED && moves) {
        if (!m->counts) {
            m->w->quantised[m->sources] = carry_quant_source_ordered(view, &order);
            *view = carry_quant_source_view(&m->w->quantised[m->sources]);
        }
        m->sources++;
    } else if (view->dtype != CARRY_QUANTISED && (moves || form == NORM || form == DECAY)) {
        const int64_t count = carry_tensor_count(view);
        if (!m->counts) {
            float *to = m->w->made + m->floats;
            make_values(to, view, moves || form == NORM ? form : DECAY, &order);
            *view = carry_view(to, CARRY_F32, view->rank, view->shape);
        }
        m->floats += count;
    }
    if (!m->counts && form == CONVOLUTION && view->rank == 2) {
        *view = carry_reshape_3d(*view, view->shape[0], 1, view->shape[1]);
    }
}

static void change_entries(maker *m) {
    carry_safetensors *tensors = &m->w->file[0];
    int64_t kept = 0;
    m->sources = m->floats = 0;
    for (int64_t i = 0; i < tensors->count; i++) {
        carry_safetensors_entry entry = tensors->entries[i];
        char name[CARRY_SAFETENSORS_NAME];
        bool drops;
        const known *found = find_name(entry.name, m->sizes, name, &drops);
        if (drops) {
            continue;
        }
        if (found != NULL) {
            change_entry(m, &entry, found->form);
            memcpy(entry.name, name, sizeof name);
        }
        if (!m->counts) {
            tensors->entries[kept++] = entry;
        }
    }
    if (!m->counts) {
        tensors->count = kept;
        carry_safetensors_sort(tensors);
        m->w->count = kept;
    }
}

static carry_status change_all(carry_ctx *ctx, carry_weights *w, const carry_gguf_sizes *sizes) {
    maker m = {.ctx = ctx, .w = w, .sizes = sizes, .counts = true};
    const int64_t tensors = w->file[0].count;
    change_entries(&m);
    w->quantised = calloc((size_t)m.sources + 1, sizeof *w->quantised);
    w->made = calloc((size_t)m.floats + 1, sizeof *w->made);
    if (w->quantised == NULL || w->made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the tensors of a GGUF file");
    }
    m.counts = false;
    change_entries(&m);
    if (w->count < tensors) {
        carry_log(ctx, CARRY_LOG_INFO, "%" PRId64 " tensors of multi-token heads are ignored", tensors - w->count);
    }
    return CARRY_OK;
}

carry_status carry_gguf_weights(carry_ctx *ctx, carry_weights *w, const char *path) {
    carry_gguf file;
    carry_gguf_sizes sizes;
    *w = (carry_weights){0};
    CARRY_TRY(carry_gguf_open(ctx, &file, path));
    w->file = calloc(1, sizeof *w->file);
    carry_status status = CARRY_OK;
    if (w->file == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", path);
    }
    status = status == CARRY_OK ? carry_gguf_take_sizes(ctx, &file, &sizes) : status;
    if (status == CARRY_OK) { /* ownership of the tensors moves */
        w->file[0] = file.tensors;
        w->files = 1;
        file.tensors = (carry_safetensors){0};
        status = change_all(ctx, w, &sizes);
    }
    carry_gguf_close(&file);
    if (status != CARRY_OK) {
        carry_weights_close(w);
    }
    return status;
}
