/* The list, the buffers and start values. */
#include "model/parameters.h"
#include "model/parameters_quantised.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/error.h"
#include "core/memory.h"
#include "model/host.h"
#include "ops/quantised/tiles.h"

#define GAP 16 /* elements: every parameter starts on a cache line */

int64_t carry_parameters_room(int64_t count) {
    return (count + GAP - 1) / GAP * GAP;
}

carry_status carry_parameters_open(carry_ctx *ctx, carry_parameters *own, int device, int64_t most) {
    own->ctx = ctx;
    own->device = device;
    own->parameter = calloc((size_t)most, sizeof *own->parameter);
    return own->parameter != NULL
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a list of %" PRId64 " parameters", most);
}

int64_t carry_parameters_add(carry_parameters *own, carry_parameter p) {
    if (p.rank == 0) {
        return -1;
    }
    if (p.cut != CARRY_CUT_NONE && own->ranks > 1) {
        p.shape[p.cut == CARRY_CUT_ROWS ? 0 : 1] /= own->ranks;
    }
    p.count = 1;
    for (int i = 0; i < p.rank; i++) {
        p.count *= p.shape[i];
    }
    p.offset = p.wide = own->count;
    own->count += carry_parameters_room(p.count);
    own->trained += p.count;
    own->parameter[own->parameters] = p;
    return own->parameters++;
}

/* Allocates a flat buffer of `count` elements and zeroes it. */
static carry_status take(const carry_parameters *own, void *buffer, int64_t count, size_t size, const char *what) {
    const size_t bytes = (size_t)count * size;
    void *data = NULL;
    if (carry_device_alloc(own->ctx, &data, own->device, bytes) != CARRY_OK) {
        size_t available = 0;
        size_t total = 0;
        (void)carry_device_memory(own->ctx, &available, &total, own->device);
        return carry_fail(own->ctx, CARRY_EMEMORY,
                          "out of memory: %s of %" PRId64 " parameters need %.2f GB, and %.2f GB are free: about "
                          "%.0f million parameters would fit",
                          what, own->trained, 1e-9 * (double)bytes, 1e-9 * (double)available,
                          1e-6 * (double)available / (double)size);
    }
    *(void **)buffer = data;
    return carry_device_fill(own->ctx, data, own->device, 0, bytes, carry_ctx_stream(own->ctx, own->device));
}

void carry_parameters_narrow(carry_parameters *own, carry_dtype dtype) {
    own->is_narrow = true;
    own->low_dtype = dtype;
    own->wide_count = 0;
    for (int64_t i = 0; i < own->parameters; i++) {
        carry_parameter *p = &own->parameter[i];
        const bool is_wide = !p->may_be_narrow && p->mapped == NULL;
        p->wide = is_wide ? own->wide_count : -1;
        own->wide_count += is_wide ? carry_parameters_room(p->count) : 0;
    }
}

bool carry_parameters_exceed(const carry_parameters *own) {
    size_t available = 0;
    size_t total = 0;
    return carry_device_memory(own->ctx, &available, &total, own->device) == CARRY_OK &&
           (double)own->count * (sizeof(float) + sizeof(uint16_t)) > (double)available;
}

carry_status carry_parameters_allocate(carry_parameters *own) {
    if (own->is_narrow) {
        CARRY_TRY(take(own, &own->low, own->count, carry_dtype_size(own->low_dtype), "the weights"));
    }
    return take(own, &own->weights, own->is_narrow ? own->wide_count : own->count, sizeof(float), "the weights");
}

static carry_status refuse_read_only(const carry_parameters *own, const char *what) {
    return carry_fail(own->ctx, CARRY_EUNSUPPORTED,
                      "the model was opened for reading only, with weights in 16 bits or in the mapped file: %s needs "
                      "it loaded in f32",
                      what);
}

carry_status carry_parameters_want_gradients(carry_parameters *own) {
    if (own->reads_only || own->is_narrow) {
        return refuse_read_only(own, "training");
    }
    return own->gradients != NULL ? carry_parameters_zero_gradients(own)
                                  : take(own, &own->gradients, own->count, sizeof(float), "the gradients");
}

carry_status carry_parameters_zero_gradients(carry_parameters *own) {
    return carry_device_fill(own->ctx, own->gradients, own->device, 0, (size_t)own->count * sizeof(float),
                             carry_ctx_stream(own->ctx, own->device));
}

carry_status carry_parameters_want_low(carry_parameters *own, carry_dtype dtype) {
    if (own->low != NULL) {
        return own->low_dtype == dtype
                   ? CARRY_OK
                   : carry_fail(
                         own->ctx, CARRY_EUNSUPPORTED,
                         "the weights have copies in %s already: only one 16-bit type at a time is supported, not "
                         "%s too",
                         carry_dtype_name(own->low_dtype), carry_dtype_name(dtype));
    }
    own->low_dtype = dtype;
    CARRY_TRY(take(own, &own->low, own->count, carry_dtype_size(dtype), "the 16-bit copies of the weights"));
    return carry_parameters_round(own);
}

carry_tensor carry_parameters_low(const carry_parameters *own, int64_t first, int64_t count) {
    unsigned char *data = own->low;
    if (data == NULL) {
        return (carry_tensor){0};
    }
    carry_tensor view = carry_view_1d(data + (size_t)first * carry_dtype_size(own->low_dtype), own->low_dtype, count);
    view.device = own->device;
    return view;
}

carry_status carry_parameters_round(carry_parameters *own) {
    for (int64_t i = 0; own->is_narrow && i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        if (p->wide >= 0) {
            CARRY_TRY(carry_convert(own->ctx, carry_parameters_low(own, p->offset, p->count),
                                    carry_parameters_flat(own, own->weights, p->wide, p->count)));
        }
    }
    if (own->is_narrow) {
        return CARRY_OK;
    }
    return own->low != NULL ? carry_convert(own->ctx, carry_parameters_low(own, 0, own->count),
                                            carry_parameters_flat(own, own->weights, 0, own->count))
                            : CARRY_OK;
}

void carry_parameters_free(carry_parameters *own) {
    for (int64_t i = 0; i < own->parameters; i++) {
        if (own->device == 0) {
            free(own->parameter[i].blocks);
        } else {
            carry_device_free(own->ctx, own->device, own->parameter[i].blocks);
        }
    }
    carry_device_free(own->ctx, own->device, own->weights);
    carry_device_free(own->ctx, own->device, own->gradients);
    carry_device_free(own->ctx, own->device, own->low);
    free(own->parameter);
    carry_weights_close(&own->files);
    *own = (carry_parameters){0};
}

carry_tensor carry_parameters_view(const carry_parameters *own, float *buffer, int64_t index) {
    const carry_parameter *p = &own->parameter[index];
    if (p->mapped != NULL && buffer == own->weights && p->mapped_dtype == CARRY_QUANTISED && p->rank == 3) {
        return carry_quant_stack_view(own->device, p->blocks, p->format, p->shape[0], p->shape[1], p->shape[2]);
    }
    if (p->mapped != NULL && buffer == own->weights && p->mapped_dtype == CARRY_QUANTISED) {
        carry_tensor view = carry_quant_view_on(own->device, p->mapped, p->format, p->shape[0], p->shape[1]);
        view.stride[2] = p->is_square ? CARRY_QUANT_SQUARE : 0;
        return view;
    }
    if (p->mapped != NULL && buffer == own->weights) {
        return carry_view((void *)(uintptr_t)p->mapped, p->mapped_dtype, p->rank, p->shape); /* only read */
    }
    carry_tensor view = carry_view(NULL, CARRY_F32, p->rank, p->shape);
    if (p->wide < 0 && buffer == own->weights) {
        view.data = carry_parameters_low(own, p->offset, p->count).data;
        view.dtype = own->low_dtype;
    } else {
        view.data = buffer + p->wide;
    }
    view.device = own->device;
    return view;
}

carry_tensor carry_parameters_flat(const carry_parameters *own, float *buffer, int64_t first, int64_t count) {
    carry_tensor view = carry_view_1d(buffer + first, CARRY_F32, count);
    view.device = own->device;
    return view;
}

carry_tensor carry_parameters_product(const carry_parameters *own, int64_t index) {
    carry_tensor view = carry_parameters_view(own, own->weights, index);
    if (own->low != NULL && own->parameter[index].mapped == NULL) {
        view.data = carry_parameters_low(own, own->parameter[index].offset, view.shape[0]).data;
        view.dtype = own->low_dtype;
    }
    return view;
}

static int64_t find_spared(const carry_parameters *own, int64_t first, int64_t count, int64_t *ranges) {
    int64_t found = 0;
    for (int64_t i = 0, next; i < own->parameters; i = next) { /* neighbours with the same `decays` form one range */
        for (next = i + 1; next < own->parameters && own->parameter[next].decays == own->parameter[i].decays; next++) {
        }
        int64_t from = own->parameter[i].offset - first;
        int64_t end = (next < own->parameters ? own->parameter[next].offset : own->count) - first;
        from = from > 0 ? from : 0;
        end = end < count ? end : count;
        if (!own->parameter[i].decays && end > from) {
            if (ranges != NULL) {
                ranges[found] = from;
                ranges[found + 1] = end;
            }
            found += 2;
        }
    }
    return found;
}

int64_t carry_parameters_spared(const carry_parameters *own, int64_t first, int64_t count) {
    return find_spared(own, first, count, NULL);
}

carry_status carry_parameters_put_spared(const carry_parameters *own, carry_tensor to, int64_t first, int64_t count) {
    const int64_t numbers = find_spared(own, first, count, NULL);
    int64_t *ranges = calloc((size_t)numbers + 1, sizeof *ranges);
    if (ranges == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " numbers", numbers);
    }
    find_spared(own, first, count, ranges);
    carry_status status = numbers > 0 ? carry_copy(own->ctx, to, carry_view_1d(ranges, CARRY_I64, numbers)) : CARRY_OK;
    free(ranges);
    return status;
}

const carry_parameter *carry_parameters_find(const carry_parameters *own, const char *name) {
    for (int64_t i = 0; i < own->parameters; i++) {
        if (strcmp(own->parameter[i].name, name) == 0) {
            return &own->parameter[i];
        }
    }
    return NULL;
}

carry_status carry_parameters_upload(const carry_parameters *own, float *buffer, int64_t first, const float *from,
                                     int64_t count) {
    /* carry_view_1d takes a pointer to non-const; the copy only reads `from`. */
    return carry_copy(own->ctx, carry_parameters_flat(own, buffer, first, count),
                      carry_view_1d((void *)(uintptr_t)from, CARRY_F32, count));
}

carry_status carry_parameters_download(const carry_parameters *own, float *to, float *buffer, int64_t first,
                                       int64_t count) {
    return carry_read(own->ctx, carry_view_1d(to, CARRY_F32, count), carry_parameters_flat(own, buffer, first, count));
}

/* Reads elements that exist only in 16 bits. */
static carry_status sample_low(const carry_parameters *own, float *to, const carry_parameter *p, int64_t count) {
    const carry_tensor from = carry_parameters_low(own, p->offset, count);
    uint16_t *bits = carry_aligned_new((size_t)count * sizeof *bits);
    if (bits == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " numbers", count);
    }
    const carry_tensor here = carry_view_1d(bits, own->low_dtype, count);
    carry_status status = carry_read(own->ctx, here, from);
    status = status == CARRY_OK ? carry_convert(own->ctx, carry_view_1d(to, CARRY_F32, count), here) : status;
    free(bits);
    return status;
}

carry_status carry_parameters_sample(const carry_parameters *own, float *to, int64_t index, int64_t count) {
    const carry_parameter *p = &own->parameter[index];
    if (p->mapped != NULL && p->mapped_dtype == CARRY_QUANTISED) {
        return carry_parameters_sample_quantised(own, to, index, count);
    }
    if (p->mapped != NULL) {
        return carry_convert(own->ctx, carry_view_1d(to, CARRY_F32, count),
                             carry_view_1d((void *)(uintptr_t)p->mapped, p->mapped_dtype, count));
    }
    return p->wide < 0 ? sample_low(own, to, p, count)
                       : carry_parameters_download(own, to, own->weights, p->wide, count);
}

carry_status carry_parameters_see(const carry_parameters *own, float *buffer, const float **seen, float **copied) {
    *seen = buffer;
    *copied = NULL;
    if (own->device == 0) {
        return CARRY_OK;
    }
    *seen = *copied = carry_aligned_new((size_t)own->count * sizeof(float));
    if (*copied == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: a copy of %" PRId64 " numbers", own->count);
    }
    return carry_parameters_download(own, *copied, buffer, 0, own->count);
}

/* Converts this rank's part of the whole tensor to f32 in host memory. The part is contiguous in the whole tensor if
   the first index is split over ranks, and a piece of each row if the second one is. */
static carry_status take_part(const carry_parameters *own, const carry_parameter *p, float *to, const void *whole,
                              carry_dtype dtype) {
    const int ranks = own->ranks > 1 ? own->ranks : 1;
    const unsigned char *from = whole;
    const size_t size = carry_dtype_size(dtype);
    const int64_t rows = p->cut == CARRY_CUT_COLUMNS ? p->shape[0] : 1;
    const int64_t columns = p->count / rows;
    const int64_t next = p->cut == CARRY_CUT_COLUMNS ? columns * ranks : columns;
    const int64_t first = p->cut != CARRY_CUT_NONE ? columns * own->rank : 0;
    for (int64_t row = 0; row < rows; row++) {
        /* carry_view_1d takes a pointer to non-const; the conversion only reads it. */
        void *piece = (void *)(uintptr_t)(from + (size_t)(first + row * next) * size);
        CARRY_TRY(carry_convert(own->ctx, carry_view_1d(to + row * columns, CARRY_F32, columns),
                                carry_view_1d(piece, dtype, columns)));
    }
    return CARRY_OK;
}

/* Stores elements that exist only in 16 bits, rounded. */
static carry_status put_low(const carry_parameters *own, const carry_parameter *p, float *part) {
    uint16_t *bits = carry_aligned_new((size_t)p->count * sizeof *bits);
    if (bits == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    const carry_tensor here = carry_view_1d(bits, own->low_dtype, p->count);
    carry_status status = carry_convert(own->ctx, here, carry_view_1d(part, CARRY_F32, p->count));
    status = status == CARRY_OK ? carry_copy(own->ctx, carry_parameters_low(own, p->offset, p->count), here) : status;
    free(bits); /* a copy from memory that is not pinned has read it on return */
    return status;
}

carry_status carry_parameters_put_part(carry_parameters *own, int64_t index, float *part) {
    const carry_parameter *p = &own->parameter[index];
    return p->wide < 0 ? put_low(own, p, part) : carry_parameters_upload(own, own->weights, p->wide, part, p->count);
}

carry_status carry_parameters_put(carry_parameters *own, int64_t index, const void *whole, carry_dtype dtype) {
    const carry_parameter *p = &own->parameter[index];
    if (own->device == 0 && p->wide >= 0) {
        return take_part(own, p, own->weights + p->wide, whole, dtype);
    }
    float *part = carry_aligned_new((size_t)p->count * sizeof *part);
    if (part == NULL) {
        return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    carry_status status = take_part(own, p, part, whole, dtype);
    status = status == CARRY_OK ? carry_parameters_put_part(own, index, part) : status;
    free(part);
    return status;
}

carry_status carry_parameters_start(carry_parameters *own,
                                    carry_status (*fill)(const void *model, const carry_parameter *p,
                                                         carry_tensor whole, uint64_t seed),
                                    const void *model, uint64_t seed) {
    carry_status status = own->reads_only ? refuse_read_only(own, "giving it start values") : CARRY_OK;
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        const bool is_cut = p->cut != CARRY_CUT_NONE && own->ranks > 1;
        if (own->device == 0 && !is_cut && !own->is_narrow) {
            status = fill(model, p, carry_view_1d(own->weights + p->offset, CARRY_F32, p->count), seed);
            continue;
        }
        const int64_t count = p->count * (is_cut ? own->ranks : 1);
        float *whole = carry_aligned_new((size_t)count * sizeof *whole);
        if (whole == NULL) {
            return carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: the whole of %s", p->name);
        }
        status = fill(model, p, carry_view_1d(whole, CARRY_F32, count), seed);
        status = status == CARRY_OK ? carry_parameters_put(own, i, whole, CARRY_F32) : status;
        free(whole);
    }
    return status == CARRY_OK ? carry_parameters_round(own) : status;
}
