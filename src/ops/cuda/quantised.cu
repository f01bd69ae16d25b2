/* Quantised weights on NVIDIA GPUs: packed into tiles (ops/quantised/tiles.h), decoded, and multiplied.

   For up to FEW_ROWS rows of bf16 or f32 activations on a Hopper GPU, and for any number while a stream is captured,
   the weight is read in its quantised form (quantised_ring_hopper.cuh). For many rows in bf16, 8-bit floats are
   multiplied with 8-bit activations (quantised_fp8_hopper.cu). Otherwise the weight's rows are decoded into a buffer in
   the type of the activations, DECODED_BYTES at a time, and multiplied like other weights. */
#include "ops/cuda/quantised.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/quantised_linear.cuh"

using namespace quantised;

constexpr int64_t FEW_ROWS = 2 * CARRY_TILE_PRODUCT_ROWS;

struct source {
    const unsigned char *blocks; /* rows of blocks */
    size_t row_bytes;
    int block, bytes; /* columns and bytes of a block of the format */
    int count;        /* rows */
};

static __device__ __forceinline__ element element_at(const carry_quant_tiles &l, const source &from, int row,
                                                     int column) {
    if (row >= from.count || column >= l.columns) {
        return element{0, 0.0f, 0.0f};
    }
    const unsigned char *at = from.blocks + (size_t)row * from.row_bytes;
    return element_of(l.format, at + (size_t)(column / from.block) * from.bytes, column % from.block);
}

/* The factor of a row: the power of two above its largest scale or minimum. A warp has a row. */
static __global__ void pack_factors(carry_quant_tiles l, source from, unsigned char *to) {
    const int row = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32), lane = (int)threadIdx.x % 32;
    float largest = 0.0f;
    for (int column = lane * l.group; column < l.columns; column += 32 * l.group) {
        const element e = element_at(l, from, row, column);
        largest = fmaxf(largest, fmaxf(fabsf(e.scale), fabsf(e.minimum)));
    }
    for (int apart = 16; apart > 0; apart >>= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
    }
    if (lane == 0 && row < (from.count + 15) / 16 * 16) {
        int exponent = 0;
        (void)frexpf(largest, &exponent);
        float *factors = (float *)(to + (size_t)(row / 16) * l.tile_bytes + l.factors_at);
        factors[row % 16] = l.has_wide_scales || largest == 0.0f ? 1.0f : ldexpf(1.0f, exponent);
    }
}

/* A thread packs the 16 bytes of one lane. */
static __global__ void pack_codes(carry_quant_tiles l, source from, unsigned char *to) {
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int pieces = (int)(l.code_bytes / 512); /* of a unit; 512 bytes belong to the lanes of a warp */
    const int64_t each = l.units * pieces * 32;
    const int tile = (int)(at / each), piece = (int)(at % each) / 32, g = (int)(at % 32) / 4, t = (int)(at % 4);
    unsigned words[4];
    if (tile >= (from.count + 15) / 16) {
        return;
    }
    for (int w = 0; w < 4; w++) {
        const int row = tile * 16 + g + w % 2 * 8;
        words[w] = 0;
        for (int i = 0; i < 32 / l.bits; i++) {
            const int column = l.bits == 8 ? piece * 32 + 8 * t + w / 2 * 4 + i
                                           : piece * 64 + w / 2 * 32 + 8 * t + 2 * (i % 4) + i / 4;
            const int code = element_at(l, from, row, column).code;
            words[w] |= l.format == CARRY_QUANT_IS_fp8_block ? (unsigned)code << (8 * i)
                        : l.bits == 8                        ? (unsigned)((code + 128) & 255) << (8 * i)
                                                             : (unsigned)((code + 8) & 15) << (4 * i);
        }
    }
    unsigned char *unit = to + (size_t)tile * l.tile_bytes + (size_t)(piece / pieces) * l.unit_bytes;
    ((uint4 *)unit)[piece % pieces * 32 + at % 32] = make_uint4(words[0], words[1], words[2], words[3]);
}

/* A thread packs the scales and minima of rows g and g + 8 for one group. */
static __global__ void pack_scales(carry_quant_tiles l, source from, unsigned char *to, int groups) {
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int tile = (int)(at / ((int64_t)groups * 8)), group = (int)(at / 8 % groups), g = (int)(at % 8);
    if (tile >= (from.count + 15) / 16) {
        return;
    }
    unsigned char *own = to + (size_t)tile * l.tile_bytes;
    unsigned char *unit = own + (size_t)(group * l.group / CARRY_QUANT_UNIT_COLUMNS) * l.unit_bytes;
    const int index = scale_index(l, g, group);
    for (int second = 0; second < 2; second++) {
        const element e = element_at(l, from, tile * 16 + g + second * 8, group * l.group);
        const float factor = ((const float *)(own + l.factors_at))[g + second * 8];
        if (l.has_wide_scales) {
            ((float *)(unit + l.code_bytes))[index + second] = e.scale;
            continue;
        }
        uint16_t *scales = (uint16_t *)(unit + l.code_bytes);
        scales[index + second] = type_f16::narrow(e.scale / factor);
        if (l.has_minimum) {
            scales[index + 2 + second] = type_f16::narrow(e.minimum / factor);
        }
    }
}

static unsigned threads_for(int64_t count) {
    return (unsigned)((count + THREADS - 1) / THREADS);
}

extern "C" carry_status carry_cuda_quantised_pack(carry_ctx *ctx, carry_tensor W, const void *blocks) {
    const carry_quant_format *format = carry_quant_format_of(&W);
    carry_quant_tiles l;
    place at = {};
    (void)carry_quant_tiles_of_tensor(&l, &W); /* checked by the caller */
    const source from = {(const unsigned char *)blocks, carry_quant_row_bytes(format, W.shape[1]), (int)format->block,
                         (int)format->bytes, (int)W.shape[0]};
    const int groups = (int)(l.units * CARRY_QUANT_UNIT_COLUMNS / l.group);
    const int64_t lanes = l.tiles * l.units * (int64_t)(l.code_bytes / 16), records = l.tiles * groups * 8;
    CARRY_TRY(open_place(ctx, &at, W.device));
    if (l.tiles < 1 || l.units < 1) {
        return CARRY_OK;
    }
    if (lanes / THREADS >= INT32_MAX || records / THREADS >= INT32_MAX) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "a quantised matrix of %lld x %lld is too large for a GPU here",
                          (long long)W.shape[0], (long long)W.shape[1]);
    }
    pack_factors<<<threads_for(l.tiles * 16 * 32), THREADS, 0, at.stream>>>(l, from, (unsigned char *)W.data);
    pack_codes<<<threads_for(lanes), THREADS, 0, at.stream>>>(l, from, (unsigned char *)W.data);
    pack_scales<<<threads_for(records), THREADS, 0, at.stream>>>(l, from, (unsigned char *)W.data, groups);
    return launched(ctx, at, "quantised blocks cannot be packed");
}

/* Decodes rows first to first + rows - 1, or the rows in ids, each of `columns` elements. A thread has 8 columns. */
template <typename T>
static __global__ void decode_kernel(row_of<T> to, carry_quant_tiles l, const unsigned char *tiles, const int64_t *ids,
                                     int64_t first, int64_t rows) {
    const int64_t eighths = (l.columns + 7) / 8, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * eighths; i += step) {
        const int64_t row = i / eighths, from = ids != nullptr ? ids[row] : first + row;
        const int column = (int)(i % eighths) * 8;
        const bool is_there = from >= 0 && from < l.rows;
        float values[8];
        if (is_there) {
            decode_8_columns(values, l, tiles + (size_t)(from / 16) * l.tile_bytes, (int)(from % 16), column);
        }
        if (sizeof(typename T::stored) == 2 && l.columns % 8 == 0) {
            typename T::stored low[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                low[j] = T::narrow(is_there ? values[j] : NAN);
            }
            *(uint4 *)(to.data + row * l.columns + column) = *(const uint4 *)low;
            continue;
        }
        for (int j = 0; j < 8 && column + j < l.columns; j++) {
            to.put(row * l.columns + column + j, is_there ? values[j] : NAN);
        }
    }
}

static carry_status decode(carry_ctx *ctx, const place &at, void *to, carry_dtype dtype, const carry_quant_tiles &l,
                           const carry_tensor &W, const int64_t *ids, int64_t first, int64_t rows) {
    const unsigned blocks = blocks_for(rows * ((l.columns + 7) / 8), THREADS);
    with_type(dtype, [&](auto type) {
        using T = decltype(type);
        decode_kernel<T><<<blocks, THREADS, 0, at.stream>>>(row_of<T>{(typename T::stored *)to}, l,
                                                            (const unsigned char *)W.data, ids, first, rows);
    });
    return launched(ctx, at, "quantised rows cannot be decoded");
}

carry_status quantised_embed(carry_ctx *ctx, carry_tensor y, carry_tensor table, const int64_t *ids) {
    carry_quant_tiles l;
    place at = {};
    (void)carry_quant_tiles_of_tensor(&l, &table);
    CARRY_TRY(open_place(ctx, &at, y.device));
    return decode(ctx, at, y.data, y.dtype, l, table, ids, 0, y.shape[0]);
}

carry_status quantised_decoded(carry_ctx *ctx, carry_tensor *decoded, const carry_tensor &W, carry_dtype dtype) {
    carry_quant_tiles l;
    place at = {};
    void *data = NULL;
    (void)carry_quant_tiles_of_tensor(&l, &W);
    CARRY_TRY(open_place(ctx, &at, W.device));
    CARRY_TRY(carry_cuda_alloc_on(ctx, &data, at.ordinal, (size_t)(l.rows * l.columns) * carry_dtype_size(dtype),
                                  (carry_stream *)at.stream));
    *decoded = carry_view_on(W.device, data, dtype, 2, W.shape);
    return decode(ctx, at, data, dtype, l, W, NULL, 0, l.rows);
}

carry_status quantised_experts_decoded(carry_ctx *ctx, const place &at, void *to, carry_dtype dtype,
                                       const carry_tensor &W, int64_t first, int64_t count) {
    carry_quant_tiles l;
    const carry_tensor one = carry_quant_matrix_of(&W, first);
    (void)carry_quant_tiles_of_tensor(&l, &one);
    if (count > 1 && W.stride[0] != (int64_t)l.all_bytes) {
        return carry_fail(ctx, CARRY_ESTRIDE, "quantised experts are %lld bytes apart: %zu are needed",
                          (long long)W.stride[0], l.all_bytes);
    }
    l.rows *= count; /* a matrix has a whole number of tiles */
    return decode(ctx, at, to, dtype, l, one, NULL, 0, l.rows);
}

/* Decodes rows and multiplies with them. */
static carry_status by_decoding(carry_ctx *ctx, const place &at, const carry_quant_tiles &l, matrix c, int64_t m,
                                matrix a, const carry_tensor &W, int device, const void *base) {
    const size_t size = carry_dtype_size(a.type), row = (size_t)l.columns * size;
    int64_t rows = (int64_t)(DECODED_BYTES / (row + 1)) / 16 * 16;
    rows = rows < 16 ? 16 : rows < l.rows ? rows : l.rows;
    void *decoded = NULL;
    CARRY_TRY(carry_cuda_alloc_on(ctx, &decoded, at.ordinal, (size_t)rows * row, (carry_stream *)at.stream));
    carry_status status = CARRY_OK;
    for (int64_t first = 0; status == CARRY_OK && first < l.rows; first += rows) {
        const int64_t some = l.rows - first < rows ? l.rows - first : rows;
        const size_t before = (size_t)first * carry_dtype_size(c.type);
        matrix part = c;
        part.data = (const char *)c.data + before;
        status = decode(ctx, at, decoded, a.type, l, W, NULL, first, some);
        status = status == CARRY_OK
                     ? multiply_into(ctx, device, part, m, some, l.columns, a, matrix{decoded, a.type, l.columns, true},
                                     base != NULL ? (const char *)base + before : NULL)
                     : status;
    }
    carry_cuda_free_on(ctx, at.ordinal, decoded, (carry_stream *)at.stream);
    return status;
}

/* Multiplies with the quantised weight directly, CARRY_TILE_PRODUCT_ROWS rows of activations at a time. */
carry_status quantised_by_tiles(carry_ctx *ctx, const place &at, matrix c, int64_t m, matrix a, const carry_tensor &W,
                                const void *base) {
    carry_quant_tiles l;
    (void)carry_quant_tiles_of_tensor(&l, &W);
    carry_tile_product p = {};
    p.maps[0] = carry_tile_map{(const unsigned char *)W.data, (int)l.rows, 0, 0};
    p.count = 1;
    p.x = a.data;
    p.x_stride = a.row;
    p.y_stride = c.row;
    p.x_is_wide = a.type == CARRY_F32;
    p.y_is_wide = c.type == CARRY_F32;
    p.output = base != NULL ? CARRY_TILE_ADD : CARRY_TILE_STORE;
    carry_tile_product_finish(&p, &l);
    for (int64_t row = 0; row < m; row += CARRY_TILE_PRODUCT_ROWS) {
        const int64_t rows = m - row < CARRY_TILE_PRODUCT_ROWS ? m - row : CARRY_TILE_PRODUCT_ROWS;
        p.x = (const char *)a.data + (size_t)(row * a.row) * carry_dtype_size(a.type);
        p.y = (char *)c.data + (size_t)(row * c.row) * carry_dtype_size(c.type);
        p.base = base != NULL ? p.y : NULL;
        CARRY_TRY(carry_cuda_tile_product(ctx, at.ordinal, (carry_stream *)at.stream, &p, (int)rows, false));
    }
    return CARRY_OK;
}

bool is_recorded(const place &at) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(at.stream, &capture);
    return capture != cudaStreamCaptureStatusNone;
}

carry_status quantised_linears(carry_ctx *ctx, int device, const matrix *c, int64_t m, const matrix &a,
                               const carry_tensor *W, int count, int *done) {
    place at = {};
    *done = 0;
    CARRY_TRY(open_place(ctx, &at, device));
    return is_recorded(at) || !carry_cuda_tile_product_works(at.ordinal)
               ? CARRY_OK
               : quantised_fp8(ctx, at, c, m, a, W, count, NULL, done);
}

carry_status quantised_linear(carry_ctx *ctx, int device, matrix c, int64_t m, matrix a, const carry_tensor &W,
                              const void *base) {
    carry_quant_tiles l;
    place at = {};
    if (!carry_quant_tiles_of_tensor(&l, &W)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "W is quantised in tiles that no format has");
    }
    CARRY_TRY(open_place(ctx, &at, device));
    if (m < 1 || l.rows < 1) {
        return CARRY_OK;
    }
    if (base != NULL && base != c.data) {
        const int ordinal = at.ordinal;
        CARRY_CUDA_TRY(cudaMemcpyAsync((void *)c.data, base, (size_t)(m * c.row) * carry_dtype_size(c.type),
                                       cudaMemcpyDeviceToDevice, at.stream),
                       "the base of a product cannot be copied");
        base = c.data;
    }
    const bool is_few = (m <= FEW_ROWS || is_recorded(at)) && a.type != CARRY_F16 && c.type != CARRY_F16;
    const bool works = carry_cuda_tile_product_works(at.ordinal);
    if (is_few && works) {
        return quantised_by_tiles(ctx, at, c, m, a, W, base);
    }
    int done = 0;
    CARRY_TRY(works && !is_recorded(at) ? quantised_fp8(ctx, at, &c, m, a, &W, 1, base, &done) : CARRY_OK);
    return done == 1 ? CARRY_OK : by_decoding(ctx, at, l, c, m, a, W, device, base);
}
