/* Levels, shared memory and workspace of the dense scans. */
#include "scan/cuda/dense_layout.cuh"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

namespace dense {

/* Shared memory of a block if no GPU is given: that of the GPUs that the kernels are primarily for. */
constexpr size_t SHARED_BYTES = 227 * 1024;
constexpr int MAX_HEIGHT = 5;
constexpr int MAX_VISIT_HEIGHT = 6;
/* Cost of a level, up and down, besides its grid barriers: waiting for the first transitions and values. */
constexpr double LEVEL_SECONDS = 2.5e-6;
/* More matrices in flight do not help: the wait for copies distinguishes at most 8. */
constexpr int MAX_SLOTS = 14;
/* Shorter chunks would spend more time on their ends than on their steps. */
constexpr int64_t LEAST_CHUNK = 8;

static int padded(int64_t n) {
    return n <= 16 ? 16 : n <= 32 ? 32 : n <= 64 ? 64 : 128;
}

static size_t element_bytes(const carry_scan_shape *shape) {
    return shape->A.dtype == CARRY_F32 ? 4 : 2;
}

static size_t slot_bytes(int size, size_t element) {
    return (size_t)size * ((size_t)size * element + 16);
}

/* Seconds for one product by one block with its barriers, used to compare levels. */
static double product_seconds(int size, size_t element) {
    bool plain = element == 4;
    return size == 128 ? (plain ? 10e-6 : 2.5e-6) : size == 64 ? (plain ? 2e-6 : 7e-7) : plain ? 6e-7 : 4e-7;
}

/* Seconds to apply one transition to a state by one block, with its barrier. */
static double apply_seconds(int size, int64_t width) {
    double first = size == 128 ? 5e-7 : 1.5e-7; /* 32 KB at the rate of one multiprocessor from the L2 cache */
    return first + (double)(width - 1) * (double)(size * size) / 5e10;
}

static int64_t units_of(const carry_scan_shape *shape) {
    return shape->gpu != NULL && shape->gpu->units > 0 ? shape->gpu->units : 132;
}

static size_t shared_of(const carry_scan_shape *shape) {
    return shape->gpu != NULL && shape->gpu->shared_bytes > 0 ? shape->gpu->shared_bytes : SHARED_BYTES;
}

static double barrier_of(const carry_scan_shape *shape) {
    return shape->gpu != NULL && shape->gpu->barrier_s > 0.0 ? shape->gpu->barrier_s : 2e-6;
}

/* The number of slots that fit beside `values` bytes in shared memory, or 0 if there are fewer than `least`. */
static int slots_beside(size_t budget, size_t slot, size_t values, int least) {
    if (values >= budget) {
        return 0;
    }
    size_t slots = (budget - values) / slot;
    slots = slots < MAX_SLOTS ? slots : MAX_SLOTS;
    return (int)slots >= least ? (int)slots : 0;
}

/* Bytes for the values of `elements` elements and one more state. lay_out bounds the size of one value. */
static size_t value_bytes(const layout *l, int64_t elements) {
    return (size_t)(elements + 1) * (size_t)l->size * (size_t)l->p.columns * sizeof(float);
}

static matrices take_matrices(carry_arena *arena, const carry_scan_shape *shape, int64_t count) {
    const int64_t factors[] = {shape->batch, count, shape->n, shape->n};
    size_t elements = 0;
    if (!carry_size_product(&elements, factors, 4, 1)) {
        arena->overflowed = true;
    }
    void *data = carry_arena_take(arena, elements, element_bytes(shape));
    return matrices{data, count * shape->n * shape->n, shape->n * shape->n};
}

static array take_values(carry_arena *arena, const carry_scan_shape *shape, int64_t count) {
    const int64_t factors[] = {shape->batch, count, shape->n, shape->width};
    size_t elements = 0;
    if (!carry_size_product(&elements, factors, 4, 1)) {
        arena->overflowed = true;
    }
    int64_t size = shape->n * shape->width;
    return array{carry_arena_take(arena, elements, sizeof(float)), F32, count * size, size};
}

/* Chooses the height of the visits of each level (2^height elements) for the least cost: the products that a block does
   one after the other, and two grid barriers for each level. best[s] is the least cost of the rest when elements have
   2^s steps. */
static int choose_heights(const layout *l, const carry_scan_shape *shape, int most, int *heights) {
    int top = 0;
    while (((int64_t)1 << top) < shape->steps) {
        top++;
    }
    double best[64];
    int choice[64];
    double blocks = (double)(units_of(shape) * l->per_unit);
    for (int s = top; s >= 0; s--) {
        double count = ceil((double)shape->steps / ldexp(1.0, s));
        best[s] = -1.0;
        for (int height = 1; height <= most; height++) {
            bool is_last = count <= ldexp(1.0, height);
            double visits = ceil(count / ldexp(1.0, height));
            double each = is_last ? count : ldexp(1.0, height);
            double seconds = ceil(visits * (double)shape->batch / blocks) * each * l->product_s;
            int above = s + height < top ? s + height : top;
            if (!is_last) {
                seconds += 2.0 * barrier_of(shape) + best[above];
            }
            if (best[s] < 0.0 || seconds < best[s]) {
                best[s] = seconds;
                choice[s] = height;
            }
        }
    }
    int levels = 0;
    for (int s = 0; levels == 0 || ((shape->steps + ((int64_t)1 << s) - 1) >> s) > 1; s += choice[s]) {
        heights[levels++] = choice[s];
        if (s + choice[s] > top) {
            break;
        }
    }
    return levels;
}

/* Chooses the height of the visits of each level of a reduction, and the number of levels after which the rest is
   solved directly, for the least cost: products and applications that a block does one after the other, plus a fixed
   cost for each level. */
static int choose_visits(const layout *l, const carry_scan_shape *shape, int *heights) {
    int top = 0;
    while (((int64_t)1 << top) < shape->steps) {
        top++;
    }
    double best[64];
    int choice[64];
    /* The registers of a multiprocessor allow two blocks, even if shared memory would hold more. */
    double blocks = (double)(units_of(shape) * (l->per_unit < 2 ? l->per_unit : 2));
    double apply_s = apply_seconds(l->size, shape->width);
    for (int s = top; s >= 0; s--) {
        double count = ceil((double)shape->steps / ldexp(1.0, s));
        best[s] = ceil((double)shape->batch / blocks) * count * apply_s;
        choice[s] = 0;
        for (int height = 1; height <= MAX_VISIT_HEIGHT && s + height <= top; height++) {
            double rounds = ceil(ceil(count / ldexp(1.0, height)) * (double)shape->batch / blocks);
            double each = (ldexp(1.0, height) - 1.0) * (l->product_s + apply_s);
            double seconds = rounds * each + LEVEL_SECONDS + 2.0 * barrier_of(shape) + best[s + height];
            if (seconds < best[s] || (s == 0 && choice[0] == 0)) {
                best[s] = seconds;
                choice[s] = height;
            }
        }
    }
    int levels = 0;
    for (int s = 0; choice[s] > 0; s += choice[s]) {
        heights[levels++] = choice[s];
    }
    return levels;
}

static void link_levels(layout *l, const carry_scan_shape *shape, bool groups, carry_arena *arena) {
    for (int k = 0; k < l->p.levels; k++) {
        level_data *here = &l->p.level[k];
        here->A = matrices{shape->A.data, shape->A.item, shape->A.step};
        if (k > 0) {
            const level_data *below = &l->p.level[k - 1];
            int64_t next = groups ? below->at.radix : below->at.radix / 2;
            int64_t size = shape->n * shape->n;
            unsigned char *first = (unsigned char *)below->made.data;
            here->A.data = first == NULL ? NULL : first + (size_t)((next - 1) * size) * element_bytes(shape);
            here->A.item = below->made.item;
            here->A.step = next * size;
        }
        here->made = take_matrices(arena, shape, groups ? here->at.complete : here->at.complete / 2);
        here->states = !groups && k > 0 ? (float *)take_values(arena, shape, here->at.count).data : NULL;
    }
}

/* Values are stored in h if it is f32, and in the workspace if it is not or if b is read again at the end. */
static void place_values(layout *l, const carry_scan_shape *shape, bool apart, carry_arena *arena) {
    if (shape->h.dtype == CARRY_F32 && !apart) {
        l->p.values = l->p.h;
    } else {
        l->p.values = take_values(arena, shape, shape->steps);
    }
}

static bool lay_out_cyclic(layout *l, const carry_scan_shape *shape, size_t budget, carry_arena *arena) {
    size_t slot = slot_bytes(l->size, element_bytes(shape));
    l->p.tile = 32;
    while ((l->p.slots = slots_beside(budget, slot, value_bytes(l, l->p.tile), l->p.tile == 1 ? 3 : 6)) == 0) {
        if ((l->p.tile /= 2) == 0) {
            return false;
        }
    }
    l->p.kept = l->p.slots > 3 ? 2 : 1;
    l->p.ring = l->p.slots - l->p.kept;
    l->shared_bytes = (size_t)l->p.slots * slot + value_bytes(l, l->p.tile);
    int heights[64];
    int folds = choose_visits(l, shape, heights);
    l->p.levels = folds + 1;
    int64_t stride = 1;
    for (int k = 0; k <= folds; k++) {
        level_data *here = &l->p.level[k];
        int64_t count = (shape->steps + stride - 1) / stride;
        /* The top level is a single visit that is never full. */
        int64_t radix = k < folds ? (int64_t)1 << heights[k] : count + 1;
        here->at = carry_dense_level_of(shape->steps, stride, k < folds ? heights[k] : 0, radix);
        here->A = k == 0 ? matrices{shape->A.data, shape->A.item, shape->A.step} : l->p.level[k - 1].made;
        here->made = take_matrices(arena, shape, here->at.complete / radix);
        stride *= k < folds ? radix : 1;
    }
    l->blocks = shape->batch * l->p.level[0].at.visits;
    place_values(l, shape, false, arena);
    l->kernel = cyclic_kernel((int)shape->A.dtype, l->size);
    return true;
}

/* blelloch */
static bool lay_out_tree(layout *l, const carry_scan_shape *shape, size_t budget, carry_arena *arena) {
    size_t slot = slot_bytes(l->size, element_bytes(shape));
    int most = MAX_HEIGHT;
    while (most > 0 && slots_beside(budget, slot, value_bytes(l, 2 << most), most == 1 ? 3 : 4) == 0) {
        most--;
    }
    if (most == 0) {
        return false;
    }
    int heights[64];
    l->p.levels = choose_heights(l, shape, most, heights);
    int64_t stride = 1;
    int highest = 1;
    for (int k = 0; k < l->p.levels; k++) {
        l->p.level[k].at = carry_dense_level_of(shape->steps, stride, heights[k], (int64_t)1 << heights[k]);
        stride <<= heights[k];
        highest = heights[k] > highest ? heights[k] : highest;
    }
    l->p.tile = 1 << highest;
    size_t values = value_bytes(l, 2 * l->p.tile);
    l->p.slots = slots_beside(budget, slot, values, 3);
    l->p.kept = highest - 1 < l->p.slots / 2 - 1 ? highest - 1 : l->p.slots / 2 - 1;
    l->p.ring = l->p.slots - l->p.kept - 1;
    if (highest - 1 > l->p.kept) {
        /* A high node comes back through the ring, so it must be stored before the ring prefetches it. */
        int furthest = (1 << (l->p.kept + 1)) - 2;
        l->p.ring = l->p.ring < furthest ? l->p.ring : furthest;
    }
    l->shared_bytes = (size_t)l->p.slots * slot + values;
    l->blocks = shape->batch * l->p.level[0].at.visits;
    link_levels(l, shape, false, arena);
    place_values(l, shape, true, arena);
    l->kernel = tree_kernel((int)shape->A.dtype, l->size);
    return true;
}

static bool lay_out_groups(layout *l, const carry_scan_shape *shape, size_t budget, carry_arena *arena) {
    size_t slot = slot_bytes(l->size, element_bytes(shape));
    l->p.tile = (int)shape->radix;
    l->p.slots = slots_beside(budget, slot, value_bytes(l, l->p.tile), 3);
    if (l->p.slots == 0) {
        return false;
    }
    l->p.ring = l->p.slots - 1;
    for (int64_t stride = 1;; stride *= shape->radix) {
        level_data *here = &l->p.level[l->p.levels++];
        here->at = carry_dense_level_of(shape->steps, stride, 0, shape->radix);
        if (here->at.count <= shape->radix) {
            break;
        }
    }
    l->shared_bytes = (size_t)l->p.slots * slot + value_bytes(l, l->p.tile);
    l->blocks = shape->batch * l->p.level[0].at.visits;
    link_levels(l, shape, true, arena);
    place_values(l, shape, false, arena);
    l->kernel = groups_kernel((int)shape->A.dtype, l->size);
    return true;
}

/* The steps of a chunk: the caller's number if it gave one, else all if the batch fills the GPU. Otherwise an equal
   share for each resident block, or more if the walk over the ends of chunks would cost more than a chunk. */
static int64_t choose_chunk(const layout *l, const carry_scan_shape *shape) {
    if (shape->chunk > 0) {
        return shape->chunk < shape->steps ? shape->chunk : shape->steps;
    }
    int64_t parts = units_of(shape) * l->per_unit / shape->batch;
    if (parts <= 1) {
        return shape->steps;
    }
    int64_t even = (shape->steps + parts - 1) / parts;
    int64_t balanced = (int64_t)sqrt((double)shape->steps * 4e-7 / l->product_s);
    int64_t chunk = even > balanced ? even : balanced;
    chunk = chunk < LEAST_CHUNK ? LEAST_CHUNK : chunk;
    return chunk < shape->steps ? chunk : shape->steps;
}

/* The columns of a task if there is one chunk: few enough to fill the GPU, but at least one memory sector. */
static int choose_columns(const layout *l, const carry_scan_shape *shape) {
    int64_t most = 4096 / l->size;
    int64_t parts = units_of(shape) * l->per_unit / shape->batch;
    int64_t columns = parts <= 1 ? shape->width : (shape->width + parts - 1) / parts;
    columns = columns < 8 ? 8 : columns;
    columns = columns < most ? columns : most;
    return (int)(columns < shape->width ? columns : shape->width);
}

static bool lay_out_chunks(layout *l, const carry_scan_shape *shape, bool sequential, size_t budget,
                           carry_arena *arena) {
    size_t slot = slot_bytes(l->size, element_bytes(shape));
    l->p.chunk = sequential ? shape->steps : choose_chunk(l, shape);
    l->p.chunks = (shape->steps + l->p.chunk - 1) / l->p.chunk;
    if (l->p.chunks == 1) {
        l->p.columns = choose_columns(l, shape);
    }
    l->p.tile = 32;
    while ((l->p.slots = slots_beside(budget, slot, value_bytes(l, l->p.tile), l->p.tile == 1 ? 3 : 6)) == 0) {
        if ((l->p.tile /= 2) == 0) {
            return false;
        }
    }
    l->p.ring = l->p.slots - 1;
    l->shared_bytes = (size_t)l->p.slots * slot + value_bytes(l, l->p.tile);
    l->blocks = shape->batch * l->p.chunks * ((shape->width + l->p.columns - 1) / l->p.columns);
    if (l->p.chunks > 1) {
        l->p.spare[0] = take_matrices(arena, shape, l->p.chunks);
        l->p.turns[0] = take_values(arena, shape, l->p.chunks);
        l->p.turns[1] = take_values(arena, shape, l->p.chunks);
    }
    l->kernel = chunks_kernel((int)shape->A.dtype, l->size);
    return true;
}

static bool lay_out_doubling(layout *l, const carry_scan_shape *shape, size_t budget, carry_arena *arena) {
    size_t slot = slot_bytes(l->size, element_bytes(shape));
    size_t value = value_bytes(l, 0);
    int slots = value < budget ? (int)((budget - value) / (slot + value)) : 0;
    slots = slots < 24 ? slots : 24;
    if (slots < 3) {
        return false;
    }
    /* The cost of a round for each element outside of the halo: matrices read and written, and products, which cost
       about the same. */
    double least = 0.0;
    for (int rounds = 1; (1 << rounds) < slots; rounds++) {
        double wanted = (double)(slots - (1 << rounds) + 1);
        double made = 0.0;
        for (int i = 1; i <= rounds; i++) {
            made += wanted + ldexp(1.0, rounds) - ldexp(1.0, i);
        }
        double each = ((double)slots + wanted + made) / wanted / rounds;
        if (rounds == 1 || each < least) {
            least = each;
            l->p.rounds = rounds;
        }
    }
    /* If h and b are the same, a single pass over several tiles would read b where another block has already written
       h. */
    if (shape->steps <= (1 << l->p.rounds) && slots - (1 << l->p.rounds) + 1 < shape->steps) {
        l->p.rounds = 1;
    }
    l->p.slots = slots;
    l->shared_bytes = (size_t)slots * (slot + value) + value;
    l->blocks = shape->batch * shape->steps;
    for (int i = 0; i < 2; i++) {
        l->p.spare[i] = take_matrices(arena, shape, shape->steps);
        l->p.turns[i] = take_values(arena, shape, shape->steps);
    }
    l->kernel = doubling_kernel((int)shape->A.dtype, l->size);
    return true;
}

static bool lay_out_in(layout *l, const carry_scan_shape *shape, carry_cuda_method method, size_t budget,
                       carry_arena *arena) {
    switch (method) {
    case CARRY_CUDA_CYCLIC:
        return lay_out_cyclic(l, shape, budget, arena);
    case CARRY_CUDA_BLELLOCH:
        return lay_out_tree(l, shape, budget, arena);
    case CARRY_CUDA_MATMUL:
        return lay_out_groups(l, shape, budget, arena);
    case CARRY_CUDA_SEQUENTIAL:
    case CARRY_CUDA_CHUNKWISE:
        return lay_out_chunks(l, shape, method == CARRY_CUDA_SEQUENTIAL, budget, arena);
    case CARRY_CUDA_HILLIS_STEELE:
        return lay_out_doubling(l, shape, budget, arena);
    default:
        return false;
    }
}

static array array_of(const carry_scan_array *from) {
    return array{from->data, (int)from->dtype, from->item, from->step};
}

bool lay_out(layout *made, const carry_scan_shape *shape, carry_cuda_method method, carry_arena *arena, char *why,
             size_t why_size) {
    if (method == CARRY_CUDA_LOOKBACK) {
        (void)snprintf(why, why_size,
                       "looking back through dense transitions would multiply them again and again: "
                       "use chunkwise or cyclic");
        return false;
    }
    if (shape->n > 128) {
        (void)snprintf(why, why_size, "n is %" PRId64 " and dense transitions of at most 128 fit into shared memory",
                       shape->n);
        return false;
    }
    bool narrow = method == CARRY_CUDA_SEQUENTIAL || shape->width <= 8192 / padded(shape->n);
    carry_arena begun = *arena;
    for (int per_unit = padded(shape->n) == 128  ? 1
                        : padded(shape->n) == 64 ? 2
                                                 : 4;
         narrow && per_unit > 0; per_unit /= 2) {
        *made = layout{};
        *arena = begun;
        made->per_unit = per_unit;
        made->size = padded(shape->n);
        made->product_s = product_seconds(made->size, element_bytes(shape));
        made->p.batch = shape->batch;
        made->p.steps = shape->steps;
        made->p.n = (int)shape->n;
        made->p.width = (int)shape->width;
        made->p.columns = (int)shape->width;
        made->p.transposed = shape->transposed;
        made->p.A = array_of(&shape->A);
        made->p.b = array_of(&shape->b);
        made->p.h = array_of(&shape->h);
        made->p.h0 = array_of(&shape->h0);
        /* If several blocks share a multiprocessor, the reserved kilobyte of each block counts too. */
        size_t budget = shared_of(shape) / (size_t)per_unit - (per_unit > 1 ? 1024 : 0);
        if (lay_out_in(made, shape, method, budget, arena)) {
            return true;
        }
    }
    (void)snprintf(why, why_size,
                   "n %" PRId64 " by width %" PRId64 " in %s needs more shared memory than the %zu bytes of a block",
                   shape->n, shape->width, shape->A.dtype == CARRY_F32 ? "f32" : "16 bits", shared_of(shape));
    return false;
}

static work_count count_cyclic(const layout *made) {
    work_count count = {0.0, 0.0};
    for (int k = 0; k < made->p.levels; k++) {
        const carry_dense_level *at = &made->p.level[k].at;
        double full = (double)(at->complete / at->radix);
        count.composed += full * (double)(at->radix - 1);
        count.applied += full * (double)(at->radix - 1) + (double)at->complete - full;
    }
    return count;
}

static work_count count_tree(int64_t steps) {
    work_count count = {0.0, (double)steps};
    for (int64_t left = steps; left > 1; left /= 2) {
        count.composed += (double)(left / 2);
        count.applied += (double)(left / 2);
    }
    for (int64_t left = steps; left > 1; left = (left + 1) / 2) {
        count.applied += (double)(left / 2);
    }
    return count;
}

static work_count count_groups(const layout *made, bool has_h0) {
    work_count count = {0.0, 0.0};
    for (int k = 0; k < made->p.levels; k++) {
        const carry_dense_level *at = &made->p.level[k].at;
        bool is_top = k == made->p.levels - 1;
        int64_t full = is_top ? 0 : at->complete / at->radix;
        int64_t groups = (at->complete + at->radix - 1) / at->radix;
        int64_t first = at->complete < at->radix ? at->complete : at->radix - (is_top ? 0 : 1);
        count.composed += (double)(at->complete - groups);
        count.applied += (double)(at->complete - groups) + (double)(at->complete - full - (has_h0 ? 0 : first));
    }
    return count;
}

work_count count_work(const layout *made, const carry_scan_shape *shape, carry_cuda_method method) {
    bool has_h0 = shape->h0.data != NULL;
    double steps = (double)shape->steps;
    work_count count = {0.0, steps};
    switch (method) {
    case CARRY_CUDA_CYCLIC:
        return count_cyclic(made);
    case CARRY_CUDA_BLELLOCH:
        return count_tree(shape->steps);
    case CARRY_CUDA_MATMUL:
        return count_groups(made, has_h0);
    case CARRY_CUDA_HILLIS_STEELE:
        for (int64_t o = 1; o < shape->steps; o *= 2) {
            count.composed += (double)(shape->steps - o);
        }
        count.applied = count.composed + (has_h0 ? 1.0 : 0.0);
        return count;
    default: {
        double ends = (double)(made->p.chunks - 1);
        count.composed = ends * (double)(made->p.chunk - 1);
        count.applied = steps + ends * (double)(made->p.chunk - 1) + ends;
        return count;
    }
    }
}

} // namespace dense
