/* Structs that begin with their size: callers compiled with an older or a newer version of the struct. */
#include "support.h"

#include "carry/carry.h"
#include "core/sized.h"

/* carry_ctx_options of the first version, without the fields of the log. */
typedef struct old_ctx_options {
    size_t size;
    int threads;
    const char *kernels;
} old_ctx_options;

/* carry_ctx_options as a later version may define it. */
typedef struct new_ctx_options {
    carry_ctx_options known;
    const char *unknown;
} new_ctx_options;

typedef struct old_properties {
    size_t size;
    char name[96];
    unsigned char behind[16]; /* not part of the struct: must not be written */
} old_properties;

static carry_status make(const void *options) {
    carry_ctx *ctx = NULL;
    carry_status status = carry_ctx_new(&ctx, options);
    if (status == CARRY_OK) {
        assert_int_equal(carry_ctx_threads(ctx), 3);
    }
    carry_ctx_free(ctx);
    return status;
}

static void an_older_struct_has_zeros_behind(void **state) {
    (void)state;
    struct {
        old_ctx_options options;
        unsigned char behind[sizeof(carry_ctx_options)];
    } old = {.options = {CARRY_INIT(old_ctx_options), .threads = 3}};
    memset(old.behind, 0xff, sizeof old.behind); /* a log sink read from here would be called */
    assert_int_equal(make(&old), CARRY_OK);
}

static void a_newer_struct_is_accepted_with_zeros_only(void **state) {
    (void)state;
    new_ctx_options options = {.known = {.size = sizeof options, .threads = 3}};
    assert_int_equal(make(&options), CARRY_OK);
    options.unknown = "something";
    carry_ctx *ctx = NULL;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "newer library", carry_ctx_new(&ctx, &options.known));
    assert_non_null(strstr(carry_ctx_error(ctx), "carry_ctx_options"));
    carry_ctx_free(ctx);
}

static void a_size_that_was_not_set_is_refused(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, (size_t)-1, 1u << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        carry_ctx *ctx = NULL;
        carry_ctx_options options = {.size = sizes[i], .threads = 3};
        assert_int_equal(carry_ctx_new(&ctx, &options), CARRY_EARGUMENT);
        assert_non_null(strstr(carry_ctx_error(ctx), "CARRY_INIT(carry_ctx_options)"));
        carry_ctx_free(ctx);
    }
}

/* Every public function that takes such a struct. */
static void every_function_reads_the_size(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm;
    carry_scan_plan *scan;
    carry_delta_plan *delta;
    carry_all_scan_plan *all_scan;
    carry_delta_ranks_plan *ranks;
    carry_llm *model;
    float factors[CARRY_ADAMW_FACTORS], x[1] = {1};
    carry_tensor one = carry_view_1d(x, CARRY_F32, 1), matrix = carry_view_3d(x, CARRY_F32, 1, 1, 1);
    const carry_scan_problem scan_problem = {.batch = 1, .steps = 1, .n = 1, .width = 1};
    const carry_delta_problem problem = {.batch = 1, .tokens = 1, .heads = 1, .value_heads = 1, .key = 1, .value = 1};
    const carry_all_scan_problem all_scan_problem = {.heads = 1, .key = 1, .value = 1};
    carry_device_properties properties = {0};
    carry_comm_counts counts = {0};
    assert_ok(ctx, carry_comm_open(ctx, &comm, "self", NULL));
#define REFUSED(type, call) assert_refused(ctx, CARRY_EARGUMENT, "CARRY_INIT(" #type ")", call)
    REFUSED(carry_comm_options, carry_comm_open(ctx, &(carry_comm *){NULL}, "self", &(carry_comm_options){0}));
    REFUSED(carry_comm_options, carry_comm_threads(&ctx, 1, &(carry_comm_options){0}, NULL, NULL));
    REFUSED(carry_scan_options, carry_scan_plan_new(ctx, &scan, &scan_problem, &(carry_scan_options){0}));
    REFUSED(carry_delta_options, carry_delta_plan_new(ctx, &delta, &problem, &(carry_delta_options){0}));
    REFUSED(carry_all_scan_options,
            carry_all_scan_plan_new(comm, &all_scan, &all_scan_problem, &(carry_all_scan_options){0}));
    REFUSED(carry_delta_ranks_options,
            carry_delta_ranks_plan_new(comm, &ranks, &problem, &(carry_delta_ranks_options){0}));
    REFUSED(carry_matmul_options, carry_matmul(ctx, matrix, matrix, matrix, &(carry_matmul_options){0}));
    REFUSED(carry_adamw, carry_adamw_factors(ctx, factors, &(carry_adamw){0}));
    REFUSED(carry_adamw, carry_adamw_step(ctx, one, one, one, (carry_tensor){0}, one, &(carry_adamw){0}));
    REFUSED(carry_llm_options, carry_llm_open(ctx, &model, "nowhere", &(carry_llm_options){0}));
    REFUSED(carry_device_properties, carry_device_properties_of(ctx, &properties, 0));
    REFUSED(carry_comm_counts, carry_comm_counted(comm, &counts));
#undef REFUSED
    carry_comm_close(comm);
    carry_ctx_free(ctx);
}

static void only_known_fields_are_written(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_device_properties whole = {CARRY_INIT(carry_device_properties)};
    old_properties old = {.size = offsetof(old_properties, behind)};
    struct {
        carry_device_properties known;
        int64_t unknown;
    } later = {.known = {.size = sizeof later}, .unknown = -1};
    memset(old.behind, 0x5a, sizeof old.behind);
    assert_ok(ctx, carry_device_properties_of(ctx, &whole, 0));
    assert_ok(ctx, carry_device_properties_of(ctx, (carry_device_properties *)(void *)&old, 0));
    assert_string_equal(old.name, whole.name);
    for (size_t i = 0; i < sizeof old.behind; i++) {
        assert_int_equal(old.behind[i], 0x5a);
    }
    assert_ok(ctx, carry_device_properties_of(ctx, &later.known, 0));
    assert_int_equal(later.known.units, whole.units);
    assert_int_equal(later.unknown, 0);
    assert_int_equal(later.known.size, sizeof later); /* the caller's */
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_older_struct_has_zeros_behind),
        cmocka_unit_test(a_newer_struct_is_accepted_with_zeros_only),
        cmocka_unit_test(a_size_that_was_not_set_is_refused),
        cmocka_unit_test(every_function_reads_the_size),
        cmocka_unit_test(only_known_fields_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
