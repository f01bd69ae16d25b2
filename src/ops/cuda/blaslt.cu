/* Large products through cuBLASLt, which is opened at run time. On a machine without it, products use matmul.cu.

   A context keeps one handle per device, the last PLANS plans (descriptors and the chosen algorithm for a shape), and
   one workspace per stream, for up to STREAMS streams, so that products in two streams never share a workspace.
   Products in further streams use algorithms without a workspace, and may differ in the last bits; so that this is
   rare, a new stream gets the workspace of a destroyed stream of the same GPU. If the plan and the workspace exist, a
   product allocates nothing.

   cuBLASLt is column-major, so it is asked for c^T = b^T a^T, and no array has to be transposed. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "core/context.h"
#include "ops/cuda/cuda.h"
}

#include "device/cuda.h"
#include "device/stream_end.h"

#include "ops/cuda/blaslt_key.cuh"
#include "ops/cuda/blaslt_tiles.cuh"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static const size_t WORKSPACE = (size_t)32 << 20; /* recommended by NVIDIA for its largest GPUs */
static const int PLANS = 32;
static const int STREAMS = 8;

/* X(name): the functions that are used. */
#define FUNCTIONS(X)                        \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtGetStatusString)              \
    X(cublasLtMatmul)                       \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatrixLayoutSetAttribute)     \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmulAlgoConfigGetAttribute) \
    X(cublasLtMatmulAlgoConfigSetAttribute) \
    X(cublasLtMatmulAlgoCheck)

typedef struct functions {
#define X(name) decltype(&::name) name;
    FUNCTIONS(X)
#undef X
} functions;

typedef struct plan {
    carry_device_product key; /* pointers replaced by their alignment; the stream by NULL */
    bool known, usable;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
} plan;

typedef struct blaslt {
    void *library; /* NULL if the library is missing */
    functions call;
    cublasLtHandle_t handles[CARRY_MAX_DEVICES];
    struct {
        void *data;
        carry_stream *stream;
        int ordinal;
        bool is_free; /* its stream has ended */
    } workspaces[STREAMS];
    plan plans[PLANS];
    int next; /* index of the plan to replace next */
} blaslt;

static void plan_free(const blaslt *lt, plan *p) {
    if (p->product != NULL) {
        (void)lt->call.cublasLtMatmulDescDestroy(p->product);
    }
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c};
    for (cublasLtMatrixLayout_t layout : layouts) {
        if (layout != NULL) {
            (void)lt->call.cublasLtMatrixLayoutDestroy(layout);
        }
    }
    *p = {};
}

/* The library stays open: its threads and state outlive a context. */
static void blaslt_free(void *data) {
    blaslt *lt = (blaslt *)data;
    for (int i = 0; i < PLANS; i++) {
        plan_free(lt, &lt->plans[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        if (lt->workspaces[i].data != NULL && cudaSetDevice(lt->workspaces[i].ordinal) == cudaSuccess) {
            (void)cudaDeviceSynchronize();
            (void)cudaFree(lt->workspaces[i].data);
        }
    }
    for (int i = 0; i < CARRY_MAX_DEVICES; i++) {
        if (lt->handles[i] != NULL) {
            (void)lt->call.cublasLtDestroy(lt->handles[i]);
        }
    }
    (void)cudaGetLastError();
    free(lt);
}

/* Looks on the loader's path, and where NVIDIA's installer puts it. */
static void *open_library(void) {
    static const char *const names[] = {LIBRARY, "/usr/local/cuda/lib64/" LIBRARY, "/usr/local/cuda/lib/" LIBRARY};
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof names / sizeof names[0]; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

static bool find_functions(blaslt *lt) {
    bool found = lt->library != NULL;
#define X(name)                                                                  \
    lt->call.name = found ? (decltype(&::name))dlsym(lt->library, #name) : NULL; \
    found = found && lt->call.name != NULL;
    FUNCTIONS(X)
#undef X
    return found;
}

/* Called before a stream is destroyed. Work in the stream may still use its workspace. */
static void end_stream(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    blaslt *lt = ctx != NULL ? (blaslt *)ctx->slots[CARRY_SLOT_BLASLT].data : NULL;
    for (int i = 0; lt != NULL && i < STREAMS; i++) {
        if (lt->workspaces[i].data != NULL && lt->workspaces[i].stream == stream &&
            lt->workspaces[i].ordinal == ordinal) {
            (void)cudaStreamSynchronize((cudaStream_t)stream);
            lt->workspaces[i].is_free = true;
        }
    }
}

static carry_status blaslt_of(carry_ctx *ctx, blaslt **found) {
    blaslt *lt = (blaslt *)ctx->slots[CARRY_SLOT_BLASLT].data;
    if (lt == NULL) {
        carry_cuda_stream_ends = end_stream;
        lt = (blaslt *)calloc(1, sizeof *lt);
        if (lt == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the plans of large products");
        }
        lt->library = open_library();
        if (!find_functions(lt)) {
            lt->library = NULL;
            carry_log(ctx, CARRY_LOG_WARNING,
                      "cuBLASLt (" LIBRARY ") was not found: large products on the GPU go through Carry's own kernels");
        }
        ctx->slots[CARRY_SLOT_BLASLT].data = lt;
        ctx->slots[CARRY_SLOT_BLASLT].free = blaslt_free;
    }
    *found = lt;
    return CARRY_OK;
}

static carry_status refused(carry_ctx *ctx, const blaslt *lt, cublasStatus_t status, const char *what, int ordinal) {
    return carry_fail(ctx, status == CUBLAS_STATUS_ALLOC_FAILED ? CARRY_EMEMORY : CARRY_EDEVICE,
                      "CUDA device %d: cuBLASLt: %s: %s", ordinal, what, lt->call.cublasLtGetStatusString(status));
}

static cudaDataType data_type(carry_dtype dtype) {
    return dtype == CARRY_BF16 ? CUDA_R_16BF : dtype == CARRY_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* A row-major array of rows x columns is a column-major array of columns x rows. */
static bool make_layout(const blaslt *lt, cublasLtMatrixLayout_t *layout, cudaDataType type, int64_t rows,
                        int64_t columns, int64_t row, int64_t next, int64_t count) {
    int32_t batch = (int32_t)count;
    return lt->call.cublasLtMatrixLayoutCreate(layout, type, (uint64_t)columns, (uint64_t)rows, row) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->call.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                     sizeof batch) == CUBLAS_STATUS_SUCCESS &&
           lt->call.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &next,
                                                     sizeof next) == CUBLAS_STATUS_SUCCESS;
}

static cublasLtEpilogue_t epilogue(const carry_device_product *p) {
    return p->bias != NULL ? (p->gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                           : (p->gelu ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_DEFAULT);
}

/* The bias is part of the descriptor, but its pointer differs in every call. */
static bool set_bias(const blaslt *lt, const plan *made, const carry_device_product *p) {
    return p->bias == NULL ||
           lt->call.cublasLtMatmulDescSetAttribute(made->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                                   sizeof p->bias) == CUBLAS_STATUS_SUCCESS;
}

/* The scales of 8-bit floats, whose pointers differ in every call too. */
static bool set_scales(const blaslt *lt, const plan *made, const carry_device_product *p) {
    const int32_t row = p->one_scale    ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
                        : p->row_scales ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                        : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const int32_t first = p->b_is_square ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : row;
    const struct {
        cublasLtMatmulDescAttributes_t which;
        const void *value;
        size_t bytes;
    } set[] = {{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &first, sizeof first},
               {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &row, sizeof row},
               {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->b_scales, sizeof p->b_scales},
               {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->a_scales, sizeof p->a_scales}};
    bool fine = true;
    for (size_t i = 0; p->a_scales != NULL && i < sizeof set / sizeof set[0]; i++) {
        fine = fine && lt->call.cublasLtMatmulDescSetAttribute(made->product, set[i].which, set[i].value,
                                                               set[i].bytes) == CUBLAS_STATUS_SUCCESS;
    }
    return fine;
}

static cudaDataType element_type(const carry_device_product *p, bool is_e5m2) {
    return p->a_scales == NULL ? data_type(p->type) : is_e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

/* cuBLASLt's first operand is b and its second is a. */
static bool make_descriptors(const blaslt *lt, plan *made, const carry_device_product *p) {
    cublasOperation_t first = p->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = p->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t after = epilogue(p);
    const cudaDataType a_type = element_type(p, p->a_is_e5m2), b_type = element_type(p, p->b_is_e5m2);
    return lt->call.cublasLtMatmulDescCreate(&made->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           lt->call.cublasLtMatmulDescSetAttribute(made->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &after,
                                                   sizeof after) == CUBLAS_STATUS_SUCCESS &&
           set_bias(lt, made, p) && set_scales(lt, made, p) &&
           lt->call.cublasLtMatmulDescSetAttribute(made->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->call.cublasLtMatmulDescSetAttribute(made->product, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                                   sizeof second) == CUBLAS_STATUS_SUCCESS &&
           make_layout(lt, &made->a, a_type, p->a_transposed ? p->k : p->m, p->a_transposed ? p->m : p->k, p->a_row,
                       p->a_next, p->count) &&
           make_layout(lt, &made->b, b_type, p->b_transposed ? p->n : p->k, p->b_transposed ? p->k : p->n, p->b_row,
                       p->b_next, p->count) &&
           make_layout(lt, &made->c, data_type(p->c_type), p->m, p->n, p->c_row, p->c_next, p->count);
}

static const int RESULTS = 8;     /* results to request from the heuristics */
static const uint32_t SHARED = 4; /* value of a kernel's custom option: its two groups of warps share a tile */
static const int64_t SHORT = 384; /* a sum is short up to this many terms per byte moved for an element of c */

/* Takes the heuristics' first result; for short sums of 16-bit products, the first result whose two groups of warps
   have separate tiles, if there is one: one group writes its tile while the other multiplies. On an H200 with
   cuBLASLt 13.0, the heuristics' first result is 10 to 20 % slower for such sums (docs/results/operators-gpu.md). The
   choice is a fixed rule and not a measurement, so that a shape always gives the same bits. */
static int best_of(const blaslt *lt, const cublasLtMatmulHeuristicResult_t *result, int results,
                   const carry_device_product *p) {
    const int64_t moved = (p->c_type == CARRY_F32 ? 4 : 2) * (p->accumulate ? 2 : 1);
    for (int i = 0; p->type != CARRY_F32 && p->k <= SHORT * moved && i < results; i++) {
        uint32_t custom = SHARED;
        size_t written = 0;
        if (result[i].state == CUBLAS_STATUS_SUCCESS &&
            lt->call.cublasLtMatmulAlgoConfigGetAttribute(&result[i].algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &custom,
                                                          sizeof custom, &written) == CUBLAS_STATUS_SUCCESS &&
            (custom & SHARED) == 0) {
            return i;
        }
    }
    return 0;
}

static uint32_t setting(const blaslt *lt, const cublasLtMatmulAlgo_t *algorithm,
                        cublasLtMatmulAlgoConfigAttributes_t which) {
    uint32_t value = 0; /* some values have 16 bits */
    size_t written = 0;
    (void)lt->call.cublasLtMatmulAlgoConfigGetAttribute(
        algorithm, which, &value, which == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? 2 : sizeof value, &written);
    return value;
}

/* Chooses the tile that fills the GPU best (blaslt_tiles.cuh), for products with a bias, as in transformers; not of
   8-bit floats, for which no tile was measured. */
static void fit_tile(const blaslt *lt, plan *made, const carry_device_product *p) {
    int major = 0, units = 0;
    if (p->bias == NULL || p->a_scales != NULL || p->count != 1 || p->type == CARRY_F32 || p->a_transposed ||
        !p->b_transposed ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, p->ordinal) != cudaSuccess || major != 9 ||
        cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, p->ordinal) != cudaSuccess || units < 1) {
        return;
    }
    const uint32_t cluster = setting(lt, &made->algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
    const product_tile *tile =
        better_tile(setting(lt, &made->algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), p, units,
                    cluster == CUBLASLT_CLUSTER_SHAPE_2x1x1 ? 2 : 1, cluster == CUBLASLT_CLUSTER_SHAPE_1x2x1 ? 2 : 1);
    cublasLtMatmulAlgo_t other = made->algorithm;
    cublasLtMatmulHeuristicResult_t checked = {};
    if (tile != NULL &&
        lt->call.cublasLtMatmulAlgoConfigSetAttribute(&other, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile->id,
                                                      sizeof tile->id) == CUBLAS_STATUS_SUCCESS &&
        lt->call.cublasLtMatmulAlgoCheck(lt->handles[p->ordinal], made->product, made->b, made->a, made->c, made->c,
                                         &other, &checked) == CUBLAS_STATUS_SUCCESS &&
        checked.workspaceSize <= made->workspace) {
        made->algorithm = other;
        made->workspace = checked.workspaceSize;
    }
}

static bool choose(const blaslt *lt, plan *made, const carry_device_product *p, size_t workspace) {
    const struct {
        cublasLtMatmulPreferenceAttributes_t which;
        uint32_t bytes;
    } aligned[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p->b)},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p->a)},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of_c(p)},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of_c(p)}};
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result[RESULTS] = {};
    int results = 0;
    if (lt->call.cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    bool fine = lt->call.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                              &workspace, sizeof workspace) == CUBLAS_STATUS_SUCCESS;
    /* Partial sums over k are added in f32 and in a fixed order, not in c's type or in order of arrival. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    fine =
        fine && lt->call.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                              &reductions, sizeof reductions) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof aligned / sizeof aligned[0]; i++) {
        fine = fine && lt->call.cublasLtMatmulPreferenceSetAttribute(preference, aligned[i].which, &aligned[i].bytes,
                                                                     sizeof aligned[i].bytes) == CUBLAS_STATUS_SUCCESS;
    }
    fine = fine && lt->call.cublasLtMatmulAlgoGetHeuristic(lt->handles[p->ordinal], made->product, made->b, made->a,
                                                           made->c, made->c, preference, RESULTS, result,
                                                           &results) == CUBLAS_STATUS_SUCCESS;
    (void)lt->call.cublasLtMatmulPreferenceDestroy(preference);
    const int best = fine ? best_of(lt, result, results, p) : 0;
    made->algorithm = result[best].algo;
    made->workspace = result[best].workspaceSize;
    fine = fine && results > 0 && result[best].state == CUBLAS_STATUS_SUCCESS;
    if (fine) {
        fit_tile(lt, made, p);
    }
    return fine;
}

static plan *plan_of(blaslt *lt, const carry_device_product *p, bool has_workspace) {
    carry_device_product key = key_of(p, has_workspace);
    for (int i = 0; i < PLANS; i++) {
        if (lt->plans[i].known && memcmp(&lt->plans[i].key, &key, sizeof key) == 0) {
            return &lt->plans[i];
        }
    }
    plan *made = &lt->plans[lt->next];
    lt->next = (lt->next + 1) % PLANS;
    plan_free(lt, made);
    memcpy(&made->key, &key, sizeof key);
    made->known = true;
    made->usable = make_descriptors(lt, made, p) && choose(lt, made, p, has_workspace ? WORKSPACE : 0);
    return made;
}

/* Sets the workspace of this stream; NULL if all are taken: then an algorithm without one is chosen. */
static carry_status workspace_of(carry_ctx *ctx, blaslt *lt, const carry_device_product *p, void **workspace) {
    *workspace = NULL;
    int unused = -1; /* a free workspace of this GPU, or an empty slot */
    for (int i = 0; i < STREAMS; i++) {
        const bool is_free = lt->workspaces[i].data == NULL || lt->workspaces[i].is_free;
        if (!is_free && lt->workspaces[i].stream == p->stream && lt->workspaces[i].ordinal == p->ordinal) {
            *workspace = lt->workspaces[i].data;
            return CARRY_OK;
        }
        const bool fits = lt->workspaces[i].data == NULL || lt->workspaces[i].ordinal == p->ordinal;
        unused = is_free && fits && unused < 0 ? i : unused;
    }
    if (unused < 0) {
        return CARRY_OK;
    }
    if (lt->workspaces[unused].data == NULL) {
        CARRY_TRY(carry_cuda_alloc(ctx, &lt->workspaces[unused].data, p->ordinal, WORKSPACE));
    }
    lt->workspaces[unused].stream = p->stream;
    lt->workspaces[unused].ordinal = p->ordinal;
    lt->workspaces[unused].is_free = false;
    *workspace = lt->workspaces[unused].data;
    return CARRY_OK;
}

/* True if rows do not overlap and all numbers fit cuBLASLt's types. */
static bool can(const carry_device_product *p) {
    int64_t a_columns = p->a_transposed ? p->m : p->k;
    int64_t b_columns = p->b_transposed ? p->k : p->n;
    return p->ordinal < CARRY_MAX_DEVICES && p->m <= INT32_MAX && p->n <= INT32_MAX && p->k <= INT32_MAX && p->k > 0 &&
           p->count <= INT32_MAX && p->a_row >= a_columns && p->b_row >= b_columns && p->c_row >= p->n &&
           p->a_next >= 0 && p->b_next >= 0 && p->c_next >= 0 && (p->bias == NULL || p->c_type == p->type) &&
           !(p->gelu && p->accumulate);
}

extern "C" bool carry_cuda_has_blaslt(carry_ctx *ctx) {
    blaslt *lt;
    return blaslt_of(ctx, &lt) == CARRY_OK && lt->library != NULL;
}

extern "C" carry_status carry_cuda_blaslt(carry_ctx *ctx, const carry_device_product *p, bool *done) {
    int ordinal = p->ordinal;
    blaslt *lt;
    void *workspace;
    *done = false;
    CARRY_TRY(blaslt_of(ctx, &lt));
    if (lt->library == NULL || !can(p)) {
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    cublasStatus_t status =
        lt->handles[ordinal] != NULL ? CUBLAS_STATUS_SUCCESS : lt->call.cublasLtCreate(&lt->handles[ordinal]);
    if (status != CUBLAS_STATUS_SUCCESS) {
        lt->handles[ordinal] = NULL;
        return refused(ctx, lt, status, "it cannot begin", ordinal);
    }
    CARRY_TRY(workspace_of(ctx, lt, p, &workspace));
    const plan *found = plan_of(lt, p, workspace != NULL);
    if (!found->usable || !set_bias(lt, found, p) || !set_scales(lt, found, p)) {
        return CARRY_OK;
    }
    const float one = 1.0f;
    const float before = p->accumulate ? 1.0f : 0.0f;
    const void *base = p->base != NULL && p->accumulate ? p->base : p->c;
    status = lt->call.cublasLtMatmul(lt->handles[ordinal], found->product, &one, p->b, found->b, p->a, found->a,
                                     &before, base, found->c, p->c, found->c, &found->algorithm, workspace,
                                     found->workspace, (cudaStream_t)p->stream);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return refused(ctx, lt, status, "a product failed", ordinal);
    }
    *done = true;
    return CARRY_OK;
}
