/* The workspace of a state space layer on a GPU. */
#include "ops/ssm_device.h"

#include "core/memory.h"
#include "core/tensor.h"
#include "ops/ssm_chunk.h"

#define L CARRY_SSM_CHUNK
#define WALKS 256 /* pairs of heads that fill a large GPU */

/* Number of segments of a row, so that few long rows fill the GPU; each has 16 chunks or more. */
static int64_t segments_of(const carry_ssm_args *args, int64_t chunks) {
    const int64_t walks = (args->xbc.shape[0] * args->heads + 1) / 2;
    int64_t segments = walks > 0 ? WALKS / walks : 1;
    segments = segments > chunks / 16 ? chunks / 16 : segments;
    return segments < 1 ? 1 : segments;
}

static float *floats(carry_arena *arena, int64_t items, int64_t each) {
    return carry_arena_take(arena, (size_t)(items * each), sizeof(float));
}

carry_ssm_layout carry_ssm_layout_of(const carry_ssm_args *args, void *workspace, bool backward) {
    const int64_t N = args->state;
    const int64_t T = args->xbc.shape[1];
    carry_ssm_layout l = {.chunks = (T + L - 1) / L};
    carry_arena arena = carry_arena_over(workspace, SIZE_MAX / 2);
    if (args->heads < 1 || (T == 1 && !backward)) { /* a step needs no workspace */
        return l;
    }
    l.P = (args->xbc.shape[2] - 2 * args->groups * N) / args->heads;
    l.items = args->xbc.shape[0] * args->heads * l.chunks;
    l.tiles = args->xbc.dtype != CARRY_F32 && l.P == 64 && (N == 64 || N == 128);
    l.segments = l.tiles && !backward ? segments_of(args, l.chunks) : 1;
    l.starts = carry_is_here(&args->cu_seqlens) || workspace == NULL
                   ? carry_arena_take(&arena, (size_t)T, sizeof(int32_t))
                   : NULL;
    l.step = floats(&arena, l.items, L);
    l.sum = floats(&arena, l.items, 2 * L);
    if (l.tiles && !backward) {
        const int64_t rows = args->xbc.shape[0] * args->heads * l.segments;
        l.state = floats(&arena, rows, l.P * N);
        l.fade = floats(&arena, rows, 1);
    } else {
        l.state = floats(&arena, l.items, l.tiles ? l.P * N / 2 : l.P * N);
    }
    if (!l.tiles) {
        l.x = floats(&arena, l.items, L * l.P);
        l.b = floats(&arena, l.items, L * N);
        l.c = floats(&arena, l.items, L * N);
        l.M = floats(&arena, l.items, L * L);
        l.y = floats(&arena, l.items, L * l.P);
    }
    if (backward) {
        l.dstate = floats(&arena, l.items, l.tiles ? l.P * N / 2 : l.P * N);
        l.da = floats(&arena, l.items, L);
        l.dG = floats(&arena, l.items, L);
        l.dG_states = l.tiles ? floats(&arena, l.items, L) : NULL;
        l.sums = carry_arena_take(&arena, (size_t)(l.items * 3), sizeof(double));
    }
    if (backward && !l.tiles) {
        l.dy = floats(&arena, l.items, L * l.P);
        l.K = floats(&arena, l.items, L * L);
        l.t = floats(&arena, l.items, L * l.P);
        float **const wide[] = {&l.u, &l.r, &l.db, &l.dc};
        for (int i = 0; i < 4; i++) {
            *wide[i] = floats(&arena, l.items, L * N);
        }
    }
    (void)carry_arena_total(&arena, &l.bytes);
    return l;
}
