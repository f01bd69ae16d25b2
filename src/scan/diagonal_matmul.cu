/* Diagonal transitions as small matrix products on the tensor cores.

   r steps of one row are a product with a decayed triangle, y = L x, L[i][j] = a[j+1] ... a[i], whose columns are the w
   channels of the row. A warp takes 16 steps: one triangle of radix 16, or 2 of 8, or 4 of 4 on the diagonal of its 16 x
   16 matrix. The groups' last rows and total decays are a scan of the same kind, r times shorter, done the same way in
   shared memory, and so on until one group is left; coming down, every row adds its decay times the full prefix before
   its group. Every byte of b and h moves once.

   Products are m16n8k8 of tf32 with f32 sums. A factor is split in two, x = high + low: high is x cut off after tf32's
   bits, low the exact rest, cut off by the unit itself; low x low is left out. The error stays at 2^-21 of a product. bf16
   and f16 values are exact in tf32, so b in 16 bits needs no low part.

   Which column of b stands at which n of a product is free. Column 4 (n/2) + 16 (n%2) + j is column n of product j: so a
   lane loads four neighbouring columns for four products and stores four at a time, and the lanes that do so together
   touch whole sectors of memory. */
#include "scan/diagonal.cuh"

namespace {

constexpr int COLUMNS = 32; /* of a block: with 64 the registers spill, 1.07 ms instead of what docs/results/cuda.md says */
constexpr int HALVES = COLUMNS / 32;
constexpr int WARPS = 16;   /* at most; 16 steps each */
constexpr int TRIANGLE = 17; /* words of a row, one more than 16 to spread the banks; 16 rows are whole float4 */
constexpr int ROW = COLUMNS + 4;

struct split {
    unsigned high, low;
};

__device__ __forceinline__ split split_of(float x) {
    unsigned high = __float_as_uint(x) & 0xffffe000u; /* a conversion instruction would take four times as long */
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A 16 x 16 matrix in a warp's registers, split. */
struct matrix {
    unsigned high[2][4], low[2][4];

    __device__ __forceinline__ void load(const float *triangle) {
        int g = (int)threadIdx.x / 4;
        int q = (int)threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                split s = split_of(triangle[(g + 8 * (i % 2)) * TRIANGLE + 8 * half + q + 4 * (i / 2)]);
                high[half][i] = s.high;
                low[half][i] = s.low;
            }
        }
    }
    /* c += this x, x the lane's four rows q, q+4, q+8, q+12 of one column. */
    template <bool EXACT> __device__ __forceinline__ void apply(float (&c)[4], const float (&x)[4]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (EXACT) { /* x has no low part */
                unsigned b0 = __float_as_uint(x[2 * half]);
                unsigned b1 = __float_as_uint(x[2 * half + 1]);
                multiply(c, low[half], b0, b1);
                multiply(c, high[half], b0, b1);
            } else {
                split b0 = split_of(x[2 * half]);
                split b1 = split_of(x[2 * half + 1]);
                multiply(c, low[half], b0.high, b1.high);
                multiply(c, high[half], b0.low, b1.low);
                multiply(c, high[half], b0.high, b1.high);
            }
        }
    }
};

/* The triangles of 16 decays, and for each step the product of the decays from its group's start. By one warp. */
template <int RADIX> __device__ __forceinline__ void build(float *triangle, float *cumulative, const float *decays) {
    int j = (int)threadIdx.x % 16;
    if (threadIdx.x < 16) {
        float value = 1.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            bool inside = i >= j && i / RADIX == j / RADIX;
            value = i > j ? value * decays[i] : value;
            triangle[i * TRIANGLE + j] = inside ? value : 0.0f;
            if (inside && j % RADIX == 0) {
                cumulative[i] = value * decays[j];
            }
        }
    }
    __syncwarp();
}

/* One level in shared memory: `rows` (a multiple of 16) rows of COLUMNS values become prefixes inside their groups. */
template <int RADIX>
__device__ __forceinline__ void level(float *values, float *cumulative, const float *decays, float *triangles, int rows,
                                      int warps) {
    int warp = (int)threadIdx.y;
    if (warp < rows / 16) {
        build<RADIX>(triangles + warp * 16 * TRIANGLE, cumulative + warp * 16, decays + warp * 16);
    }
    __syncthreads();
    int g = (int)threadIdx.x / 4;
    int q = (int)threadIdx.x % 4;
    for (int task = warp; task < rows / 16 * (COLUMNS / 8); task += warps) {
        float *block = values + task / (COLUMNS / 8) * 16 * ROW + task % (COLUMNS / 8) * 8;
        matrix m;
        m.load(triangles + task / (COLUMNS / 8) * 16 * TRIANGLE);
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = block[(q + 4 * i) * ROW + g];
        }
        float c[4] = {};
        m.apply<false>(c, x);
        __syncwarp();
        block[g * ROW + 2 * q] = c[0];
        block[g * ROW + 2 * q + 1] = c[1];
        block[(g + 8) * ROW + 2 * q] = c[2];
        block[(g + 8) * ROW + 2 * q + 1] = c[3];
    }
    __syncthreads();
}

__host__ __device__ constexpr int padded(int rows) {
    return (rows + 15) / 16 * 16;
}

/* Rows in shared memory of all levels above the registers, for so many warps. */
__host__ __device__ constexpr int level_rows(int warps, int radix) {
    int rows = 0;
    for (int count = warps * 16 / radix; ; count = (count + radix - 1) / radix) {
        rows += padded(count);
        if (count <= radix) {
            return rows;
        }
    }
}

template <typename TB, typename TH, int RADIX>
__global__ void __launch_bounds__(32 * WARPS, 2) matmul_kernel(const carry_diagonal d) {
    extern __shared__ float shared[];
    int warps = (int)blockDim.y;
    int warp = (int)threadIdx.y;
    int g = (int)threadIdx.x / 4;
    int q = (int)threadIdx.x % 4;
    int thread = warp * 32 + (int)threadIdx.x;
    int all = level_rows(warps, RADIX);
    float *triangles = shared;
    float *values = triangles + warps * 16 * TRIANGLE;
    float *state = values + all * ROW;
    float *decays = state + COLUMNS; /* of the steps, then of each level */
    float *cumulative = decays + warps * 16 + all;
    int rows_of_width = (d.width + COLUMNS - 1) / COLUMNS;
    int row = (int)blockIdx.x / rows_of_width;
    int column = (int)blockIdx.x % rows_of_width * COLUMNS;
    int item = (int)blockIdx.y;
    int64_t channel = (int64_t)row * d.width + column;
    if (thread < COLUMNS) {
        float initial = 0.0f;
        if (d.h0.data != nullptr && column + thread < d.width) {
            initial = carry_load_any(d.h0.data, d.h0.type, item * d.h0.item + channel + thread);
        }
        state[thread] = initial;
    }
    for (int64_t tile = 0; tile < d.steps; tile += warps * 16) {
        int64_t first = tile + warp * 16;
        carry_pack<4, TB> raw[4][HALVES];
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                int64_t t = first + q + 4 * i;
                int place = 32 * half + 16 * (g % 2) + 4 * (g / 2);
                if (t < d.steps && column + place < d.width) {
                    raw[i][half].load(static_cast<const TB *>(d.b.data) + item * d.b.item + t * d.b.step + channel +
                                      place);
                } else {
                    const float zero[4] = {};
                    raw[i][half].pack(zero);
                }
            }
        }
        if (thread < warps * 16) {
            int64_t t = tile + thread;
            decays[thread] = t < d.steps ? carry_load_any(d.A.data, d.A.type, item * d.A.item + t * d.A.step + row) : 1.0f;
        }
        __syncthreads();
        build<RADIX>(triangles + warp * 16 * TRIANGLE, cumulative + warp * 16, decays + warp * 16);
        float y[4 * HALVES][4] = {};
        {
            matrix m;
            m.load(triangles + warp * 16 * TRIANGLE);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                float x[4][4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    raw[i][half].expand(x[i]);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float lane[4] = {x[0][j], x[1][j], x[2][j], x[3][j]};
                    m.apply<sizeof(TB) == 2>(y[4 * half + j], lane);
                }
            }
        }
        __syncthreads(); /* level 1 uses the triangles' room */
        /* The last rows of the groups. */
        float *level_decays = decays + warps * 16;
        float *level_cumulative = cumulative + warps * 16;
        int groups = 16 / RADIX;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int step = g + 8 * side;
            if (step % RADIX == RADIX - 1) {
                float *end = values + (warp * groups + step / RADIX) * ROW;
#pragma unroll
                for (int j = 0; j < 4 * HALVES; j++) {
                    end[32 * (j / 4) + 4 * q + j % 4] = y[j][2 * side];
                    end[32 * (j / 4) + 16 + 4 * q + j % 4] = y[j][2 * side + 1];
                }
                if (q == 0) {
                    level_decays[warp * groups + step / RADIX] = cumulative[warp * 16 + step];
                }
            }
        }
        /* Up: level by level; rows that pad a level to 16 are no change: decay 1, value 0. */
        int count = warps * groups;
        int offset = 0;
        for (;;) {
            for (int i = thread; i < (padded(count) - count) * COLUMNS; i += warps * 32) {
                values[(offset + count + i / COLUMNS) * ROW + i % COLUMNS] = 0.0f;
            }
            for (int i = count + thread; i < padded(count); i += warps * 32) {
                level_decays[offset + i] = 1.0f;
            }
            __syncthreads();
            level<RADIX>(values + offset * ROW, level_cumulative + offset, level_decays + offset, triangles,
                         padded(count), warps);
            if (count <= RADIX) {
                break;
            }
            int next = (count + RADIX - 1) / RADIX;
            int above = offset + padded(count);
            for (int i = thread; i < next * COLUMNS; i += warps * 32) {
                int end = i / COLUMNS * RADIX + RADIX - 1; /* inside the padded rows */
                values[(above + i / COLUMNS) * ROW + i % COLUMNS] = values[(offset + end) * ROW + i % COLUMNS];
            }
            for (int i = thread; i < next; i += warps * 32) {
                level_decays[above + i] = level_cumulative[offset + i * RADIX + RADIX - 1];
            }
            count = next;
            offset = above;
        }
        /* Down: the state that enters the tile joins at the top, and each level adds what stands before its groups. */
        for (int above = -1;;) {
            for (int i = thread; i < count * COLUMNS; i += warps * 32) {
                int at = i / COLUMNS;
                int group = at / RADIX;
                float before = group == 0 || above < 0 ? state[i % COLUMNS]
                                                       : values[(above + group - 1) * ROW + i % COLUMNS];
                float *value = &values[(offset + at) * ROW + i % COLUMNS];
                *value = fmaf(level_cumulative[offset + at], before, *value);
            }
            __syncthreads();
            if (offset == 0) {
                break;
            }
            above = offset;
            int wanted = 0; /* the level below starts where the rows before `offset` do */
            int below = warps * groups;
            while (wanted + padded(below) < offset) {
                wanted += padded(below);
                below = (below + RADIX - 1) / RADIX;
            }
            offset = wanted;
            count = below;
        }
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int step = g + 8 * side;
            int group = warp * groups + step / RADIX;
            const float *before = group == 0 ? state : values + (group - 1) * ROW;
            float fade = cumulative[warp * 16 + step];
#pragma unroll
            for (int quarter = 0; quarter < 2 * HALVES; quarter++) {
                int place = 16 * quarter + 4 * q;
                float4 entered = *reinterpret_cast<const float4 *>(before + place);
                float out[4];
                const float added[4] = {entered.x, entered.y, entered.z, entered.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    out[j] = fmaf(fade, added[j], y[4 * (quarter / 2) + j][2 * side + quarter % 2]);
                }
                if (first + step < d.steps && column + place < d.width) {
                    carry_pack<4, TH> packed;
                    packed.pack(out);
                    packed.store(static_cast<TH *>(d.h.data) + item * d.h.item + (first + step) * d.h.step + channel +
                                 place);
                }
            }
        }
        __syncthreads();
        if (thread < COLUMNS) {
            state[thread] = values[(warps * groups - 1) * ROW + thread];
        }
        __syncthreads();
    }
}

template <typename TB, typename TH, int RADIX> cudaError_t launch(const carry_diagonal &d, cudaStream_t stream) {
    int warps = d.steps >= WARPS * 16 ? WARPS : (int)((d.steps + 15) / 16);
    int all = level_rows(warps, RADIX);
    size_t bytes = sizeof(float) * (size_t)(warps * 16 * TRIANGLE + all * ROW + COLUMNS + 2 * (warps * 16 + all));
    dim3 grid((unsigned)(d.channels / d.width * ((d.width + COLUMNS - 1) / COLUMNS)), (unsigned)d.items);
    cudaError_t error = cudaFuncSetAttribute(matmul_kernel<TB, TH, RADIX>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)bytes);
    if (error == cudaSuccess) {
        matmul_kernel<TB, TH, RADIX><<<grid, dim3(32, (unsigned)warps), bytes, stream>>>(d);
        error = cudaGetLastError();
    }
    return error;
}

} // namespace

cudaError_t carry_diagonal_matmul(const carry_diagonal &d, int radix, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
#define LAUNCH(V, TA, TB, TH)                                                                                              \
    error = radix == 4   ? launch<TB, TH, 4>(d, stream)                                                                \
            : radix == 8 ? launch<TB, TH, 8>(d, stream)                                                                \
                         : launch<TB, TH, 16>(d, stream)
    CARRY_DIAGONAL_TYPES(d, 1, 1, LAUNCH);
#undef LAUNCH
    return error;
}
