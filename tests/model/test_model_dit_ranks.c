/* The video transformer over a mesh: shards are parts of one model, ranks agree, reductions are counted.

   Bounds. Ranks add the same products in another order: sums of 72 and 60 numbers cut into parts differ by a few
   roundings of 2^-24, and the rest of the forward carries that on; measured against one rank the relative RMS of two
   blocks is 2.3e-7 for meshes of 2 to 6. 1e-6 leaves a factor of four. */
#include "comm_support.h"
#include "dit_support.h"

#include <unistd.h>

#define BOUND 1e-6

typedef struct problem {
    carry_dit_config config;
    const char *folder; /* to load from; NULL: init */
    cut_video video;
    double *wanted; /* of one rank, or NULL */
    float *whole;   /* the weights of one rank, in its order */
    const carry_dit *one;
    float *first; /* what rank 0 made */
} problem;

/* This rank's part of a parameter equals the same part of the whole, element by element. */
static carry_status compare_shard(carry_comm *comm, const problem *p, const carry_dit *dit) {
    EXPECT(comm, dit->own.parameters == p->one->own.parameters, "parameters");
    for (int64_t i = 0; i < dit->own.parameters; i++) {
        const carry_parameter *part = &dit->own.parameter[i], *whole = &p->one->own.parameter[i];
        EXPECT(comm, strcmp(part->name, whole->name) == 0, "%s", part->name);
        const int64_t rows = part->shape[0], columns = part->count / rows;
        const int64_t all_columns = whole->count / whole->shape[0];
        const int64_t row = whole->shape[0] > rows ? rows * dit->rank : 0;
        const int64_t column = all_columns > columns ? columns * dit->rank : 0;
        for (int64_t k = 0; k < part->count; k++) {
            const float have = dit->own.weights[part->offset + k];
            const float want =
                p->one->own.weights[whole->offset + (row + k / columns) * all_columns + column + k % columns];
            EXPECT(comm, have == want, "%s[%lld]", part->name, (long long)k);
        }
    }
    return CARRY_OK;
}

static carry_status run_rank(carry_comm *comm, const problem *p, carry_dit *dit) {
    carry_dit_cache *cache;
    cut_video video = p->video;
    const int64_t count = dit->config.out_dim * video.v.frames * video.v.height * video.v.width;
    const int64_t per_frame = video.v.height * video.v.width / 4;
    TRY(carry_dit_cache_new(dit, &cache,
                            &(carry_dit_cache_options){.height = video.v.height,
                                                       .width = video.v.width,
                                                       .chunk = 2,
                                                       .chunks = 2,
                                                       .window = video.v.window,
                                                       .sink = video.v.sink}));
    video.velocity = calloc((size_t)count, sizeof(float));
    TRY(carry_dit_cache_text(cache, text_of(dit, &video)));
    TRY(run_chunks(dit, cache, &video, video.latents, 0, 2, true));
    TRY(run_chunks(dit, cache, &video, video.latents, 2, 4, true));
    const carry_dit_counts *c = &dit->counts;
    const int64_t blocks = dit->ranks > 1 ? dit->config.num_layers : 0;
    EXPECT(comm, c->forwards == 2 && c->large == 2 * 2 * blocks && c->small == 2 * blocks, "%d large, %d small",
           (int)c->large, (int)c->small);
    EXPECT(comm, c->large_bytes == 2 * blocks * video.v.frames * per_frame * dit->config.dim * 4, "bytes");
    EXPECT(comm, c->small_bytes == blocks * video.v.frames * per_frame * 2 * 4, "bytes");
    if (p->wanted != NULL) {
        double error = velocity_error(dit, &video, p->wanted, 0, video.v.frames);
        EXPECT(comm, error <= BOUND, "relative RMS %.3g", error);
    }
    float *of_first = malloc((size_t)count * sizeof(float));
    memcpy(of_first, video.velocity, (size_t)count * sizeof(float));
    TRY(carry_broadcast(comm, of_first, (size_t)count * sizeof(float), 0));
    EXPECT(comm, memcmp(of_first, video.velocity, (size_t)count * sizeof(float)) == 0, "not the bits of rank 0");
    if (dit->rank == 0) {
        memcpy(p->first, video.velocity, (size_t)count * sizeof(float));
    }
    free(of_first);
    free(video.velocity);
    carry_dit_cache_free(cache);
    return CARRY_OK;
}

static carry_status check_fingerprints(carry_comm *comm, carry_dit *dit) {
    uint64_t own[2] = {carry_dit_fingerprint(dit), carry_dit_common_fingerprint(dit)};
    uint64_t all[RANKS][2];
    TRY(carry_all_gather(comm, all, own, sizeof own));
    for (int r = 0; r < dit->ranks; r++) {
        EXPECT(comm, all[r][1] == own[1], "common fingerprint of rank %d", r);
        EXPECT(comm, (all[r][0] == own[0]) == (r == dit->rank), "fingerprint of rank %d", r);
    }
    const carry_parameter *last = &dit->own.parameter[dit->block[1][CARRY_DIT_FFN_UP]];
    float *weight = dit->own.weights + last->offset + last->count - 1;
    const float kept = *weight;
    *weight += 1.0f;
    EXPECT(comm, carry_dit_fingerprint(dit) != own[0] && carry_dit_common_fingerprint(dit) == own[1], "of a shard");
    *weight = kept;
    dit->own.weights[0] += 1.0f;
    EXPECT(comm, carry_dit_common_fingerprint(dit) != own[1], "of what is common");
    dit->own.weights[0] -= 1.0f;
    return CARRY_OK;
}

static carry_status run_mesh(void *user, carry_comm *comm) {
    const problem *p = user;
    carry_dit *dit;
    TRY(carry_dit_new(carry_comm_ctx(comm), &dit, &p->config, comm, 0));
    TRY(p->folder != NULL ? carry_dit_load(dit, p->folder) : carry_dit_init(dit, 7));
    TRY(compare_shard(comm, p, dit));
    TRY(check_fingerprints(comm, dit));
    TRY(run_rank(comm, p, dit));
    carry_dit_free(dit);
    return CARRY_OK;
}

static void open_problem(problem *p, carry_ctx *ctx, carry_dit **dit) {
    static const int64_t lengths[] = {2, 1, 2, 2};
    *p = (problem){.config = small_config()};
    p->video = cut(ctx, &p->config, 4, 6, lengths, 4);
    p->video.v.window = 5;
    p->video.v.sink = 1;
    p->video.v.bias = -0.5;
    *dit = small_dit(ctx, &p->config);
    p->one = *dit;
    p->first = random_floats(ctx, 16 * 7 * 24, 4);
}

static void close_problem(problem *p, carry_dit *dit) {
    carry_dit_free(dit);
    close_video(&p->video);
    free(p->wanted);
    free(p->first);
}

static void test_meshes_agree_and_count_their_reductions(void **state) {
    (void)state;
    static const int meshes[] = {1, 2, 3, 4, 6};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    problem p;
    carry_dit *dit;
    char message[512];
    open_problem(&p, ctx, &dit);
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        if (run_ranks(meshes[i], &world, run_mesh, &p, message) != CARRY_OK) {
            fail_msg("a mesh of %d: %s", meshes[i], message);
        }
        if (p.wanted == NULL) {
            p.wanted = reference_new(16 * 7 * 24);
            for (int64_t k = 0; k < 16 * 7 * 24; k++) {
                p.wanted[k] = (double)p.first[k];
            }
        }
    }
    close_problem(&p, dit);
    carry_ctx_free(ctx);
}

static void test_shards_are_loaded_from_one_folder(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    problem p;
    carry_dit *dit;
    char message[512], folder[] = "/tmp/carry-dit-XXXXXX", file[600];
    open_problem(&p, ctx, &dit);
    assert_non_null(mkdtemp(folder));
    assert_ok(ctx, carry_dit_save(dit, folder, CARRY_F32));
    p.folder = folder;
    for (int ranks = 1; ranks <= 4; ranks++) {
        if (run_ranks(ranks, &world, run_mesh, &p, message) != CARRY_OK) {
            fail_msg("a mesh of %d: %s", ranks, message);
        }
    }
    (void)snprintf(file, sizeof file, "%s/config.json", folder);
    assert_int_equal(unlink(file), 0);
    (void)snprintf(file, sizeof file, "%s/model.safetensors", folder);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
    close_problem(&p, dit);
    carry_ctx_free(ctx);
}

static carry_status count_forty(void *user, carry_comm *comm) {
    (void)user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    carry_dit_config c;
    carry_dit *dit;
    carry_dit_cache *cache;
    float latents[16 * 4] = {0};
    TRY(carry_dit_config_named(ctx, &c, "14B"));
    c.dim = 20; /* 40 blocks, with small sizes */
    c.num_heads = 10;
    c.ffn_dim = 12;
    c.text_dim = c.text_len = 2;
    TRY(carry_dit_new(ctx, &dit, &c, comm, 0));
    TRY(carry_dit_init(dit, 1));
    TRY(carry_dit_cache_new(dit, &cache, &(carry_dit_cache_options){.height = 2, .width = 2, .chunk = 1, .window = 2}));
    TRY(carry_dit_cache_text(cache, (carry_tensor){.data = NULL}));
    const carry_dit_chunk chunk = {.latents = carry_view_4d(latents, CARRY_F32, 16, 1, 2, 2), .t = 0.0};
    TRY(carry_dit_forward(dit, cache, &chunk, 1, 0.0f));
    EXPECT(comm, dit->counts.large == 80 && dit->counts.small == 40, "%d and %d", (int)dit->counts.large,
           (int)dit->counts.small);
    EXPECT(comm, carry_dit_save(dit, "/nowhere", CARRY_F32) == CARRY_EUNSUPPORTED, "a shard was saved");
    carry_dit_cache_free(cache);
    carry_dit_free(dit);
    return CARRY_OK;
}

static void test_forty_blocks_reduce_120_times(void **state) {
    (void)state;
    char message[512];
    if (run_ranks(2, &world, count_forty, NULL, message) != CARRY_OK) {
        fail_msg("%s", message);
    }
}

static carry_status refused(void *user, carry_comm *comm) {
    carry_dit *dit;
    carry_ctx *ctx = carry_comm_ctx(comm);
    EXPECT(comm, carry_dit_new(ctx, &dit, user, comm, 0) == CARRY_ESIZE && dit == NULL, "made all the same");
    EXPECT(comm, strstr(carry_ctx_error(ctx), "1, 2, 4 would") != NULL, "%s", carry_ctx_error(ctx));
    return CARRY_OK;
}

static void test_meshes_that_do_not_divide_are_refused_with_those_that_would(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_dit_config c;
    char message[512];
    assert_ok(ctx, carry_dit_config_named(ctx, &c, "14B"));
    assert_ok(ctx, carry_dit_config_check(ctx, &c, 8));
    assert_refused(ctx, CARRY_ESIZE, "a mesh of 5 does not divide 40 heads and an FFN of 13824: 1, 2, 4, 8 would",
                   carry_dit_config_check(ctx, &c, 5));
    assert_refused(ctx, CARRY_ESIZE, "a mesh of 3", carry_dit_config_check(ctx, &c, 3));
    assert_refused(ctx, CARRY_ESIZE, "a mesh of 0", carry_dit_config_check(ctx, &c, 0));
    assert_ok(ctx, carry_dit_config_named(ctx, &c, "1.3B"));
    if (run_ranks(3, &world, refused, &c, message) != CARRY_OK) {
        fail_msg("%s", message);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    take_filter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meshes_agree_and_count_their_reductions),
        cmocka_unit_test(test_shards_are_loaded_from_one_folder),
        cmocka_unit_test(test_forty_blocks_reduce_120_times),
        cmocka_unit_test(test_meshes_that_do_not_divide_are_refused_with_those_that_would),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
