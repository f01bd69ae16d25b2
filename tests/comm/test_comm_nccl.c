/* The communicator of GPUs: collectives and messages against plain loops, refusals, deadlines. With one GPU there is
   one rank, which sends to itself; with more, each GPU has a rank, as a thread. Reported as skipped without a GPU or
   NCCL. */
/* labels: gpu */
#include "comm_buffers.h"

#include "core/clock.h"

enum { SKIPPED = 77 };

/* Rank r has GPU r, opened over the ranks of the CPU. */
static carry_status on_gpus(void *user, carry_comm *comm) {
    (void)user;
    const int device = 1 + carry_comm_rank(comm);
    carry_comm *gpus;
    TRY(carry_comm_open(carry_comm_ctx(comm), &gpus, "nccl",
                        &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60, .device = device,
                                              .over = comm, .agreement = "gpus"}));
    EXPECT(comm, carry_comm_rank(gpus) == carry_comm_rank(comm) && carry_comm_size(gpus) == carry_comm_size(comm),
           "place");
    const carry_status status = check_all(gpus, device);
    carry_comm_close(gpus);
    return status;
}

static void test_a_gpu_alone(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *gpu;
    assert_ok(ctx, carry_comm_open(ctx, &gpu, "nccl",
                                   &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60, .device = 1}));
    assert_ok(ctx, check_all(gpu, 1));
    carry_comm_close(gpu);
    carry_ctx_free(ctx);
}

static void test_every_gpu_has_a_rank(void **state) {
    (void)state;
    const int gpus = carry_device_count() - 1 < RANKS ? carry_device_count() - 1 : RANKS;
    char sentence[512];
    if (gpus == 1) {
        print_message("one rank only: more need more GPUs than the one that is here\n");
    }
    if (run_ranks(gpus, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60}, on_gpus, NULL,
                  sentence) != CARRY_OK) {
        fail_msg("%s", sentence);
    }
}

static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *self, *gpu, *part;
    int64_t here[2] = {0};
    void *there;
    assert_ok(ctx, carry_comm_open(ctx, &self, "self", NULL));
    assert_refused(
        ctx, CARRY_EARGUMENT, "device 0 is not a GPU",
        carry_comm_open(ctx, &gpu, "nccl", &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 5}));
    assert_refused(ctx, CARRY_EARGUMENT, "is not a GPU",
                   carry_comm_open(ctx, &gpu, "nccl",
                                   &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 5, .device = 99}));
    assert_refused(ctx, CARRY_EARGUMENT, "not opened over",
                   carry_comm_open(ctx, &gpu, "self",
                                   &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 5, .over = self}));
    assert_ok(ctx, carry_comm_open(ctx, &gpu, "nccl",
                                   &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 5, .device = 1,
                                                         .over = self}));
    assert_ok(ctx, carry_device_alloc(ctx, &there, 1, 64));
    assert_refused(ctx, CARRY_EDEVICE, "host memory", carry_send(gpu, here, 8, 0, 0));
    assert_refused(ctx, CARRY_EDEVICE, "host memory", carry_all_reduce(gpu, here, 1, CARRY_I64, CARRY_REDUCE_SUM));
    assert_refused(ctx, CARRY_EDEVICE, "host memory", carry_all_gather(gpu, there, here, 8));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "split", carry_comm_split(gpu, &part, 0, 0));
    assert_ok(ctx, carry_barrier(gpu)); /* the refusals broke nothing */
    const double start = carry_seconds();
    assert_int_not_equal(carry_recv(gpu, there, 8, 0, 0), CARRY_OK); /* no rank sends this message */
    assert_true(carry_seconds() - start < 60);
    print_message("a receive that nobody sends: %s\n", carry_ctx_error(ctx));
    assert_int_equal(carry_barrier(gpu), CARRY_EPEER);
    carry_comm_close(gpu);
    assert_ok(ctx, carry_comm_open(ctx, &gpu, "nccl",
                                   &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 20, .device = 1}));
    assert_ok(ctx, carry_barrier(gpu)); /* another one may be opened afterwards */
    carry_comm_abort(gpu, "enough");
    assert_refused(ctx, CARRY_EPEER, "enough", carry_barrier(gpu));
    carry_comm_close(gpu);
    carry_device_free(ctx, 1, there);
    carry_comm_close(self);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gpu_alone),
        cmocka_unit_test(test_every_gpu_has_a_rank),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *comm = NULL;
    const carry_status status = carry_comm_open(
        ctx, &comm, "nccl", &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60, .device = 1});
    char sentence[256];
    (void)snprintf(sentence, sizeof sentence, "%s", carry_ctx_error(ctx));
    carry_comm_close(comm);
    carry_ctx_free(ctx);
    if (status == CARRY_EUNSUPPORTED) { /* no CUDA, no GPU, no NCCL: one error message */
        print_message("skipped: %s\n", sentence);
        return strstr(sentence, "nccl") != NULL && strchr(sentence, '\n') == NULL ? SKIPPED : 1;
    }
    return cmocka_run_group_tests_name("comm/nccl", tests, NULL, NULL);
}
