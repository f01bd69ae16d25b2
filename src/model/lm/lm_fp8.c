/* Products of layers in 8-bit floats, their scales and their memory. */
#include "model/lm/lm_fp8.h"

#include <stdio.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "model/lm/lm_pass.h"

static const char *const names[CARRY_LM_FP8_SITES] = {"qkv", "o", "up", "down", "head"};

/* The site of a name, or -1. */
static int find_site(const char *name, size_t length) {
    for (int i = 0; i < CARRY_LM_FP8_SITES; i++) {
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) {
            return i;
        }
    }
    return -1;
}

carry_status carry_lm_fp8_parse(carry_ctx *ctx, carry_lm_fp8 *fp8, const char *list) {
    const bool is_all = strcmp(list, "all") == 0;
    fp8->forward = fp8->dx = is_all ? (1u << CARRY_LM_FP8_SITES) - 1 : 0;
    for (const char *at = list; !is_all; at += strcspn(at, ",") + 1) {
        const size_t length = strcspn(at, ",");
        const size_t name = strcspn(at, ":,");
        const char *direction = at + name;
        const int site = find_site(at, name);
        const bool both = name == length;
        const bool forward = length - name == 8 && strncmp(direction, ":forward", 8) == 0;
        const bool dx = length - name == 3 && strncmp(direction, ":dx", 3) == 0;
        if (site < 0 || !(both || forward || dx)) {
            return carry_fail(ctx, CARRY_EARGUMENT,
                              "--fp8 '%.60s': expected all, or names separated by commas: qkv, o, up, down, head; "
                              "NAME:forward and NAME:dx for one direction",
                              list);
        }
        fp8->forward |= both || forward ? 1u << site : 0;
        fp8->dx |= both || dx ? 1u << site : 0;
        if (at[length] == '\0') {
            break;
        }
    }
    return (fp8->dx & ~fp8->forward) >> CARRY_LM_FP8_HEAD == 0
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT, "--fp8 '%.60s': head:dx needs head:forward: write head", list);
}

int64_t carry_lm_fp8_count(const carry_lm *lm) {
    return (lm->config.num_hidden_layers * CARRY_LM_FP8_HEAD + 1) * CARRY_LM_FP8_ROLES;
}

/* A row of scales before the first step. */
static carry_status fill_scales(carry_lm_fp8 *fp8, const carry_lm *lm) {
    const int64_t count = fp8->scales.shape[0];
    for (int64_t i = 0; i < count; i++) {
        const bool is_dy = i % CARRY_LM_FP8_ROLES == CARRY_LM_FP8_DY;
        float row[CARRY_FP8_NUMBERS] = {[CARRY_FP8_SCALE] = 1.0f,
                                        [CARRY_FP8_INVERSE] = 1.0f,
                                        [CARRY_FP8_TOP] = is_dy ? CARRY_FP8_TOP_E5M2 : CARRY_FP8_TOP_E4M3};
        const carry_tensor to = carry_reshape_1d(carry_slice(fp8->scales, i, 1), CARRY_FP8_NUMBERS);
        CARRY_TRY(carry_copy(lm->ctx, to, carry_view_1d(row, CARRY_F32, CARRY_FP8_NUMBERS)));
    }
    return CARRY_OK;
}

carry_status carry_lm_fp8_open(carry_lm_fp8 *fp8, const carry_lm *lm) {
    void *data;
    const int64_t shape[] = {carry_lm_fp8_count(lm), CARRY_FP8_NUMBERS};
    CARRY_TRY(
        carry_device_alloc(lm->ctx, &data, lm->own.device, (size_t)(shape[0] * CARRY_FP8_NUMBERS) * sizeof(float)));
    fp8->scales = carry_view_on(lm->own.device, data, CARRY_F32, 2, shape);
    fp8->is_known = false;
    return fill_scales(fp8, lm);
}

void carry_lm_fp8_close(carry_lm_fp8 *fp8, const carry_lm *lm) {
    if (fp8->scales.data != NULL) {
        carry_device_free(lm->ctx, lm->own.device, fp8->scales.data);
        fp8->scales = (carry_tensor){0};
    }
}

carry_status carry_lm_fp8_begin(carry_lm_pass *pass, const carry_lm_args *args) {
    const carry_lm_fp8 *fp8 = pass->options.fp8;
    pass->fp8.ready = NULL;
    return fp8 != NULL && args->backward && fp8->is_known ? carry_fp8_scales(pass->ctx, fp8->scales) : CARRY_OK;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Joined rows of the matrices of a part that read h, and the widest other side of its matrices. */
static void widest_of(const carry_lm *lm, const carry_lm_sublayer *own, int64_t *width, int64_t *weight) {
    const int64_t hidden = lm->config.hidden_size;
    int64_t rows = own->rest_rows;
    for (int i = 0; own->part != NULL && i < own->part->slots; i++) {
        const carry_parameter *p = own->slot[i].parameter >= 0 ? &lm->own.parameter[own->slot[i].parameter] : NULL;
        if (p != NULL && p->rank == 2) {
            rows += p->shape[1] == hidden ? p->shape[0] : 0;
            *width = larger(*width, p->shape[1]);
            *weight = larger(*weight, p->count);
        }
    }
    *width = larger(*width, rows);
    *weight = larger(*weight, rows * hidden);
}

void carry_lm_fp8_take(carry_lm_pass *pass, carry_arena *arena) {
    const carry_lm *lm = pass->lm;
    int64_t width = lm->config.hidden_size;
    int64_t weight = 0;
    pass->fp8 = (carry_lm_fp8_memory){.forward = pass->fp8.forward, .dx = pass->fp8.dx};
    if (pass->options.fp8 == NULL) {
        return;
    }
    for (int64_t i = 0; i < lm->config.num_hidden_layers; i++) {
        widest_of(lm, &lm->layer[i].mixer, &width, &weight);
        widest_of(lm, &lm->layer[i].feedforward, &width, &weight);
    }
    pass->fp8.codes_bytes = (size_t)(pass->tokens * width);
    pass->fp8.weight_bytes = (size_t)weight;
    pass->fp8.codes = carry_arena_take(arena, pass->fp8.codes_bytes, 1);
    pass->fp8.weight = carry_arena_take(arena, pass->fp8.weight_bytes, 1);
}

void carry_lm_fp8_unused(const carry_lm_pass *pass, char *text, size_t size) {
    const carry_lm_fp8 *fp8 = pass->options.fp8;
    const unsigned forward = fp8 != NULL ? fp8->forward & ~pass->fp8.forward : 0;
    const unsigned dx = fp8 != NULL ? fp8->dx & ~pass->fp8.dx : 0;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < CARRY_LM_FP8_SITES && used < size; i++) {
        const bool is_forward = (forward >> i & 1) != 0;
        const bool is_dx = (dx >> i & 1) != 0;
        if (is_forward || is_dx) {
            used += (size_t)snprintf(text + used, size - used, "%s%s%s", used > 0 ? ", " : "", names[i],
                                     is_forward && is_dx ? ""
                                     : is_dx             ? ":dx"
                                                         : ":forward");
        }
    }
}

carry_lm_fp8_site carry_lm_fp8_site_of(const carry_lm_call *call, bool out) {
    const bool is_mixer = call->own == &call->pass->lm->layer[call->layer].mixer;
    return is_mixer ? (out ? CARRY_LM_FP8_O : CARRY_LM_FP8_QKV) : (out ? CARRY_LM_FP8_DOWN : CARRY_LM_FP8_UP);
}

static int64_t number_of(const carry_lm_call *call, bool out) {
    return call->layer * CARRY_LM_FP8_HEAD + (int64_t)carry_lm_fp8_site_of(call, out);
}

carry_fp8 carry_lm_fp8_matrix(const carry_lm_pass *pass, int64_t number, carry_lm_fp8_role role, unsigned char *codes,
                              int64_t rows, int64_t columns) {
    const carry_tensor scale = carry_slice(pass->options.fp8->scales, number * CARRY_LM_FP8_ROLES + (int64_t)role, 1);
    return (carry_fp8){.codes = codes,
                       .rows = rows,
                       .columns = columns,
                       .kind = role == CARRY_LM_FP8_DY ? CARRY_E5M2 : CARRY_E4M3,
                       .device = pass->lm->own.device,
                       .scale = scale.data};
}

/* Records the largest element of x, and makes the scale from it in the first step. */
static carry_status measure(const carry_lm_pass *pass, float *scale, carry_tensor x) {
    const int device = pass->lm->own.device;
    const carry_tensor flat = carry_view_on(device, scale, CARRY_F32, 1, (const int64_t[]){CARRY_FP8_NUMBERS});
    CARRY_TRY(carry_fp8_measure(pass->ctx, flat, x));
    return pass->options.fp8->is_known ? CARRY_OK
                                       : carry_fp8_scales(pass->ctx, carry_reshape_2d(flat, 1, CARRY_FP8_NUMBERS));
}

carry_status carry_lm_fp8_round(const carry_lm_pass *pass, carry_fp8 to, carry_tensor x) {
    CARRY_TRY(pass->options.fp8->is_known ? CARRY_OK : measure(pass, to.scale, x));
    return carry_fp8_round(pass->ctx, to, x, false);
}

carry_status carry_lm_fp8_turn(const carry_lm_pass *pass, carry_fp8 to, carry_tensor W, bool is_recorded) {
    CARRY_TRY(is_recorded ? CARRY_OK : measure(pass, to.scale, W));
    return carry_fp8_round(pass->ctx, to, W, true);
}

bool carry_lm_fp8_uses(const carry_lm_pass *pass, const carry_lm_args *args, carry_lm_fp8_site site, bool dx) {
    const carry_lm_fp8 *fp8 = pass->options.fp8;
    return fp8 != NULL && args->backward && ((dx ? fp8->dx : fp8->forward) >> site & 1) != 0;
}

static bool uses(const carry_lm_call *call, bool out, bool dx) {
    return carry_lm_fp8_uses(call->pass, call->args, carry_lm_fp8_site_of(call, out), dx);
}

/* True if the sizes of a product of `tokens` rows with W are possible, and the memory for codes suffices. */
static bool fits(const carry_lm_call *call, int64_t tokens, carry_tensor W) {
    const carry_lm_fp8_memory *memory = &call->pass->fp8;
    return W.dtype == CARRY_BF16 && carry_fp8_fits(tokens, W.shape[0]) && carry_fp8_fits(tokens, W.shape[1]) &&
           (size_t)(W.shape[0] * W.shape[1]) <= memory->weight_bytes &&
           (size_t)(tokens * larger(W.shape[0], W.shape[1])) <= memory->codes_bytes;
}

carry_fp8 carry_lm_fp8_wanted(const carry_lm_call *call, bool out, carry_lm_fp8_role role, int64_t columns) {
    const carry_lm_pass *pass = call->pass;
    const bool wants = uses(call, out, role == CARRY_LM_FP8_DY) && pass->options.dtype == CARRY_BF16 &&
                       call->count == pass->tokens && carry_fp8_fits(pass->tokens, columns) &&
                       (size_t)(pass->tokens * columns) <= pass->fp8.codes_bytes;
    return wants ? carry_lm_fp8_matrix(pass, number_of(call, out), role, pass->fp8.codes, pass->tokens, columns)
                 : (carry_fp8){0};
}

void carry_lm_fp8_wrote(const carry_lm_call *call, carry_tensor x) {
    call->pass->fp8.ready = call->pass->options.fp8->is_known ? x.data : NULL;
}

/* Rounds an activation, unless its codes were written with it. */
static carry_status round_activation(carry_lm_pass *pass, carry_fp8 to, carry_tensor x) {
    const bool is_ready = pass->fp8.ready == x.data;
    pass->fp8.ready = NULL;
    return is_ready ? CARRY_OK : carry_lm_fp8_round(pass, to, x);
}

carry_status carry_lm_fp8_linear(const carry_lm_call *call, bool out, carry_tensor y, carry_tensor x, carry_tensor W,
                                 carry_tensor base, bool *done) {
    carry_lm_pass *pass = call->pass;
    const int64_t tokens = x.shape[0];
    *done = uses(call, out, false) && x.dtype == CARRY_BF16 && fits(call, tokens, W);
    if (!*done) {
        return CARRY_OK;
    }
    const int64_t number = number_of(call, out);
    const carry_fp8 a = carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_X, pass->fp8.codes, tokens, W.shape[1]);
    const carry_fp8 b = carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_W, pass->fp8.weight, W.shape[0], W.shape[1]);
    CARRY_TRY(round_activation(pass, a, x));
    CARRY_TRY(carry_lm_fp8_round(pass, b, W));
    pass->fp8.forward |= 1u << carry_lm_fp8_site_of(call, out);
    return carry_fp8_product(pass->ctx, y, a, b, base);
}

carry_status carry_lm_fp8_linear_dx(const carry_lm_call *call, bool out, carry_tensor dx, carry_tensor dy,
                                    carry_tensor W, bool *done) {
    carry_lm_pass *pass = call->pass;
    const int64_t tokens = dy.shape[0];
    *done = uses(call, out, true) && dy.dtype == CARRY_BF16 && dx.data != NULL && fits(call, tokens, W);
    if (!*done) {
        return CARRY_OK;
    }
    const int64_t number = number_of(call, out);
    const carry_fp8 a = carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_DY, pass->fp8.codes, tokens, W.shape[0]);
    const carry_fp8 b = carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_W, pass->fp8.weight, W.shape[1], W.shape[0]);
    CARRY_TRY(round_activation(pass, a, dy));
    CARRY_TRY(carry_lm_fp8_turn(pass, b, W, uses(call, out, false)));
    pass->fp8.dx |= 1u << carry_lm_fp8_site_of(call, out);
    return carry_fp8_product(pass->ctx, dx, a, b, (carry_tensor){0});
}

static bool follows(const carry_tensor *a, int64_t elements, const carry_tensor *b) {
    return (const char *)a->data + elements * (int64_t)carry_dtype_size(a->dtype) == b->data && a->dtype == b->dtype;
}

bool carry_lm_fp8_join(const carry_tensor *y, const carry_tensor *W, int maps, carry_tensor *all_y,
                       carry_tensor *all_W) {
    *all_y = maps > 0 ? y[0] : (carry_tensor){0};
    *all_W = maps > 0 ? W[0] : (carry_tensor){0};
    for (int i = 1; i < maps; i++) {
        if (y[i].stride[0] != y[0].stride[0] || !follows(&y[i - 1], y[i - 1].shape[1], &y[i]) ||
            !follows(&W[i - 1], W[i - 1].shape[0] * W[i - 1].shape[1], &W[i])) {
            return false;
        }
        all_y->shape[1] += y[i].shape[1];
        all_W->shape[0] += W[i].shape[0];
    }
    return maps > 0;
}
